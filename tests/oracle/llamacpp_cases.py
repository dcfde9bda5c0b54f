"""Workloads for llama.cpp: few slots, small passes, shared prefixes, caches that fill up, models that unload."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from oracle.llamacpp_plain import Params
from oracle.plain_engine import Request
from oracle.strategies import _BlockTree, arrivals, case_table
from servewise.types import StepTable


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotCase:
    """Requests in order of arrival and the server they meet; every prompt is shorter than a slot's context."""

    requests: tuple[Request, ...]
    params: Params
    times: StepTable


def server(slots: int = 4, *, unified: bool = False, batch: int = 8, ubatch: int = 4, context: int = 1024) -> Params:
    """A server small enough to be followed by hand."""
    return Params(
        num_slots=slots,
        cells=context,
        context=context,
        n_batch=batch,
        n_ubatch=ubatch,
        is_unified=unified or slots == 1,
    )


def _make_params(rng: random.Random) -> Params:
    slots = rng.choice([1, 1, 2, 3, 4, 6])
    unified = slots == 1 or rng.random() < 0.5
    cells = 256 * rng.choice([1, 1, 2, 3])
    ubatch = rng.randint(max(slots, 2), 40)
    ollama = rng.random() < 0.35
    return Params(
        num_slots=slots,
        cells=cells,
        context=cells if rng.random() < 0.8 else rng.randint(24, cells),
        n_batch=ubatch if ollama else ubatch + rng.choice([0, rng.randint(0, 60)]),
        n_ubatch=ubatch,
        is_unified=unified,
        has_windows=rng.random() < 0.2,
        context_shift=rng.random() < 0.3,
        n_keep=5 if ollama else 1,
        is_ollama=ollama,
        keep_alive_s=rng.choice([0.05, 0.5, 300.0]) if ollama else np.inf,
        load_s=rng.choice([0.2, 2.0]) if ollama else 0.0,
        starts_loaded=not ollama or rng.random() < 0.7,
        block_size_tokens=rng.choice([1, 4, 16]),
        host_tokens=rng.choice([0, 0, rng.randint(1, 60), rng.randint(60, 3000), 50_000]),
        copy_s=rng.choice([1 / 64, 1 / 512]),
    )


def _request(rng: random.Random, params: Params, tree: _BlockTree, number: int, arrival_s: float) -> Request:
    size, context = params.block_size_tokens, params.context
    longest = context - 1
    drawn = rng.random()
    if drawn < 0.3:  # at the edge of passes and batches
        input_tokens = rng.choice([params.n_ubatch, params.n_batch]) * rng.randint(1, 3) + rng.choice([-1, 0, 1, 4, 5])
    elif drawn < 0.6:
        input_tokens = rng.randint(1, 30)
    else:
        input_tokens = rng.randint(1, longest)
    path: tuple[int, ...] = ()
    shares = rng.random() < 0.7
    if shares:
        path = tree.shared(longest // size)
        if path and rng.random() < 0.8:
            input_tokens = len(path) * size + rng.choice([0, 0, rng.randint(0, 3 * size)])
    input_tokens = max(1, min(input_tokens, longest))
    path = path[: input_tokens // size]
    room = 3 * context if params.context_shift else context - input_tokens
    output_tokens = 1 if rng.random() < 0.2 else rng.randint(1, max(1, min(room, rng.choice([12, 60, 400]))))
    named = input_tokens + (output_tokens if rng.random() < 0.5 else 0)
    return Request(
        id=number,
        arrival_s=arrival_s,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        max_tokens=output_tokens + rng.choice([0, 5]),
        block_ids=tree.grow(path, named // size) if shares else (),
    )


def make_slot_case(rng: random.Random, num_requests: int) -> SlotCase:
    """A case with exactly ``num_requests`` requests."""
    params = _make_params(rng)
    tree = _BlockTree(rng, [])
    ties = rng.random() < 0.3
    times_s = arrivals(rng, num_requests, ties, gaps_s=(0.0, 0.05, 0.5, 3.0), most_s=9)
    requests = [_request(rng, params, tree, number, arrival_s) for number, arrival_s in enumerate(times_s)]
    times = case_table(rng, ties, params.num_slots, params.n_ubatch)
    return SlotCase(requests=tuple(requests), params=params, times=times)


def seeded_slot_case(seed: int, num_requests: int = 60) -> SlotCase:
    """The same case for the same arguments, on every machine."""
    return make_slot_case(random.Random(f"slots-{seed}"), num_requests)  # noqa: S311 (not a secret)


@st.composite
def slot_cases(draw: st.DrawFn, max_requests: int = 12) -> SlotCase:
    """Cases for Hypothesis; every random choice is one that it makes."""
    rng = draw(st.randoms(use_true_random=False))
    return make_slot_case(rng, draw(st.integers(1, max_requests)))
