"""Workloads for the textbook baselines: few slots, scarce blocks, ties, prompts at the edge of a chunk."""

from __future__ import annotations

import random
from dataclasses import dataclass

from hypothesis import strategies as st

from oracle.baselines_plain import Params
from oracle.plain_engine import Request
from oracle.strategies import arrivals, case_table
from servewise.types import StepTable


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineCase:
    """Requests in order of arrival and the engine they meet; each fits the empty engine."""

    requests: tuple[Request, ...]
    params: Params
    times: StepTable


def table_size(params: Params) -> tuple[int, int]:
    """Rows and tokens that a step can have."""
    return params.max_batch_size, params.chunk_size or params.max_batch_size * params.max_seq_len


def _make_params(rng: random.Random) -> Params:
    size = rng.choice([1, 2, 4, 16])
    longest = rng.randint(3, 60)
    rows = rng.randint(1, 8)
    slot = -(-longest // size)
    engine = rng.choice(["static", "orca", "sarathi", "sarathi"])
    if engine == "sarathi":
        return Params(
            engine="sarathi",
            max_batch_size=rows,
            max_seq_len=longest,
            num_kv_blocks=rng.choice([slot, slot + rng.randint(0, 3), 2 * slot + rng.randint(0, 5), 1000]),
            block_size_tokens=size,
            chunk_size=rng.randint(rows, 40),
        )
    return Params(
        engine="static" if engine == "static" else "orca",
        max_batch_size=rows,
        max_seq_len=longest,
        num_kv_blocks=rng.choice([slot, slot * rng.randint(1, 9) + rng.randint(0, slot - 1), 1000]),
        block_size_tokens=size,
        max_wait_s=rng.choice([0.0, 0.0, 0.2, 3.0]) if engine == "static" else 0.0,
    )


def _request(rng: random.Random, params: Params, number: int, arrival_s: float) -> Request:
    longest = params.max_seq_len
    drawn = rng.random()
    if drawn < 0.3 and params.chunk_size:  # at the edge of one or two chunks
        input_tokens = params.chunk_size * rng.randint(1, 2) + rng.choice([-1, 0, 1])
    elif drawn < 0.5:
        input_tokens = rng.randint(1, 3)
    else:
        input_tokens = rng.randint(1, longest - 1)
    input_tokens = max(1, min(input_tokens, longest - 1))
    room = longest - input_tokens
    output_tokens = rng.choice([1, room, rng.randint(1, room), rng.randint(1, room)])
    return Request(
        id=number,
        arrival_s=arrival_s,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        max_tokens=rng.randint(output_tokens, room),
    )


def make_baseline_case(rng: random.Random, num_requests: int) -> BaselineCase:
    """A case with exactly ``num_requests`` requests."""
    params = _make_params(rng)
    ties = rng.random() < 0.3
    times_s = arrivals(rng, num_requests, ties)
    requests = [_request(rng, params, number, arrival_s) for number, arrival_s in enumerate(times_s)]
    times = case_table(rng, ties, *table_size(params))
    return BaselineCase(requests=tuple(requests), params=params, times=times)


def seeded_baseline_case(seed: int, num_requests: int = 60) -> BaselineCase:
    """The same case for the same arguments, on every machine."""
    return make_baseline_case(random.Random(f"baseline-{seed}"), num_requests)  # noqa: S311 (not a secret)


@st.composite
def baseline_cases(draw: st.DrawFn, max_requests: int = 12) -> BaselineCase:
    """Cases for Hypothesis; every random choice is one that it makes."""
    rng = draw(st.randoms(use_true_random=False))
    return make_baseline_case(rng, draw(st.integers(1, max_requests)))
