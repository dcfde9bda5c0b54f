"""How sure a plan is and what its numbers consist of, to and from the parts of ``plan.json``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from servewise.store.plan_document import (
    AssuranceDocument,
    BreakdownDocument,
    ExplanationDocument,
    IntervalDocument,
    MeanDocument,
    MeasuredRunsDocument,
    PartDocument,
)
from servewise.types import (
    Assurance,
    Breakdown,
    Explanation,
    Interval,
    MeanEstimate,
    MeasuredRuns,
    Part,
    Provenance,
)

__all__ = ["assurance_document", "assurance_of", "explanation_document", "explanation_of"]

Positions = Callable[[Mapping[str, Provenance]], Mapping[str, int]]
"""Turns origins by name into their positions in the document's table."""


def assurance_document(assurance: Assurance) -> AssuranceDocument:
    """What is written of an assurance."""
    return AssuranceDocument(
        num_draws=assurance.num_draws,
        kept_frac=assurance.kept_frac,
        verdict=assurance.verdict,
        attainment=IntervalDocument(**asdict(assurance.attainment)),
        percentiles={
            metric: {name: IntervalDocument(**asdict(interval)) for name, interval in by_name.items()}
            for metric, by_name in assurance.percentiles.items()
        },
        means={name: MeanDocument(**asdict(mean)) for name, mean in assurance.means.items()},
        margin=assurance.margin,
        margin_tried=assurance.margin_tried,
    )


def assurance_of(document: AssuranceDocument) -> Assurance:
    """The assurance that was written; its verdict follows from ``kept_frac``."""
    return Assurance(
        num_draws=document.num_draws,
        kept_frac=document.kept_frac,
        attainment=_interval(document.attainment),
        percentiles={
            metric: {name: _interval(interval) for name, interval in by_name.items()}
            for metric, by_name in document.percentiles.items()
        },
        means={name: MeanEstimate(**dict(mean)) for name, mean in document.means.items()},
        margin=document.margin,
        margin_tried=document.margin_tried,
    )


def _interval(document: IntervalDocument) -> Interval:
    return Interval(low=document.low, high=document.high)


def explanation_document(explanation: Explanation, positions: Positions) -> ExplanationDocument:
    """What is written of an explanation; origins go to the document's table."""

    def part(of: Part) -> PartDocument:
        places = positions({str(i): origin for i, origin in enumerate(of.sources)})
        return PartDocument(group=of.group, name=of.name, value=of.value, sources=tuple(places.values()))

    return ExplanationDocument(
        num_rows=explanation.num_rows,
        context_tokens=explanation.context_tokens,
        prompt_tokens=explanation.prompt_tokens,
        numbers=tuple(
            BreakdownDocument(
                number=number.number,
                value=number.value,
                unit=number.unit,
                parts=tuple(map(part, number.parts)),
                note=number.note,
            )
            for number in explanation.numbers
        ),
        caveats=explanation.caveats,
        nearest=tuple(MeasuredRunsDocument(**asdict(runs)) for runs in explanation.nearest),
        scheduler=explanation.scheduler,
    )


def explanation_of(document: ExplanationDocument, origins: Sequence[Provenance]) -> Explanation:
    """The explanation that was written."""

    def part(of: PartDocument) -> Part:
        sources = tuple(origins[row] for row in of.sources)
        return Part(group=of.group, name=of.name, value=of.value, sources=sources)

    return Explanation(
        num_rows=document.num_rows,
        context_tokens=document.context_tokens,
        prompt_tokens=document.prompt_tokens,
        numbers=tuple(
            Breakdown(
                number=number.number,
                value=number.value,
                unit=number.unit,
                parts=tuple(map(part, number.parts)),
                note=number.note,
            )
            for number in document.numbers
        ),
        caveats=document.caveats,
        nearest=tuple(MeasuredRuns(**dict(runs)) for runs in document.nearest),
        scheduler=document.scheduler,
    )
