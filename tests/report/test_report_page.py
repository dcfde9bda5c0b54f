"""The page: self-contained, escaped, and with the plan's figures in it."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import fake_plan
import pytest

from servewise.report import plan_html
from servewise.types import LoadPoint, PercentileLimit, Promise

HOSTILE = "</script><img src=x onerror=alert(1)>'\"&"


class Page(HTMLParser):
    """Collects elements, text outside of scripts, and scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self._script: dict[str, str | None] | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self._script = dict(attrs)

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._script = None

    def handle_data(self, data: str) -> None:
        if self._script is None:
            self.text.append(data)
        else:
            self.scripts.append((self._script, data))

    @property
    def figures(self) -> Any:
        return next(json.loads(text) for attrs, text in self.scripts if attrs.get("id") == "figures")

    def attribute(self, name: str) -> list[str]:
        return [value or "" for _, attrs in self.elements for key, value in attrs.items() if key == name]


@pytest.fixture(scope="module")
def html() -> str:
    return plan_html(fake_plan.report())


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_the_page_loads_nothing(page: Page) -> None:
    assert page.attribute("src") == []
    assert page.attribute("href") == []
    assert {tag for tag, _ in page.elements} & {
        "link",
        "img",
        "iframe",
        "object",
        "embed",
        "base",
        "form",
    } == set()


def test_the_policy_allows_exactly_the_pages_own_scripts(html: str, page: Page) -> None:
    policy = next(a["content"] for tag, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    allowed = set(re.findall(r"'sha256-([^']+)'", policy))
    bodies = re.findall(r"<script>(.*?)</script>", html, flags=re.DOTALL)
    assert {base64.b64encode(hashlib.sha256(b.encode()).digest()).decode() for b in bodies} == allowed
    assert len(allowed) == 2
    assert "unsafe-inline" not in policy.split("script-src")[1].split(";")[0]
    assert not [key for _, attrs in page.elements for key in attrs if key.startswith("on")]


def test_the_answer_is_in_the_text(page: Page) -> None:
    text = " ".join(page.text)
    for part in (
        "support-chatbot",
        "4 x H100-SXM-80GB: 1 replica, TP4, fp8 weights, bf16 KV, vllm 0.11.0",
        "$2.823",
        "$1.694 at capacity",
        "99.53%",
        "vllm serve meta-llama/Llama-3.1-70B-Instruct",
        "cost +100%, time -42%",
        "weights 131.4 GiB > 72.9 GiB usable on H100-SXM-80GB at TP1",
        "https://example.org/ops.csv",
        "max_tokens is assumed",
        "30 of 45 candidates keep the promise.",
    ):
        assert part in text


def test_each_figure_has_its_place(page: Page) -> None:
    assert set(page.figures) == {"frontier", "ttft", "tpot", "e2e", "load"}
    assert set(page.figures) <= set(page.attribute("id"))


def test_the_frontier_figure_holds_every_kept_candidate(page: Page) -> None:
    traces = page.figures["frontier"]["data"]
    by_gpu = [t for t in traces if t["mode"] == "markers" and t["name"] != "cheapest"]
    assert sum(len(t["x"]) for t in by_gpu) == len(fake_plan.plan().ranking)
    frontier = next(t for t in traces if t["name"] == "frontier")
    assert frontier["x"] == [5.2, 9.0]
    assert frontier["y"] == sorted(frontier["y"], reverse=True)
    star = next(t for t in traces if t["name"] == "cheapest")
    assert star["x"] == [9.0]


def test_latency_figures_show_distribution_and_limit(page: Page) -> None:
    ttft = page.figures["ttft"]
    assert len(ttft["data"][0]["x"]) == 400
    assert ttft["data"][0]["y"][-1] == 100
    assert [(s["x0"], s["y0"]) for s in ttft["layout"]["shapes"]] == [(1.0, 0), (0, 99.0)]
    assert page.figures["e2e"]["layout"]["shapes"] == []


def test_latency_figures_mark_what_was_reached_against_the_limit(page: Page) -> None:
    curve, reached = page.figures["ttft"]["data"]
    assert (reached["x"], reached["y"]) == ([0.45], [99])  # the summary's p99, not one read off the drawn curve
    assert reached["text"] == ["p99 450 ms, limit 1.00 s"]
    assert [note["text"] for note in page.figures["ttft"]["layout"]["annotations"]] == reached["text"]
    assert len(curve["x"]) == 400
    assert len(page.figures["e2e"]["data"]) == 1
    assert page.figures["e2e"]["layout"]["annotations"] == []


def test_a_logarithmic_axis_names_every_tick_in_full(page: Page) -> None:
    axis = page.figures["ttft"]["layout"]["xaxis"]
    assert axis["type"] == "log"
    assert [float(text) for text in axis["ticktext"]] == pytest.approx(axis["tickvals"])


def table_after(html: str, heading: str) -> str:
    return html.split(f"<h2>{heading}</h2>")[1].split("</table>")[0]


def test_the_table_holds_each_fleet_once(html: str) -> None:
    table = table_after(html, "What keeps the promise")
    assert table.count("<tr") == 1 + 6
    for gpu, times in (("H100-SXM-80GB", 3), ("L40S-48GB", 1), ("H200-SXM-141GB", 1), ("A100-SXM-80GB", 1)):
        assert table.count(gpu) == times


def test_attainment_has_a_column_only_where_a_share_is_promised(html: str) -> None:
    assert "Attainment %" in table_after(html, "What keeps the promise")
    promise = Promise(percentiles=(PercentileLimit(metric="ttft", percentile=90, limit_s=1.0),))
    table = table_after(plan_html(fake_plan.report(promise=promise)), "What keeps the promise")
    assert "Attainment" not in table
    assert table.count("<th ") == 14


def test_quality_at_risk_is_marked_and_explained() -> None:
    plan = fake_plan.plan()
    risk = "quality at risk: the recovery of this precision may be as low as 98.6%"
    candidates = tuple(dataclasses.replace(c, warnings=(risk,)) for c in plan.candidates)
    html = plan_html(fake_plan.report(dataclasses.replace(plan, candidates=candidates)))
    assert "fp8/bf16!</td>" in table_after(html, "What keeps the promise")
    assert f"! fp8/bf16: {risk}</p>" in html
    assert "of the bf16 score expected; all tasks: 79 results of 13 large models; at risk" in html


def test_an_interrupted_search_says_so() -> None:
    plan = fake_plan.plan()
    left = tuple(
        dataclasses.replace(c, status="not_searched", reason="interrupted before") if c.status == "broken" else c
        for c in plan.candidates
    )
    html = plan_html(fake_plan.report(dataclasses.replace(plan, candidates=left, complete=False)))
    assert "interrupted: 3 of 45 candidates were not searched" in html
    assert "not searched" in table_after(html, "What was turned down")


def test_without_distributions_the_percentiles_are_drawn() -> None:
    promise = Promise(percentiles=(PercentileLimit(metric="e2e", percentile=95, limit_s=12.0),))
    figures = Page(plan_html(fake_plan.report(latency_cdf={}, promise=promise))).figures
    assert figures["tpot"]["data"][0]["y"] == [50, 90, 95, 99, 99.9]
    assert figures["tpot"]["data"][0]["mode"] == "lines+markers"
    assert figures["e2e"]["layout"]["shapes"][0]["x0"] == 12.0


def test_the_load_figure_marks_the_knee(page: Page) -> None:
    layout = page.figures["load"]["layout"]
    assert [note["text"] for note in layout["annotations"]] == ["knee: 7.7 requests/s", "this traffic"]
    assert [shape["x0"] for shape in layout["shapes"]] == pytest.approx([7.7, 5.5])
    goodput = page.figures["load"]["data"][1]
    assert goodput["x"] == sorted(goodput["x"])
    assert goodput["marker"]["symbol"].count("circle") == 6


def test_without_a_winner_the_nearest_is_explained() -> None:
    found = Page(plan_html(fake_plan.report(fake_plan.plan_without_winner(), launch_command="")))
    text = " ".join(found.text)
    assert "No deployment keeps the promise" in text
    assert "attainment 0.942 < 0.99" in text
    assert set(found.figures) == {"ttft", "tpot", "e2e"}


def test_without_figures_there_is_no_script_but_a_page() -> None:
    plan = dataclasses.replace(fake_plan.plan_without_winner(), nearest=None)
    html = plan_html(fake_plan.report(plan, launch_command="", latency_cdf={}))
    assert "script-src 'none'" in html
    assert len(html) < 50_000
    assert "No deployment could be tried" in html


def test_hostile_names_stay_text() -> None:
    plan = fake_plan.plan()
    candidates = tuple(
        dataclasses.replace(
            c,
            reason=c.reason and HOSTILE,
            limited_by=HOSTILE,
            warnings=(HOSTILE,),
            deployment=dataclasses.replace(
                c.deployment, model=fake_plan.model(HOSTILE), gpu=fake_plan.gpu(HOSTILE), engine=HOSTILE
            ),
        )
        for c in plan.candidates
    )
    report = fake_plan.report(
        dataclasses.replace(plan, candidates=candidates),
        name=HOSTILE,
        traffic=HOSTILE,
        launch_command=HOSTILE,
        warnings=(HOSTILE,),
        facts={HOSTILE: HOSTILE},
        provenance={HOSTILE: fake_plan.SOURCE},
    )
    found = Page(plan_html(report))
    assert "img" not in {tag for tag, _ in found.elements}
    assert " ".join(found.text).count(HOSTILE) > 8
    hover = found.figures["frontier"]["data"][0]["text"][0]
    assert "<img" not in hover
    assert "&lt;img" in hover


def test_undefined_figures_do_not_reach_the_page() -> None:
    plan = fake_plan.plan()
    point = LoadPoint(
        scale=1.0,
        offered_rps=5.5,
        attainment=0.9,
        promise_kept=False,
        goodput_tokens_per_s=1.0,
        throughput_tokens_per_s=2.0,
    )
    nan = float("nan")
    candidates = tuple(
        dataclasses.replace(c, latency_s=nan, load_curve=(point,)) if c.index == plan.winner else c
        for c in plan.candidates
    )
    found = Page(plan_html(fake_plan.report(dataclasses.replace(plan, candidates=candidates))))
    assert found.figures["load"]["layout"]["annotations"][0]["text"] == "this traffic"
    assert sum(len(t["x"]) for t in found.figures["frontier"]["data"] if t.get("text")) == len(plan.ranking) - 1


def test_the_verdict_and_both_intervals_are_on_the_page() -> None:
    page = Page(plan_html(fake_plan.report(fake_plan.judged(20, fake_plan.MARGIN))))
    text = " ".join(" ".join(page.text).split())
    for part in (
        "Keeps the promise at risk 20 of 32 draws of the step times. 2 more replicas, +$3.10/h",
        "the promise is at risk: it is broken in 12 of 32 draws of the step times",
        "How sure",
        "Requests within the limits 99.53% 99.13 to 99.83% 97.53 to 99.63%",
        "TTFT p99 450 ms 436 to 459 ms 405 to 540 ms",
        "What the numbers consist of",
        "mean TTFT 150 ms queue 50 ms",
        "unvalidated: no public run with <i>pipelines</i>",
        "https://example.org/<b>fits</b>",
        "Nearest public runs",
    ):
        assert part in text
    assert not {"i", "b"} & {tag for tag, _ in page.elements}


def test_without_draws_the_page_claims_no_certainty(html: str) -> None:
    assert "How sure" not in html
    assert "What the numbers consist of" not in html
    assert "Keeps the promise<" not in html


def test_the_engines_stand_side_by_side() -> None:
    html = plan_html(fake_plan.report(fake_plan.compared()))
    table = table_after(html, "The engines side by side")
    assert table.count("<tr") == 1 + 3
    for text in ("Convenience", "Hardware dependence", "maintenance mode", "lower bound $14.20", "one install script"):
        assert text in table
    assert "Where this comes from" in html
    assert "https://docs.vllm.ai/en/v0.12.0/usage/metrics/" in html
    assert "side by side" not in plan_html(fake_plan.report())


def test_the_effort_has_a_card() -> None:
    html = plan_html(fake_plan.report(fake_plan.compared()))
    assert '<dt>Effort</dt><dd>low</dd><dd class="note">nothing beside the engine' in html
