"""The plan in a terminal: the answer first, within 100 columns, names shown and not obeyed."""

from __future__ import annotations

import dataclasses
import io
import re

import fake_plan
from rich.console import Console

from servewise.report import PlanReport, plan_terminal
from servewise.types import PercentileLimit, Plan, Promise


def text_of(report: PlanReport, width: int = 100, *, terminal: bool = False) -> str:
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=terminal, color_system="truecolor" if terminal else None).print(
        plan_terminal(report)
    )
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def rename(plan: Plan, model: str, gpu: str) -> Plan:
    candidates = tuple(
        dataclasses.replace(
            c,
            deployment=dataclasses.replace(c.deployment, model=fake_plan.model(model), gpu=fake_plan.gpu(gpu)),
        )
        for c in plan.candidates
    )
    return dataclasses.replace(plan, candidates=candidates)


def test_the_answer_comes_first_and_lines_fit() -> None:
    lines = text_of(fake_plan.report()).splitlines()
    assert lines[0] == "support-chatbot: 4 x H100-SXM-80GB: 1 replica, TP4, fp8 weights, bf16 KV, vllm 0.11.0"
    assert max(map(len, lines)) <= 100
    head = "\n".join(lines[:10])
    for part in (
        "$2.823 per Mtok output at load, $1.694 at capacity; $8,614 a month at this load always",
        "99.53% [99.13, 99.83] of 19,366 requests",
        "TTFT p99 450 ms, TPOT p99 27 ms",
        "limited by  memory bandwidth",
    ):
        assert part in head


def test_every_part_is_there_in_order() -> None:
    text = text_of(fake_plan.report())
    parts = [
        "vllm serve meta-llama/Llama-3.1-70B-Instruct --tensor-parallel-size 4",
        "Keep the promise: 30 of 45 candidates\n",
        "Best settings of each GPU, engine and precision, cheapest first ($ per Mtok of output)\n",
        "Frontier: nothing is both cheaper and faster (latency: E2E p99)",
        "cost +100%, time -42%",
        "Turned down: 15 of 45 candidates",
        "cannot run: e.g. weights 131.4 GiB > 72.9 GiB usable on H100-SXM-80GB at TP1",
        "max_tokens is assumed (P99 of output: 512)",
        "prefill coefficients transferred from H100 to A100",
        "45 candidates, 30 simulated (580,980 requests) in 4.2 s; prices of 2026-10-01 (test-provider)",
    ]
    positions = [text.index(part) for part in parts]
    assert positions == sorted(positions)


def table_rows(text: str) -> list[list[str]]:
    """Rows of the table of alternatives: those that begin with their rank."""
    return [line.split() for line in text.splitlines() if re.match(r" ?\d+ [A-Z]", line)]


def test_the_table_holds_the_best_settings_of_each_fleet_with_its_figures() -> None:
    rows = table_rows(text_of(fake_plan.report()))
    assert [row[0] for row in rows] == ["1", "2", "3", "4", "5", "6"]
    assert rows[1] == [
        "2", "H100-SXM-80GB", "vllm", "2", "x", "TP2", "fp8/bf16", "256/8192", "11.80", "2.823", "1.694", "99.59",
        "615", "ms", "37", "ms",
    ]  # fmt: skip
    assert len({tuple(row[1:7]) for row in rows}) == 6  # no fleet twice, whatever its settings


def test_more_alternatives_than_fit_are_counted() -> None:
    plan = fake_plan.plan(num_fillers=0)
    candidates = tuple(fake_plan.kept(i, f"GPU-{i:02d}", 2, 1, 1.0 + i, 20.0 - i) for i in range(14))
    plan = dataclasses.replace(
        plan, candidates=candidates, winner=0, ranking=tuple(range(14)), frontier=tuple(range(14))
    )
    text = text_of(fake_plan.report(plan))
    assert "Keep the promise: 14 of 14 candidates\n" in text
    assert "cheapest first, 10 of 14 ($ per Mtok of output)\n" in text
    assert [row[1] for row in table_rows(text)] == [f"GPU-{i:02d}" for i in range(10)]
    assert "(latency: E2E p99; 10 of 14 points)" in text
    frontier = text.split("Frontier:")[1].split("Know before")[0]
    assert frontier.count("x TP2") == 10
    assert "GPU-00: 1 x TP2" in frontier  # both ends are kept
    assert "GPU-13: 1 x TP2" in frontier


def test_quality_at_risk_is_marked_and_explained_once() -> None:
    plan = fake_plan.plan()
    risk = "quality at risk: the recovery of this precision may be as low as 98.6%"
    candidates = tuple(
        dataclasses.replace(c, warnings=(*c.warnings, risk)) if c.deployment.gpu.name == "H100-SXM-80GB" else c
        for c in plan.candidates
    )
    text = text_of(fake_plan.report(dataclasses.replace(plan, candidates=candidates)))
    marked = {row[1]: row[6] for row in table_rows(text)}
    assert marked["H100-SXM-80GB"] == "fp8/bf16!"
    assert marked["L40S-48GB"] == "fp8/bf16"
    assert text.count(f"! fp8/bf16: {risk}") == 1
    assert "1 x TP4 vllm fp8/bf16! 256/8192" in text.split("Frontier:")[1]
    basis = "(all tasks: 79 results of 13 large models)"
    assert f"of the bf16 score expected {basis}; at risk" in " ".join(text.split())
    assert "!" not in text_of(fake_plan.report())


def test_an_interrupted_search_says_what_it_leaves_open() -> None:
    plan = fake_plan.plan()
    left = tuple(
        dataclasses.replace(c, status="not_searched", reason="the search was interrupted before")
        if c.status == "dominated"
        else c
        for c in plan.candidates
    )
    text = text_of(fake_plan.report(dataclasses.replace(plan, candidates=left, complete=False)))
    assert "interrupted: 3 of 45 candidates were not searched; a better deployment may be among them" in text
    assert "3  not searched: e.g. the search was interrupted before" in text
    assert "interrupted" not in text_of(fake_plan.report())


def test_without_a_winner_the_nearest_and_the_shortfall_are_shown() -> None:
    text = text_of(fake_plan.report(fake_plan.plan_without_winner(), launch_command=""))
    assert text.startswith("support-chatbot: no deployment keeps the promise")
    assert "nearest  32 x H100-SXM-80GB: 4 replicas, TP8" in text
    assert "how far  attainment 0.942 < 0.99" in text
    assert "Keep the promise" not in text


def test_comparing_models_adds_their_names_and_still_fits() -> None:
    plan = fake_plan.plan()
    other = dataclasses.replace(plan.candidates[0].deployment, model=fake_plan.model("Qwen/Qwen2.5-72B-Instruct"))
    plan = dataclasses.replace(
        plan, candidates=(dataclasses.replace(plan.candidates[0], deployment=other), *plan.candidates[1:])
    )
    text = text_of(fake_plan.report(plan))
    assert max(map(len, text.splitlines())) <= 100
    assert "Best settings of each model, GPU, engine and precision, cheapest first ($ per Mtok of output)\n" in text
    lines = text.splitlines()
    row = next(i for i, line in enumerate(lines) if line.startswith("1 Llama-3.1-70B-Instruct"))
    assert lines[row].split()[-4:] == ["450", "ms", "27", "ms"]  # nothing is cut off on the right
    assert lines[row + 1].split() == ["H100-SXM-80GB"]


def test_attainment_has_a_column_only_where_a_share_is_promised() -> None:
    limit = PercentileLimit(metric="ttft", percentile=90, limit_s=1)
    assert "attain" in text_of(fake_plan.report())
    assert "attain" not in text_of(fake_plan.report(promise=Promise(percentiles=(limit,))))


def test_long_names_are_folded_not_cut() -> None:
    plan = rename(fake_plan.plan(), "org/" + "m" * 150, "GPU-" + "G" * 60)
    text = text_of(fake_plan.report(plan, warnings=("w" * 300,)))
    assert max(map(len, text.splitlines())) <= 100
    assert text.count("w") >= 300


def test_markup_and_escapes_in_names_are_shown() -> None:
    plan = rename(fake_plan.plan(), "a/[red]m\x1b[2J", "\x1b]0;title\x07G")
    report = fake_plan.report(plan, name="[bold]n\x1b[31m", warnings=("w\x9b1m\u202e",), launch_command="run\x1b[A\nx")
    plain = text_of(report)
    assert "[bold]n\\x1b[31m" in plain
    assert "a/[red]m\\x1b[2J" in plain
    assert "run\\x1b[A\n  x" in plain
    assert "w\\x9b1m\\u202e" in plain
    assert not set("\x1b\x07\x9b\u202e") & set(plain)
    styled = text_of(report, terminal=True)
    assert "\x1b[31m" not in styled
    assert "\x1b[2J" not in styled


def test_the_verdict_stands_with_the_answer() -> None:
    text = text_of(fake_plan.report(fake_plan.judged(32, fake_plan.MARGIN)))
    head = text.split("Launch")[0]
    for row in (
        "kept by     99.53% of 19,366 requests; sampling 95% [99.13, 99.83], model 90% [97.53, 99.63]",
        "sure        keeps the promise: very likely (32 of 32 draws of the step times)",
        "latency     TTFT p99 450 ms, TPOT p99 27 ms",
        "  sampling  TTFT p99 436 to 459 ms, TPOT p99 26 to 28 ms",
        "  model     TTFT p99 405 to 540 ms, TPOT p99 24 to 32 ms",
    ):
        assert row in head
    assert "TTFT 150 ms (120 to 225 ms), TPOT 14 ms (11 to 20 ms): 90% by errors on 1,234 public" in head
    assert "margin" not in text
    assert "at risk" not in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_winner_at_risk_is_said_to_be_at_risk_with_the_price_of_the_margin() -> None:
    text = text_of(fake_plan.report(fake_plan.judged(12, fake_plan.MARGIN)))
    words = " ".join(text.split())
    assert "sure keeps the promise: at risk (12 of 32 draws of the step times)" in words
    margin = "2 more replicas, +$3.10/h ($3.250 per Mtok output at load), make it very likely"
    assert f"margin {margin}" in words
    assert f"the promise is at risk: it is broken in 20 of 32 draws of the step times; {margin}" in words


def test_only_the_frontier_has_a_column_for_the_verdict() -> None:
    text = text_of(fake_plan.report(fake_plan.judged(24)))
    ranking, frontier = text.split("Frontier:")
    assert "sure" not in ranking.split("Keep the promise: 30")[1]
    rows = [line for line in frontier.split("Turned down")[0].splitlines() if " x TP" in line]
    assert [row.split("  ")[-2].split()[-1] for row in rows] == ["75%", "100%"]
    assert "sure: of 32 draws" in frontier
    assert "sure" not in text_of(fake_plan.report())


def test_numbers_are_explained_when_asked() -> None:
    report = fake_plan.report(fake_plan.judged(32))
    assert "What the numbers consist of" not in text_of(report)
    out = io.StringIO()
    Console(file=out, width=100).print(plan_terminal(report, explain=True))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert max(map(len, lines)) <= 100
    text = " ".join(out.getvalue().split())
    for part in (
        "a replica decodes 12.9 requests at once, with 16,264 tokens of context in all; prompts of 1,156 tokens",
        "mean TTFT 150 ms queue 50 ms prefill 80 ms compute 60 ms, weights 20 ms network 20 ms network 15 ms,",
        "memory of a GPU 80.0 GiB engine 74.0 GiB KV 44.0 GiB, weights 30.0 GiB left free 6.0 GiB",
        "weights, compute: measured, https://example.org/ops.csv; within 4% of the table",
        "network, tokenizer, memory weights, memory KV, memory left free: derived, https://example.org/<b>fits</b>",
        "- unvalidated: no public run with <i>pipelines</i>",
        "- extrapolated: contexts above 131072 tokens extrapolate attention",
        "12 vllm 0.11.0",
        "6.1/-2.0 - precision,",
    ):
        assert part in text


def test_a_plan_that_rests_on_measurements_alone_says_so() -> None:
    plan = fake_plan.judged(32)
    assert plan.explanation is not None
    bare = dataclasses.replace(plan.explanation, caveats=(), nearest=())
    out = io.StringIO()
    report = fake_plan.report(dataclasses.replace(plan, explanation=bare))
    Console(file=out, width=100).print(plan_terminal(report, explain=True))
    assert "nothing of it is known to be extrapolated, transferred or unvalidated" in out.getvalue()
    assert "none is known" in out.getvalue()


def test_the_engines_stand_side_by_side_when_asked() -> None:
    report = fake_plan.report(fake_plan.compared())
    assert "side by side" not in text_of(report)
    assert "effort low: nothing beside the engine" in " ".join(text_of(report).split())
    out = io.StringIO()
    Console(file=out, width=100).print(plan_terminal(report, explain=True))
    assert max(len(line.rstrip()) for line in out.getvalue().splitlines()) <= 100
    text = " ".join(out.getvalue().split())
    for part in (
        "Engine Performance Convenience Model flexibility Hardware dependence",
        "vllm $2.823/Mtok, E2E 9.00 s medium high low",
        "tgi proven no better low medium low",
        "ollama nothing to try high medium low",
        "performance proven no better: lower bound $14.20 per Mtok",
        "convenience low: project low (TGI has been in maintenance mode since 2025-12-11",
        "or a restart; assumed)",
    ):
        assert part in text, part
