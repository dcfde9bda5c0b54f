"""Settings of vLLM that are off by default: the kernel and the plain scheduler agree, alone, in fleets and as ranks."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oracle.strategies import PROFILES, Case, Profile, option_case, option_cases
from servewise.kernel import layout
from servewise.types import Router
from sim import properties
from sim.agree import (
    VLLM,
    assert_agrees,
    assert_closed_loop_agrees,
    normalized,
    run_kernel,
    workload_of,
)
from sim.test_kernel_agrees import with_ties, without_names
from sim.test_ranks import assert_agrees as ranks_agree
from sim.test_recording import engine_times

some = settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow])
few = settings(some, max_examples=60)

ROUTERS: tuple[Router, ...] = ("round_robin", "least_requests", "prefix_aware")


@pytest.mark.parametrize("fast_forward", [True, False], ids=["windows", "single steps"])
@pytest.mark.parametrize("profile", PROFILES)
def test_one_replica(profile: Profile, fast_forward: bool) -> None:
    seen: Counter[str] = Counter()
    windows = 0
    for seed in range(60):
        case = option_case(seed, profile)
        kernel = assert_agrees(case, fast_forward=fast_forward)
        by_priority = case.params.scheduling_policy == "priority"
        seen["priority"] += by_priority
        seen["watermark"] += case.params.watermark > 0
        seen["cap"] += case.params.long_prefill_token_threshold > 0
        seen["preempted by priority"] += kernel.num_preemptions * by_priority
        seen["hit"] += int((kernel.outputs.cached > 0).sum())
        windows += int((kernel.counters[:, layout.NUM_STEPS] - kernel.counters[:, layout.NUM_WINDOWS]).sum())
    least = {"priority": 20, "watermark": 10, "cap": 20, "preempted by priority": 20, "hit": 15}
    assert {name: seen[name] for name in least if seen[name] < least[name]} == {}
    assert (windows > 50) == fast_forward


@some
@given(case=option_cases(), fast_forward=st.booleans())
def test_one_replica_on_any_case(case: Case, fast_forward: bool) -> None:
    assert_agrees(case, fast_forward=fast_forward)


@some
@given(case=option_cases(), num_replicas=st.integers(1, 4), router=st.sampled_from(ROUTERS), fast_forward=st.booleans())
def test_fleets_on_any_case(case: Case, num_replicas: int, router: Router, fast_forward: bool) -> None:
    assert_agrees(case, num_replicas=num_replicas, router=router, fast_forward=fast_forward)


@few
@given(case=option_cases(), num_replicas=st.integers(1, 3), router=st.sampled_from(ROUTERS), fast_forward=st.booleans())
def test_ties_on_any_case(case: Case, num_replicas: int, router: Router, fast_forward: bool) -> None:
    assert_agrees(with_ties(case), num_replicas=num_replicas, router=router, fast_forward=fast_forward)


@pytest.mark.parametrize("profile", PROFILES)
def test_ranks(profile: Profile) -> None:
    """Case 20 of the bursts has an arrival that overtakes a head that did not fit, in the middle of a window."""
    for seed in range(25):
        ranks_agree(option_case(seed, profile, 40), 2 + seed % 2, seed=seed)


@few
@given(case=option_cases(), num_ranks=st.integers(2, 3), fast_forward=st.booleans())
def test_ranks_on_any_case(case: Case, num_ranks: int, fast_forward: bool) -> None:
    ranks_agree(case, num_ranks, fast_forward=fast_forward)


@few
@given(case=option_cases())
def test_without_prefix_data_on_any_case(case: Case) -> None:
    """The cache is left out until the first preemption: that has to be noticed in a plan row by row too."""
    case = without_names(case, True)
    kernel = run_kernel(case, workload=dataclasses.replace(workload_of(case), prefix=None))
    again = run_kernel(case)  # with prefix data that says that nothing is shared
    np.testing.assert_array_equal(kernel.outputs.last, again.outputs.last)
    np.testing.assert_array_equal(kernel.outputs.first, again.outputs.first)


@few
@given(case=option_cases(), concurrency=st.integers(1, 8))
def test_closed_loop_on_any_case(case: Case, concurrency: int) -> None:
    assert_closed_loop_agrees(case, concurrency=concurrency)


@few
@given(case=option_cases())
def test_gaps_on_any_case(case: Case) -> None:
    properties.assert_gaps_are_those_of_the_tokens(VLLM, normalized(case), True)


@pytest.mark.parametrize("profile", PROFILES)
def test_samples_count_the_requests_in_flight(profile: Profile) -> None:
    seen = 0
    for seed in range(10):
        outcome = run_kernel(engine_times(option_case(seed, profile)), num_samples=200)
        arrived, left = outcome.packed.requests.arrival, outcome.outputs.last
        samples = outcome.recorder.samples[0, : outcome.recorder.counts[0, 1]]
        for now, running, waiting, _ in samples:
            assert running + waiting == np.sum((arrived <= now) & (left > now))
        seen += int(samples[:, 2].max() > 0)
    assert seen > 2


def fingerprint() -> str:
    """Digest of every output bit of some runs."""
    cases = [normalized(option_case(seed, PROFILES[seed % len(PROFILES)], 30)) for seed in range(12)]
    return properties.digest_of(
        run_kernel(case, num_replicas=1 + seed % 2, router="least_requests", record_itl=True)
        for seed, case in enumerate(cases)
    )


def test_compiled_code_computes_what_the_source_says() -> None:
    properties.assert_compiled_equals_source(fingerprint)
