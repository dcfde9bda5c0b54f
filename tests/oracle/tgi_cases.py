"""Workloads for TGI: small pools, prompts at the edge of a forward's tokens, ties, shared prefixes, crowds."""

from __future__ import annotations

import random
from dataclasses import dataclass

from hypothesis import strategies as st

from oracle.plain_engine import Request
from oracle.strategies import arrivals, case_table
from oracle.tgi_plain import Params
from servewise.types import StepTable


@dataclass(frozen=True, slots=True, kw_only=True)
class TgiCase:
    """Requests in order of arrival and the engine they meet; each fits the empty engine."""

    requests: tuple[Request, ...]
    params: Params
    times: StepTable


def small(
    *,
    blocks: int = 400,
    block: int = 1,
    rows: int = 4,
    prefill: int = 8,
    chunking: bool = True,
    caching: bool = False,
    ratio: float = 0.5,
    patience: int = 4,
) -> Params:
    """An engine small enough to be followed by hand."""
    return Params(
        max_concurrent_requests=rows,
        max_batch_prefill_tokens=prefill,
        num_kv_blocks=blocks,
        block_size_tokens=block,
        prefill_chunking=chunking,
        prefix_caching=caching,
        waiting_served_ratio=ratio,
        max_waiting_tokens=patience,
    )


def _make_params(rng: random.Random) -> Params:
    chunking = rng.random() < 0.7
    return Params(
        max_concurrent_requests=rng.choice([1, 3, 6, 12]),
        max_batch_prefill_tokens=rng.choice([rng.randint(1, 12), rng.randint(4, 40)]),
        num_kv_blocks=rng.choice([rng.randint(8, 30), rng.randint(8, 60), 1000]),
        block_size_tokens=rng.choice([1, 1, 2, 4]),
        prefill_chunking=chunking,
        prefix_caching=chunking and rng.random() < 0.6,
        waiting_served_ratio=rng.choice([0.0, 0.3125, 0.5, 1.0, 2.0]),
        max_waiting_tokens=rng.choice([0, 1, 3, 20]),
    )


class _Tree:
    """Named blocks as chained identities: equal ones have equal pasts."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.paths: list[tuple[int, ...]] = [()]
        self.num_ids = 0

    def path(self, num_blocks: int) -> tuple[int, ...]:
        """A part of some earlier path, and new blocks after it."""
        old = self.rng.choice(self.paths)
        kept = old[: self.rng.choice([num_blocks, self.rng.randint(0, num_blocks)])]
        fresh = num_blocks - len(kept)
        path = kept + tuple(range(self.num_ids, self.num_ids + fresh))
        self.num_ids += fresh
        self.paths.append(path)
        return path


def _request(rng: random.Random, params: Params, tree: _Tree, number: int, arrival_s: float) -> Request:
    size = params.block_size_tokens
    capacity = min(params.num_kv_blocks * size + 1, 120)
    longest = capacity - capacity // 3
    if not params.prefill_chunking:
        longest = min(longest, params.max_batch_prefill_tokens)
    drawn = rng.random()
    if drawn < 0.3:  # at the edge of one, two or three forwards' tokens
        input_tokens = params.max_batch_prefill_tokens * rng.randint(1, 3) + rng.choice([-1, 0, 1])
    elif drawn < 0.6:
        input_tokens = rng.randint(1, 4)
    else:
        input_tokens = rng.randint(1, longest)
    input_tokens = max(1, min(input_tokens, longest))
    max_tokens = rng.randint(1, capacity - input_tokens)
    output_tokens = max_tokens if rng.random() < 0.5 else rng.randint(1, max_tokens)
    ids: tuple[int, ...] = ()
    if params.prefix_caching and rng.random() < 0.8:
        ids = tree.path(
            rng.choice([input_tokens, input_tokens, input_tokens + output_tokens, input_tokens // 2]) // size
        )
    return Request(
        id=number,
        arrival_s=arrival_s,
        input_tokens=input_tokens,
        output_tokens=1 if rng.random() < 0.15 else output_tokens,
        max_tokens=max_tokens,
        block_ids=ids,
    )


def make_tgi_case(rng: random.Random, num_requests: int) -> TgiCase:
    """A case with exactly ``num_requests`` requests."""
    params = _make_params(rng)
    tree = _Tree(rng)
    ties = rng.random() < 0.3
    times_s = arrivals(rng, num_requests, ties)
    requests = [_request(rng, params, tree, number, arrival_s) for number, arrival_s in enumerate(times_s)]
    tokens = max(params.max_batch_prefill_tokens, params.max_concurrent_requests) + params.block_size_tokens - 1
    times = case_table(rng, ties, params.max_concurrent_requests, tokens)
    return TgiCase(requests=tuple(requests), params=params, times=times)


def seeded_tgi_case(seed: int, num_requests: int = 60) -> TgiCase:
    """The same case for the same arguments, on every machine."""
    return make_tgi_case(random.Random(f"tgi-{seed}"), num_requests)  # noqa: S311 (not a secret)


@st.composite
def tgi_cases(draw: st.DrawFn, max_requests: int = 14) -> TgiCase:
    """Cases for Hypothesis; every random choice is one that it makes."""
    rng = draw(st.randoms(use_true_random=False))
    return make_tgi_case(rng, draw(st.integers(1, max_requests)))
