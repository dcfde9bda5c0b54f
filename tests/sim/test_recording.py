"""Gaps between tokens and the timeline that a simulation records."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from oracle.strategies import PROFILES, Case, Profile, cases, params, req, seeded_case, unit_table
from servewise.sim import run, to_log
from sim import properties
from sim.agree import VLLM, deployment_of, memory_of, model_of, normalized, run_kernel, workload_of
from sim.properties import expanded

some = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])

# ------------------------------------------------------------------ gaps between tokens


@pytest.mark.parametrize("fast_forward", [True, False], ids=["windows", "single steps"])
@pytest.mark.parametrize("profile", PROFILES)
def test_gaps(profile: Profile, fast_forward: bool) -> None:
    preempted = 0  # among those with gaps
    for seed in range(12):
        case = normalized(seeded_case(seed, profile))
        plain = properties.assert_gaps_are_those_of_the_tokens(VLLM, case, fast_forward)
        preempted += sum(live.num_preemptions for live in plain.lives if live.generated > 1)
    assert preempted > 0


@some
@given(case=cases())
def test_gaps_on_any_case(case: Case) -> None:
    properties.assert_gaps_are_those_of_the_tokens(VLLM, normalized(case), True)


def test_gaps_of_a_fleet_are_pooled() -> None:
    case = normalized(seeded_case(3, "mixed", 200))
    itl = to_log(workload_of(case), run_kernel(case, num_replicas=3, record_itl=True)).itl
    assert itl is not None
    assert len(expanded(itl)) == sum(r.output_tokens - 1 for r in case.requests)


# ------------------------------------------------------------------ timeline


def engine_times(case: Case) -> Case:
    """The case without constants that are added outside the engine, so that logs show engine times."""
    times = properties.without_constants(case.times)
    return normalized(dataclasses.replace(case, times=times))


@pytest.mark.parametrize("profile", PROFILES)
def test_samples_count_the_requests_in_flight(profile: Profile) -> None:
    seen = 0
    for seed in range(10):
        case = engine_times(seeded_case(seed, profile))
        outcome = run_kernel(case, num_samples=200)
        arrived, left = outcome.packed.requests.arrival, outcome.outputs.last
        samples = outcome.recorder.samples[0, : outcome.recorder.counts[0, 1]]
        assert (np.diff(samples[:, 0]) > 0).all()
        for now, running, waiting, used in samples:
            assert running + waiting == np.sum((arrived <= now) & (left > now))
            assert 0 <= running <= case.params.max_num_seqs
            assert 0 <= used <= outcome.peak_kv_blocks <= case.params.num_kv_blocks
        seen += int(samples[:, 2].max() > 0)
    assert seen > 2


def test_a_timeline_sums_over_replicas() -> None:
    case = engine_times(seeded_case(1, "mixed", 200))
    log = run(workload_of(case), deployment_of(case, 2), model_of(case), memory_of(case), num_samples=100)
    assert log.timeline is not None
    assert len(log.timeline.time_s) > 50
    assert (np.diff(log.timeline.time_s) > 0).all()
    assert 1 < log.timeline.running.max() <= 2 * case.params.max_num_seqs
    assert log.timeline.running.max() > run_kernel(case, num_replicas=2).peak_running / 2
    assert (log.timeline.kv_used_frac >= 0).all()
    assert 0 < log.timeline.kv_used_frac.max() <= 1
    assert (log.timeline.waiting >= 0).all()


def test_a_timeline_goes_on_until_the_last_token() -> None:
    """Also when the queue takes many times as long to drain as it took to arrive."""
    requests = tuple(req(i, 0.25 * i, 3, 20) for i in range(16))
    case = Case(requests=requests, params=params(seats=1, lag=False), times=unit_table())
    log = run(workload_of(case), deployment_of(case), model_of(case), memory_of(case), num_samples=4)
    assert log.timeline is not None
    assert log.last_token_s.max() == 320.0 > 80 * workload_of(case).span_s
    assert log.timeline.time_s[-1] >= 301.0  # where the last request's decode begins: one window
    assert log.timeline.waiting[-1] == 0
    assert log.timeline.waiting.max() == 14  # at 20 s: one has gone, one runs


def test_nothing_is_recorded_unless_asked() -> None:
    case = normalized(seeded_case(0, "mixed"))
    log = to_log(workload_of(case), run_kernel(case))
    assert log.itl is None
    assert log.timeline is None


def test_recording_changes_nothing() -> None:
    for profile in PROFILES:
        case = normalized(seeded_case(0, profile))
        silent, recorded = run_kernel(case), run_kernel(case, record_itl=True, num_samples=50)
        assert silent.outputs.last.tobytes() == recorded.outputs.last.tobytes()
        assert (silent.counters == recorded.counters).all()
