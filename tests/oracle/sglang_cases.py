"""Workloads for SGLang: small pools, few seats, ties, prompts at the edge of a batch, prefixes, many retractions."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal, get_args

from hypothesis import strategies as st

from oracle.plain_engine import Request
from oracle.sglang_plain import Params
from oracle.strategies import _BlockTree, arrivals, case_table
from servewise.types import StepTable

Profile = Literal["any", "scarce", "prefix", "mixed"]
"""``scarce``: little more memory than one request needs, and little set aside; ``prefix``: a tree of shared blocks;
``mixed``: decode rows beside prompts."""

PROFILES: tuple[Profile, ...] = get_args(Profile)


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangCase:
    """Requests in order of arrival and the engine they meet; the workload's blocks are ``span`` pages."""

    requests: tuple[Request, ...]
    params: Params
    times: StepTable
    span: int = 1


def small(
    *,
    pages: int = 400,
    page: int = 1,
    rows: int = 4,
    chunk: int = 8,
    conservativeness: float = 1.0,
    policy: Literal["fcfs", "lpm"] = "fcfs",
    mixed: bool = False,
    tree: bool = True,
    ignore_eos: bool = False,
) -> Params:
    """An engine small enough to be followed by hand."""
    return Params(
        max_running_requests=rows,
        chunked_prefill_size=chunk,
        num_pages=pages,
        page_size=page,
        schedule_policy=policy,
        schedule_conservativeness=conservativeness,
        enable_mixed_chunk=mixed,
        disable_radix_cache=not tree,
        ignore_eos=ignore_eos,
    )


def _make_params(rng: random.Random, profile: Profile) -> Params:
    scarce = profile == "scarce" or (profile == "mixed" and rng.random() < 0.5)
    page = rng.choice([1, 2, 4, 16, 16] if scarce else [1, 1, 2, 4])
    rows = rng.randint(4, 12) if scarce else rng.randint(1, 10)
    least = max(rows + 1, 12) if profile == "mixed" else 1
    chunk = page * rng.randint(-(-least // page), max(-(-least // page), 24 // page))
    tokens = rng.choice([60, 150, 5000])
    if scarce:
        tokens = rng.randint(50, 140) if page < 16 else rng.randint(200, 600)
    elif profile == "prefix":
        tokens = rng.randint(40, 200)
    tree = rng.random() < (1.0 if profile == "prefix" else 0.7)
    return Params(
        max_running_requests=rows,
        chunked_prefill_size=chunk,
        max_prefill_tokens=rng.choice([16384, 16384, max(least, rng.randint(1, 30))]),
        num_pages=max(tokens // page, 6),
        page_size=page,
        schedule_policy=rng.choice(["fcfs", "lpm"]),
        schedule_conservativeness=rng.choice([0.0, 0.0, 0.1, 0.5] if scarce else [0.1, 0.3, 1.0, 2.0]),
        enable_mixed_chunk=profile == "mixed",
        disable_radix_cache=not tree,
        ignore_eos=tree and rng.random() < 0.2,
    )


def _request(
    rng: random.Random, profile: Profile, params: Params, tree: _BlockTree, span: int, number: int, arrival_s: float
) -> Request:
    page = params.page_size
    scale = 10 if page == 16 else 1
    capacity = min(params.num_pages * page, 200 + 20 * scale) - 2 * page - 2
    longest = max(1, capacity // 5 if profile == "scarce" else capacity // 2)
    block = page * span
    shares = not params.disable_radix_cache and rng.random() < (0.9 if profile == "prefix" else 0.4)
    drawn = rng.random()
    if drawn < 0.25:  # at the edge of one, two or three batches
        input_tokens = params.chunked_prefill_size * rng.randint(1, 3) + rng.choice([-1, 0, 1])
    elif drawn < (0.8 if profile == "scarce" else 0.4):
        input_tokens = scale * rng.randint(1, 6)
    else:
        input_tokens = rng.randint(1, longest)
    input_tokens = max(1, min(input_tokens, longest))
    path: tuple[int, ...] = ()
    if shares:
        path = tree.shared(longest // block)
        if path and rng.random() < 0.8:
            tail = rng.choice([0, rng.randint(0, block), rng.randint(0, 2 * block)])
            input_tokens = max(1, min(len(path) * block + tail, longest))
        path = path[: input_tokens // block]
    room = params.num_pages * page - -(-input_tokens // page) * page - page - 1
    most = max(1, min(room, 200))
    if profile == "scarce":
        output_tokens = rng.randint(1, min(most, 40 + 6 * scale))
    else:
        output_tokens = rng.randint(1, most if rng.random() < 0.2 else min(most, 40))
    if rng.random() < 0.15:
        output_tokens = 1
    named = 0
    if shares:
        named = input_tokens + (output_tokens if rng.random() < 0.4 else 0)
    max_tokens = output_tokens
    if not params.ignore_eos and rng.random() < 0.6:
        max_tokens += rng.choice([1, 3, 5] if profile == "scarce" else [1, rng.randint(1, 60), 8000])
    ids = tree.grow(path, max(named // block, len(path))) if shares else ()
    return Request(
        id=number,
        arrival_s=arrival_s,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        max_tokens=max_tokens,
        block_ids=tuple(span * name + k for name in ids for k in range(span)),
    )


def make_sglang_case(rng: random.Random, profile: Profile, num_requests: int) -> SglangCase:
    """A case with exactly ``num_requests`` requests, each of which fits the empty engine."""
    params = _make_params(rng, profile)
    span = rng.choice([1, 1, 2, 4])
    tree = _BlockTree(rng, [])
    ties = rng.random() < 0.3
    times_s = arrivals(rng, num_requests, ties)
    requests = [_request(rng, profile, params, tree, span, number, at_s) for number, at_s in enumerate(times_s)]
    tokens = params.chunked_prefill_size + params.max_running_requests
    times = case_table(rng, ties, params.max_running_requests, tokens)
    return SglangCase(requests=tuple(requests), params=params, times=times, span=span)


def seeded_sglang_case(seed: int, profile: Profile, num_requests: int = 60) -> SglangCase:
    """The same case for the same arguments, on every machine."""
    return make_sglang_case(random.Random(f"sglang-{profile}-{seed}"), profile, num_requests)  # noqa: S311 (no secret)


@st.composite
def sglang_cases(draw: st.DrawFn, profiles: tuple[Profile, ...] = PROFILES, max_requests: int = 12) -> SglangCase:
    """Cases for Hypothesis; every random choice is one that it makes."""
    rng = draw(st.randoms(use_true_random=False))
    return make_sglang_case(rng, draw(st.sampled_from(profiles)), draw(st.integers(1, max_requests)))


def twins_case(rng: random.Random, num_requests: int) -> SglangCase:
    """Bursts of prompts that begin alike, under ``lpm``: some must wait for what others before them compute."""
    page, span = rng.choice([1, 4, 16, 64]), rng.choice([1, 2])
    block = page * span
    params = Params(
        max_running_requests=rng.randint(1, 6),
        chunked_prefill_size=64 * rng.randint(1, 3),
        num_pages=rng.choice([320, 2000]) // page,
        page_size=page,
        schedule_policy="lpm",
        schedule_conservativeness=rng.choice([0.0, 0.3, 1.0]),
    )
    tree = _BlockTree(rng, [])
    ties = rng.random() < 0.3
    requests = []
    for number, at_s in enumerate(arrivals(rng, num_requests, ties)):
        input_tokens = rng.choice([rng.randint(20, 140), 31, 32, 33, 64])
        path = tree.shared(input_tokens // block) if rng.random() < 0.8 else ()
        ids = tree.grow(path, max(input_tokens // block, len(path)))
        output_tokens = rng.randint(1, 50)
        requests.append(
            Request(
                id=number,
                arrival_s=at_s,
                input_tokens=input_tokens,
                output_tokens=output_tokens,
                max_tokens=output_tokens + rng.choice([0, 5]),
                block_ids=tuple(span * name + k for name in ids for k in range(span)),
            )
        )
    times = case_table(rng, ties, params.max_running_requests, params.chunked_prefill_size)
    return SglangCase(requests=tuple(requests), params=params, times=times, span=span)
