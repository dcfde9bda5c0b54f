"""The plan as a whole: pruning changes nothing, fleets keep what they promise, ties and failures."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from servewise import catalog, quality, traffic
from servewise.errors import InputError
from servewise.metrics import broken
from servewise.perf import step_model
from servewise.search import plan
from servewise.search.limits import replicas
from servewise.sim import simulate, to_log
from servewise.types import Budget, Candidate, PercentileLimit, Plan, Promise, RequestLog, Router, Search, Workload

from .conftest import Make


@pytest.fixture(scope="module")
def search(make_search: Make) -> Search:
    return make_search()


@pytest.fixture(scope="module")
def found(search: Search) -> Plan:
    return plan(search)


def rerun(search: Search, candidate: Candidate, num_replicas: int) -> RequestLog:
    """Simulate a candidate with another fleet size, from its own data alone."""
    deployment = replace(candidate.deployment, num_replicas=num_replicas)
    assert candidate.memory is not None
    return to_log(search.workload, simulate(search.workload, deployment, step_model(deployment), candidate.memory))


def same_answer(one: Plan, other: Plan) -> None:
    """Winner and frontier, with their figures, are the same."""
    assert one.winner == other.winner
    assert one.frontier == other.frontier
    for index in one.frontier:
        a, b = one.candidates[index], other.candidates[index]
        assert a.deployment == b.deployment
        assert a.latency_s == b.latency_s
        assert a.cost == b.cost
        assert a.summary == b.summary


def test_pruning_changes_neither_winner_nor_frontier(search: Search, found: Plan) -> None:
    unpruned = plan(search, prune=False)
    assert len(found.candidates) >= 200
    assert found.num_simulated < unpruned.num_simulated
    assert {"dominated", "same_schedule"} <= {c.status for c in found.candidates}
    assert set(unpruned.pruned_by_reason) <= {"infeasible"}  # everything that fits was simulated
    same_answer(found, unpruned)


def test_pruning_with_known_prefixes(make_search: Make) -> None:
    workload = traffic.load(traffic.TrafficSource(profile="mooncake-conversation", num_requests=600))
    search = make_search(
        workload=workload, gpus=("H100-SXM-80GB",), promise=Promise(ttft_s=8.0, tpot_s=0.1, attainment=0.9)
    )
    found = plan(search)
    assert found.winner is not None
    same_answer(found, plan(search, prune=False))


def test_threads_change_nothing(search: Search, found: Plan) -> None:
    alone = plan(search, threads=1)
    assert replace(alone, wall_s=0.0) == replace(found, wall_s=0.0)


def test_a_fleet_is_reported_only_between_a_broken_and_a_kept_neighbour(search: Search, found: Plan) -> None:
    for index in found.alternatives:
        candidate = found.candidates[index]
        num = candidate.deployment.num_replicas
        assert not broken(rerun(search, candidate, num), search.promise)
        assert not broken(rerun(search, candidate, num + 1), search.promise)
        if num > 1:
            assert broken(rerun(search, candidate, num - 1), search.promise)


def test_a_dominated_candidate_is_beaten_by_what_it_would_have_been(search: Search, found: Plan) -> None:
    unpruned = plan(search, prune=False)
    kept = [c for c in unpruned.candidates if c.status == "kept"]
    dominated = [c for c in found.candidates if c.status == "dominated"]
    assert dominated
    for candidate in dominated:
        truth = unpruned.candidates[candidate.index]
        if truth.status == "kept":
            assert truth.cost is not None
            assert any(
                k.cost is not None
                and k.cost.usd_per_mtok_output_at_load <= truth.cost.usd_per_mtok_output_at_load
                and k.latency_s <= truth.latency_s
                for k in kept
                if k.index != truth.index
            )


def test_the_same_schedule_is_the_same_to_the_last_bit(search: Search, found: Plan) -> None:
    alike = [c for c in found.candidates if c.status == "same_schedule"]
    assert alike
    for candidate in alike[:: max(1, len(alike) // 12)]:
        base = found.candidates[int(candidate.reason.rsplit(" ", 1)[1])]
        num = candidate.deployment.num_replicas
        assert num == base.deployment.num_replicas
        mine, theirs = rerun(search, candidate, num), rerun(search, base, num)
        np.testing.assert_array_equal(mine.first_token_s, theirs.first_token_s)
        np.testing.assert_array_equal(mine.last_token_s, theirs.last_token_s)


def test_the_ranking_is_by_cost_and_the_frontier_falls_in_latency(found: Plan) -> None:
    dollars = [found.candidates[i].cost.usd_per_mtok_output_at_load for i in found.ranking]
    assert dollars == sorted(dollars)
    assert found.winner == found.ranking[0] == found.frontier[0]
    latencies = [found.candidates[i].latency_s for i in found.frontier]
    assert all(later < earlier for earlier, later in pairwise(latencies))
    best = min(c.latency_s for c in found.candidates if c.status == "kept")
    assert latencies[-1] == best


def test_the_winner_is_explained(found: Plan) -> None:
    winner = found.candidates[found.winner]
    assert winner.summary.promise_kept
    assert winner.summary.attainment.low <= winner.summary.attainment.value <= winner.summary.attainment.high
    assert winner.limited_by
    assert winner.cost.usd_per_mtok_output_at_capacity <= winner.cost.usd_per_mtok_output_at_load * (1 + 1e-9)
    scales = [point.scale for point in winner.load_curve]
    assert scales == sorted(scales)
    assert 1.0 in scales
    by_scale = {point.scale: point for point in winner.load_curve}
    assert by_scale[1.0].promise_kept
    assert not winner.load_curve[-1].promise_kept


def test_no_promise_too_hard_to_answer(make_search: Make) -> None:
    none = plan(make_search(promise=Promise(ttft_s=1e-4, attainment=0.99)))
    assert none.winner is None
    assert none.ranking == ()
    assert none.frontier == ()
    assert all(c.status != "kept" for c in none.candidates)
    assert none.pruned_by_reason["hopeless"] > 0


def test_the_nearest_is_named_when_the_budget_is_too_small(make_search: Make) -> None:
    strict = Promise(ttft_s=0.35, tpot_s=0.02, attainment=0.99)
    search = make_search(gpus=("L40S-48GB",), budget=Budget(max_gpus=1), promise=strict)
    none = plan(search)
    assert none.winner is None
    assert none.nearest is not None
    nearest = none.candidates[none.nearest]
    assert "with 1 replica (the budget of 1 GPU)" in nearest.reason
    assert nearest.summary.attainment.value < 0.99


def test_every_candidate_is_simulated_or_pruned_for_a_reason(found: Plan) -> None:
    assert found.num_simulated + sum(found.pruned_by_reason.values()) == len(found.candidates)
    assert all(c.reason for c in found.candidates if c.status != "kept")
    assert all(not c.reason for c in found.candidates if c.status == "kept")


def test_prompts_beyond_every_context_are_no_crash(make_search: Make, chat: Workload) -> None:
    huge = replace(chat, input_tokens=np.full(chat.num_requests, 200_000))
    for promise in (Promise(ttft_s=1.0), Promise(), Promise(deadline_s=1e6)):
        none = plan(make_search(workload=huge, gpus=("H100-SXM-80GB",), promise=promise))
        assert none.winner is None
        assert {c.status for c in none.candidates} <= {"broken", "infeasible", "same_schedule"}
        assert all(c.reason for c in none.candidates)


def test_sliding_windows_with_one_long_request(make_search: Make, chat: Workload) -> None:
    inputs = chat.input_tokens.copy()
    inputs[7] = 14_000
    model = catalog.get_model("google/gemma-3-27b-it")
    search = make_search(workload=replace(chat, input_tokens=inputs), gpus=("A100-SXM-40GB",))
    precisions = quality.precision_choices(
        model, catalog.supported_precisions(search.gpus[0]), quality.Floor(min_recovery_pct=99.0)
    )
    found = plan(replace(search, models=(model,), precisions={model.name: precisions}))
    assert found.winner is not None
    assert any("at the mean context, less than one request" in c.reason for c in found.candidates)


@pytest.mark.parametrize("router", ["least_requests", "prefix_aware"])
def test_routers_without_a_budget(make_search: Make, router: Router) -> None:
    search = make_search(gpus=("L40S-48GB",), budget=Budget(), router=router, max_effort="high")
    found = plan(replace(search, promise=Promise(ttft_s=0.35, tpot_s=0.02, attainment=0.99)))
    assert found.winner is not None
    assert found.candidates[found.winner].deployment.router == router


def test_low_effort_means_one_replica(make_search: Make) -> None:
    found = plan(make_search(max_effort="low"))
    assert found.winner is not None
    kept = [c for c in found.candidates if c.status == "kept"]
    assert all(c.deployment.num_replicas == 1 for c in kept)
    assert {c.effort.level for c in kept if c.effort} == {"low"}
    assert all(c.effort is not None for c in found.candidates)
    assert [of.engine for of in found.engines] == ["vllm"]


def test_throughput_without_limits_takes_the_cheapest_fleet_that_finishes(make_search: Make) -> None:
    found = plan(make_search(promise=Promise()))
    assert found.candidates[found.winner].deployment.num_replicas == 1


def test_a_budget_in_dollars(make_search: Make, found: Plan) -> None:
    limit = found.candidates[found.winner].cost.usd_per_h
    cheap = plan(make_search(budget=Budget(max_gpus=32, usd_per_h=limit)))
    assert cheap.winner == found.winner
    assert all(c.cost.usd_per_h <= limit for c in cheap.candidates if c.status == "kept")


def test_a_gpu_without_a_price_is_a_reason_not_an_error(make_search: Make) -> None:
    search = make_search(gpus=("L40S-48GB",))
    found = plan(replace(search, offers={}))
    assert found.winner is None
    assert {c.status for c in found.candidates} == {"infeasible"}
    assert "no on_demand price is known for L40S-48GB" in found.candidates[0].reason


def test_a_promise_on_gaps_is_searched_with_gaps(make_search: Make) -> None:
    limit = PercentileLimit(metric="itl", percentile=99.0, limit_s=0.2)
    found = plan(make_search(promise=Promise(percentiles=(limit,)), gpus=("L40S-48GB",)))
    assert found.winner is not None
    assert found.candidates[found.winner].summary.percentiles["itl"]["p99"].value <= 0.2


def test_what_one_replica_less_would_break_is_said_for_percentiles_too(make_search: Make, chat: Workload) -> None:
    limit = PercentileLimit(metric="ttft", percentile=95.0, limit_s=0.5)
    busy = replace(chat, arrival_s=chat.arrival_s / 4)
    found = plan(make_search(workload=busy, promise=Promise(percentiles=(limit,)), gpus=("L40S-48GB",)))
    winner = found.candidates[found.winner]
    fewer = winner.deployment.num_replicas - 1
    assert fewer >= 1
    assert f"with {replicas(fewer)} ttft p95 " in winner.limited_by


def test_a_percentile_out_of_range_is_refused(make_search: Make) -> None:
    limit = PercentileLimit(metric="ttft", percentile=100.0, limit_s=0.2)
    with pytest.raises(InputError, match="percentile"):
        plan(make_search(promise=Promise(percentiles=(limit,)), gpus=("L40S-48GB",)))
