"""Workloads for the reserving engine: small pools and few seats, ties, prompts at the edge of a step's tokens."""

from __future__ import annotations

import random
from dataclasses import dataclass

from hypothesis import strategies as st

from oracle.reserving_plain import Params
from oracle.strategies import random_table, unit_table
from oracle.vllm_plain import Request
from servewise.types import StepTable


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservingCase:
    """Requests in order of arrival and the engine they meet; each fits the empty engine."""

    requests: tuple[Request, ...]
    params: Params
    times: StepTable


def tensorrt_llm(*, blocks: int, chunking: bool) -> Params:
    """An engine small enough to be followed by hand."""
    return Params(
        engine="tensorrt-llm",
        max_rows=4,
        max_num_tokens=8,
        num_kv_blocks=blocks,
        block_size_tokens=4,
        enable_chunked_prefill=chunking,
    )


def _make_params(rng: random.Random) -> Params:
    size = rng.choice([1, 2, 4])
    rows = rng.randint(1, 8)
    blocks = rng.choice([rng.randint(8, 30), rng.randint(8, 30), 1000])
    return Params(
        engine="tensorrt-llm",
        max_rows=rows,
        max_num_tokens=rng.randint(max(rows, size), 40),
        num_kv_blocks=blocks,
        block_size_tokens=size,
        enable_chunked_prefill=rng.random() < 0.5,
        batch_wait_timeout_iters=rng.choice([0, 0, 1, 5]),
        batch_wait_max_tokens_ratio=rng.choice([0.3, 0.9]),
    )


def _request(rng: random.Random, params: Params, number: int, arrival_s: float) -> Request:
    capacity = min((params.num_kv_blocks - 4) * params.block_size_tokens, 120)
    longest = capacity - capacity // 2
    if not params.enable_chunked_prefill:
        longest = min(longest, params.max_num_tokens)
    drawn = rng.random()
    if drawn < 0.3:  # at the edge of one, two or three steps' tokens
        input_tokens = params.max_num_tokens * rng.randint(1, 3) + rng.choice([-1, 0, 1])
    elif drawn < 0.5:  # small enough for what a prompt cut at a block leaves
        input_tokens = rng.randint(1, 3)
    else:
        input_tokens = rng.randint(1, longest)
    input_tokens = max(1, min(input_tokens, longest))
    max_tokens = rng.randint(1, capacity // 2)
    by_length = rng.random() < 0.5
    return Request(
        id=number,
        arrival_s=arrival_s,
        input_tokens=input_tokens,
        output_tokens=max_tokens if by_length else 1 if rng.random() < 0.2 else rng.randint(1, max_tokens),
        max_tokens=max_tokens,
    )


def make_reserving_case(rng: random.Random, num_requests: int) -> ReservingCase:
    """A case with exactly ``num_requests`` requests."""
    params = _make_params(rng)
    ties = rng.random() < 0.3
    gap_s = rng.choice([0.0, 0.01, 0.05, 0.3])
    arrival_s = 0.0
    requests = []
    for number in range(num_requests):
        if number and rng.random() < 0.7:
            arrival_s += rng.randint(0, 5) if ties else gap_s * rng.random()
        requests.append(_request(rng, params, number, arrival_s))
    times = random_table(rng.randrange(2**31), params.max_rows, params.max_num_tokens)
    if ties:  # steps of one second and arrivals on the second: what happens at one instant happens in order
        times = unit_table(params.max_rows, params.max_num_tokens)
    return ReservingCase(requests=tuple(requests), params=params, times=times)


def seeded_reserving_case(seed: int, num_requests: int = 60) -> ReservingCase:
    """The same case for the same arguments, on every machine."""
    return make_reserving_case(random.Random(f"reserving-{seed}"), num_requests)  # noqa: S311 (not a secret)


@st.composite
def reserving_cases(draw: st.DrawFn, max_requests: int = 12) -> ReservingCase:
    """Cases for Hypothesis; every random choice is one that it makes."""
    rng = draw(st.randoms(use_true_random=False))
    return make_reserving_case(rng, draw(st.integers(1, max_requests)))
