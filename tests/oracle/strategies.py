"""Workloads that reach the corners of a scheduler: small, seeded, and available to Hypothesis.

:func:`make_case` builds a case from a ``random.Random``; :func:`cases` lets Hypothesis drive the same
generator (so that failures shrink), :func:`seeded_case` makes larger ones from a number.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from hypothesis import strategies as st

from oracle.plain_engine import Request
from oracle.vllm_plain import Params
from servewise.types import StepTable

Profile = Literal["mixed", "preempting", "prefix", "chunks", "burst"]
"""``preempting``: pools of little more than one request; ``prefix``: a tree of shared blocks; ``chunks``:
prompts beyond the token budget, many by exactly one token; ``burst``: groups of arrivals at one instant and
few seats; ``mixed``: a bit of all."""

PROFILES: tuple[Profile, ...] = get_args(Profile)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Requests in order of arrival and the engine they meet."""

    requests: tuple[Request, ...]
    params: Params
    times: StepTable


def req(
    number: int,
    arrival_s: float,
    input_tokens: int,
    output_tokens: int,
    *,
    stop: bool = False,
    ids: tuple[int, ...] = (),
    priority: int = 0,
) -> Request:
    """A request that ends by length, or by a stop token long before its limit."""
    return Request(
        id=number,
        arrival_s=arrival_s,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        max_tokens=output_tokens + (100 if stop else 0),
        block_ids=ids,
        priority=priority,
    )


def params(
    *,
    blocks: int = 100,
    block: int = 2,
    budget: int = 8,
    seats: int = 4,
    caching: bool = False,
    lag: bool = True,
    reserve: bool = True,
    by_priority: bool = False,
    watermark: float = 0.0,
    threshold: int = 0,
) -> Params:
    """An engine small enough to be followed by hand."""
    return Params(
        max_num_seqs=seats,
        max_num_batched_tokens=budget,
        num_kv_blocks=blocks,
        block_size_tokens=block,
        enable_prefix_caching=caching,
        async_scheduling=lag,
        scheduler_reserve_full_isl=reserve,
        scheduling_policy="priority" if by_priority else "fcfs",
        watermark=watermark,
        long_prefill_token_threshold=threshold,
    )


def unit_table(max_rows: int = 64, max_tokens: int = 4096) -> StepTable:
    """Every step takes one second."""
    return StepTable(
        context_knots=np.array([0.0]),
        attention_base_s=np.zeros((max_rows + 1, 1)),
        attention_slope_s=np.zeros((max_rows + 1, 1)),
        decode_fixed_s=np.ones(max_rows + 1),
        mixed_tokens_s=np.ones(max_tokens + 1),
        sample_s=np.zeros(max_rows + 1),
        prefill_fixed_s=0.0,
        prefill_s_per_token=0.0,
        prefill_s_per_pair=0.0,
        request_fixed_s=0.0,
        request_s_per_input_token=0.0,
    )


def random_table(seed: int, max_rows: int, max_tokens: int) -> StepTable:
    """A table whose times are positive and grow with every argument; attention may jump up at knots."""
    rng = np.random.default_rng(seed)
    knots = np.concatenate(([0.0], np.cumsum(rng.integers(1, 30, size=rng.integers(0, 5))).astype(float)))
    slope = np.cumsum(rng.uniform(1e-7, 1e-5, size=(max_rows + 1, len(knots))), axis=0)
    base = np.zeros((max_rows + 1, len(knots)))
    base[:, 0] = np.cumsum(rng.uniform(0, 1e-5, size=max_rows + 1))
    rows = np.arange(max_rows + 1)
    jump_s = rng.choice([0.0, 2e-4])
    for k in range(1, len(knots)):
        # Continuous at S = n * knot, then up by at most a jump.
        base[:, k] = base[:, k - 1] + (slope[:, k - 1] - slope[:, k]) * rows * knots[k]
        base[:, k] += rng.uniform(0, 1) * jump_s
    base[0], slope[0] = 0.0, 0.0
    return StepTable(
        context_knots=knots,
        attention_base_s=base,
        attention_slope_s=slope,
        decode_fixed_s=1e-2 + np.cumsum(rng.uniform(0, 1e-4, size=max_rows + 1)),
        mixed_tokens_s=1e-2 + np.cumsum(rng.uniform(0, 2e-5, size=max_tokens + 1)),
        sample_s=np.cumsum(rng.uniform(0, 1e-4, size=max_rows + 1)),
        prefill_fixed_s=float(rng.uniform(0, 2e-3)),
        prefill_s_per_token=float(rng.uniform(0, 1e-4)),
        prefill_s_per_pair=float(rng.uniform(0, 1e-6)),
        request_fixed_s=float(rng.uniform(0, 1e-2)),
        request_s_per_input_token=float(rng.uniform(0, 1e-5)),
        mixed_row_attention_fixed_s=float(rng.choice([0.0, 1e-4])),
        mixed_row_attention_s_per_token=float(rng.choice([0.0, 1e-5])),
    )


def case_table(rng: random.Random, ties: bool, max_rows: int, max_tokens: int) -> StepTable:
    """A random table; if ``ties`` one of steps of a second: what happens at one instant happens in order."""
    times = random_table(rng.randrange(2**31), max_rows, max_tokens)
    return unit_table(max_rows, max_tokens) if ties else times


def arrivals(
    rng: random.Random,
    num_requests: int,
    ties: bool,
    *,
    gaps_s: tuple[float, ...] = (0.0, 0.01, 0.05, 0.3),
    most_s: int = 5,
) -> Iterator[float]:
    """Times of arrival [s], some of them equal; if ``ties`` all on the second."""
    gap_s = rng.choice(gaps_s)
    arrival_s = 0.0
    for number in range(num_requests):
        if number and rng.random() < 0.7:
            arrival_s += rng.randint(0, most_s) if ties else gap_s * rng.random()
        yield arrival_s


def for_ranks(table: StepTable, num_ranks: int, seed: int) -> StepTable:
    """The table with experts that see the tokens of all ranks, and a largest batch to which ranks are padded."""
    rng = np.random.default_rng(seed)
    most = num_ranks * table.max_batched_tokens
    return dataclasses.replace(
        table,
        experts_s=5e-3 * np.arange(most + 1) / most,
        padded_decode_tokens=int(rng.integers(0, 8)),
        padded_mixed_tokens=int(rng.integers(0, 20)),
    )


@dataclass(slots=True)
class _BlockTree:
    """Chained identities: a path from the root names a prefix, so equal identities have equal pasts."""

    rng: random.Random
    paths: list[tuple[int, ...]]
    num_ids: int = 0

    def grow(self, path: tuple[int, ...], num_blocks: int) -> tuple[int, ...]:
        """Extend a path by new blocks to ``num_blocks`` and remember it."""
        fresh = num_blocks - len(path)
        path = path + tuple(range(self.num_ids, self.num_ids + fresh))
        self.num_ids += fresh
        self.paths.append(path)
        return path

    def shared(self, max_blocks: int) -> tuple[int, ...]:
        """Some of the blocks of an earlier request, often all of them."""
        if not self.paths or self.rng.random() < 0.2:
            return ()
        path = self.paths[self.rng.randrange(len(self.paths))]
        keep = len(path) if self.rng.random() < 0.5 else self.rng.randint(0, len(path))
        return path[: min(keep, max_blocks)]


def _make_params(rng: random.Random, profile: Profile) -> Params:
    block_size_tokens = rng.choice([1, 2, 4, 16] if profile == "mixed" else [2, 4])
    blocks = {"preempting": (4, 14), "prefix": (6, 40), "chunks": (12, 60)}.get(profile, (4, 60))
    budget = {"chunks": (2, 12), "preempting": (3, 40)}.get(profile, (2, 64))
    caching = {"prefix": 1.0, "preempting": 0.5, "chunks": 0.3}.get(profile, 0.5)
    return Params(
        max_num_seqs=rng.randint(1, 3) if profile == "burst" else rng.randint(1, 8),
        max_num_batched_tokens=rng.randint(*budget),
        num_kv_blocks=rng.randint(*blocks),
        block_size_tokens=block_size_tokens,
        enable_prefix_caching=rng.random() < caching,
        async_scheduling=rng.random() < 0.7,
        scheduler_reserve_full_isl=rng.random() < 0.7,
    )


def _input_tokens(rng: random.Random, profile: Profile, params: Params, capacity: int) -> int:
    budget = params.max_num_batched_tokens
    if profile == "chunks" or rng.random() < 0.2:
        # Several chunks; a last chunk of one token when nothing else runs.
        tokens = budget * rng.randint(1, 4) + rng.choice([0, 1, 1, rng.randint(0, budget)])
    elif profile == "preempting":
        tokens = rng.randint(1, max(1, capacity // 3))
    else:
        tokens = rng.randint(1, max(1, capacity // 2))
    return max(1, min(tokens, capacity - 1))


def _request(
    rng: random.Random, profile: Profile, params: Params, tree: _BlockTree, number: int, arrival_s: float
) -> Request:
    size = params.block_size_tokens
    capacity = params.num_kv_blocks * size
    shares = params.enable_prefix_caching and rng.random() < (0.95 if profile == "prefix" else 0.6)
    input_tokens = _input_tokens(rng, profile, params, capacity)
    path: tuple[int, ...] = ()
    if shares:
        path = tree.shared((capacity - 1) // size)
        tail = rng.choice([0, rng.randint(0, size - 1), rng.randint(0, 2 * size)])
        if path and rng.random() < 0.8:
            input_tokens = max(1, min(len(path) * size + tail, capacity - 1))
        path = path[: input_tokens // size]
    longest = capacity - input_tokens
    if rng.random() < 0.2:
        output_tokens = 1
    elif profile == "preempting":
        output_tokens = rng.randint(1, max(1, longest))
    else:
        output_tokens = min(longest, rng.randint(1, 12))
    named_tokens = 0
    if shares:
        whole = rng.random()
        # The prompt; the prompt and the output (a conversation); or less than the prompt's full blocks.
        named_tokens = input_tokens + (output_tokens if whole < 0.4 else 0)
        if whole > 0.9:
            named_tokens = max(len(path) * size, input_tokens // 2)
    return Request(
        id=number,
        arrival_s=arrival_s,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        max_tokens=output_tokens if rng.random() < 0.5 else output_tokens + rng.randint(1, 9),
        block_ids=tree.grow(path, named_tokens // size) if shares else (),
    )


def make_case(rng: random.Random, profile: Profile, num_requests: int) -> Case:
    """A case with exactly ``num_requests`` requests, each of which fits the pool alone."""
    params = _make_params(rng, profile)
    tree = _BlockTree(rng, [])
    gap_s = rng.choice([0.0, 0.005, 0.03, 0.2])
    together = 0.7 if profile == "burst" else 0.2
    arrival_s = 0.0
    requests = []
    for number in range(num_requests):
        if number and rng.random() >= together:
            arrival_s += gap_s * rng.random()
        requests.append(_request(rng, profile, params, tree, number, arrival_s))
    times = random_table(rng.randrange(2**31), params.max_num_seqs, params.max_num_batched_tokens)
    return Case(requests=tuple(requests), params=params, times=times)


def seeded_case(seed: int, profile: Profile, num_requests: int = 60) -> Case:
    """The same case for the same arguments, on every machine."""
    return make_case(random.Random(f"{profile}-{seed}"), profile, num_requests)  # noqa: S311 (not a secret)


def with_options(case: Case, rng: random.Random) -> Case:
    """The case with at least one of the settings that are off by default, and requests of few priorities."""
    budget = case.params.max_num_batched_tokens
    options: dict[str, object] = {}
    while not options:
        if rng.random() < 0.6:
            options["scheduling_policy"] = "priority"
        if rng.random() < 0.3:
            options["watermark"] = rng.choice([0.01, 0.1, 0.5]) * rng.random()
        if rng.random() < 0.6:
            options["long_prefill_token_threshold"] = rng.randint(1, max(1, budget // rng.choice([1, 2, 4])))
    requests = tuple(dataclasses.replace(r, priority=rng.choice([0, 0, 1, -1, 5])) for r in case.requests)
    return dataclasses.replace(case, requests=requests, params=dataclasses.replace(case.params, **options))


def option_case(seed: int, profile: Profile, num_requests: int = 60) -> Case:
    """:func:`seeded_case` with settings that are off by default."""
    rng = random.Random(f"options-{profile}-{seed}")  # noqa: S311 (not a secret)
    return with_options(seeded_case(seed, profile, num_requests), rng)


@st.composite
def option_cases(draw: st.DrawFn, profiles: tuple[Profile, ...] = PROFILES, max_requests: int = 12) -> Case:
    """Cases with settings that are off by default, for Hypothesis."""
    case = draw(cases(profiles, max_requests))
    return with_options(case, draw(st.randoms(use_true_random=False)))


@st.composite
def cases(draw: st.DrawFn, profiles: tuple[Profile, ...] = PROFILES, max_requests: int = 12) -> Case:
    """Cases for Hypothesis; every random choice is one that it makes."""
    rng = draw(st.randoms(use_true_random=False))
    return make_case(rng, draw(st.sampled_from(profiles)), draw(st.integers(1, max_requests)))
