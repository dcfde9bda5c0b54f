"""The compiled kernel and the plain scheduler give the same times, hits and preemptions."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oracle.router_plain import simulate_fleet
from oracle.strategies import PROFILES, Case, Profile, cases, seeded_case, unit_table
from servewise.kernel import layout
from servewise.types import Router
from sim.agree import assert_agrees, assert_same, normalized, run_kernel, workload_of

some = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
few = settings(some, max_examples=60)

ROUTERS: tuple[Router, ...] = ("round_robin", "least_requests", "prefix_aware")


@pytest.mark.parametrize("fast_forward", [True, False], ids=["windows", "single steps"])
@pytest.mark.parametrize("profile", PROFILES)
def test_one_replica(profile: Profile, fast_forward: bool) -> None:
    seen: Counter[str] = Counter()
    for seed in range(40):
        case = seeded_case(seed, profile)
        kernel = assert_agrees(case, fast_forward=fast_forward)
        seen["lag" if case.params.async_scheduling else "no lag"] += 1
        seen["caching" if case.params.enable_prefix_caching else "no caching"] += 1
        seen["preempted"] += kernel.num_preemptions
        seen["hit"] += int((kernel.outputs.cached > 0).sum())
        seen["named output"] += kernel.packed.names_output
    least = {"lag": 15, "no lag": 5, "caching": 5, "preempted": 20, "hit": 15, "named output": 5}
    assert {name: seen[name] for name in least if seen[name] < least[name]} == {}


def test_blocks_are_taken_before_a_victim_gives_up_its_own() -> None:
    """The rows ahead of the one that fails reuse cached blocks that a careless order would have kept."""
    assert_agrees(seeded_case(69, "prefix", 40))


@some
@given(case=cases(), fast_forward=st.booleans())
def test_one_replica_on_any_case(case: Case, fast_forward: bool) -> None:
    assert_agrees(case, fast_forward=fast_forward)


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("profile", PROFILES)
def test_fleets(profile: Profile, router: Router) -> None:
    used = 0
    for seed in range(15):
        num_replicas = 1 + seed % 5
        kernel = assert_agrees(seeded_case(seed, profile), num_replicas=num_replicas, router=router)
        used = max(used, len(set(kernel.replica_of)))
    assert used == 5


@some
@given(case=cases(), num_replicas=st.integers(1, 5), router=st.sampled_from(ROUTERS), fast_forward=st.booleans())
def test_fleets_on_any_case(case: Case, num_replicas: int, router: Router, fast_forward: bool) -> None:
    assert_agrees(case, num_replicas=num_replicas, router=router, fast_forward=fast_forward)


def with_ties(case: Case) -> Case:
    """Steps of one second and arrivals on the second: what happens at one instant has to happen in order."""
    first_s = case.requests[0].arrival_s
    span_s = case.requests[-1].arrival_s - first_s
    scale = len(case.requests) / span_s if span_s > 1e-6 else 0.0
    requests = tuple(dataclasses.replace(r, arrival_s=float(int(r.arrival_s * scale))) for r in case.requests)
    times = unit_table(case.params.max_num_seqs, case.params.max_num_batched_tokens)
    return dataclasses.replace(case, requests=requests, times=times)


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("profile", PROFILES)
def test_ties(profile: Profile, router: Router) -> None:
    tied = 0
    for seed in range(15):
        case = with_ties(seeded_case(seed, profile))
        kernel = assert_agrees(case, num_replicas=1 + seed % 4, router=router, fast_forward=seed % 3 > 0)
        tied += len(set(kernel.outputs.last) & {r.arrival_s for r in case.requests})
    assert tied > 50


@few
@given(case=cases(), num_replicas=st.integers(1, 4), router=st.sampled_from(ROUTERS), fast_forward=st.booleans())
def test_ties_on_any_case(case: Case, num_replicas: int, router: Router, fast_forward: bool) -> None:
    assert_agrees(with_ties(case), num_replicas=num_replicas, router=router, fast_forward=fast_forward)


def with_engine_blocks_of(case: Case, span: int) -> Case:
    """The case with ``span`` engine blocks where it had one; its identities stay those of the larger blocks."""
    params = case.params
    finer = dataclasses.replace(
        params,
        block_size_tokens=params.block_size_tokens // span,
        num_kv_blocks=params.num_kv_blocks * span,
    )
    return dataclasses.replace(case, params=finer)


def with_identities_per_block(case: Case, span: int) -> Case:
    """Each identity becomes ``span`` chained ones."""
    requests = tuple(
        dataclasses.replace(r, block_ids=tuple(span * name + j for name in r.block_ids for j in range(span)))
        for r in case.requests
    )
    return dataclasses.replace(case, requests=requests)


def assert_trace_blocks_may_be_larger(case: Case, span: int) -> int:
    """A trace's block is ``span`` engine blocks long; returns the number of requests that hit the cache."""
    case = normalized(with_engine_blocks_of(case, span))
    traced = case.params.block_size_tokens * span
    plain = with_identities_per_block(case, span)
    expected = simulate_fleet(plain.requests, case.params, case.times, num_replicas=1, router="round_robin")
    kernel = run_kernel(case, workload=workload_of(case, traced))
    assert kernel.packed.span_shift == span.bit_length() - 1
    assert_same(kernel, expected)
    return int((kernel.outputs.cached > 0).sum())


@pytest.mark.parametrize("span", [2, 4])
def test_trace_blocks_larger_than_the_engines(span: int) -> None:
    hits = 0
    for profile in PROFILES:
        for seed in range(60):
            case = seeded_case(seed, profile)
            if case.params.block_size_tokens >= span and case.params.enable_prefix_caching:
                hits += assert_trace_blocks_may_be_larger(case, span)
    assert hits > 200


@few
@given(case=cases(profiles=("prefix", "mixed")), data=st.data())
def test_trace_blocks_larger_than_the_engines_on_any_case(case: Case, data: st.DataObject) -> None:
    spans = [span for span in (1, 2, 4) if span <= case.params.block_size_tokens]
    assert_trace_blocks_may_be_larger(case, data.draw(st.sampled_from(spans)))


@pytest.mark.parametrize("ratio", [2, 4])
@pytest.mark.parametrize("router", ["round_robin", "prefix_aware"])
def test_trace_blocks_smaller_than_the_engines(ratio: int, router: Router) -> None:
    """An engine block is the last of its trace blocks; a trace's incomplete engine block is nobody's."""
    hits = 0
    for seed in range(40):
        case = normalized(seeded_case(seed, "prefix"))
        size = case.params.block_size_tokens
        if size < ratio:
            continue
        finer = with_identities_per_block(case, ratio)
        incomplete = tuple(
            dataclasses.replace(r, block_ids=r.block_ids + (1_000_000,) * (len(r.block_ids) > 0))
            for r in finer.requests
        )
        workload = workload_of(dataclasses.replace(finer, requests=incomplete), size // ratio)
        expected = simulate_fleet(case.requests, case.params, case.times, num_replicas=2, router=router)
        kernel = run_kernel(case, num_replicas=2, router=router, workload=workload)
        assert_same(kernel, expected)
        hits += int((kernel.outputs.cached > 0).sum())
    assert hits > 100


def without_names(case: Case, caching: bool) -> Case:
    requests = tuple(dataclasses.replace(r, block_ids=()) for r in case.requests)
    params = dataclasses.replace(case.params, enable_prefix_caching=caching)
    return normalized(dataclasses.replace(case, requests=requests, params=params))


def test_without_prefix_data_the_cache_matters_only_after_a_preemption() -> None:
    """Caching on equals the oracle, and equals caching off unless somebody was preempted."""
    seen: Counter[str] = Counter()
    for profile in PROFILES:
        for seed in range(30):
            on, off = (without_names(seeded_case(seed, profile), caching) for caching in (True, False))
            unknown = dataclasses.replace(workload_of(on), prefix=None)
            kernel = run_kernel(on, workload=unknown)
            assert_same(
                kernel,
                simulate_fleet(on.requests, on.params, on.times, num_replicas=1, router="round_robin"),
            )
            without = run_kernel(off, workload=unknown)
            same = kernel.outputs.last.tobytes() == without.outputs.last.tobytes()
            if kernel.num_preemptions == 0:
                assert same
                assert kernel.outputs.first.tobytes() == without.outputs.first.tobytes()
                assert (kernel.counters == without.counters).all()
            seen["preempted" if kernel.num_preemptions else "not preempted"] += 1
            seen["changed"] += not same
    assert min(seen[name] for name in ("preempted", "not preempted", "changed")) > 10


@few
@given(case=cases(), num_replicas=st.integers(1, 3), router=st.sampled_from(ROUTERS))
def test_without_prefix_data_on_any_case(case: Case, num_replicas: int, router: Router) -> None:
    case = without_names(case, True)
    workload = dataclasses.replace(workload_of(case), prefix=None)
    kernel = run_kernel(case, num_replicas=num_replicas, router=router, workload=workload)
    expected = simulate_fleet(case.requests, case.params, case.times, num_replicas=num_replicas, router=router)
    assert_same(kernel, expected)


@pytest.mark.parametrize("router", ROUTERS)
def test_windows_are_exercised(router: Router) -> None:
    """The comparison above would say nothing about windows if all of them were one step long."""
    windows = steps = 0
    for profile in PROFILES:
        for seed in range(5):
            kernel = run_kernel(normalized(seeded_case(seed, profile)), num_replicas=2, router=router)
            windows += int(kernel.counters[:, layout.NUM_WINDOWS].sum())
            steps += int(kernel.counters[:, layout.NUM_STEPS].sum())
    assert windows < 0.9 * steps
