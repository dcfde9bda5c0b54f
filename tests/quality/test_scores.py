"""Scores of models: sourced, compared only where they may be, and floors on them."""

from __future__ import annotations

from typing import get_args

import pytest

from servewise.catalog import get_gpu, get_model, list_models, read_facts, supported_precisions
from servewise.errors import InputError
from servewise.quality import (
    Floor,
    Score,
    below_floor,
    benchmarks,
    expected_recovery,
    expected_score,
    precision_choices,
    published_scores,
    scores_to_show,
)
from servewise.quality.scores import BENCHMARK_TASKS, SCORES
from servewise.types import OWN_REPORT, Precision, TaskKind

L8, L70, Q7, Q3_8 = (get_model(name).name for name in ("llama-3.1-8b", "llama-3.1-70b", "Qwen2.5-7B", "Qwen3-8B"))
DISTILL = get_model("DeepSeek-R1-Distill-Qwen-7B").name
GPT_OSS = get_model("gpt-oss-120b").name
H100 = supported_precisions(get_gpu("H100-SXM-80GB"))


def test_every_score_is_of_a_model_of_the_catalog_and_has_a_source() -> None:
    table = read_facts(SCORES)
    assert set(table) <= set(list_models())
    for model, facts in table.items():
        for field, fact in facts.items():
            report, benchmark = field.split("/")
            assert benchmark in BENCHMARK_TASKS, field
            assert report
            assert fact.unit == "%"
            assert 0 < float(fact.value) < 100
            assert fact.provenance.source.startswith("https://"), (model, field)
            assert fact.provenance.kind == "measured"
    assert set(benchmarks()) == set(BENCHMARK_TASKS)
    assert set(BENCHMARK_TASKS.values()) <= set(get_args(TaskKind))


def test_reports_agree_on_what_they_took_from_each_other() -> None:
    """Reports that quote each other's scores, as these three do, would show an altered digit."""
    checked = 0
    for model in read_facts(SCORES):
        for benchmark in ("GPQA-Diamond", "MATH-500", "AIME-2024"):
            found = {s.report: s.pct for s in published_scores(model) if s.benchmark == benchmark}
            quoted = found.get("deepseek-r1")
            for report in ("qwen3-thinking", "qwen3-plain"):
                if quoted is not None and report in found:
                    assert found[report] == quoted, (model, benchmark)
                    checked += 1
    assert checked >= 18


@pytest.mark.parametrize(
    ("models", "report"), [((L8, L70), "meta-llama-3"), ((L8, Q7), "qwen2.5"), ((L8, Q3_8), "qwen3-plain")]
)
def test_models_are_compared_by_one_evaluation_that_scored_all_of_them(models: tuple[str, ...], report: str) -> None:
    found = scores_to_show(models, {})
    assert all({score.report for score in found[model]} == {report} for model in models)
    assert len({tuple(score.benchmark for score in found[model]) for model in models}) == 1
    kinds = [BENCHMARK_TASKS[score.benchmark] for score in found[models[0]]]
    assert len(kinds) == len(set(kinds)) >= 3


def test_without_a_common_evaluation_each_keeps_its_own_and_says_so() -> None:
    found = scores_to_show((DISTILL, Q7), {})
    both = {s.benchmark: s.report for s in found[DISTILL]}
    assert both
    for score in found[Q7]:
        assert both[score.benchmark] != score.report


def test_models_without_a_common_benchmark_are_not_comparable() -> None:
    assert scores_to_show((GPT_OSS, get_model("google/gemma-2-2b-it").name), {}) == {
        GPT_OSS: (),
        "google/gemma-2-2b-it": (),
    }
    assert scores_to_show((GPT_OSS, "my/config.json"), {}) == {GPT_OSS: (), "my/config.json": ()}


def test_own_scores_replace_published_ones_and_are_always_shown() -> None:
    own = {L8: {"MMLU": 70.5, "our-tickets": 61.0}}
    found = scores_to_show((L8, L70), own)
    by_name = {score.benchmark: score for score in found[L8]}
    assert (by_name["MMLU"].pct, by_name["MMLU"].report) == (70.5, OWN_REPORT)
    assert by_name["our-tickets"].pct == 61.0
    assert {s.benchmark for s in found[L70]} >= {"MMLU"}
    assert "our-tickets" not in {s.benchmark for s in found[L70]}


def test_named_tasks_choose_the_benchmarks() -> None:
    found = scores_to_show((L8, L70), {}, tasks=("code",))
    assert [BENCHMARK_TASKS[s.benchmark] for s in found[L8]] == ["code"]
    assert next(s.benchmark for s in scores_to_show((L8,), {}, asked=("GSM8K",), tasks=("code",))[L8]) == "GSM8K"


def test_the_expected_score_is_the_published_one_times_the_recovery_of_its_kind() -> None:
    model, precision = get_model(L8), Precision(weights="int4")
    score = next(s for s in published_scores(L8) if s.benchmark == "HumanEval")
    recovery = expected_recovery(model, precision, "code")
    assert recovery is not None
    found = expected_score(model, precision, score)
    assert found.expected_pct == pytest.approx([score.pct * pct / 100 for pct in recovery.pct])
    assert expected_score(model, Precision(), score).expected_pct == (score.pct,) * 3
    assert expected_score(model, Precision(weights="q4_0"), score).expected_pct is None


def own_score(pct: float) -> tuple[Score, ...]:
    return (Score(benchmark="MMLU", pct=pct, report=OWN_REPORT, source=OWN_REPORT),)


def test_a_floor_on_a_score_filters_what_is_below_it_and_marks_what_may_be() -> None:
    model, pct = get_model(L8), 70.0
    recovery = expected_recovery(model, Precision(weights="int4"), "knowledge")
    assert recovery is not None
    low, typical, _ = recovery.pct
    above, between, below = 0.7 * (low - 0.1), 0.7 * (low + typical) / 2, 0.7 * (typical + 0.1)

    def judged(least: float) -> tuple[bool, bool]:
        floor = Floor(min_recovery_pct=0.0, min_scores={"MMLU": least})
        found = [c for c in precision_choices(model, H100, floor, own_score(pct)) if c.precision.weights == "int4"]
        plain = [c for c in found if c.precision.kv == "bf16"]
        return bool(plain), any(c.at_risk for c in plain)

    assert judged(above) == (True, False)
    assert judged(between) == (True, True)
    assert judged(below) == (False, False)
    why = below_floor(model, H100, Floor(min_recovery_pct=0.0, min_scores={"MMLU": below}), own_score(pct))
    assert any(f"{L8} in int4/bf16: MMLU" in text for text in why)


def test_a_score_nobody_knows_is_a_risk_not_a_verdict() -> None:
    (choice,) = precision_choices(
        get_model(L8), (Precision(),), Floor(min_recovery_pct=0.0, min_scores={"our-tickets": 60.0})
    )
    assert choice.at_risk
    assert "no our-tickets score is known" in choice.basis


def test_a_choice_carries_the_expected_scores() -> None:
    scores = scores_to_show((L8, L70), {})[L8]
    for choice in precision_choices(get_model(L8), H100, Floor(min_recovery_pct=0.0), scores):
        assert [s.benchmark for s in choice.expected_scores] == [s.benchmark for s in scores]


@pytest.mark.parametrize("pct", [-1.0, 101.0, float("nan")])
def test_a_floor_on_a_score_is_a_percentage(pct: float) -> None:
    with pytest.raises(InputError, match=r"MMLU is .* must be from 0 to 100"):
        Floor(min_recovery_pct=0.0, min_scores={"MMLU": pct})
