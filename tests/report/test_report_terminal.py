"""The plan in a terminal: the answer first, within 100 columns, names shown and not obeyed."""

from __future__ import annotations

import dataclasses
import io

import fake_plan
from rich.console import Console

from servewise.report import PlanReport, plan_terminal
from servewise.types import Plan


def text_of(report: PlanReport, width: int = 100, *, terminal: bool = False) -> str:
    out = io.StringIO()
    Console(
        file=out, width=width, force_terminal=terminal, color_system="truecolor" if terminal else None
    ).print(plan_terminal(report))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def rename(plan: Plan, model: str, gpu: str) -> Plan:
    candidates = tuple(
        dataclasses.replace(
            c,
            deployment=dataclasses.replace(
                c.deployment, model=fake_plan.model(model), gpu=fake_plan.gpu(gpu)
            ),
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
        "Keep the promise, cheapest first, first 10 of 30",
        "Frontier: nothing is both cheaper and faster (latency: E2E p99)",
        "cost +100%, time -42%, +4 GPUs",
        "Turned down: 15 of 45 candidates",
        "cannot run: e.g. weights 131.4 GiB > 72.9 GiB usable on H100-SXM-80GB at TP1",
        "max_tokens is assumed (P99 of output: 512)",
        "prefill coefficients transferred from H100 to A100",
        "45 candidates, 30 simulated (580,980 requests) in 4.2 s; prices of 2026-10-01 (test-provider)",
    ]
    positions = [text.index(part) for part in parts]
    assert positions == sorted(positions)


def test_ranking_rows_hold_the_candidates_figures() -> None:
    row = next(line for line in text_of(fake_plan.report()).splitlines() if line.startswith(" 6"))
    assert row.split() == [
        "6", "4", "x", "H100-SXM-80GB", "2", "fp8/bf16", "256/8192", "2", "11.80", "2.823", "1.694", "99.59",
        "615", "ms", "37", "ms",
    ]  # fmt: skip


def test_without_a_winner_the_nearest_and_the_shortfall_are_shown() -> None:
    text = text_of(fake_plan.report(fake_plan.plan_without_winner(), launch_command=""))
    assert text.startswith("support-chatbot: no deployment keeps the promise")
    assert "nearest  32 x H100-SXM-80GB: 4 replicas, TP8" in text
    assert "how far  attainment 0.942 < 0.99" in text
    assert "Keep the promise" not in text


def test_comparing_models_adds_their_names_and_still_fits() -> None:
    plan = fake_plan.plan()
    other = dataclasses.replace(
        plan.candidates[0].deployment, model=fake_plan.model("Qwen/Qwen2.5-72B-Instruct")
    )
    plan = dataclasses.replace(
        plan, candidates=(dataclasses.replace(plan.candidates[0], deployment=other), *plan.candidates[1:])
    )
    text = text_of(fake_plan.report(plan))
    assert "Llama-3." in text
    assert max(map(len, text.splitlines())) <= 100


def test_long_names_are_folded_not_cut() -> None:
    plan = rename(fake_plan.plan(), "org/" + "m" * 150, "GPU-" + "G" * 60)
    text = text_of(fake_plan.report(plan, warnings=("w" * 300,)))
    assert max(map(len, text.splitlines())) <= 100
    assert text.count("w") >= 300


def test_markup_and_escapes_in_names_are_shown() -> None:
    plan = rename(fake_plan.plan(), "a/[red]m\x1b[2J", "\x1b]0;title\x07G")
    report = fake_plan.report(
        plan, name="[bold]n\x1b[31m", warnings=("w\x9b1m\u202e",), launch_command="run\x1b[A\nx"
    )
    plain = text_of(report)
    assert "[bold]n\\x1b[31m" in plain
    assert "a/[red]m\\x1b[2J" in plain
    assert "run\\x1b[A\n  x" in plain
    assert "w\\x9b1m\\u202e" in plain
    assert not set("\x1b\x07\x9b\u202e") & set(plain)
    styled = text_of(report, terminal=True)
    assert "\x1b[31m" not in styled
    assert "\x1b[2J" not in styled
