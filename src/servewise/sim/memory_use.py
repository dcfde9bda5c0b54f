"""How much of the KV cache was set aside, and how much of that held tokens, from what a simulation saw.

A request is looked at from its first token to its last. In between its tokens come evenly: of ``O`` tokens of output
after a prompt of ``P``, ``P + j`` are in the cache (the one being computed included) in the ``j``-th of ``O - 1``
equal intervals. What is set aside for it then is the engine's rule (:func:`held`). The integrals are sums in closed
form; nothing is sampled.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servewise.errors import InputError
from servewise.sim.outcome import Outcome
from servewise.types import (
    BaselineParams,
    Deployment,
    MemoryReport,
    MemoryUse,
    SglangParams,
    TrtllmParams,
    VllmParams,
    Workload,
)

__all__ = ["Held", "held", "integrals", "memory_use", "peaks"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SAME_STEP = 1e-9
"""Relative difference of two times below which they are the same step's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What requests hold. Arrays have shape (num_requests,).

    Parameters
    ----------
    input_tokens, output_tokens : int64 [tokens]
    first_s, last_s : float64 [s]
        Their first and last token.
    until_s : float64 [s]
        When their memory is given back, ``last_s`` or later.
    fixed_tokens : int64 [tokens]
        What is set aside from the first token on; 0 where it grows with the request.
    block_size_tokens : int
        Unit by which it grows.
    """

    input_tokens: Ints
    output_tokens: Ints
    first_s: Floats
    last_s: Floats
    until_s: Floats
    fixed_tokens: Ints
    block_size_tokens: int


def memory_use(workload: Workload, outcome: Outcome, deployment: Deployment, memory: MemoryReport) -> MemoryUse:
    """Integrals and peaks of what was set aside and used in a finished simulation, and what the prefix cache saved.

    Raises
    ------
    InputError
        When the engine's rule is not known.
    """
    requests = held(outcome, deployment)
    reserved, used = integrals(requests)
    peak_reserved, peak_unused = peaks(requests)
    saved = _saved_tokens(workload, outcome, deployment)
    start_s = float(outcome.packed.requests.arrival.min(initial=np.inf))
    return MemoryUse(
        capacity_tokens=memory.kv_capacity_tokens * deployment.num_replicas,
        span_s=float(requests.last_s.max(initial=start_s)) - start_s,
        reserved_token_s=reserved,
        used_token_s=used,
        peak_reserved_tokens=peak_reserved,
        peak_unused_tokens=peak_unused,
        prefix_tokens_saved=saved,
        prefix_bytes_saved=None
        if saved is None
        else saved * memory.kv_bytes_per_token * deployment.parallelism.num_gpus,
    )


def _saved_tokens(workload: Workload, outcome: Outcome, deployment: Deployment) -> int | None:
    """Prompt tokens that came from the prefix cache at first admissions; None when unknown, 0 without a cache."""
    match deployment.params:
        case BaselineParams() | VllmParams(enable_prefix_caching=False):
            return 0
    cached = outcome.outputs.cached
    if workload.prefix is None or int(cached.min(initial=0)) < 0:
        return None
    return int(cached.sum())


def held(outcome: Outcome, deployment: Deployment) -> Held:
    """What an engine sets aside for each request.

    - ``static``: a slot of the longest request, until the whole batch has ended;
    - ``orca``: such a slot, until the request has ended;
    - TensorRT-LLM: whole blocks for the prompt and the declared ``max_tokens``;
    - vLLM, Sarathi: whole blocks for the tokens that there are; SGLang: whole pages (one token by default).
    """
    if deployment.speculation is not None:
        raise InputError("what is set aside for a request with speculative decoding is not described")
    params, packed = deployment.params, outcome.packed
    done = np.flatnonzero(np.isfinite(outcome.outputs.last))
    inputs = packed.requests.input_tokens[done].astype(np.int64)
    first_s, last_s = (
        times[done] - packed.requests.extra[done] for times in (outcome.outputs.first, outcome.outputs.last)
    )
    until_s, fixed = last_s, np.zeros_like(inputs)
    size = deployment.kv_block_tokens
    match params:
        case BaselineParams(chunk_size=0):
            fixed = np.full_like(inputs, params.blocks_of_slot * size)
            if deployment.engine == "static":
                until_s = _batch_end_s(first_s, last_s, outcome.replica_of[done])
        case TrtllmParams():
            fixed = -(-(inputs + packed.max_tokens[done]) // size) * size
        case VllmParams() | SglangParams() | BaselineParams():
            pass
        case _:
            raise InputError(f"what {deployment.engine!r} sets aside for a request is not described")
    return Held(
        input_tokens=inputs,
        output_tokens=packed.requests.output_tokens[done].astype(np.int64),
        first_s=first_s,
        last_s=last_s,
        until_s=until_s,
        fixed_tokens=fixed,
        block_size_tokens=size,
    )


def _batch_end_s(first_s: Floats, last_s: Floats, replica: NDArray[np.int32]) -> Floats:
    """When the batch of each request ends: a replica's requests with the same first token are one batch."""
    order = np.lexsort((first_s, replica))
    times, where = first_s[order], replica[order]
    starts = np.ones(len(order), bool)
    starts[1:] = (where[1:] != where[:-1]) | (np.diff(times) > SAME_STEP * (1.0 + np.abs(times[1:])))
    batch = np.cumsum(starts) - 1
    ends = np.maximum.reduceat(last_s[order], np.flatnonzero(starts)) if len(order) else last_s
    until_s = np.empty_like(last_s)
    until_s[order] = ends[batch]
    return until_s


def integrals(requests: Held) -> tuple[float, float]:
    """Tokens set aside and tokens used, integrated over time [token s]."""
    decode_s = requests.last_s - requests.first_s
    used = decode_s * (requests.input_tokens + 0.5 * requests.output_tokens)
    size, known = requests.block_size_tokens, requests.input_tokens
    longest = known + requests.output_tokens - 1
    blocks = _blocks_up_to(longest, size) - _blocks_up_to(known, size)
    grown = decode_s * size * blocks / np.maximum(requests.output_tokens - 1, 1)
    fixed = requests.fixed_tokens * (requests.until_s - requests.first_s)
    reserved = np.where(requests.fixed_tokens > 0, fixed, grown)
    return float(reserved.sum()), float(used.sum())


def _blocks_up_to(tokens: Ints, size: int) -> Ints:
    """Sum of ceil(x / size) over x from 1 to ``tokens``."""
    whole, rest = np.divmod(tokens, size)
    return np.asarray(size * whole * (whole + 1) // 2 + rest * (whole + 1))


def peaks(requests: Held) -> tuple[float, float]:
    """Most tokens set aside at once, and most that were set aside and empty [tokens].

    Used tokens are taken to grow linearly (off by less than a token a request), so between two events what is empty
    only shrinks: the largest value is that just after an event.
    """
    first, last = requests.first_s, requests.last_s
    several = requests.output_tokens > 1
    # from P + 1 tokens in the first interval to P + O - 1 in the last: the mean is that of `integrals`
    slope = np.zeros_like(first)
    slope[several] = (requests.output_tokens[several] - 2) / (last - first)[several]
    at_zero = np.where(several, requests.input_tokens + 1.0 - slope * first, 0.0)
    by_token = requests.block_size_tokens == 1 and not requests.fixed_tokens.any()
    when, more = (np.zeros(0), np.zeros(0)) if by_token else _growth(requests)
    times = np.concatenate([first, last, when])
    order = np.argsort(times, kind="stable")
    times = times[order]

    def running_sum(at_first: Floats, at_last: Floats, later: Floats) -> Floats:
        return np.cumsum(np.concatenate([at_first, at_last, later])[order])

    none, unchanged = np.zeros_like(first), np.zeros_like(when)
    base, rate = running_sum(at_zero, -at_zero, unchanged), running_sum(slope, -slope, unchanged)
    moves = times[1:] != times[:-1]
    if by_token:  # as much as is used, and most just before somebody leaves
        before = (base[:-1] + times[1:] * rate[:-1])[moves]
        return float(before.max(initial=0.0)), 0.0
    after = np.append(moves, np.ones(min(len(times), 1), bool))
    set_aside = running_sum(none, none, more)[after]
    empty = set_aside - base[after] - times[after] * rate[after]
    return float(set_aside.max(initial=0.0)), float(empty.max(initial=0.0))


def _growth(requests: Held) -> tuple[Floats, Floats]:
    """When what is set aside changes, and by how much [tokens]."""
    fixed = requests.fixed_tokens > 0
    tokens = requests.fixed_tokens[fixed].astype(np.float64)
    grows = ~fixed & (requests.output_tokens > 1)
    size = requests.block_size_tokens
    inputs, outputs = requests.input_tokens[grows], requests.output_tokens[grows]
    first, last = requests.first_s[grows], requests.last_s[grows]
    begin, end = -(-(inputs + 1) // size), -(-(inputs + outputs - 1) // size)
    num = end - begin
    row = np.repeat(np.arange(len(num)), num)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(num) - num, num)
    # the block after `begin + nth` is needed for its first token, P + j of them being there in interval j
    interval = (begin[row] + nth) * size + 1 - inputs[row]
    step_s = (last - first) / np.maximum(outputs - 1, 1)
    times = [requests.first_s[fixed], requests.until_s[fixed], first, first[row] + (interval - 1) * step_s[row], last]
    changes = [tokens, -tokens, begin * float(size), np.full(len(row), float(size)), -end * float(size)]
    return np.concatenate(times), np.concatenate(changes)
