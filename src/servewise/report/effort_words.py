"""What deployments and engines ask of a team, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from servewise.report import words
from servewise.types import Candidate, CandidateStatus, EffortReport, EngineName, Plan
from servewise.units import format_duration, format_usd

__all__ = ["COLUMNS_HEAD", "effort_words", "level_rows", "performance_words", "reason_rows", "report_words"]

COLUMNS_HEAD: Final = ("Engine", "Performance", "Convenience", "Model flexibility", "Hardware dependence")
NEXT_BEST: Final[Sequence[CandidateStatus]] = ("dominated", "same_schedule", "broken", "not_searched", "infeasible")
"""Whose reason says most of an engine of which nothing is kept."""


def effort_words(effort: EffortReport) -> str:
    """The level, with the facts that lift it above low."""
    if effort.level == "low":
        return "low: nothing beside the engine's own server"
    return f"{effort.level}: {'; '.join(fact.text for fact in effort.facts if fact.demand == effort.level)}"


def report_words(report: EffortReport) -> str:
    """The level of an engine's column with its graded facts; what rests on no source is marked."""
    parts = []
    for fact in report.facts:
        assumed = "; assumed" if fact.provenance.kind == "assumed" else ""
        parts.append(f"{fact.aspect.replace('_', ' ')} {fact.grade} ({fact.text}{assumed})")
    return f"{report.level}: {', '.join(parts)}" if parts else "nothing is known"


def performance_words(plan: Plan, engine: EngineName, *, short: bool = False) -> str:
    """The cheapest fleet of an engine that keeps the promise, or why there is none."""
    of = {c.index: c for c in plan.candidates if c.deployment.engine == engine}
    best = next((of[index] for index in plan.ranking if index in of), None)
    if best is not None and best.cost is not None:
        figures = f"{format_usd(best.cost.usd_per_mtok_output_at_load)}/Mtok"
        if short:
            return f"{figures}, E2E {format_duration(best.latency_s)}"
        return f"{figures} output at load, E2E {format_duration(best.latency_s)}: {words.fleet_words(best)}"
    failed = min(of.values(), key=_says_most, default=None)
    status = "nothing to try" if failed is None else words.STATUS_WORDS[failed.status]
    if short:
        return status
    if failed is None:
        return f"{status}: no precision of the models that passes the quality floor runs with it on this hardware"
    return f"{status}: {failed.reason}"


def _says_most(candidate: Candidate) -> tuple[int, int]:
    return NEXT_BEST.index(candidate.status), candidate.index


def level_rows(plan: Plan) -> list[list[str]]:
    """The engines side by side in few words."""
    return [
        [
            of.engine,
            performance_words(plan, of.engine, short=True),
            *(r.level if r.facts else "?" for r in (of.convenience, of.model_flexibility, of.hardware_dependence)),
        ]
        for of in plan.engines
    ]


def reason_rows(plan: Plan) -> list[list[str]]:
    """The engines side by side, each cell with its reasons."""
    return [
        [
            of.engine,
            performance_words(plan, of.engine),
            *map(report_words, (of.convenience, of.model_flexibility, of.hardware_dependence)),
        ]
        for of in plan.engines
    ]
