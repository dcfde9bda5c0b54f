"""Workloads for TensorRT-LLM, made of those for vLLM: small pools, few seats, shared prefixes, many chunks."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from oracle.plain_engine import Request
from oracle.strategies import PROFILES, Profile, make_case, random_table, unit_table
from oracle.trtllm_plain import Params
from servewise.types import StepTable


@dataclass(frozen=True, slots=True, kw_only=True)
class TrtllmCase:
    """Requests in order of arrival and the engine they meet; each fits the empty engine."""

    requests: tuple[Request, ...]
    params: Params
    times: StepTable


def trtllm(
    *,
    blocks: int = 100,
    evicts: bool = False,
    chunking: bool = False,
    reuse: bool = False,
    counts: bool = True,
    seats: int = 4,
) -> Params:
    """An engine small enough to be followed by hand: 8 tokens a step, blocks of 4."""
    return Params(
        policy="MAX_UTILIZATION" if evicts else "GUARANTEED_NO_EVICT",
        max_batch_size=seats,
        max_num_tokens=8,
        num_kv_blocks=blocks,
        block_size_tokens=4,
        enable_block_reuse=reuse,
        counts_reuse=counts,
        enable_chunked_prefill=chunking,
    )


def make_trtllm_case(rng: random.Random, profile: Profile, num_requests: int) -> TrtllmCase:
    """A case with exactly ``num_requests`` requests."""
    case = make_case(rng, profile, num_requests)
    size, capacity = case.params.block_size_tokens, case.params.num_kv_blocks * case.params.block_size_tokens
    chunking = rng.random() < 0.5
    tokens = max(case.params.max_num_batched_tokens, case.params.max_num_seqs, size)
    requests = [
        replace(r, max_tokens=min(r.max_tokens + rng.choice([0, 0, 5, 30]), capacity - r.input_tokens))
        if r.max_tokens > r.output_tokens
        else r
        for r in case.requests
    ]
    if not chunking:
        if rng.random() < 0.5:  # short ones: what a paused request has to compute again may be more than a step holds
            tokens, longest = max(case.params.max_num_seqs, size), max(capacity // 3, 1)
            requests = [
                r
                if r.input_tokens <= longest
                else replace(r, input_tokens=longest, block_ids=r.block_ids[: longest // size])
                for r in requests
            ]
        tokens = max(tokens, max(r.input_tokens for r in requests))
    params = Params(
        policy=rng.choice(["GUARANTEED_NO_EVICT", "MAX_UTILIZATION"]),
        max_batch_size=case.params.max_num_seqs,
        max_num_tokens=tokens,
        num_kv_blocks=case.params.num_kv_blocks,
        block_size_tokens=size,
        enable_block_reuse=case.params.enable_prefix_caching,
        counts_reuse=rng.random() < 0.5,
        enable_chunked_prefill=chunking,
        batch_wait_timeout_iters=rng.choice([0, 0, 0, 1, 5]),
        batch_wait_max_tokens_ratio=rng.choice([0.3, 0.9]),
    )
    times = random_table(rng.randrange(2**31), params.max_batch_size, params.max_num_tokens)
    if rng.random() < 0.2:  # steps of one second and arrivals on the second: what happens at one instant, in order
        times = unit_table(params.max_batch_size, params.max_num_tokens)
        seconds = sorted(rng.randint(0, num_requests) for _ in requests)
        requests = [replace(r, arrival_s=float(s)) for r, s in zip(requests, seconds, strict=True)]
    return TrtllmCase(requests=tuple(requests), params=params, times=times)


def seeded_trtllm_case(seed: int, profile: Profile, num_requests: int = 60) -> TrtllmCase:
    """The same case for the same arguments, on every machine."""
    rng = random.Random(f"trtllm-{profile}-{seed}")  # noqa: S311 (not a secret)
    return make_trtllm_case(rng, profile, num_requests)


@st.composite
def trtllm_cases(draw: st.DrawFn, profiles: tuple[Profile, ...] = PROFILES, max_requests: int = 12) -> TrtllmCase:
    """Cases for Hypothesis; every random choice is one that it makes."""
    rng = draw(st.randoms(use_true_random=False))
    return make_trtllm_case(rng, draw(st.sampled_from(profiles)), draw(st.integers(1, max_requests)))
