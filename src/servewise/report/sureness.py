"""How sure a plan is, in words: the verdict, the price of more certainty, and intervals by what they come from."""

from __future__ import annotations

import math
from collections.abc import Mapping

from servewise.report import words
from servewise.types import Assurance, Candidate, Interval, Promise, Summary, Verdict
from servewise.units import format_duration, format_usd

__all__ = [
    "figure_rows",
    "kept_by_words",
    "kept_in_words",
    "margin_words",
    "means_words",
    "model_words",
    "range_words",
    "sampling_words",
    "sure_cell",
    "verdict_words",
    "worries",
]

WORRY: dict[Verdict, str] = {
    "at risk": "the promise is at risk",
    "likely": "the promise is likely, not very likely, to be kept",
}
SEEN: Mapping[str, str] = {
    "measured": "its engine, GPU and model seen",
    "other model": "its model, or its precision, not seen",
    "other gpu": "its GPU not seen",
    "other engine": "its engine not seen",
    "transferred gpu": "its GPU not measured",
    "calibrated": "its engine, GPU and model calibrated",
    "calibrated elsewhere": "calibrated with another model, version or load",
    "drafter": "those of its engine without a drafter, widened",
    "groups": "of groups; not less than those of its instances as servers of their own",
}
"""What of a deployment the runs contain that its errors come from."""


def verdict_words(assurance: Assurance) -> str:
    """The verdict, e.g. ``keeps the promise: very likely (32 of 32 draws of the step times)``."""
    return f"keeps the promise: {assurance.verdict} ({kept_in_words(assurance)})"


def kept_in_words(assurance: Assurance) -> str:
    """The draws behind a verdict, e.g. ``32 of 32 draws of the step times``."""
    return f"{assurance.num_kept} of {assurance.num_draws} draws of the step times"


def margin_words(candidate: Candidate) -> str:
    """The price of the safety margin, e.g. ``2 more replicas, +$3.10/h, make it very likely``; empty where the
    fleet needs none."""
    assurance = candidate.assurance
    if assurance is None or assurance.verdict == "very likely":
        return ""
    margin = assurance.margin
    if margin is None:
        return f"nothing that was tried makes it very likely: {assurance.margin_tried}"
    more = margin.num_replicas - candidate.deployment.num_replicas
    return (
        f"{words.count(more, 'more replica')}, +${margin.extra_usd_per_h:,.2f}/h"
        f" ({format_usd(margin.usd_per_mtok_output_at_load)} per Mtok output at load),"
        f" {'makes' if more == 1 else 'make'} it very likely"
    )


def worries(candidate: Candidate) -> list[str]:
    """What a reader must know of a fleet that is not very likely to keep the promise; empty when it is."""
    assurance = candidate.assurance
    if assurance is None or assurance.verdict == "very likely":
        return []
    num_broken = assurance.num_draws - assurance.num_kept
    return [
        f"{WORRY[assurance.verdict]}: it is broken in {num_broken} of {assurance.num_draws} draws of the step times; "
        f"{margin_words(candidate)}"
    ]


def sure_cell(candidate: Candidate) -> str:
    """Share of the draws in which the promise is kept, e.g. ``97%``; ``-`` where nothing was drawn."""
    return "-" if candidate.assurance is None else f"{100 * candidate.assurance.kept_frac:.0f}%"


def kept_by_words(summary: Summary, assurance: Assurance | None) -> str:
    """The attainment with its intervals, each with what it comes from."""
    if assurance is None:
        return f"{words.attainment_words(summary.attainment)} of {summary.num_requests:,} requests"
    share, drawn = summary.attainment, assurance.attainment
    return (
        f"{100 * share.value:.2f}% of {summary.num_requests:,} requests;"
        f" sampling 95% [{100 * share.low:.2f}, {100 * share.high:.2f}],"
        f" model 90% [{100 * drawn.low:.2f}, {100 * drawn.high:.2f}]"
    )


def sampling_words(summary: Summary, promise: Promise) -> str:
    """The sampling intervals of the latencies that are shown."""
    return ", ".join(
        f"{metric.upper()} {key} {range_words(estimate.low, estimate.high)}"
        for metric, key in words.shown_percentiles(summary, promise)
        for estimate in (summary.percentiles[metric][key],)
    )


def model_words(summary: Summary, assurance: Assurance, promise: Promise) -> str:
    """The model-based intervals of the latencies that are shown."""
    return ", ".join(
        f"{metric.upper()} {key} {range_words(interval.low, interval.high)}"
        for metric, key in words.shown_percentiles(summary, promise)
        if (interval := assurance.percentiles.get(metric, {}).get(key)) is not None
    )


def means_words(assurance: Assurance) -> str:
    """Means with what comparable predictions were off by."""
    found = ", ".join(
        f"{name.upper()} {format_duration(mean.value)} ({range_words(mean.low, mean.high)})"
        for name, mean in assurance.means.items()
        if math.isfinite(mean.value)
    )
    mean = next(iter(assurance.means.values()), None)
    if mean is None or not found:
        return "-"
    whose = "runs of the calibration, held out" if mean.error_class.startswith("calibrated") else "public runs"
    basis = f"errors on {mean.num_runs:,} {whose}" if mean.num_runs else "an assumed error"
    return f"{found}: 90% by {basis} ({SEEN.get(mean.error_class, mean.error_class)})"


def range_words(low: float, high: float) -> str:
    """Two durations with their unit once, e.g. ``590 to 790 ms``; ``-`` when they are undefined."""
    if math.isnan(low) or math.isnan(high):
        return "-"
    if math.isinf(high):
        return f"{format_duration(low)} or more"
    first, last = format_duration(low), format_duration(high)
    number, unit = first.split(" ")
    return f"{number} to {last}" if last.endswith(f" {unit}") else f"{first} to {last}"


def figure_rows(summary: Summary, assurance: Assurance) -> list[list[str]]:
    """Every figure with both of its intervals: name, value, sampling, model."""

    def share(low: float, high: float) -> str:
        return "-" if math.isnan(low) else f"{100 * low:.2f} to {100 * high:.2f}%"

    attained, drawn = summary.attainment, assurance.attainment
    rows = [
        [
            "Requests within the limits",
            f"{100 * attained.value:.2f}%",
            share(attained.low, attained.high),
            share(drawn.low, drawn.high),
        ]
    ]
    nothing = Interval(low=math.nan, high=math.nan)
    for metric, by_name in summary.percentiles.items():
        for name, estimate in by_name.items():
            interval = assurance.percentiles.get(metric, {}).get(name, nothing)
            rows.append(
                [
                    f"{metric.upper()} {name}",
                    format_duration(estimate.value),
                    range_words(estimate.low, estimate.high),
                    range_words(interval.low, interval.high),
                ]
            )
    return rows
