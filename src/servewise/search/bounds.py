"""What a replica shape cannot beat, proven from its step table without simulating.

All bounds rest on two facts: a step never gets shorter when rows, context or tokens are added to it, and every
token is scheduled once (prefix hits aside, which these bounds do not use: with known prefixes the prompt counts
as one token).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from servewise.errors import InputError
from servewise.sim import Packed
from servewise.types import Promise, StepTable

__all__ = ["Bounds", "StopRule", "bounds", "idle_ranks", "stop_rule"]

BURST_WINDOWS = (1, 4, 16, 64)
"""The span of arrivals is cut into so many windows to find its busiest parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Lower bounds of one shape on one workload.

    Parameters
    ----------
    num_replicas : int
        No smaller fleet keeps the promise.
    num_hopeless : int
        Requests that are rejected, or miss a joint limit even on an idle replica.
    latency_s : float
        E2E at the promised attainment that no fleet of the shape beats [s].
    """

    num_replicas: int
    num_hopeless: int
    latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRule:
    """When more than ``max_bad`` requests have missed ``limits``, the promise is broken, whatever follows.

    Parameters
    ----------
    limits : Promise
        Joint limits only.
    max_bad : int
    decides : bool
        Whether the rule is the whole promise, so that not breaking it means keeping the promise.
    """

    limits: Promise
    max_bad: int
    decides: bool


def stop_rule(promise: Promise, num_requests: int) -> StopRule | None:
    """The rule by which a run may be ended early; None when the promise limits no single request.

    A joint promise allows the share of bad requests that its attainment leaves. A percentile allows the requests
    above it to be late; several percentiles together allow the sum, for then one of them must be broken.
    """
    if any(limit is not None for limit in (promise.ttft_s, promise.tpot_s, promise.e2e_s)):
        allowed = int((1.0 - promise.attainment) * num_requests) + 1
        while (num_requests - allowed) / num_requests < promise.attainment:
            allowed -= 1
        return StopRule(
            limits=promise,
            max_bad=allowed,
            decides=not promise.percentiles and promise.deadline_s is None,
        )
    for limit in promise.percentiles:
        if not 0.0 < limit.percentile < 100.0:
            raise InputError(f"percentile {limit.percentile:g} of {limit.metric} is outside (0, 100)")
    ascending = sorted(promise.percentiles, key=lambda limit: limit.percentile)
    strictest = {limit.metric: limit for limit in ascending if limit.metric != "itl"}
    if not strictest:
        return None
    limit_s = {metric: limit.limit_s for metric, limit in strictest.items()}
    # numpy's percentile is at least the value that has so many above it
    late = [num_requests - 1 - int((num_requests - 1) * limit.percentile / 100.0) for limit in strictest.values()]
    return StopRule(
        limits=Promise(ttft_s=limit_s.get("ttft"), tpot_s=limit_s.get("tpot"), e2e_s=limit_s.get("e2e")),
        max_bad=sum(late),
        decides=False,
    )


def bounds(
    packed: Packed,
    table: StepTable,
    promise: Promise,
    rule: StopRule | None,
    *,
    knows_prefix: bool,
    num_ranks: int = 1,
    num_stages: int = 1,
    tokens_per_step: int = 1,
    decode_pool: tuple[StepTable, int, int] | None = None,
) -> Bounds:
    """Lower bounds of a shape.

    Parameters
    ----------
    packed : Packed
        The workload as the engine accepts it.
    table : StepTable
        Its rows and tokens are the most that an engine may be set to.
    promise : Promise
    rule : StopRule or None
        Of the promise and the whole workload.
    knows_prefix : bool
        Whether prompts may be served from a prefix cache.
    num_ranks : int
        Data parallel ranks of a replica, each of which takes at least the times of the table (see ``idle_ranks``).
    num_stages : int
        Pipeline stages. The table has a batch's whole pass, but as many batches are under way at once.
    tokens_per_step : int
        Most tokens that a step yields for a request: more than one with speculative decoding.
    decode_pool : (StepTable, int, int), optional
        Of a group of prefill and decode instances: the decode instances' step table, the number of prefill and of
        decode instances. ``table`` is then that of the prefill instances, and a replica a group.
    """
    if not len(packed.requests.arrival):
        return Bounds(num_replicas=1, num_hopeless=packed.num_rejected, latency_s=float("inf"))
    inputs = packed.requests.input_tokens.astype(np.float64)
    steps = np.ceil((packed.requests.output_tokens - 1) / tokens_per_step)  # beside the one that ends the prompt
    prompts = np.ones_like(inputs) if knows_prefix else inputs
    pairs = prompts * (prompts + 1) / 2
    token_s = float((table.mixed_tokens_s[1:] / np.arange(1, table.max_batched_tokens + 1)).min())
    prefill_s = prompts * (token_s + table.prefill_s_per_token) + pairs * table.prefill_s_per_pair
    prefill_s = prefill_s / num_stages
    first_s = np.maximum(prefill_s, table.mixed_tokens_s[1]) + table.prefill_fixed_s + packed.requests.extra
    # an idle replica's decode step with one row, at the shortest context
    decoding = table if decode_pool is None else decode_pool[0]
    row_alone_s = min(float(decoding.decode_fixed_s[1]), float(decoding.mixed_tokens_s[1]))
    alone_s = row_alone_s + _attention_alone_s(decoding, prompts)
    total_s = first_s + steps * alone_s
    bad = np.zeros(len(inputs), bool)
    limits = rule.limits if rule is not None else Promise()
    if limits.ttft_s is not None:
        bad |= first_s > limits.ttft_s
    if limits.tpot_s is not None:
        bad |= (steps > 0) & (alone_s > limits.tpot_s * tokens_per_step)
    if limits.e2e_s is not None:
        bad |= total_s > limits.e2e_s
    row_s = min(
        float((decoding.mixed_tokens_s[1:] / np.arange(1, decoding.max_batched_tokens + 1)).min()),
        float((decoding.decode_fixed_s[1:] / np.arange(1, decoding.max_rows + 1)).min()),
    )
    contexts = steps * (prompts + (steps + 1) / 2)
    decode_s = (steps * row_s + contexts * _attention_rate(decoding)) / num_stages
    of_prompts = _fewest_schedulers(packed, prefill_s, rule, limits.ttft_s)
    if decode_pool is None:
        of_all = _fewest_schedulers(packed, prefill_s + decode_s, rule, _patience(packed, limits))
        num_replicas = -(-max(of_prompts, of_all) // num_ranks)
    else:
        of_outputs = _fewest_schedulers(packed, decode_s, rule, _patience(packed, limits))
        num_replicas = max(-(-of_prompts // decode_pool[1]), -(-of_outputs // decode_pool[2]))
    return Bounds(
        num_replicas=num_replicas,
        num_hopeless=int(bad.sum()) + packed.num_rejected,
        latency_s=float(np.quantile(total_s, promise.attainment)),
    )


def _attention_alone_s(table: StepTable, context_tokens: NDArray[np.float64]) -> NDArray[np.float64]:
    """Decode attention of one row [s] at each context length."""
    piece = np.searchsorted(table.context_knots, context_tokens, side="right") - 1
    return np.asarray(table.attention_base_s[1, piece] + table.attention_slope_s[1, piece] * context_tokens)


def _attention_rate(table: StepTable) -> float:
    """Least attention time per token of context [s], over all batches and contexts."""
    rows = np.arange(1, table.max_rows + 1)[:, None]
    base, slope = table.attention_base_s[1:], table.attention_slope_s[1:]
    totals = rows * table.context_knots[None, 1:]
    # affine pieces: the least ratio is at a knot (approached from either side) or far out
    if base[:, 0].min() < 0:
        return 0.0
    ratios = [slope[:, -1].min()]
    if totals.size:
        ratios += [
            ((base[:, :-1] + slope[:, :-1] * totals) / totals).min(),
            ((base[:, 1:] + slope[:, 1:] * totals) / totals).min(),
        ]
    return max(0.0, float(min(ratios)))


def idle_ranks(table: StepTable, num_ranks: int) -> StepTable:
    """The least times of one of ``num_ranks`` ranks in lock step: those beside ranks without tokens.

    Where all ranks are padded to the fullest one there is nothing to gain.
    """
    if num_ranks == 1:
        return table

    def least(times: NDArray[np.float64], padded_tokens: int) -> NDArray[np.float64]:
        tokens = np.arange(len(times))
        beside = table.experts_s[num_ranks * tokens] - table.experts_s[tokens]
        return np.where(tokens > padded_tokens, times - beside, times)

    return replace(
        table,
        mixed_tokens_s=least(table.mixed_tokens_s, table.padded_mixed_tokens),
        decode_fixed_s=least(table.decode_fixed_s, table.padded_decode_tokens),
    )


def _fewest_schedulers(
    packed: Packed, work_s: NDArray[np.float64], rule: StopRule | None, patience_s: float | None
) -> int:
    """Schedulers without which too many requests are late: their work must be done before their limits end."""
    arrival_s = packed.requests.arrival
    if rule is None or patience_s is None or rule.max_bad < packed.num_rejected:
        return 1
    allowed = rule.max_bad - packed.num_rejected
    until_s = np.concatenate([[0.0], np.cumsum(work_s)])
    most = 1
    for num_windows in BURST_WINDOWS:
        edges = np.linspace(arrival_s[0], arrival_s[-1], num_windows + 1)
        starts = np.searchsorted(arrival_s, edges[:-1])
        ends = np.append(starts[1:], len(arrival_s))
        for start, end in zip(starts, ends, strict=True):
            kept = end - start - allowed
            if kept <= 0:
                continue
            available_s = float(arrival_s[end - 1] - arrival_s[start]) + patience_s
            if (until_s[end] - until_s[start]) * (1 + 1e-9) <= most * available_s:
                continue  # not even with all of them
            # the requests that may be late are the heaviest ones
            done_s = float(np.partition(work_s[start:end], kept - 1)[:kept].sum())
            most = max(most, int(np.ceil(done_s / available_s * (1 - 1e-9))))
    return most


def _patience(packed: Packed, limits: Promise) -> float | None:
    """Longest time that a good request may take [s]; None when nothing limits it."""
    times = []
    if limits.e2e_s is not None:
        times.append(limits.e2e_s)
    if limits.ttft_s is not None and limits.tpot_s is not None:
        times.append(limits.ttft_s + limits.tpot_s * float(packed.requests.output_tokens.max()))
    return min(times) if times else None
