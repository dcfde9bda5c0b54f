"""The sentences of a plan."""

from __future__ import annotations

import dataclasses
import math

import fake_plan
import pytest

from servewise.report import explanation_words, shortfall, sureness, visible, words
from servewise.report.escape import html_text, json_in_html
from servewise.types import PercentileLimit, Promise, Provenance, Speculation


@pytest.mark.parametrize(
    ("promise", "expected"),
    [
        (Promise(ttft_s=1.0, tpot_s=0.05), "TTFT <= 1.00 s and TPOT <= 50 ms for 99% of requests"),
        (Promise(e2e_s=30, attainment=0.999), "E2E <= 30.00 s for 99.9% of requests"),
        (
            Promise(percentiles=(PercentileLimit(metric="ttft", percentile=99.9, limit_s=2),), deadline_s=7200),
            "TTFT p99.9 <= 2.00 s; everything within 2.0 h",
        ),
        (Promise(), "every request finishes (throughput)"),
    ],
)
def test_promises(promise: Promise, expected: str) -> None:
    assert words.promise_words(promise) == expected


def test_fleets() -> None:
    candidate = fake_plan.kept(0, "H100-SXM-80GB", 4, 2, 2.95, 10.0)
    assert words.candidate_words(candidate) == ("8 x H100-SXM-80GB: 2 replicas, TP4, fp8 weights, bf16 KV, vllm 0.11.0")
    assert words.fleet_words(candidate) == "8 x H100-SXM-80GB: 2 x TP4 vllm fp8/bf16 256/8192"
    drafter = Speculation(method="ngram", num_speculative_tokens=3, acceptance=(0.5, 0.25, 0.125))
    proposing = dataclasses.replace(candidate.deployment, speculation=drafter)
    assert words.shape_words(proposing) == "TP4 ngram x3"
    assert "2 replicas, TP4 ngram x3, fp8" in words.candidate_words(
        dataclasses.replace(candidate, deployment=proposing)
    )


def test_costs_are_said_with_their_kind() -> None:
    candidate = fake_plan.kept(0, "H100-SXM-80GB", 4, 1, 2.95, 10.0)
    assert words.cost_words(candidate) == (
        "$2.823 per Mtok output at load, $1.694 at capacity; $8,614 a month at this load always ($11.80/h x 730 h)"
    )
    assert candidate.cost is not None
    unknown = dataclasses.replace(candidate.cost, usd_per_mtok_output_at_capacity=math.nan)
    assert "at capacity" not in words.cost_words(dataclasses.replace(candidate, cost=unknown))
    assert words.cost_words(dataclasses.replace(candidate, cost=None)) == "no price"


def test_alternatives_are_weighed_against_the_winner() -> None:
    winner = fake_plan.kept(0, "H100-SXM-80GB", 4, 1, 2.0, 10.0)
    other = fake_plan.kept(1, "H100-SXM-80GB", 8, 1, 2.2, 5.0)
    assert words.against_winner_words(other, winner) == "cost +120%, time -50%"
    assert words.against_winner_words(winner, winner) == "the cheapest"
    twin = dataclasses.replace(winner, index=2, latency_s=9.99)
    assert words.against_winner_words(twin, winner) == "same cost, same time"


def test_one_is_singular() -> None:
    assert words.candidate_words(fake_plan.kept(0, "L40S-48GB", 1, 1, 1.0, 1.0)).startswith("1 x L40S-48GB: 1 replica,")
    assert words.count(2, "GPU") == "2 GPUs"
    winner = fake_plan.kept(0, "H100-SXM-80GB", 2, 1, 2.0, 10.0)
    fewer = fake_plan.kept(1, "H100-SXM-80GB", 1, 1, 2.0, 20.0)
    assert words.against_winner_words(fewer, winner) == "cost -50%, time +100%"


def test_what_limits_a_fleet_is_said_in_few_words_too() -> None:
    candidate = fake_plan.kept(0, "L40S-48GB", 1, 1, 1.0, 1.0)
    long = "compute (61% of step time; replicas busy 90%); with 1 replica 3% would miss TTFT"
    assert words.limit_words(dataclasses.replace(candidate, limited_by=long)) == "compute"
    assert words.limit_words(candidate) == "memory bandwidth"
    assert words.limit_words(dataclasses.replace(candidate, limited_by="")) == "-"


def test_a_long_frontier_loses_the_points_that_differ_least() -> None:
    points = [
        fake_plan.kept(i, "H100-SXM-80GB", 1, 1, dollars, seconds)
        for i, (dollars, seconds) in enumerate([(1.0, 9.0), (1.01, 8.99), (2.0, 5.0), (2.001, 4.99), (4.0, 4.98)])
    ]
    assert [c.index for c in words.spread(points, 3)] == [0, 2, 4]
    assert words.spread(points, 5) == points
    assert [c.index for c in words.spread(points, 1)] == [0, 4]


def test_the_knee_is_the_highest_load_that_keeps_the_promise() -> None:
    point = words.knee(fake_plan.load_curve())
    assert point is not None
    assert point.scale == 1.4
    broken = tuple(p for p in fake_plan.load_curve() if not p.promise_kept)
    assert words.knee(broken) is None


def test_rejections_group_reasons_that_differ_in_numbers_and_names_only() -> None:
    plan = fake_plan.plan()
    groups = words.rejections(plan)
    assert [(g.status, g.num_candidates) for g in groups] == [
        ("infeasible", 6),
        ("infeasible", 3),
        ("broken", 3),
        ("dominated", 3),
    ]
    assert groups[0].example == "weights 131.4 GiB > 72.9 GiB usable on H100-SXM-80GB at TP1"
    assert sum(g.num_candidates for g in groups) == sum(c.status != "kept" for c in plan.candidates)


def test_the_shortfall_names_the_nearest() -> None:
    assert shortfall(fake_plan.plan_without_winner()).endswith(
        "vllm 0.11.0: attainment 0.942 < 0.99 (TTFT p99 1.80 s, TPOT p99 61 ms, E2E p99 21.00 s)"
    )
    nothing = dataclasses.replace(fake_plan.plan_without_winner(), nearest=None)
    assert shortfall(nothing) == (
        "none of 1 candidates was worth simulating: 1 does not keep the promise, e.g. no fleet within the budget keeps"
        " the promise"
    )
    rejected = tuple(c for c in fake_plan.plan().candidates if c.status != "kept")
    nothing = dataclasses.replace(nothing, candidates=rejected)
    assert shortfall(nothing) == (
        "none of 15 candidates was worth simulating: 3 does not keep the promise, e.g. saturated: 2.3 x the load that"
        " 32 GPUs carry; 6 cannot run, e.g. weights 131.4 GiB > 72.9 GiB usable on H100-SXM-80GB at TP1;"
        " 3 cannot run, e.g. quality 97.8% expected < 99% asked (int4)"
    )


def test_control_characters_become_visible() -> None:
    assert visible("a\x1b[31m\x07\u202e\u2028\x9b\ud800é漢") == "a\\x1b[31m\\x07\\u202e\\u2028\\x9b\\ud800é漢"
    assert visible("a\nb", keep="\n") == "a\nb"
    assert visible("[bold]x[/bold]") == "[bold]x[/bold]"


def test_html_and_json_are_escaped() -> None:
    assert html_text("<b>\"'&\x1b") == "&lt;b&gt;&quot;&#x27;&amp;\\x1b"
    assert json_in_html({"a": "</script><!--&\u2028"}) == ('{"a":"\\u003c/script\\u003e\\u003c!--\\u0026\\u2028"}')
    assert json_in_html({"x": (1.5, float("nan")), "y": [float("inf")]}) == '{"x":[1.5,null],"y":[null]}'


def test_attainment_is_shown_only_where_a_share_is_promised() -> None:
    candidate = fake_plan.kept(0, "H100-SXM-80GB", 4, 1, 2.0, 10.0)
    marginal = Promise(percentiles=(PercentileLimit(metric="ttft", percentile=90, limit_s=1),))
    assert words.attainment_cell(candidate, fake_plan.PROMISE) == "99.62"
    assert words.attainment_cell(candidate, marginal) == "-"
    assert words.attainment_cell(dataclasses.replace(candidate, summary=None), fake_plan.PROMISE) == "-"


def test_latency_names_the_promised_percentiles_too() -> None:
    summary = fake_plan.summary(0.995, 0.5, 0.03, 9.0)
    marginal = Promise(percentiles=(PercentileLimit(metric="ttft", percentile=90, limit_s=1),))
    assert words.latency_words(summary, fake_plan.PROMISE) == (
        "TTFT p99 500 ms, TPOT p99 30 ms, E2E p99 9.00 s, ITL p99 39 ms"
    )
    assert words.latency_words(summary, marginal).endswith(", TTFT p90 350 ms")


@pytest.mark.parametrize(
    ("num_kept", "verdict"), [(32, "very likely"), (31, "very likely"), (30, "likely"), (24, "likely"), (23, "at risk")]
)
def test_verdicts(num_kept: int, verdict: str) -> None:
    winner = fake_plan.judged(num_kept).candidates[fake_plan.plan().winner]
    assert winner.assurance is not None
    assert sureness.verdict_words(winner.assurance) == (
        f"keeps the promise: {verdict} ({num_kept} of 32 draws of the step times)"
    )
    assert sureness.sure_cell(winner) == f"{100 * num_kept / 32:.0f}%"
    assert bool(sureness.worries(winner)) == (verdict != "very likely")


def test_the_price_of_the_margin() -> None:
    index = fake_plan.plan().winner
    two = fake_plan.judged(20, fake_plan.MARGIN).candidates[index]
    assert sureness.margin_words(two) == (
        "2 more replicas, +$3.10/h ($3.250 per Mtok output at load), make it very likely"
    )
    one = fake_plan.judged(20, dataclasses.replace(fake_plan.MARGIN, num_replicas=2)).candidates[index]
    assert sureness.margin_words(one).startswith("1 more replica, +$3.10/h")
    assert sureness.margin_words(one).endswith(", makes it very likely")
    none = fake_plan.judged(20, None, "up to 4 replicas (the budget of 16 GPUs)").candidates[index]
    assert sureness.margin_words(none) == (
        "nothing that was tried makes it very likely: up to 4 replicas (the budget of 16 GPUs)"
    )
    assert sureness.margin_words(fake_plan.judged(32, fake_plan.MARGIN).candidates[index]) == ""
    assert sureness.margin_words(fake_plan.plan().candidates[index]) == ""


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.59, 0.79, "590 to 790 ms"),
        (0.9, 1.25, "900 ms to 1.25 s"),
        (0.9, math.inf, "900 ms or more"),
        (math.nan, math.nan, "-"),
    ],
)
def test_ranges(low: float, high: float, expected: str) -> None:
    assert sureness.range_words(low, high) == expected


def test_every_figure_has_both_intervals() -> None:
    summary = fake_plan.summary(0.995, 0.5, 0.03, 9.0)
    rows = {row[0]: row[1:] for row in sureness.figure_rows(summary, fake_plan.assurance(30, summary))}
    assert rows["Requests within the limits"] == ["99.50%", "99.10 to 99.80%", "97.50 to 99.60%"]
    assert rows["TTFT p99"] == ["500 ms", "485 to 510 ms", "450 to 600 ms"]
    assert rows["E2E p50"] == ["2.70 s", "2.62 to 2.83 s", "2.43 to 3.24 s"]
    no_sample = dataclasses.replace(
        summary, attainment=dataclasses.replace(summary.attainment, low=math.nan, high=math.nan)
    )
    assert sureness.figure_rows(no_sample, fake_plan.assurance(30, summary))[0][2] == "-"


def test_an_assumed_error_is_called_assumed() -> None:
    summary = fake_plan.summary(0.995, 0.45, 0.03, 9.0)
    found = fake_plan.assurance(32, summary)
    assumed = {name: dataclasses.replace(mean, num_runs=0) for name, mean in found.means.items()}
    words_of = sureness.means_words(dataclasses.replace(found, means=assumed))
    assert words_of.endswith(": 90% by an assumed error (its model, or its precision, not seen)")
    assert sureness.means_words(dataclasses.replace(found, means={})) == "-"


def test_an_origin_names_its_kind_once() -> None:
    assumed = Provenance(kind="assumed", source="assumed: made up", note="so far")
    assert explanation_words.source_words(assumed) == "assumed: made up; so far"
    assert explanation_words.source_words(Provenance(kind="spec", source="a sheet")) == "spec, a sheet"
