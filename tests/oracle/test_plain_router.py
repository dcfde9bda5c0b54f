"""The plain routers: choices worked out by hand, and what holds for every fleet."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oracle.plain_engine import Request
from oracle.router_plain import PREFIX_AWARE_SLACK, simulate_fleet
from oracle.strategies import Case, cases, params, req, unit_table
from oracle.vllm_plain import simulate
from servewise.types import Router

A, B, C, D, E = range(5)

routers = st.sampled_from(["round_robin", "least_requests", "prefix_aware"])


def choices(requests: list[Request], num_replicas: int, router: Router) -> tuple[int, ...]:
    """Replica of every request, each step taking one second."""
    settings_ = params(caching=True)
    return simulate_fleet(requests, settings_, unit_table(), num_replicas=num_replicas, router=router).replica


def test_round_robin_goes_by_arrival_order() -> None:
    assert choices([req(i, 0.0, 2, 1) for i in range(5)], 3, "round_robin") == (0, 1, 2, 0, 1)


def test_least_requests() -> None:
    # A (2 steps, until 2.0) -> 0, pointer 1. B (until 1.0) -> 1, pointer 0.
    # C at 1.0: busy 1, 0: B has finished at that very instant -> 1, pointer 0. C runs [1,2).
    # D at 1.5: busy 1, 1: the pointer decides -> 0, pointer 1. Plan 2 of replica 0 is past: D runs [2,3).
    # E at 2.0: A and C are done: busy 1, 0 -> 1.
    requests = [req(A, 0.0, 2, 2), req(B, 0.0, 2, 1), req(C, 1.0, 2, 1), req(D, 1.5, 2, 1), req(E, 2.0, 2, 1)]
    assert choices(requests, 2, "least_requests") == (0, 1, 1, 0, 1)


def test_least_requests_ties_rotate() -> None:
    # All idle at each arrival: the scan goes on after the last choice.
    assert choices([req(i, 10.0 * i, 2, 1) for i in range(5)], 3, "least_requests") == (0, 1, 2, 0, 1)


def test_prefix_aware_follows_the_longest_match() -> None:
    # A [1 2] -> 0. B [7 8] matches nowhere: fewest in flight, 1. C [1 2 3] matches 2 blocks on 0.
    # D [7 9] matches 1 block on 1.
    requests = [
        req(A, 0.0, 4, 9, ids=(1, 2)),
        req(B, 0.0, 4, 9, ids=(7, 8)),
        req(C, 0.0, 6, 9, ids=(1, 2, 3)),
        req(D, 0.0, 4, 9, ids=(7, 9)),
    ]
    assert choices(requests, 2, "prefix_aware") == (0, 1, 0, 1)


def test_prefix_aware_gives_up_a_cache_that_is_too_busy() -> None:
    # All share their prompt and arrive at once. Replica 0 is chosen while it has at most 8 more than 1:
    # 9 times. The 10th goes to 1, which knows the prompt from then on: equal matches, so the fewest: 1 again.
    requests = [req(i, 0.0, 4, 9, ids=(1, 2)) for i in range(12)]
    assert PREFIX_AWARE_SLACK == 8
    assert choices(requests, 2, "prefix_aware") == (0,) * 9 + (1,) * 3


def test_prefix_aware_knows_prompts_only() -> None:
    # The first names its output: [1 3], prompt [1]. As above 9 requests go to 0 and the 10th to 1. The last,
    # prompt [1 3], matches one block on each, because 3 was output: the fewest in flight, 1.
    requests = [req(i, 0.0, 2, 9, ids=(1, 3) if i == 0 else (1,)) for i in range(10)]
    requests.append(req(10, 0.0, 4, 1, ids=(1, 3)))
    assert choices(requests, 2, "prefix_aware") == (0,) * 9 + (1, 1)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases(), router=routers)
def test_a_fleet_of_one_is_the_engine(case: Case, router: Router) -> None:
    alone = simulate(case.requests, case.params, case.times)
    routed = simulate_fleet(case.requests, case.params, case.times, num_replicas=1, router=router)
    assert routed.replicas == (alone,)
    assert routed.requests == alone.requests


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases(), router=routers)
def test_replicas_are_independent_once_routed(case: Case, router: Router) -> None:
    routed = simulate_fleet(case.requests, case.params, case.times, num_replicas=3, router=router)
    for number, run in enumerate(routed.replicas):
        own = [r for r, chosen in zip(case.requests, routed.replica, strict=True) if chosen == number]
        assert simulate(own, case.params, case.times) == run


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases())
def test_least_requests_never_passes_over_an_emptier_replica(case: Case) -> None:
    """Checked afterwards, from the finish times of the whole run."""
    routed = simulate_fleet(case.requests, case.params, case.times, num_replicas=3, router="least_requests")
    for number, request in enumerate(case.requests):
        busy = [0, 0, 0]
        for earlier in range(number):
            if routed.requests[earlier].last_token_s > request.arrival_s:
                busy[routed.replica[earlier]] += 1
        assert busy[routed.replica[number]] == min(busy)
