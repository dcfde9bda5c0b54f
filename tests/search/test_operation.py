"""A failing replica, and a fleet that follows the load: by hand, and as parts of a plan."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from search.conftest import Make
from search.drawn import kept_result
from servewise.search import plan
from servewise.search.operation import autoscaling, busiest_s, failure, lives_by_rate, paid
from servewise.search.results import Result
from servewise.types import Budget, LoadPoint, Search, Workload


def steady(rate_rps: float, start_s: float, end_s: float) -> np.ndarray:
    """Arrivals at a constant rate."""
    return np.arange(start_s, end_s, 1.0 / rate_rps)


def test_a_fleet_follows_a_step_of_the_rate() -> None:
    # 1 request/s for an hour, 3 for an hour, 1 again; a replica carries 1.01; a start takes 100 s
    arrival_s = np.concatenate((steady(1.0, 0, 3600), steady(3.0, 3600, 7200), steady(1.0, 7200, 10800)))
    lives = lives_by_rate(arrival_s, 1.01, 100.0, 1)
    assert [life.ends for life in lives] == ["drain"] * 3
    assert (lives[0].ready_s, lives[0].until_s) == (0.0, math.inf)
    # the look at 3660 s counts 240 + 180 requests in 300 s, 1.4 a second: 2 replicas; that at 3780 s counts
    # 120 + 540, 2.2 a second: 3
    assert [life.ready_s for life in lives[1:]] == [3760.0, 3880.0]
    # going down, the last look that wants 3 is at 7320 s (180 x 3 + 120, 2.2 a second), the last that wants 2 at
    # 7440 s (1.4); ten looks later they are forgotten, and the youngest goes first
    assert [life.until_s for life in lives[1:]] == [8040.0, 7920.0]


def test_nothing_is_given_up_before_it_was_watched() -> None:
    lives = lives_by_rate(steady(0.5, 0, 3600), 1.0, 100.0, 4)
    assert [life.until_s for life in lives] == [math.inf, 900.0, 900.0, 900.0]


def test_the_busiest_stretch_is_found() -> None:
    arrival_s = np.array([0.0, 10.0, 50.0, 51.0, 52.0, 90.0, 91.0])
    assert busiest_s(arrival_s, 5.0) == 50.0
    assert busiest_s(arrival_s, 41.0) == 50.0  # 50 to 91 has five, 10 to 51 three


@pytest.fixture(scope="module")
def search_and_result(make_search: Make) -> tuple[Search, Result]:
    """The cheapest fleet of at least two replicas on L40S."""
    search = make_search(gpus=("L40S-48GB",), budget=Budget(max_gpus=16))
    return search, kept_result(search)


def test_a_fleet_is_paid_for_while_it_is_there(search_and_result: tuple[Search, Result]) -> None:
    search, result = search_and_result
    one, two = (paid(search, result, [(0.0, 3600.0)] * n)[0] for n in (1, 2))
    usd, replica_s = paid(search, result, [(0.0, 7200.0), (1800.0, 5400.0)])
    assert replica_s == 3 * 3600.0
    assert usd == pytest.approx(one + two)  # an hour of one replica, an hour of two


def test_one_replica_more_survives_what_the_planned_fleet_does_not(search_and_result: tuple[Search, Result]) -> None:
    search, result = search_and_result
    found = failure(replace(search, start_up_s=60.0), result)
    assert found is not None
    num_replicas = result.candidate.deployment.num_replicas
    assert found.start_up_s == 60.0
    assert (found.planned.num_replicas, found.one_more.num_replicas) == (num_replicas, num_replicas + 1)
    assert found.planned.num_retries > 0
    assert found.one_more.attainment > found.planned.attainment
    assert found.one_more.usd_per_h > found.planned.usd_per_h
    assert result.candidate.summary is not None
    assert found.planned.attainment < result.candidate.summary.attainment.value
    # a replica that is back at once costs the requests that it had, and nothing else
    short = failure(replace(search, start_up_s=0.01), result)
    assert short is not None
    assert short.planned.attainment > found.planned.attainment
    known = failure(search, result)
    assert known is not None
    assert 51.0 < known.start_up_s < 300.0


def test_a_fleet_that_follows_costs_less_where_the_load_changes(
    search_and_result: tuple[Search, Result], chat: Workload
) -> None:
    search, result = search_and_result
    num_replicas = result.candidate.deployment.num_replicas
    rate_rps = chat.num_requests / chat.span_s
    # four hours at a third of the rate that the fleet was planned for, a slow rise to it and fall from it
    shares = [1 / 3] * 12 + [0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4]
    arrival_s = np.concatenate([steady(share * rate_rps, 1200 * i, 1200 * (i + 1)) for i, share in enumerate(shares)])
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, chat.num_requests, len(arrival_s))
    day = replace(
        chat,
        arrival_s=arrival_s,
        input_tokens=chat.input_tokens[drawn],
        output_tokens=chat.output_tokens[drawn],
        max_tokens=chat.max_tokens[drawn],
    )
    point = LoadPoint(
        scale=1.0,
        offered_rps=rate_rps,
        attainment=1.0,
        promise_kept=True,
        goodput_tokens_per_s=1.0,
        throughput_tokens_per_s=1.0,
    )
    there = replace(
        result,
        load=replace(result.load, workload=day),
        candidate=replace(result.candidate, load_curve=(point,)),
    )
    found = autoscaling(search, there)
    assert found is not None
    assert found.promise_kept
    assert 1 == found.fewest < found.most
    assert 1.0 < found.mean_replicas < num_replicas
    assert found.usd_per_month < found.fixed_usd_per_month
    assert autoscaling(search, replace(there, load=result.load)) is None  # six minutes: nothing to follow


def test_a_plan_says_what_a_failure_costs(make_search: Make) -> None:
    found = plan(make_search(gpus=("H100-SXM-80GB",)))
    assert found.failure is not None
    assert found.winner is not None
    assert found.failure.planned.num_replicas == found.candidates[found.winner].deployment.num_replicas
    assert found.autoscaling is None
