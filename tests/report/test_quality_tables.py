"""Precisions of the winner and scores of models, in the terminal and on the page."""

from __future__ import annotations

import dataclasses
import html

import fake_plan
from test_report_terminal import text_of

from servewise.report import plan_html
from servewise.report.precision_words import precision_table
from servewise.report.quality_words import score_table
from servewise.types import Candidate, ExpectedScore, Plan, Precision, PrecisionRow, PrecisionTable


def score(benchmark: str, pct: float, report: str = "card") -> ExpectedScore:
    return ExpectedScore(
        benchmark=benchmark,
        published_pct=pct,
        expected_pct=(0.96 * pct, 0.99 * pct, pct),
        is_estimate=False,
        report=report,
        source=f"https://example.org/{report}",
    )


def two_models(first: tuple[ExpectedScore, ...], second: tuple[ExpectedScore, ...]) -> Plan:
    """A plan whose every other candidate is of a smaller model."""
    plan = fake_plan.plan()
    other = fake_plan.model("meta-llama/Llama-3.1-8B-Instruct")

    def changed(candidate: Candidate) -> Candidate:
        if candidate.index % 2 == 0:
            return dataclasses.replace(candidate, expected_scores=first)
        deployment = dataclasses.replace(candidate.deployment, model=other)
        return dataclasses.replace(candidate, deployment=deployment, expected_scores=second)

    return dataclasses.replace(plan, candidates=tuple(map(changed, plan.candidates)))


def notes_of(plan: Plan) -> tuple[str, ...]:
    found = score_table(plan, [plan.candidates[i] for i in plan.alternatives])
    assert found is not None
    return found.notes


def test_models_stand_side_by_side_with_their_scores() -> None:
    plan = two_models((score("MMLU", 83.6),), (score("MMLU", 69.4),))
    text = text_of(fake_plan.report(plan))
    assert "Quality: scores of the published models" in text
    assert "82.8" in text  # 83.6 x 0.99
    assert "[66.6, 69.4]" in text
    assert max(map(len, text.splitlines())) <= 100
    page = html.unescape(plan_html(fake_plan.report(plan)))
    assert "82.8 [80.3, 83.6]" in page
    assert "comparable on 1 benchmark by one evaluation, card: MMLU" in page


def test_scores_of_several_evaluations_are_marked() -> None:
    plan = two_models((score("MMLU", 83.6), score("MATH", 60.0)), (score("MMLU", 69.4, "other"),))
    notes = notes_of(plan)
    assert any("MMLU was asked differently" in note and "8B-Instruct by other" in note for note in notes)
    assert "not comparable on MATH: no score of Llama-3.1-8B-Instruct is known" in notes


def test_models_without_a_common_benchmark_are_not_comparable() -> None:
    assert any(note.startswith("not comparable: no benchmark") for note in notes_of(two_models((), ())))


def test_one_model_shows_no_scores_unless_they_are_the_users() -> None:
    assert "Quality: scores" not in text_of(fake_plan.report())
    plan = fake_plan.plan()
    own = (score("ours", 60.0, "the service file"),)
    candidates = tuple(dataclasses.replace(c, expected_scores=own) for c in plan.candidates)
    assert "Quality: scores" in text_of(fake_plan.report(dataclasses.replace(plan, candidates=candidates)))


def with_precisions(*, weight_only: bool = True, prompt_s: float = 0.09) -> Plan:
    """The winner beside itself in bf16 and, if it is only stored so, int4."""
    plan = fake_plan.plan()
    assert plan.winner is not None
    winner = plan.candidates[plan.winner]
    last = len(plan.candidates)
    formats = (Precision(weights="bf16"), Precision(weights="int4"))
    added = tuple(
        dataclasses.replace(
            winner, index=last + i, deployment=dataclasses.replace(winner.deployment, precision=precision)
        )
        for i, precision in enumerate(formats)
    )
    rows = (
        PrecisionRow(index=last, weight_only=False, prompt_s=0.08, decode_alone_s=0.02, decode_batch_s=0.025),
        PrecisionRow(
            index=last + 1, weight_only=weight_only, prompt_s=prompt_s, decode_alone_s=0.01, decode_batch_s=0.02
        ),
    )
    table = PrecisionTable(prompt_tokens=1006, context_tokens=1213.0, num_rows=15, rows=rows)
    return dataclasses.replace(plan, candidates=(*plan.candidates, *added), precisions=table)


def test_precisions_stand_with_memory_speed_and_quality() -> None:
    plan = with_precisions()
    text = text_of(fake_plan.report(plan))
    assert "Precisions: the winner's replica in each" in text
    assert "99.6" in text
    assert max(map(len, text.splitlines())) <= 100
    found = precision_table(plan)
    assert found is not None
    assert [row[0] for row in found.rows] == ["bf16/bf16", "int4/bf16"]
    assert "Precisions of the winner" in plan_html(fake_plan.report(plan))


def test_what_weight_only_formats_change_is_said() -> None:
    found = precision_table(with_precisions())
    assert found is not None
    (note,) = (note for note in found.notes if "only stored so" in note)
    assert "a prompt takes 12% more, a decode step alone 50% less, of 15 rows 20% less" in note
    assert note.endswith("it helps TPOT while batches are small, not TTFT")
    faster = precision_table(with_precisions(prompt_s=0.07))
    assert faster is not None
    assert not any("not TTFT" in note for note in faster.notes)
    native = precision_table(with_precisions(weight_only=False))
    assert native is not None
    assert not any("only stored so" in note for note in native.notes)


def test_what_was_not_tried_is_listed() -> None:
    filtered = tuple(f"m in p{i}: keeps 90% of its score" for i in range(9))
    plan = dataclasses.replace(fake_plan.plan(), filtered=filtered)
    text = text_of(fake_plan.report(plan))
    assert "Not tried" in text
    assert "and 3 more" in text
    assert filtered[8] in plan_html(fake_plan.report(plan))
