"""Data parallel ranks with pipeline stages: the kernel and the plain ranks agree, schedules by hand, and laws."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oracle.plain_engine import Request
from oracle.ranks_plain import RankFleetResult, simulate_rank_fleet
from oracle.staged_ranks_plain import StagedRanks
from oracle.strategies import PROFILES, Case, Profile, cases, for_ranks, params, req, seeded_case, unit_table
from servewise import perf
from servewise.catalog import get_gpu, get_model
from servewise.engines import vllm
from servewise.kernel import layout
from servewise.sim import Outcome, simulate, to_log
from servewise.sim.drivers.pipeline import layers_of_stages
from servewise.traffic import load_profile
from servewise.types import Deployment, Parallelism, Precision, Promise, Router
from sim import properties
from sim.agree import MODEL, deployment_of, memory_of, model_of, normalized, workload_of
from sim.properties import expanded
from sim.test_kernel_agrees import with_ties

some = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])

VERSIONS = {False: "0.26.0", True: "0.33.0"}
ROUTERS: tuple[Router, ...] = ("round_robin", "least_requests")


def run_kernel(
    case: Case,
    num_ranks: int,
    num_stages: int,
    *,
    kv_aware: bool = True,
    num_replicas: int = 1,
    router: Router = "round_robin",
    **asked: Any,
) -> Outcome:
    """The kernel's view of a case."""
    deployment = replace(
        deployment_of(case, num_replicas, router, version=VERSIONS[kv_aware]),
        parallelism=Parallelism(data_parallel_size=num_ranks, pipeline_parallel_size=num_stages),
    )
    return simulate(workload_of(case), deployment, model_of(case), memory_of(case), **asked)


def run_plain(
    case: Case,
    num_ranks: int,
    num_stages: int,
    *,
    kv_aware: bool = True,
    num_replicas: int = 1,
    router: Router = "round_robin",
) -> RankFleetResult:
    """The plain ranks' view of it."""
    return simulate_rank_fleet(
        case.requests,
        case.params,
        case.times,
        num_replicas=num_replicas,
        num_ranks=num_ranks,
        kv_aware=kv_aware,
        router=router,
        new_ranks=partial(StagedRanks, layers=layers_of_stages(MODEL.num_layers, num_stages)),
    )


def assert_agrees(case: Case, num_ranks: int, num_stages: int, *, seed: int = 0, **asked: Any) -> Outcome:
    """Compare one case in both implementations; returns the kernel's outcome."""
    case = normalized(case)
    case = replace(case, times=for_ranks(case.times, num_ranks, seed))
    plain = run_plain(case, num_ranks, num_stages, **asked)
    kernel = run_kernel(case, num_ranks, num_stages, **asked)
    assert tuple(kernel.replica_of) == plain.replica
    expected, extra = plain.requests, kernel.packed.requests.extra
    np.testing.assert_allclose(kernel.outputs.first - extra, [r.first_token_s for r in expected], rtol=1e-9)
    np.testing.assert_allclose(kernel.outputs.last - extra, [r.last_token_s for r in expected], rtol=1e-9)
    np.testing.assert_array_equal(kernel.outputs.preemptions, [r.num_preemptions for r in expected])
    np.testing.assert_array_equal(kernel.outputs.cached, [r.cached_tokens for r in expected])
    runs = [run for replica in plain.replicas for run in replica.ranks]
    np.testing.assert_array_equal(kernel.counters[:, layout.NUM_STEPS], [len(run.steps) for run in runs])
    np.testing.assert_array_equal(kernel.counters[:, layout.PEAK_RUNNING], [run.peak_running for run in runs])
    np.testing.assert_array_equal(kernel.counters[:, layout.PEAK_BLOCKS], [run.peak_blocks for run in runs])
    assert kernel.num_simulated == len(expected)
    return kernel


# ------------------------------------------------------------------ agreement


@pytest.mark.parametrize("num_stages", [2, 3])
@pytest.mark.parametrize("profile", PROFILES)
def test_ranks_of_one_replica(profile: Profile, num_stages: int) -> None:
    preempted = hits = 0
    for seed in range(30):
        kernel = assert_agrees(seeded_case(seed, profile), 2 + seed % 3, num_stages, seed=seed, kv_aware=seed % 2 > 0)
        preempted += kernel.num_preemptions
        hits += int((kernel.outputs.cached > 0).sum())
    assert preempted > 5
    assert hits > 5


@some
@given(
    case=cases(),
    num_ranks=st.integers(2, 4),
    num_stages=st.integers(2, 4),
    num_replicas=st.integers(1, 3),
    kv_aware=st.booleans(),
    router=st.sampled_from(ROUTERS),
)
def test_fleets_on_any_case(
    case: Case, num_ranks: int, num_stages: int, num_replicas: int, kv_aware: bool, router: Router
) -> None:
    assert_agrees(case, num_ranks, num_stages, kv_aware=kv_aware, num_replicas=num_replicas, router=router)


@pytest.mark.parametrize("profile", PROFILES)
def test_ties(profile: Profile) -> None:
    """Stages of one second and arrivals on the second."""
    for seed in range(15):
        case = with_ties(seeded_case(seed, profile))
        times = replace(
            case.times, decode_fixed_s=2 * case.times.decode_fixed_s, mixed_tokens_s=2 * case.times.mixed_tokens_s
        )
        assert_agrees(replace(case, times=times), 2 + seed % 2, 2, num_replicas=1 + seed % 3, router=ROUTERS[seed % 2])


def fingerprint() -> str:
    """Digest of every output bit of some runs."""
    outcomes = []
    for seed in range(6):
        case = normalized(seeded_case(seed, PROFILES[seed % len(PROFILES)], 30))
        case = replace(case, times=for_ranks(case.times, 2, seed))
        outcomes.append(run_kernel(case, 2, 2 + seed % 2, num_replicas=2, router="least_requests", record_itl=True))
    return properties.digest_of(outcomes)


def test_compiled_code_computes_what_the_source_says() -> None:
    properties.assert_compiled_equals_source(fingerprint)


# ------------------------------------------------------------------ by hand


def by_hand(*requests: Request, budget: int = 8) -> list[tuple[float, float]]:
    """First and last token on two ranks of two stages of 1 s, whatever is in a batch."""
    times = unit_table()
    times = replace(
        times,
        decode_fixed_s=2.0 * times.decode_fixed_s,
        mixed_tokens_s=2.0 * times.mixed_tokens_s,
        experts_s=np.zeros(2 * times.max_batched_tokens + 1),
    )
    case = Case(requests=requests, params=params(budget=budget), times=times)
    outputs, plain = run_kernel(case, 2, 2).outputs, run_plain(case, 2, 2)
    tokens = list(zip(outputs.first.tolist(), outputs.last.tolist(), strict=True))
    assert tokens == [(r.first_token_s, r.last_token_s) for r in plain.requests]
    return tokens


def test_a_rank_without_requests_empties_the_pipeline() -> None:
    """A with three tokens, alone, on rank 0. Its plan of every other pass is empty, as are all of rank 1's::

        pass  rank 0 sends   rank 1 sends   stage 1  stage 2
        0     A's prompt 0   dummy 0        0..1     1..2    A1 at 2
        1     dummy 0        dummy 2        2..3     2..3    rank 1 waits for pass 0; dummies wait for no stage
        2     A 3            dummy 3        3..4     4..5    A2 at 5: rank 0 has waited for its dummy
        3     dummy 3        dummy 5        5..6     5..6
        4     A 6            dummy 6        6..7     7..8    A3 at 8

    Without ranks A would have its tokens at 2, 4 and 6.
    """
    assert by_hand(req(0, 0.0, 4, 3)) == [(2.0, 8.0)]


def test_two_ranks_that_take_turns() -> None:
    """B with two tokens comes at 0.5, to rank 1, whose dummy of pass 0 leaves at 2::

    pass  rank 0 sends   rank 1 sends    stage 1  stage 2
    0     A's prompt 0   dummy 0         0..1     1..2    A1 at 2
    1     dummy 0        B's prompt 2    2..3     3..4    B1 at 4
    2     A 4            dummy 2         4..5     5..6    A2 at 6
    3     dummy 4        B 6             6..7     7..8    B2 at 8
    4     A 8            dummy 6         8..9     9..10   A3 at 10
    """
    assert by_hand(req(0, 0.0, 4, 3), req(1, 0.5, 4, 2)) == [(2.0, 10.0), (4.0, 8.0)]


def test_ranks_whose_groups_are_full_are_as_fast_as_one_pipeline() -> None:
    """Prompts of a whole batch: A and C on rank 0, B and D on rank 1. Nobody ever has an empty plan::

    pass  batches    sent  stage 1  stage 2
    0     A's, B's   0     0..1     1..2    A1, B1 at 2
    1     C's, D's   0     1..2     2..3    C1, D1 at 3
    2     A, B       0     2..3     3..4    A2, B2 at 4
    3     C, D       2     3..4     4..5    C2, D2 at 5
    4     A, B       3     4..5     5..6    A3, B3 at 6
    5     C, D       4     5..6     6..7    C3, D3 at 7
    """
    four = [req(number, 0.0, 4, 3) for number in range(4)]
    assert by_hand(*four, budget=4) == [(2.0, 6.0), (2.0, 6.0), (3.0, 7.0), (3.0, 7.0)]


# ------------------------------------------------------------------ laws


@some
@given(case=cases(), num_ranks=st.integers(2, 3), num_stages=st.integers(2, 3))
def test_tokens_are_a_pass_apart_and_none_is_lost(case: Case, num_ranks: int, num_stages: int) -> None:
    case = normalized(case)
    case = replace(case, times=for_ranks(case.times, num_ranks, 0))
    case = replace(case, times=replace(case.times, padded_decode_tokens=1 << 20, padded_mixed_tokens=1 << 20))
    outcome = run_kernel(case, num_ranks, num_stages, record_itl=True)
    itl = to_log(workload_of(case), outcome).itl
    assert itl is not None
    gaps = expanded(itl)
    assert len(gaps) == sum(request.output_tokens - 1 for request in case.requests)
    assert len(gaps) == 0 or gaps.min() >= float(case.times.decode_fixed_s[1]) * (1 - 1e-9)
    np.testing.assert_allclose(gaps.sum(), (outcome.outputs.last - outcome.outputs.first).sum(), atol=1e-9)


@some
@given(case=cases(), num_stages=st.integers(2, 3))
def test_equal_ranks_do_the_same(case: Case, num_stages: int) -> None:
    """Pairs of equal requests: one goes to each of two ranks, and their tokens come at the same instants."""
    pairs = tuple(
        replace(request, id=2 * number + twin, block_ids=())
        for number, request in enumerate(case.requests)
        for twin in (0, 1)
    )
    case = normalized(replace(case, requests=pairs))
    case = replace(case, times=for_ranks(case.times, 2, 0))
    outcome = run_kernel(case, 2, num_stages)
    assert set((outcome.scheduler_of[::2] + outcome.scheduler_of[1::2]).tolist()) == {1}
    np.testing.assert_allclose(outcome.outputs.first[::2], outcome.outputs.first[1::2], rtol=1e-9)
    np.testing.assert_allclose(outcome.outputs.last[::2], outcome.outputs.last[1::2], rtol=1e-9)


def test_a_run_stops_when_the_ranks_together_have_too_many_bad() -> None:
    case = normalized(seeded_case(3, "mixed"))
    case = replace(case, times=for_ranks(case.times, 2, 0))
    tight = Promise(ttft_s=1e-6)  # which nobody keeps
    stopped = run_kernel(case, 2, 2, promise=tight, max_bad=5)
    assert stopped.broken
    assert 6 <= stopped.num_bad < len(case.requests)
    whole = run_kernel(case, 2, 2, promise=tight)
    assert not whole.broken
    assert whole.num_bad == len(case.requests)


def test_a_real_model_on_two_nodes() -> None:
    """Qwen3-235B-A22B, eight ranks of two stages: everybody is served, by all ranks."""
    model, gpu, version = get_model("Qwen/Qwen3-235B-A22B"), get_gpu("H100-SXM-80GB"), "0.33.0"
    deployment = Deployment(
        model=model,
        gpu=gpu,
        engine="vllm",
        engine_version=version,
        precision=Precision(weights="fp8"),
        parallelism=Parallelism(
            tensor_parallel_size=1, data_parallel_size=8, pipeline_parallel_size=2, expert_parallel_size=8
        ),
        params=replace(vllm.default_params(version, gpu, model), max_model_len=8192, max_num_seqs=64),
    )
    memory = perf.memory(deployment)
    assert memory.fits, memory.reason
    azure = load_profile("azure-conversation-2023")
    first = slice(0, 600)
    workload = replace(
        azure,
        arrival_s=np.arange(600) / 20.0,
        input_tokens=azure.input_tokens[first],
        output_tokens=azure.output_tokens[first],
        max_tokens=azure.max_tokens[first],
    )
    outcome = simulate(workload, deployment, perf.step_model(deployment), memory)
    assert not np.isnan(outcome.outputs.last).any()
    assert len(set(outcome.scheduler_of.tolist())) == 8
