"""Workloads for groups of prefill and decode instances: small pools and few seats, ties, slow and fast links."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from hypothesis import strategies as st

from oracle.disaggregated_plain import SGLANG_PAGES_MORE, GroupParams, PoolParams
from oracle.plain_engine import Request
from oracle.strategies import arrivals, case_table
from servewise.types import StepTable

Engine = Literal["vllm", "sglang", "tensorrt-llm"]
ENGINES: tuple[Engine, ...] = ("vllm", "sglang", "tensorrt-llm")


@dataclass(frozen=True, slots=True, kw_only=True)
class DisaggregatedCase:
    """Requests in order of arrival and the group they meet; each fits the empty group."""

    requests: tuple[Request, ...]
    params: GroupParams
    prefill_times: StepTable
    decode_times: StepTable

    @property
    def context_tokens(self) -> int:
        """Most tokens of a request, prompt and answer together."""
        pools = (self.params.prefill, self.params.decode)
        return min(pool.num_kv_blocks * pool.block_size_tokens for pool in pools)


def group_params(
    engine: Engine,
    *,
    x: int = 1,
    y: int = 1,
    block: int = 2,
    budget: int = 8,
    seats: int = 4,
    p_blocks: int = 100,
    d_blocks: int = 100,
    latency_s: float = 0.25,
    s_per_block: float = 0.25,
    reserved: int = 4,
    lag: bool = True,
    chunking: bool = True,
    **more: object,
) -> GroupParams:
    """A group small enough to be followed by hand."""
    p_lag = engine != "tensorrt-llm" and lag
    cut = {"vllm": 1, "sglang": block, "tensorrt-llm": block if chunking else 0}[engine]
    pool = {"max_rows": seats, "max_step_tokens": budget, "block_size_tokens": block}
    return GroupParams(
        engine=engine,
        prefill=PoolParams(
            num_instances=x,
            num_kv_blocks=p_blocks,
            lag=p_lag,
            cut=cut,
            charge=block if engine == "sglang" else 1,
            **pool,  # type: ignore[arg-type]
        ),
        decode=PoolParams(
            num_instances=y,
            num_kv_blocks=d_blocks,
            lag=lag,
            **pool,  # type: ignore[arg-type]
        ),
        latency_s=latency_s,
        s_per_block=s_per_block,
        reserved_tokens=reserved,
        **more,  # type: ignore[arg-type]
    )


def _make_params(rng: random.Random, ties: bool) -> GroupParams:
    engine = rng.choice(ENGINES)
    block = rng.choice([1, 2, 4])
    seats = rng.randint(1, 8)
    budget = block * rng.randint(1, 14)
    if engine != "sglang":
        budget = max(budget + rng.randint(0, 3), seats, block)
    scarce = rng.choice(["p", "d", "both", "none"])
    return group_params(
        engine,
        x=rng.randint(1, 3),
        y=rng.randint(1, 3),
        block=block,
        budget=budget,
        seats=seats,
        p_blocks=rng.randint(8, 24) if scarce in ("p", "both") else 1000,
        d_blocks=max(rng.randint(10, 26), 12) if scarce in ("d", "both") else 1000,
        latency_s=rng.choice([0.0, 0.25, 1.0]) if ties else rng.choice([0.0, 1e-3, 0.05]),
        s_per_block=rng.choice([0.25, 1.0]) if ties else rng.choice([1e-6, 1e-3, 0.02]),
        reserved=rng.choice([4, 8]),
        lag=engine != "vllm" or rng.random() < 0.7,
        chunking=rng.random() < 0.5,
        router=rng.choice(["round_robin", "least_requests"]),
    )


def _request(rng: random.Random, params: GroupParams, number: int, arrival_s: float) -> Request:
    p, d = params.prefill, params.decode
    size = d.block_size_tokens
    capacity = d.num_kv_blocks * size
    if params.engine == "sglang":
        capacity -= params.reserved_tokens + size
    prompts = (p.num_kv_blocks - SGLANG_PAGES_MORE - 1) * size
    longest = min(prompts, capacity - 1, 100)
    if p.cut == 0:
        longest = min(longest, p.max_step_tokens)
    drawn = rng.random()
    if drawn < 0.3:  # at the edge of one, two or three steps' tokens
        input_tokens = p.max_step_tokens * rng.randint(1, 3) + rng.choice([-1, 0, 1])
    elif drawn < 0.5:
        input_tokens = rng.randint(1, 3)
    else:
        input_tokens = rng.randint(1, max(1, longest * 2 // 3))
    input_tokens = max(1, min(input_tokens, longest))
    # a context limit that vLLM asks for, of the smaller pool
    room = min(capacity, p.num_kv_blocks * size, 160) - input_tokens
    max_tokens = rng.randint(1, max(1, room)) if rng.random() < 0.5 else min(room, rng.randint(1, 12))
    by_length = rng.random() < 0.5
    output_tokens = max_tokens if by_length else 1 if rng.random() < 0.2 else rng.randint(1, max_tokens)
    return Request(
        id=number,
        arrival_s=arrival_s,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        max_tokens=max_tokens,
    )


def make_disaggregated_case(rng: random.Random, num_requests: int) -> DisaggregatedCase:
    """A case with exactly ``num_requests`` requests."""
    ties = rng.random() < 0.3
    params = _make_params(rng, ties)
    times_s = arrivals(rng, num_requests, ties)
    requests = [_request(rng, params, number, arrival_s) for number, arrival_s in enumerate(times_s)]
    sizes = (params.prefill.max_rows, max(params.prefill.max_step_tokens, params.decode.max_step_tokens))
    tables = [case_table(rng, ties, *sizes) for _ in range(2)]
    return DisaggregatedCase(requests=tuple(requests), params=params, prefill_times=tables[0], decode_times=tables[1])


def seeded_disaggregated_case(seed: int, num_requests: int = 60) -> DisaggregatedCase:
    """The same case for the same arguments, on every machine."""
    return make_disaggregated_case(random.Random(f"disaggregated-{seed}"), num_requests)  # noqa: S311 (not a secret)


@st.composite
def disaggregated_cases(draw: st.DrawFn, max_requests: int = 12) -> DisaggregatedCase:
    """Cases for Hypothesis; every random choice is one that it makes."""
    rng = draw(st.randoms(use_true_random=False))
    return make_disaggregated_case(rng, draw(st.integers(1, max_requests)))
