"""What models in precisions are expected to score, side by side, and which of the scores may be compared."""

from __future__ import annotations

from collections.abc import Sequence

from servewise.report import words
from servewise.report.table import TextTable
from servewise.types import OWN_REPORT, Candidate, ExpectedScore, Plan
from servewise.units import format_duration, format_usd

__all__ = ["score_table"]

NUM_PRECISIONS = 4
"""Of each model, the cheapest first."""


def score_table(plan: Plan, ranked: Sequence[Candidate]) -> TextTable | None:
    """The scores of ranked candidates; None where there is nothing to set side by side.

    Parameters
    ----------
    plan : Plan
    ranked : sequence of Candidate
        The cheapest first.
    """
    own = any(score.report == OWN_REPORT for c in ranked for score in c.expected_scores)
    if not ranked or not (words.several_models(plan) or own):
        return None
    best = _best(ranked)
    benchmarks = tuple(dict.fromkeys(s.benchmark for c in best.values() for s in c.expected_scores))
    rows = tuple(
        (
            model,
            precision,
            _usd(candidate),
            format_duration(candidate.latency_s),
            *(_cell(_on(candidate, b)) for b in benchmarks),
        )
        for (model, precision), candidate in best.items()
    )
    head = ("model", "weights/KV", "$/Mtok at load", "E2E", *benchmarks)
    return TextTable(head=head, rows=rows, notes=_notes(plan, benchmarks))


def _best(ranked: Sequence[Candidate]) -> dict[tuple[str, str], Candidate]:
    """The cheapest of each model and precision, the cheapest few of each model."""
    best: dict[tuple[str, str], Candidate] = {}
    for candidate in ranked:
        model, precision = words.model_name(candidate), words.precision_words(candidate)
        if sum(name == model for name, _ in best) < NUM_PRECISIONS:
            best.setdefault((model, precision), candidate)
    return best


def _on(candidate: Candidate, benchmark: str) -> ExpectedScore | None:
    return next((score for score in candidate.expected_scores if score.benchmark == benchmark), None)


def _cell(score: ExpectedScore | None) -> str:
    if score is None:
        return "-"
    if score.expected_pct is None:
        return f"? of {score.published_pct:.1f}"
    low, typical, high = score.expected_pct
    return f"{typical:.1f} [{low:.1f}, {high:.1f}]"


def _usd(candidate: Candidate) -> str:
    return "-" if candidate.cost is None else format_usd(candidate.cost.usd_per_mtok_output_at_load)


def _notes(plan: Plan, benchmarks: Sequence[str]) -> tuple[str, ...]:
    """Which benchmarks compare all models by one evaluation, which by several, and which miss some."""
    by_model = {words.model_name(candidate): candidate for candidate in plan.candidates}
    alike: dict[str, list[str]] = {}
    notes: list[str] = []
    sources: dict[str, None] = {}
    for benchmark in benchmarks:
        found = {model: _on(candidate, benchmark) for model, candidate in by_model.items()}
        scores = {model: score for model, score in found.items() if score is not None}
        sources |= {f"{score.report}: {score.source}": None for score in scores.values()}
        reports = {score.report for score in scores.values()}
        if len(reports) > 1:
            by = ", ".join(f"{model} by {score.report}" for model, score in scores.items())
            notes.append(f"{benchmark} was asked differently, compare with care: {by}")
        elif len(scores) > 1:
            alike.setdefault(next(iter(reports)), []).append(benchmark)
        missing = [model for model, score in found.items() if score is None]
        if missing:
            notes.append(f"not comparable on {benchmark}: no score of {', '.join(missing)} is known")
    same = [
        f"{words.count(len(names), 'benchmark')} by one evaluation, {report}: {', '.join(names)}"
        for report, names in alike.items()
    ]
    if len(by_model) > 1 and not benchmarks:
        notes.append("not comparable: no benchmark has scores of two of the models; give your own as quality.scores")
    elif same:
        notes.insert(0, f"comparable on {'; '.join(same)}")
    return (*notes, *sources)
