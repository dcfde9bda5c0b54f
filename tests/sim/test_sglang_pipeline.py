"""SGLang's pipeline stages: the kernel against the plain pipeline, and what must hold of any pipeline."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oracle.plain_engine import Request
from oracle.sglang_cases import PROFILES, Profile, SglangCase, seeded_sglang_case, sglang_cases, small, twins_case
from oracle.sglang_plain import Params
from oracle.strategies import req, unit_table
from servewise import perf
from servewise.catalog import get_model
from servewise.engines import sglang
from servewise.errors import InputError
from servewise.kernel import layout
from servewise.sim import simulate
from servewise.sim.drivers.sglang_pipeline import layers_of_stages
from servewise.types import Parallelism, Router
from sim import properties
from sim.agree import GPU
from sim.sglang_agree import memory_of, model_of, workload_of
from sim.sglang_pipeline_agree import pipeline, staged

some = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])

ROUTERS: tuple[Router, ...] = ("round_robin", "least_requests")
NUM_STAGES = st.integers(2, 4)


@pytest.mark.parametrize("num_stages", [2, 3, 4])
@pytest.mark.parametrize("profile", PROFILES)
def test_one_replica(profile: Profile, num_stages: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(30):
        kernel = pipeline(num_stages).assert_open_agrees(seeded_sglang_case(seed, profile))
        seen["retracted"] += kernel.num_preemptions
        seen["hits"] += int((kernel.outputs.cached > 0).sum())
        seen["cut"] += kernel.budget_bound
        seen["full"] += kernel.slots_bound
        seen["scarce"] += kernel.memory_bound
    least = {"hits": 50, "cut": 10, "full": 5} | ({"retracted": 20, "scarce": 15} if profile == "scarce" else {})
    assert {name: seen[name] for name in least if seen[name] < least[name]} == {}


@some
@given(case=sglang_cases(), num_stages=NUM_STAGES)
def test_one_replica_on_any_case(case: SglangCase, num_stages: int) -> None:
    pipeline(num_stages).assert_open_agrees(case)


@some
@given(case=sglang_cases(), num_stages=NUM_STAGES, num_replicas=st.integers(2, 4), router=st.sampled_from(ROUTERS))
def test_fleets_on_any_case(case: SglangCase, num_stages: int, num_replicas: int, router: Router) -> None:
    pipeline(num_stages).assert_open_agrees(case, num_replicas=num_replicas, router=router)


@some
@given(
    case=sglang_cases(),
    num_stages=NUM_STAGES,
    concurrency=st.integers(1, 14),
    think_s=st.sampled_from([0.0, 0.02]),
)
def test_a_client_in_a_closed_loop(case: SglangCase, num_stages: int, concurrency: int, think_s: float) -> None:
    pipeline(num_stages).assert_closed_loop_agrees(case, concurrency=concurrency, think_s=think_s)


def test_prompts_that_begin_alike() -> None:
    for seed in range(20):
        pipeline(2 + seed % 3).assert_open_agrees(twins_case(random.Random(seed), 40))  # noqa: S311 (no secret)


def fingerprint() -> str:
    """Digest of every output bit of some runs."""
    return properties.digest_of(
        pipeline(2 + seed).run_open(
            seeded_sglang_case(seed, profile, 30), num_replicas=2, router=ROUTERS[seed], record_itl=True
        )
        for profile in PROFILES
        for seed in range(2)
    )


def test_compiled_code_computes_what_the_source_says() -> None:
    properties.assert_compiled_equals_source(fingerprint)


# ------------------------------------------------------------------ laws


@some
@given(case=sglang_cases(), num_stages=NUM_STAGES)
def test_gaps_between_tokens_on_any_case(case: SglangCase, num_stages: int) -> None:
    plain = properties.assert_gaps_are_those_of_the_tokens(pipeline(num_stages), case, True)
    least_s = float(case.times.decode_fixed_s[1]) * (1 - 1e-9)
    assert all(gap >= least_s for live in plain.lives for gap in np.diff(live.token_s))
    ends_s = [step.end_s for step in plain.steps]
    assert ends_s == sorted(ends_s)


@some
@given(case=sglang_cases(), num_stages=NUM_STAGES, share=st.floats(0.0, 1.0))
def test_a_run_stops_exactly_when_too_many_are_bad(case: SglangCase, num_stages: int, share: float) -> None:
    properties.assert_stops_exactly_when_too_many_are_bad(pipeline(num_stages), case, 2, share)


def test_chunks_of_a_long_prompt_follow_each_other_through_the_stages() -> None:
    """Eight chunks in four stages: one pass and seven quarters, where one stage takes eight passes."""
    model, version = get_model("meta-llama/Llama-3.1-8B-Instruct"), sglang.default_version()
    case = SglangCase(requests=(req(0, 0.0, 65536, 1),), params=small(), times=unit_table())
    first_s = []
    for stages in (1, 4):
        deployment = dataclasses.replace(
            staged(case, stages),
            params=sglang.default_params(version, GPU, model, Parallelism(pipeline_parallel_size=stages)),
        )
        times = perf.step_model(deployment)
        outcome = simulate(workload_of(case), deployment, times, perf.memory(deployment))
        assert outcome.counters[0, layout.NUM_STEPS] == 8
        first_s.append(float(outcome.outputs.first[0] - outcome.packed.requests.extra[0]))
    assert 0.25 * first_s[0] < first_s[1] < 0.5 * first_s[0]


@pytest.mark.parametrize(
    ("num_layers", "num_stages", "layers"),
    [(32, 2, (16, 16)), (32, 3, (10, 11, 11)), (61, 2, (30, 31)), (61, 4, (15, 15, 15, 16)), (7, 4, (1, 2, 2, 2))],
)
def test_layers_left_over_go_to_the_last_stages(num_layers: int, num_stages: int, layers: tuple[int, ...]) -> None:
    """As SGLang's ``get_pp_indices`` has it."""
    assert layers_of_stages(num_layers, num_stages) == layers


@pytest.mark.parametrize(
    ("spread", "mixed", "message"),
    [
        (Parallelism(pipeline_parallel_size=2, data_parallel_size=2), False, "data_parallel_size 2 with pipeline"),
        (Parallelism(pipeline_parallel_size=2), True, "enable_mixed_chunk is not simulated with pipeline stages"),
    ],
)
def test_what_is_refused(spread: Parallelism, mixed: bool, message: str) -> None:
    case = SglangCase(requests=(req(0, 0.0, 4, 3),), params=small(mixed=mixed), times=unit_table())
    deployment = dataclasses.replace(staged(case, 2), parallelism=spread)
    with pytest.raises(InputError, match=message):
        simulate(workload_of(case), deployment, model_of(case), memory_of(case))


# ------------------------------------------------------------------ by hand: two stages, each a second

A, B, C = range(3)

Steps = list[tuple[float, list[tuple[int, int]]]]


def by_hand(requests: tuple[Request, ...], params: Params) -> tuple[Steps, list[tuple[float, float]]]:
    """Start and rows of every step, first and last token of every request; the kernel gives the latter, too."""
    table = unit_table()
    table = dataclasses.replace(table, decode_fixed_s=2 * table.decode_fixed_s, mixed_tokens_s=2 * table.mixed_tokens_s)
    case = SglangCase(requests=requests, params=params, times=table)
    kernel = pipeline(2).assert_open_agrees(case)
    plain = pipeline(2).run_plain(case).result()
    times = list(zip(kernel.outputs.first.tolist(), kernel.outputs.last.tolist(), strict=True))
    assert kernel.counters[0, layout.NUM_STEPS] == len(plain.steps)
    return [(step.start_s, list(step.rows)) for step in plain.steps], times


def test_prompts_beyond_a_batch_fill_the_other_stage() -> None:
    # A and B: P4 O3 at 0, by length, batches of 4 tokens. The first micro-batch takes A4 at t=0; the second one's turn
    # is at once: B4, which enters the first stage at t=1. t=2 A's first token; A1. t=3 B's; B1. And so on.
    steps, times = by_hand((req(A, 0.0, 4, 3), req(B, 0.0, 4, 3)), small(chunk=4))
    assert steps == [(0, [(A, 4)]), (1, [(B, 4)]), (2, [(A, 1)]), (3, [(B, 1)]), (4, [(A, 1)]), (5, [(B, 1)])]
    assert times == [(2.0, 6.0), (3.0, 7.0)]


def test_who_comes_while_one_micro_batch_is_under_way_joins_it() -> None:
    # A: P4 O3 at 0; B: P4 O2 at 0.5. t=0: A4; nobody waits in the second one's turn. The loop waits for the first:
    # t=2: B4, alone. t=4: A1 B1 in the same micro-batch. t=6: A1; B is done.
    steps, times = by_hand((req(A, 0.0, 4, 3), req(B, 0.5, 4, 2)), small())
    assert steps == [(0, [(A, 4)]), (2, [(B, 4)]), (4, [(A, 1), (B, 1)]), (6, [(A, 1)])]
    assert times == [(2.0, 8.0), (4.0, 6.0)]


def test_a_chunk_follows_the_one_before_into_the_pipeline() -> None:
    # A: P8 O2 at 0, batches of 4: A4. The second micro-batch's turn is at t=0 too: the rest, in the first stage at t=1.
    # A belongs to it: t=3 its first token and A1. The first one has nothing to do.
    steps, times = by_hand((req(A, 0.0, 8, 2),), small(chunk=4))
    assert steps == [(0, [(A, 4)]), (1, [(A, 4)]), (3, [(A, 1)])]
    assert times == [(3.0, 5.0)]


def test_micro_batches_divide_the_seats() -> None:
    # Two may run, one in each micro-batch. A, B, C: P2 O2 at 0 by length. t=0: A2; the latch. The second takes B2 at
    # once. t=2: A1. t=3: B1. t=4: A is done: C2. t=5 B is done.
    requests = tuple(req(name, 0.0, 2, 2) for name in (A, B, C))
    steps, times = by_hand(requests, small(rows=2))
    assert steps == [(0, [(A, 2)]), (1, [(B, 2)]), (2, [(A, 1)]), (3, [(B, 1)]), (4, [(C, 2)]), (6, [(C, 1)])]
    assert times == [(2.0, 4.0), (3.0, 5.0), (6.0, 8.0)]


def test_the_only_row_of_a_micro_batch_is_retracted_when_the_other_holds_the_pages() -> None:
    # 20 pages, no tree, nothing set aside, one seat each. A and B: P4 O8 at 0, by length. Each needs 4 + 8 + 1 = 13
    # when admitted: A4 with 20 free; B4 with 16, for the second micro-batch counts its own rows only. They take pages
    # in turns, A at t=2, 4 ... 12, B at t=3 ... 13; then none is free. t=14: A has 7 tokens and no page: retracted,
    # 10 are free. t=15: B has 7 tokens. A needs 11 + 1 + 1 = 13 of 10: B1, which takes a page. The first one's turn at
    # t=15: A needs 13 of 9. t=17: B is done, 20 are free: A11 in the second micro-batch. t=19: A's last token.
    requests = (req(A, 0.0, 4, 8), req(B, 0.0, 4, 8))
    steps, times = by_hand(requests, small(pages=20, rows=2, chunk=16, conservativeness=0.0, tree=False))
    assert steps[:2] == [(0, [(A, 4)]), (1, [(B, 4)])]
    assert steps[-3:] == [(13, [(B, 1)]), (15, [(B, 1)]), (17, [(A, 11)])]
    assert times == [(2.0, 19.0), (3.0, 17.0)]
