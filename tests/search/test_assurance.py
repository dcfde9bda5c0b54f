"""The verdict: counted over draws, with its intervals and the price of more certainty."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from servewise import perf
from servewise.cost import fleet_nodes
from servewise.metrics import broken, summarize
from servewise.search import plan
from servewise.search.assurance import DrawnModels, assure, draw
from servewise.search.families import families, search_family
from servewise.search.results import Result
from servewise.search.shapes import enumerate_shapes
from servewise.sim import simulate, to_log
from servewise.types import (
    Assurance,
    Budget,
    PercentileLimit,
    Plan,
    Promise,
    RequestLog,
    Search,
    StepModel,
    Summary,
)

from .conftest import Make
from .drawn import kept_result, slowed, use_draws, use_errors

SPREAD = tuple(np.linspace(0.8, 1.3, 32))
FAST, SLOW = 0.8, 3.0
"""Factors with which every fleet of these tests keeps, and breaks, its promise."""


@pytest.fixture(autouse=True)
def errors(monkeypatch: pytest.MonkeyPatch) -> None:
    use_errors(monkeypatch)


@pytest.fixture(scope="module")
def search(make_search: Make) -> Search:
    return make_search(gpus=("L40S-48GB",))


@pytest.fixture(scope="module")
def result(search: Search) -> Result:
    return kept_result(search)


def first(drawn: tuple[DrawnModels, ...]) -> tuple[StepModel, ...]:
    """The step models of whole replicas."""
    assert all(prefill is None for _, prefill in drawn)
    return tuple(model for model, _ in drawn)


def rerun(search: Search, result: Result, model: StepModel, num_replicas: int) -> RequestLog:
    """Simulate a fleet with a step model, from its own data alone and to the end."""
    deployment = replace(result.candidate.deployment, num_replicas=num_replicas)
    assert result.shape.memory is not None
    itl = any(limit.metric == "itl" for limit in search.promise.percentiles)
    outcome = simulate(search.workload, deployment, model, result.shape.memory, record_itl=itl)
    return to_log(search.workload, outcome)


def num_kept(search: Search, result: Result, models: tuple[StepModel, ...], num_replicas: int) -> int:
    return sum(not broken(rerun(search, result, model, num_replicas), search.promise) for model in models)


def assured(monkeypatch: pytest.MonkeyPatch, search: Search, result: Result, factors: tuple[float, ...]) -> Assurance:
    use_draws(monkeypatch, factors)
    return assure(search, result, draw(result.candidate.deployment))


@pytest.mark.parametrize(
    ("num_fast", "verdict"),
    [(32, "very likely"), (31, "very likely"), (30, "likely"), (24, "likely"), (23, "at risk"), (0, "at risk")],
)
def test_the_verdict_counts_the_draws_that_keep_the_promise(
    monkeypatch: pytest.MonkeyPatch, search: Search, result: Result, num_fast: int, verdict: str
) -> None:
    found = assured(monkeypatch, search, result, (FAST,) * num_fast + (SLOW,) * (32 - num_fast))
    assert (found.num_draws, found.num_kept, found.kept_frac) == (32, num_fast, num_fast / 32)
    assert found.verdict == verdict


def test_the_intervals_are_the_quantiles_of_whole_runs(
    monkeypatch: pytest.MonkeyPatch, search: Search, result: Result
) -> None:
    use_draws(monkeypatch, SPREAD, request_factor=1.5)
    models = first(draw(result.candidate.deployment))
    found = assure(search, result, [(model, None) for model in models])
    num = result.candidate.deployment.num_replicas
    runs: list[Summary] = [
        summarize(rerun(search, result, model, num), search.promise, with_intervals=False) for model in models
    ]
    low, high = np.quantile([run.attainment.value for run in runs], [0.05, 0.95])
    assert (found.attainment.low, found.attainment.high) == (low, high)
    assert low < high
    assert set(found.percentiles) == {"ttft", "tpot", "e2e"}
    for metric, by_name in found.percentiles.items():
        assert {"p50", "p90", "p95", "p99"} <= set(by_name)
        for name, interval in by_name.items():
            low, high = np.quantile([run.percentiles[metric][name].value for run in runs], [0.05, 0.95])
            assert (interval.low, interval.high) == (low, high)
    assert found.kept_frac == sum(run.promise_kept for run in runs) / 32
    assert 0 < found.kept_frac < 1


def test_means_carry_the_errors_of_their_class(monkeypatch: pytest.MonkeyPatch, search: Search, result: Result) -> None:
    found = assured(monkeypatch, search, result, (FAST,) * 32)
    summary = result.candidate.summary
    assert summary is not None
    ttft, tpot = found.means["ttft"], found.means["tpot"]
    assert (ttft.value, ttft.low, ttft.high) == (
        summary.means["ttft"], 0.7 * summary.means["ttft"], 1.5 * summary.means["ttft"],
    )  # fmt: skip
    assert (tpot.value, tpot.low, tpot.high) == (
        summary.means["tpot"], 0.9 * summary.means["tpot"], 1.2 * summary.means["tpot"],
    )  # fmt: skip
    assert (ttft.error_class, ttft.num_runs) == ("other model", 40)


def test_the_margin_is_the_smallest_fleet_that_almost_all_draws_keep(
    monkeypatch: pytest.MonkeyPatch, search: Search, result: Result
) -> None:
    use_draws(monkeypatch, SPREAD)
    models = first(draw(result.candidate.deployment))
    found = assure(search, result, [(model, None) for model in models])
    num = result.candidate.deployment.num_replicas
    smallest, count = next(
        (size, count) for size in range(num, 4 * num + 1) if (count := num_kept(search, result, models, size)) >= 31
    )
    assert smallest > num
    assert found.margin is not None
    assert found.margin.num_replicas == smallest
    assert found.margin.kept_frac == count / 32
    offers = search.offers["L40S-48GB"]
    gpus = result.candidate.deployment.parallelism.num_gpus
    more = fleet_nodes(smallest, gpus, offers)[1] - fleet_nodes(num, gpus, offers)[1]
    assert found.margin.extra_usd_per_h == pytest.approx(more, rel=1e-12)
    nominal = rerun(search, result, result.load.step_model, smallest)
    goodput = summarize(nominal, search.promise, with_intervals=False).goodput_tokens_per_s
    dollars = fleet_nodes(smallest, gpus, offers)[1] / 3600 / goodput * 1e6
    assert found.margin.usd_per_mtok_output_at_load == pytest.approx(dollars, rel=1e-9)


def test_means_of_full_replicas_carry_the_errors_of_saturated_runs(
    monkeypatch: pytest.MonkeyPatch, make_search: Make
) -> None:
    found = {}
    for factor in (0.2, 8.0):
        chat = make_search().workload
        rushed = replace(chat, arrival_s=chat.arrival_s / factor)
        asked = make_search(workload=rushed, gpus=("L40S-48GB",), promise=Promise(e2e_s=1e5, attainment=0.5))
        found[factor] = assured(monkeypatch, asked, kept_result(asked, num_replicas=1), (1.0,) * 32)
    assert found[0.2].means["tpot"].error_class == "other model"
    assert found[8.0].means["tpot"].error_class == "saturated"


def factor_that_needs(search: Search, result: Result, num_replicas: int) -> float:
    """How much slower steps must be so that a fleet of this size keeps the promise and one less does not."""
    model = result.load.step_model
    for factor in np.linspace(1.0, 1.6, 61):
        slow = (slowed(model, float(factor)),)
        if not num_kept(search, result, slow, num_replicas - 1) and num_kept(search, result, slow, num_replicas):
            return float(factor)
    raise AssertionError("no such factor")


def test_one_draw_may_break_the_margin_two_may_not(
    monkeypatch: pytest.MonkeyPatch, search: Search, result: Result
) -> None:
    num = result.candidate.deployment.num_replicas
    one_more, two_more = (factor_that_needs(search, result, num + more) for more in (1, 2))
    for num_late, size in ((1, num + 1), (2, num + 2)):
        factors = (FAST,) * (16 - num_late) + (one_more,) * 16 + (two_more,) * num_late
        found = assured(monkeypatch, search, result, factors)
        assert found.num_kept == 16 - num_late
        assert found.margin is not None
        assert found.margin.num_replicas == size
        assert found.margin.kept_frac == (31 / 32 if num_late == 1 else 1.0)
        assert found.margin_tried == f"up to {size} replicas"


def test_a_fleet_that_is_very_likely_is_its_own_margin(
    monkeypatch: pytest.MonkeyPatch, search: Search, result: Result
) -> None:
    margin = assured(monkeypatch, search, result, (FAST,) * 31 + (SLOW,)).margin
    cost = result.candidate.cost
    assert margin is not None
    assert cost is not None
    assert (margin.num_replicas, margin.kept_frac) == (result.candidate.deployment.num_replicas, 31 / 32)
    assert (margin.extra_usd_per_h, margin.usd_per_mtok_output_at_load) == (0.0, cost.usd_per_mtok_output_at_load)


def test_no_margin_where_replicas_do_not_help(monkeypatch: pytest.MonkeyPatch, search: Search, result: Result) -> None:
    # so slow that a request alone on a replica is late: in two draws, one more than the verdict allows
    found = assured(monkeypatch, search, result, (FAST,) * 30 + (100.0,) * 2)
    assert found.margin is None
    assert found.margin_tried.startswith("no fleet of these replicas: in 2 of 32 draws")
    single = assured(monkeypatch, search, result, (FAST,) * 29 + (1.4,) * 2 + (100.0,))
    assert single.margin is not None  # one draw may be hopeless


def test_no_margin_within_the_budget_says_what_was_tried(
    monkeypatch: pytest.MonkeyPatch, search: Search, result: Result
) -> None:
    num = result.candidate.deployment.num_gpus
    tight = replace(search, budget=Budget(max_gpus=num + result.candidate.deployment.parallelism.num_gpus))
    found = assured(monkeypatch, tight, result, (FAST,) * 16 + (2.0,) * 16)
    assert found.margin is None
    size = result.candidate.deployment.num_replicas + 1
    assert found.margin_tried == f"up to {size} replicas (the budget of {tight.budget.max_gpus} GPUs)"
    none = assured(monkeypatch, replace(search, budget=Budget(max_gpus=num)), result, (FAST,) * 16 + (2.0,) * 16)
    assert none.margin is None
    assert none.margin_tried == f"no larger fleet: the budget of {num} GPUs"


@pytest.mark.parametrize(
    "promise",
    [
        Promise(
            percentiles=(
                PercentileLimit(metric="ttft", percentile=95.0, limit_s=0.6),
                PercentileLimit(metric="itl", percentile=99.0, limit_s=0.3),
            )
        ),
        Promise(ttft_s=1.0, attainment=0.97, percentiles=(PercentileLimit(metric="e2e", percentile=90, limit_s=14.0),)),
    ],
)
def test_every_form_of_the_promise_is_counted(
    monkeypatch: pytest.MonkeyPatch, make_search: Make, promise: Promise
) -> None:
    search = make_search(gpus=("L40S-48GB",), promise=promise)
    result = kept_result(search)
    use_draws(monkeypatch, SPREAD)
    models = first(draw(result.candidate.deployment))
    found = assure(search, result, [(model, None) for model in models])
    kept = num_kept(search, result, models, result.candidate.deployment.num_replicas)
    assert found.num_kept == kept
    assert 0 < kept < 32
    has_itl = any(limit.metric == "itl" for limit in promise.percentiles)
    assert ("itl" in found.percentiles) == has_itl


def test_a_deadline_is_counted(monkeypatch: pytest.MonkeyPatch, search: Search, result: Result) -> None:
    num = result.candidate.deployment.num_replicas
    use_draws(monkeypatch, SPREAD)
    models = first(draw(result.candidate.deployment))
    ends = sorted(
        summarize(rerun(search, result, model, num), Promise(), with_intervals=False).duration_s for model in models
    )
    offline = Promise(deadline_s=(ends[19] + ends[20]) / 2)
    load = replace(result.load, promise=offline, rule=None)
    found = assure(replace(search, promise=offline), replace(result, load=load), [(model, None) for model in models])
    assert found.num_kept == 20
    assert math.isclose(found.attainment.low, 1.0)


def planned(monkeypatch: pytest.MonkeyPatch, search: Search, factors: tuple[float, ...], threads: int) -> Plan:
    use_draws(monkeypatch, factors)
    return replace(plan(search, threads=threads), wall_s=0.0)


def test_threads_change_no_verdict(monkeypatch: pytest.MonkeyPatch, search: Search) -> None:
    alone, together = (planned(monkeypatch, search, SPREAD, threads) for threads in (1, 3))
    assert alone == together
    assert alone.candidates[alone.winner].assurance is not None


def test_the_verdict_changes_neither_winner_nor_frontier(monkeypatch: pytest.MonkeyPatch, search: Search) -> None:
    sure, unsure = (planned(monkeypatch, search, (factor,) * 32, 2) for factor in (FAST, SLOW))
    assert (sure.winner, sure.ranking, sure.frontier) == (unsure.winner, unsure.ranking, unsure.frontier)
    assert sure.candidates[sure.winner].assurance.verdict == "very likely"
    assert unsure.candidates[unsure.winner].assurance.verdict == "at risk"
    judged = [c.index for c in sure.candidates if c.assurance is not None]
    assert sorted(judged) == sorted(sure.frontier[:4])


@pytest.mark.parametrize("stage", ["fleets", "capacity"])
def test_an_interrupted_search_gives_no_verdict(monkeypatch: pytest.MonkeyPatch, search: Search, stage: str) -> None:
    use_draws(monkeypatch, (FAST,) * 32)

    def interrupt(name: str, _done: int, _total: int) -> None:
        if name == stage:
            raise KeyboardInterrupt

    found = plan(search, progress=interrupt)
    assert not found.complete
    assert found.winner is not None
    assert all(candidate.assurance is None for candidate in found.candidates)
    assert found.explanation is None


def test_a_draw_that_says_nothing_leaves_no_interval(monkeypatch: pytest.MonkeyPatch, search: Search) -> None:
    alone = replace(search.workload, output_tokens=np.ones_like(search.workload.output_tokens))
    asked = replace(search, workload=alone)
    one_token = kept_result(asked, num_replicas=1)
    found = assured(monkeypatch, asked, one_token, (FAST,) * 32)
    assert math.isnan(found.percentiles["tpot"]["p99"].low)  # one-token requests have no TPOT
    assert found.percentiles["ttft"]["p99"].low > 0


def test_the_same_seed_draws_the_same_whatever_the_fleet(result: Result) -> None:
    deployment = result.candidate.deployment
    one, other = first(draw(deployment)), first(draw(replace(deployment, num_replicas=7)))
    assert len(one) == 32
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a.table.decode_fixed_s, b.table.decode_fixed_s)
    assert len({model.table.decode_fixed_s[1] for model in one}) > 16
    assert slowed(one[0], 2.0).table.decode_fixed_s[1] == 2 * one[0].table.decode_fixed_s[1]
    assert perf.step_model(deployment).table.max_rows == one[0].table.max_rows


def test_groups_have_a_verdict(make_search: Make) -> None:
    """Both pools are drawn, from the same random numbers, and a fleet of groups is judged as any other."""
    search = make_search(gpus=("H100-SXM-80GB",), max_effort="high", router="least_requests")
    groups = [shape for shape in enumerate_shapes(search) if shape.deployment.disaggregation is not None]
    (result,) = search_family(search, families(search, groups)[0], (), prune=False)
    assert result.candidate.status == "kept"
    drawn = draw(result.candidate.deployment)
    slowest = max(range(len(drawn)), key=lambda i: drawn[i][0].table.decode_fixed_s[1])
    decode, prefill = drawn[slowest]
    assert prefill is not None
    assert prefill.table.decode_fixed_s[1] == max(other.table.decode_fixed_s[1] for _, other in drawn if other)
    found = assure(search, result, drawn)
    assert found.num_draws == len(drawn)
    assert 0.0 <= found.attainment.low <= found.attainment.high <= 1.0
    assert found.attainment.low < 1.0 or found.kept_frac == 1.0
    twice = [(slowed(decode, 3.0), slowed(prefill, 3.0))] * len(drawn)
    assert assure(search, result, twice).attainment.high < found.attainment.high
