"""What deployments and engines ask of a team, to and from the parts of ``plan.json``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from servewise.store.plan_document import EffortDocument, EngineColumnsDocument, PlanDocument
from servewise.types import EffortFact, EffortReport, EngineColumns, Plan

__all__ = ["columns_document", "columns_of", "effort_document", "effort_of", "facts_of_plan", "missing_facts"]

COLUMNS = ("convenience", "model_flexibility", "hardware_dependence")


def facts_of_plan(plan: Plan) -> dict[str, EffortFact]:
    """Every fact that a plan refers to, by its id."""
    reports = [c.effort for c in plan.candidates if c.effort is not None]
    reports += [getattr(engine, name) for engine in plan.engines for name in COLUMNS]
    return {fact.id: fact for report in reports for fact in report.facts}


def effort_document(report: EffortReport) -> EffortDocument:
    """What is written of a report: its facts by their ids."""
    return EffortDocument(level=report.level, facts=tuple(fact.id for fact in report.facts))


def effort_of(document: EffortDocument, facts: Mapping[str, EffortFact]) -> EffortReport:
    """The report that was written."""
    return EffortReport(level=document.level, facts=tuple(facts[name] for name in document.facts))


def columns_document(of: EngineColumns) -> EngineColumnsDocument:
    """What is written of an engine's columns."""
    return EngineColumnsDocument(
        engine=of.engine,
        convenience=effort_document(of.convenience),
        model_flexibility=effort_document(of.model_flexibility),
        hardware_dependence=effort_document(of.hardware_dependence),
    )


def columns_of(document: EngineColumnsDocument, facts: Mapping[str, EffortFact]) -> EngineColumns:
    """The columns that were written."""
    return EngineColumns(
        engine=document.engine,
        convenience=effort_of(document.convenience, facts),
        model_flexibility=effort_of(document.model_flexibility, facts),
        hardware_dependence=effort_of(document.hardware_dependence, facts),
    )


def missing_facts(parsed: PlanDocument) -> set[str]:
    """Ids of facts that a document refers to and does not hold."""
    reports: Iterable[EffortDocument | None] = (
        *(candidate.effort for candidate in parsed.candidates),
        *(getattr(engine, name) for engine in parsed.engines for name in COLUMNS),
    )
    return {name for report in reports if report is not None for name in report.facts} - parsed.effort_facts.keys()
