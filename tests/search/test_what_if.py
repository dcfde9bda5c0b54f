"""Questions that differ from the plan's: answered as a whole new search would answer them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace

import pytest

from servewise import traffic
from servewise.search import plan
from servewise.search.families import families, search_family
from servewise.search.questions import Question, answer, loosest
from servewise.search.results import Result
from servewise.search.shapes import enumerate_shapes
from servewise.search.what_if import LOAD_FACTORS, largest_batch
from servewise.types import Budget, PercentileLimit, Plan, Promise, Replanned, Search, Variation

Make = Callable[..., Search]


@pytest.fixture(scope="module")
def search(make_search: Make) -> Search:
    """Two GPUs and two engines, so that there is something to choose, under some load."""
    source = traffic.TrafficSource(profile="azure-conversation-2023", num_requests=400, rate_rps=8.0)
    engines = ("vllm", "0.33.0"), ("tensorrt-llm", "1.2.1")
    return make_search(engines=engines, workload=traffic.load(source), budget=Budget(max_gpus=4))


@pytest.fixture(scope="module")
def results(search: Search) -> list[Result]:
    """Of every shape that fits, none left out."""
    found = families(search, enumerate_shapes(search))
    return [result for family in found for result in search_family(search, family, (), prune=False)]


@pytest.fixture(scope="module")
def pool() -> Executor:
    """Two threads."""
    return ThreadPoolExecutor(2)


def dollars(found: Plan) -> float | None:
    """Of a plan's winner, per million output tokens at load."""
    if found.winner is None:
        return None
    cost = found.candidates[found.winner].cost
    assert cost is not None
    return cost.usd_per_mtok_output_at_load


def variation_of(found: Plan, variable: str) -> Variation:
    """The plans over a variable."""
    assert found.what_if is not None
    (variation,) = (v for v in found.what_if.variations if v.variable == variable)
    return variation


def ask(
    results: Sequence[Result], questions: Sequence[Question], pool: Executor, scale: float = 1.0
) -> list[float | None]:
    """The dollars of each answer, over all shapes and knowing nothing."""
    members = [(result.shape, result.load) for result in results]
    found, num_simulated = answer(questions, members, scale, pool, first=(), fewest={})
    assert num_simulated > 0
    return [None if fleet is None else fleet.usd_per_mtok_output_at_load for fleet in found]


def test_other_promises_are_answered_as_by_a_new_search(search: Search, results: list[Result], pool: Executor) -> None:
    promises = [
        search.promise,
        replace(search.promise, ttft_s=0.1),
        replace(search.promise, tpot_s=0.01),
        replace(search.promise, tpot_s=0.2),
        replace(search.promise, attainment=0.9),
        replace(search.promise, ttft_s=0.001),
    ]
    searches = [replace(search, promise=promise) for promise in promises]
    expected = [dollars(plan(asked, threads=2)) for asked in searches]
    assert expected[-1] is None
    assert len({*expected}) >= 4, "the promises do not differ in what they cost"
    assert ask(results, [Question(search=asked) for asked in searches], pool) == expected


@pytest.mark.parametrize("scale", [0.3, 2.5])
def test_another_load_is_answered_as_by_a_new_search(
    search: Search, results: list[Result], pool: Executor, scale: float
) -> None:
    faster = replace(search.workload, arrival_s=search.workload.arrival_s / scale)
    expected = dollars(plan(replace(search, workload=faster), threads=2))
    assert expected is not None
    assert ask(results, [Question(search=search)], pool, scale) == [pytest.approx(expected, rel=1e-12)]


def test_a_choice_made_beforehand_is_answered_as_by_a_smaller_search(
    search: Search, results: list[Result], pool: Executor
) -> None:
    questions, expected = [], []
    for gpu in search.gpus:
        expected.append(dollars(plan(replace(search, gpus=(gpu,)), threads=2)))
        questions.append(Question(search=search, permits=lambda d, name=gpu.name: d.gpu.name == name))
    for engine in search.engines:
        expected.append(dollars(plan(replace(search, engines=(engine,)), threads=2)))
        questions.append(Question(search=search, permits=lambda d, name=engine[0]: d.engine == name))
    expected.append(dollars(plan(replace(search, max_effort="low"), threads=2)))
    questions.append(Question(search=replace(search, max_effort="low")))
    assert len({*expected}) >= 3
    assert ask(results, questions, pool) == expected


@pytest.fixture(scope="module")
def found(search: Search) -> Plan:
    """A plan with everything planned again."""
    return plan(search, threads=2, with_what_if=True)


def test_the_plans_own_question_has_the_winner_for_an_answer(found: Plan) -> None:
    assert found.what_if is not None
    assert found.winner is not None
    winner = found.candidates[found.winner]
    assert winner.cost is not None
    assert winner.summary is not None
    own = {"ttft_s": 1.0, "tpot_s": 0.05, "attainment": 0.99, "load": 1.0}
    assert {variation.variable for variation in found.what_if.variations} == own.keys()
    for variation in found.what_if.variations:
        assert [point.value for point in variation.points] == sorted(point.value for point in variation.points)
        (point,) = (p for p in variation.points if p.value == own[variation.variable])
        assert point.best is not None
        assert point.best.candidate == found.winner
        assert point.best.num_replicas == winner.deployment.num_replicas
        assert point.best.usd_per_mtok_output_at_load == winner.cost.usd_per_mtok_output_at_load
        assert point.best.attainment == winner.summary.attainment.value
        assert point.best.latency_s == winner.latency_s
        assert point.stay == point.best
    points = [point for variation in found.what_if.variations for point in variation.points if point.stay is not None]
    assert points
    for point in points:
        assert point.best is not None
        assert point.stay is not None
        assert point.stay.usd_per_mtok_output_at_load >= point.best.usd_per_mtok_output_at_load
        like = found.candidates[point.stay.candidate].deployment
        assert (like.engine, like.gpu, like.precision) == (
            winner.deployment.engine,
            winner.deployment.gpu,
            winner.deployment.precision,
        )
        assert like.parallelism == winner.deployment.parallelism
    assert [point.value for point in found.what_if.variations[-1].points] == sorted((*LOAD_FACTORS, 1.0))


def test_a_stricter_promise_never_costs_less(found: Plan) -> None:
    for name in ("ttft_s", "tpot_s"):
        variation = variation_of(found, name)
        costs = [p.best.usd_per_mtok_output_at_load if p.best else float("inf") for p in variation.points]
        # what a looser limit lets through counts as goodput, too, so that the same fleet costs a little less
        assert costs == sorted(costs, reverse=True)
        assert costs[0] > costs[-1]


def test_alternatives_cover_every_choice_and_none_undercuts_the_winner(search: Search, found: Plan) -> None:
    assert found.what_if is not None
    assert found.winner is not None
    best = dollars(found)
    assert best is not None
    by_choice: dict[str, dict[str, Replanned | None]] = {}
    for alternative in found.what_if.alternatives:
        assert alternative.num_fit > 0
        by_choice.setdefault(alternative.restriction, {})[alternative.value] = alternative.best
    assert by_choice["gpu"].keys() == {gpu.name for gpu in search.gpus}
    assert by_choice["engine"].keys() == {engine for engine, _ in search.engines}
    assert by_choice["effort"].keys() == {"low"}
    assert "model" not in by_choice, "there is one model, so nothing to choose"
    for fleets in by_choice.values():
        known = [fleet.usd_per_mtok_output_at_load for fleet in fleets.values() if fleet is not None]
        assert all(cost >= best for cost in known)
    for restriction in ("gpu", "engine", "precision"):
        assert any(f is not None and f.candidate == found.winner for f in by_choice[restriction].values())
    low = by_choice["effort"]["low"]
    assert low is None or low.num_replicas == 1


def test_the_outcome_does_not_depend_on_the_threads(search: Search, found: Plan) -> None:
    assert plan(search, threads=1, with_what_if=True).what_if == found.what_if


def test_the_largest_batch_is_where_a_decode_step_reaches_the_limit(search: Search, results: list[Result]) -> None:
    result = next(r for r in results if r.candidate.status == "kept")
    table = result.load.step_model.table

    def step_s(rows: int, context: int) -> float:
        """Of ``rows`` requests at the mean context, written out."""
        piece = max(i for i, knot in enumerate(table.context_knots) if knot <= context)
        slope = table.attention_slope_s[rows, piece]
        return float(table.decode_fixed_s[rows] + table.attention_base_s[rows, piece] + slope * rows * context)

    decided = set()
    for tpot_s in (0.001, 0.03, 0.04, 10.0):
        batch = largest_batch(replace(search, promise=Promise(tpot_s=tpot_s)), result)
        assert batch is not None
        limits = {"kv": batch.by_kv_cache, "settings": batch.by_settings}
        if batch.by_tpot is not None:
            limits["tpot"] = batch.by_tpot
            assert step_s(batch.by_tpot + 1, batch.context_tokens) > tpot_s
        decided.add(min(limits, key=lambda name: limits[name]))
        assert batch.num_requests == min(limits.values())
        if batch.num_requests == 0:
            assert (tpot_s, batch.step_s, batch.tokens_per_s) == (0.001, None, 0.0)
            continue
        assert batch.step_s == pytest.approx(step_s(batch.num_requests, batch.context_tokens))
        assert batch.step_s is not None
        assert batch.step_s <= tpot_s
        assert batch.tokens_per_s == pytest.approx(batch.num_requests / batch.step_s)
    assert decided == {"tpot", "kv"}


def test_loosest_is_broken_only_where_all_are() -> None:
    limit = PercentileLimit(metric="ttft", percentile=99.0, limit_s=1.0)
    one = Promise(ttft_s=1.0, tpot_s=0.05, attainment=0.99, percentiles=(limit,))
    other = Promise(ttft_s=0.5, tpot_s=0.10, attainment=0.9, percentiles=(replace(limit, limit_s=2.0),))
    expected = Promise(ttft_s=1.0, tpot_s=0.10, attainment=0.9, percentiles=(replace(limit, limit_s=2.0),))
    assert loosest((one, other)) == loosest((other, one)) == expected
    assert loosest((one,)) == one


def test_traffic_that_comes_at_once_has_no_other_load(make_search: Make) -> None:
    search = make_search(gpus=("H100-SXM-80GB",))
    at_once = replace(search.workload, arrival_s=search.workload.arrival_s * 0.0)
    asked = replace(search, workload=at_once, promise=Promise(deadline_s=3600.0))
    found = plan(asked, threads=2, with_what_if=True)
    assert found.what_if is not None
    assert [variation.variable for variation in found.what_if.variations] == ["deadline_s"]
    costs = [p.best.usd_per_mtok_output_at_load for p in found.what_if.variations[0].points if p.best is not None]
    assert costs


def test_groups_of_prefill_and_decode_are_planned_again_too(make_search: Make) -> None:
    source = traffic.TrafficSource(profile="azure-code-2023", num_requests=300, rate_rps=6.0)
    search = make_search(
        gpus=("H100-SXM-80GB",),
        workload=traffic.load(source),
        promise=Promise(ttft_s=3.0, tpot_s=0.05, attainment=0.9),
        budget=Budget(max_gpus=4),
        max_effort="high",
    )
    found = plan(search, threads=2, with_what_if=True)
    assert found.what_if is not None
    best = {a.value: a.best for a in found.what_if.alternatives if a.restriction == "effort"}
    assert best.keys() == {"low", "medium"}
    groups = {c.index for c in found.candidates if c.deployment.disaggregation is not None}
    assert groups & set(found.ranking), "no group keeps the promise, so that nothing is tested"
    for fleet in best.values():
        assert fleet is not None
        assert fleet.candidate not in groups


def test_a_deadline_that_low_loads_miss_is_kept_at_higher_ones(make_search: Make) -> None:
    search = make_search(gpus=("H100-SXM-80GB",), budget=Budget(max_gpus=2))
    span_s = search.workload.span_s
    found = plan(replace(search, promise=Promise(deadline_s=1.5 * span_s)), threads=2, with_what_if=True)
    for point in variation_of(found, "load").points:
        assert (point.best is None) == (point.value <= 0.5), f"arrivals alone take {1 / point.value:.3g} spans"


def test_one_nine_more_than_asked_is_planned(make_search: Make) -> None:
    source = traffic.TrafficSource(profile="azure-conversation-2023", num_requests=6000)
    search = make_search(gpus=("H100-SXM-80GB",), workload=traffic.load(source), budget=Budget(max_gpus=1))
    found = plan(replace(search, promise=replace(search.promise, attainment=0.98)), threads=2, with_what_if=True)
    assert [point.value for point in variation_of(found, "attainment").points] == [0.9, 0.95, 0.98, 0.99, 0.995, 0.998]


def test_without_a_winner_looser_promises_and_lower_loads_are_planned(make_search: Make) -> None:
    source = traffic.TrafficSource(profile="azure-conversation-2023", num_requests=400, rate_rps=6.0)
    search = make_search(
        gpus=("L40S-48GB",),
        workload=traffic.load(source),
        promise=Promise(ttft_s=1.0, tpot_s=0.03, attainment=0.99),
        budget=Budget(max_gpus=1),
    )
    found = plan(search, threads=2, with_what_if=True)
    assert found.winner is None
    assert found.what_if is not None
    assert not found.what_if.alternatives
    assert found.what_if.largest_batch is None
    tpot, load = variation_of(found, "tpot_s"), variation_of(found, "load")
    for variation in found.what_if.variations:
        assert all(point.stay is None for point in variation.points)
    (own,) = (point for point in load.points if point.value == 1.0)
    assert own.best is None
    assert all(point.value >= 0.03 for point in tpot.points)
    kept = [point for point in (*tpot.points, *load.points) if point.best is not None]
    assert kept, "nothing is found, so that nothing is tested"
    point = kept[0]
    asked = replace(search, promise=replace(search.promise, tpot_s=point.value)) if point in tpot.points else None
    if asked is None:
        faster = replace(search.workload, arrival_s=search.workload.arrival_s / point.value)
        asked = replace(search, workload=faster)
    assert point.best is not None
    cheapest = dollars(plan(asked, threads=2))
    assert cheapest is not None
    # of shapes that differ in settings alone only both ends are asked where none keeps the plan's own promise
    assert cheapest <= point.best.usd_per_mtok_output_at_load <= 1.02 * cheapest
