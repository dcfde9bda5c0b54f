"""What models score on benchmarks, published or measured by the user, and which scores may be compared."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from servewise.catalog import read_facts
from servewise.quality.recovery import expected_recovery
from servewise.types import OWN_REPORT, ExpectedScore, ModelSpec, Precision, TaskKind

__all__ = ["BENCHMARK_TASKS", "Score", "benchmarks", "expected_score", "published_scores", "scores_to_show"]

SCORES = "quality/scores.csv"
PERCENT = {"%": 1.0}

BENCHMARK_TASKS: Mapping[str, TaskKind] = {
    "MMLU": "knowledge",
    "MMLU-CoT": "knowledge",
    "MMLU-Pro": "knowledge",
    "MMLU-Redux": "knowledge",
    "ARC-C": "knowledge",
    "GPQA": "math",
    "GPQA-Diamond": "math",
    "GSM8K": "math",
    "MATH": "math",
    "MATH-500": "math",
    "AIME-2024": "math",
    "HumanEval": "code",
    "MBPP": "code",
    "LiveCodeBench": "code",
    "LiveCodeBench-2305-2409": "code",
    "LiveCodeBench-v5": "code",
    "IFEval": "chat",
    "IFEval-strict-prompt": "chat",
    "Arena-Hard": "chat",
}
"""The kind of task a published benchmark tests, as in the table of recoveries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What the checkpoint of a model as it was published scores.

    Parameters
    ----------
    benchmark : str
    pct : float [%]
    report : str
        Evaluation it belongs to. Only scores of one evaluation share prompts, shots and sampling.
    source : str
    """

    benchmark: str
    pct: float
    report: str
    source: str


@cache
def published_scores(model: str) -> tuple[Score, ...]:
    """Published scores of a model of the catalog, in the order of the table; none for others."""
    return tuple(
        Score(
            benchmark=field.split("/")[1],
            pct=fact.number(PERCENT, f"{SCORES}: {model} {field}"),
            report=field.split("/")[0],
            source=fact.provenance.source,
        )
        for field, fact in read_facts(SCORES).get(model, {}).items()
    )


def benchmarks() -> tuple[str, ...]:
    """Benchmarks on which a model of the catalog has a published score."""
    found = (score.benchmark for model in read_facts(SCORES) for score in published_scores(model))
    return tuple(dict.fromkeys(found))


def scores_to_show(
    models: Sequence[str],
    own: Mapping[str, Mapping[str, float]],
    asked: Iterable[str] = (),
    tasks: Collection[TaskKind] = (),
) -> dict[str, tuple[Score, ...]]:
    """Scores that set models side by side.

    Of each benchmark a model's score is the user's own, else that of the evaluation that scored most of the models.
    Of each kind of task one benchmark is taken: the one on which one evaluation scored most of the models, then the
    one on which most have any score. With several models at least two must have one.

    Parameters
    ----------
    models : sequence of str
        Names as in the catalog.
    own : mapping of model to mapping of benchmark to float [%]
        They replace what is published.
    asked : iterable of str
        Benchmarks that are taken in any case.
    tasks : collection of TaskKind
        Kinds of task that matter; none: all.

    Returns
    -------
    dict of str to tuple of Score
        By model, on the same benchmarks in the same order as far as there is a score.
    """
    known = {model: [*_own(own.get(model, {})), *published_scores(model)] for model in models}
    every = dict.fromkeys(score.benchmark for scores in known.values() for score in scores)
    picked = {benchmark: _picks(known, benchmark) for benchmark in every}

    def comparable(benchmark: str) -> tuple[int, int]:
        found = picked[benchmark]
        reports = [score.report for score in found.values()]
        return max(map(reports.count, reports)), len(found)

    shown = [b for b in dict.fromkeys((*asked, *(b for scores in own.values() for b in scores))) if b in picked]
    kinds = {BENCHMARK_TASKS[b] for b in shown if b in BENCHMARK_TASKS}
    for benchmark in sorted(every, key=comparable, reverse=True):  # stable: else in the order of the table
        task = BENCHMARK_TASKS.get(benchmark)
        enough = len(picked[benchmark]) >= min(2, len(models))
        if task is not None and task not in kinds and enough and (not tasks or task in tasks):
            kinds.add(task)
            shown.append(benchmark)
    return {model: tuple(picked[b][model] for b in shown if model in picked[b]) for model in models}


def _own(scores: Mapping[str, float]) -> Iterable[Score]:
    return (Score(benchmark=b, pct=pct, report=OWN_REPORT, source=OWN_REPORT) for b, pct in scores.items())


def _picks(known: Mapping[str, Sequence[Score]], benchmark: str) -> dict[str, Score]:
    """The score of each model that has one, of as few evaluations as possible."""
    found = {model: [s for s in scores if s.benchmark == benchmark] for model, scores in known.items()}
    reports = [score.report for scores in found.values() for score in scores]

    def preference(score: Score) -> tuple[bool, int]:
        return score.report == OWN_REPORT, reports.count(score.report)

    return {model: max(scores, key=preference) for model, scores in found.items() if scores}


def expected_score(model: ModelSpec, precision: Precision, score: Score) -> ExpectedScore:
    """What a model is expected to score in a precision: its score times the recovery of that kind of task."""
    recovery = expected_recovery(model, precision, BENCHMARK_TASKS.get(score.benchmark))
    expected = None
    if recovery is not None:
        low, typical, high = (score.pct * pct / 100 for pct in recovery.pct)
        expected = low, typical, high
    return ExpectedScore(
        benchmark=score.benchmark,
        published_pct=score.pct,
        expected_pct=expected,
        is_estimate=recovery is None or recovery.is_estimate,
        report=score.report,
        source=score.source,
    )
