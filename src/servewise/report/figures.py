"""The page's figures as plotly descriptions (plain dicts; colours come from the page's theme)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from servewise.report import words
from servewise.report.escape import html_text
from servewise.report.view import PlanReport
from servewise.types import Candidate, Promise
from servewise.units import format_duration, format_usd

__all__ = ["GOOD", "LIMIT", "PALETTE", "Figure", "axis", "figure", "frontier_figure", "latency_figures", "load_figure"]

Figure = dict[str, Any]

PALETTE: Final = ("#4477aa", "#ee7733", "#228833", "#aa3377", "#66ccee", "#bb9900", "#009988", "#cc3311")
"""Colours that differ for colour-blind readers too (after Paul Tol's bright and vibrant schemes)."""
GOOD: Final = "#228833"
LIMIT: Final = "#cc3311"
SYMBOLS: Final = (
    "circle",
    "square",
    "diamond",
    "triangle-up",
    "cross",
    "pentagon",
    "hexagon",
    "triangle-down",
)


def frontier_figure(report: PlanReport) -> Figure | None:
    """Cost against latency of every kept candidate, the frontier drawn through; None without any."""
    by_index = {c.index: c for c in report.plan.candidates}
    kept = [by_index[i] for i in report.plan.ranking if _has_cost_and_latency(by_index[i])]
    if not kept:
        return None
    traces: list[Figure] = []
    for position, gpu in enumerate(dict.fromkeys(c.deployment.gpu.name for c in kept)):
        traces.append(_kept_trace(report, [c for c in kept if c.deployment.gpu.name == gpu], gpu, position))
    frontier = [by_index[i] for i in report.plan.frontier if _has_cost_and_latency(by_index[i])]
    traces.append(
        {
            "name": "frontier",
            "mode": "lines",
            "line": {"width": 2, "dash": "dot", "shape": "hv"},
            "x": [c.latency_s for c in sorted(frontier, key=lambda c: c.latency_s)],
            "y": [_usd_at_load(c) for c in sorted(frontier, key=lambda c: c.latency_s)],
            "hoverinfo": "skip",
            "themed": True,
        }
    )
    winner = None if report.plan.winner is None else by_index[report.plan.winner]
    if winner is not None and _has_cost_and_latency(winner):
        traces.append(
            {
                "name": "cheapest",
                "mode": "markers",
                "marker": {"size": 20, "symbol": "star-open", "line": {"width": 2}, "color": LIMIT},
                "x": [winner.latency_s],
                "y": [_usd_at_load(winner)],
                "hoverinfo": "skip",
            }
        )
    percent = f"{100 * report.promise.attainment:g}"
    return figure(
        traces,
        xaxis=axis(f"E2E p{percent} [s]", [c.latency_s for c in kept]),
        yaxis={**axis("$ per Mtok output at load", [_usd_at_load(c) for c in kept]), "tickprefix": "$"},
    )


def _kept_trace(report: PlanReport, candidates: list[Candidate], gpu: str, position: int) -> Figure:
    on_frontier = set(report.plan.frontier)
    return {
        "name": html_text(gpu),
        "mode": "markers",
        "marker": {
            "color": PALETTE[position % len(PALETTE)],
            "symbol": SYMBOLS[position % len(SYMBOLS)],
            "size": [13 if c.index in on_frontier else 8 for c in candidates],
            "opacity": [1.0 if c.index in on_frontier else 0.6 for c in candidates],
        },
        "x": [c.latency_s for c in candidates],
        "y": [_usd_at_load(c) for c in candidates],
        "text": [_hover(c, report.promise) for c in candidates],
        "hovertemplate": "%{text}<extra></extra>",
    }


def _hover(candidate: Candidate, promise: Promise) -> str:
    lines = [
        words.candidate_words(candidate),
        f"seqs/tokens {words.settings_words(candidate)}",
        f"{format_usd(_usd_at_load(candidate))} per Mtok output at load",
        f"E2E {format_duration(candidate.latency_s)}",
    ]
    if candidate.summary is not None:
        if words.has_joint_limit(promise):
            lines.append(f"attainment {words.attainment_words(candidate.summary.attainment)}")
        lines.append(words.latency_words(candidate.summary, promise))
    if candidate.limited_by:
        lines.append(f"limited by {candidate.limited_by}")
    return "<br>".join(html_text(line) for line in lines)


def latency_figures(report: PlanReport, candidate: Candidate) -> dict[str, Figure]:
    """By metric, the share of requests at or below each TTFT, TPOT and E2E beside the promised limits."""
    figures = {}
    for metric in ("ttft", "tpot", "e2e"):
        cdf = _cdf(report, candidate, metric)
        if cdf is not None:
            figures[metric] = _latency_figure(report, candidate, metric, *cdf)
    return figures


def _latency_figure(
    report: PlanReport, candidate: Candidate, metric: str, values: list[float], shares: list[float]
) -> Figure:
    name = metric.upper()
    trace = {
        "mode": "lines" if metric in report.latency_cdf else "lines+markers",
        "line": {"color": PALETTE[0], "width": 2},
        "x": values,
        "y": [100 * share for share in shares],
        "hovertemplate": f"%{{y:.2f}}% of requests have {name} at most %{{x:.4g}} s<extra></extra>",
    }
    limits = _limits(report.promise, metric)
    known = {} if candidate.summary is None else candidate.summary.percentiles.get(metric, {})
    reached = [
        known[f"p{percent:g}"].value if f"p{percent:g}" in known else float(np.interp(percent / 100, shares, values))
        for _, percent in limits
    ]
    notes = [
        f"p{percent:g} {format_duration(at)}, limit {format_duration(limit_s)}"
        for at, (limit_s, percent) in zip(reached, limits, strict=True)
    ]
    marks = {
        "mode": "markers",
        "marker": {
            "size": 10,
            "color": [GOOD if at <= limit_s else LIMIT for at, (limit_s, _) in zip(reached, limits, strict=True)],
        },
        "x": reached,
        "y": [percent for _, percent in limits],
        "text": notes,
        "hovertemplate": "%{text}<extra></extra>",
    }
    return figure(
        [trace, *([marks] if reached else [])],
        height=340,
        showlegend=False,
        shapes=[shape for limit_s, percent in limits for shape in _limit_shapes(limit_s, percent)],
        annotations=[_note_above("<br>".join(notes), xref="paper", x=0, xanchor="left")] if notes else [],
        xaxis=axis(f"{name} [s]", [*values, *(limit_s for limit_s, _ in limits)]),
        yaxis={"title": {"text": "requests at or below"}, "ticksuffix": "%", "range": [0, 102]},
    )


def _cdf(report: PlanReport, candidate: Candidate, metric: str) -> tuple[list[float], list[float]] | None:
    if metric in report.latency_cdf:
        values, shares = report.latency_cdf[metric]
        pairs = [(float(v), float(s)) for v, s in zip(values, shares, strict=True) if math.isfinite(v)]
        return [v for v, _ in pairs], [s for _, s in pairs]
    if candidate.summary is None or not candidate.summary.percentiles.get(metric):
        return None
    estimates = candidate.summary.percentiles[metric]
    points = sorted((float(key[1:]) / 100, e.value) for key, e in estimates.items() if math.isfinite(e.value))
    return [value for _, value in points], [share for share, _ in points]


def _limits(promise: Promise, metric: str) -> list[tuple[float, float]]:
    """Limits on a metric [s], each with the percent of requests that must meet it."""
    joint = {"ttft": promise.ttft_s, "tpot": promise.tpot_s, "e2e": promise.e2e_s}[metric]
    found = [] if joint is None else [(joint, 100 * promise.attainment)]
    return found + [(p.limit_s, p.percentile) for p in promise.percentiles if p.metric == metric]


def _limit_shapes(limit_s: float, percent: float) -> list[Figure]:
    line = {"color": LIMIT, "width": 1.5, "dash": "dash"}
    return [
        {"type": "line", "yref": "paper", "x0": limit_s, "x1": limit_s, "y0": 0, "y1": 1, "line": line},
        {
            "type": "line",
            "xref": "paper",
            "x0": 0,
            "x1": 1,
            "y0": percent,
            "y1": percent,
            "line": {**line, "width": 1, "dash": "dot"},
        },
    ]


def load_figure(candidate: Candidate) -> Figure | None:
    """Goodput and throughput against the offered load, the knee marked; None without a curve."""
    curve = sorted(candidate.load_curve, key=lambda point: point.offered_rps)
    if not curve:
        return None
    rates = [point.offered_rps for point in curve]
    hover = [
        f"{p.offered_rps:.3g} requests/s ({p.scale:.3g} x this traffic)<br>"
        f"goodput {p.goodput_tokens_per_s:,.0f} tokens/s,"
        f" throughput {p.throughput_tokens_per_s:,.0f} tokens/s<br>"
        f"attainment {100 * p.attainment:.2f}%, promise {'kept' if p.promise_kept else 'broken'}"
        for p in curve
    ]
    common = {"x": rates, "text": hover, "hovertemplate": "%{text}<extra></extra>"}
    traces: list[Figure] = [
        {
            "name": "throughput (all requests)",
            "mode": "lines",
            "line": {"color": PALETTE[1], "dash": "dash", "width": 2},
            "y": [p.throughput_tokens_per_s for p in curve],
            **common,
        },
        {
            "name": "goodput (requests within the limits)",
            "mode": "lines+markers",
            "line": {"color": PALETTE[0], "width": 2},
            "marker": {
                "size": 9,
                "color": [GOOD if p.promise_kept else LIMIT for p in curve],
                "symbol": ["circle" if p.promise_kept else "x" for p in curve],
            },
            "y": [p.goodput_tokens_per_s for p in curve],
            **common,
        },
    ]
    shapes, notes = _load_marks(candidate)
    return figure(
        traces,
        shapes=shapes,
        annotations=notes,
        xaxis={"title": {"text": "offered load [requests/s]"}, "rangemode": "tozero"},
        yaxis={"title": {"text": "output [tokens/s]"}, "rangemode": "tozero"},
    )


def _load_marks(candidate: Candidate) -> tuple[list[Figure], list[Figure]]:
    marks: list[tuple[float, str, str, str]] = []
    point = words.knee(candidate.load_curve)
    if point is not None:
        marks.append((point.offered_rps, f"knee: {point.offered_rps:.3g} requests/s", GOOD, "left"))
    now = min(candidate.load_curve, key=lambda p: abs(p.scale - 1))
    if now.scale == 1 and now is not point:
        marks.append((now.offered_rps, "this traffic", PALETTE[0], "right"))
    shapes = [
        {
            "type": "line",
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "x0": x,
            "x1": x,
            "line": {"color": color, "width": 1.5, "dash": "dash"},
        }
        for x, _, color, _ in marks
    ]
    return shapes, [_note_above(text, x=x, xanchor=anchor) for x, text, _, anchor in marks]


def _note_above(text: str, **place: Any) -> Figure:
    """A line of text just above a figure."""
    return {"text": text, "y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False, "align": "left", **place}


def _has_cost_and_latency(candidate: Candidate) -> bool:
    return math.isfinite(candidate.latency_s) and math.isfinite(_usd_at_load(candidate))


def _usd_at_load(candidate: Candidate) -> float:
    return math.nan if candidate.cost is None else candidate.cost.usd_per_mtok_output_at_load


def axis(title: str, values: Iterable[float]) -> Figure:
    """A linear axis from zero, or a logarithmic one when the values span more than a factor of eight."""
    positive = [v for v in values if v > 0]
    axis: Figure = {"title": {"text": title}}
    if positive and max(positive) > 8 * min(positive):
        first, last = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
        steps = (1, 2, 5) if max(positive) < 300 * min(positive) else (1,)
        ticks = [step * 10.0**decade for decade in range(first, last + 1) for step in steps]
        return {**axis, "type": "log", "tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}
    return {**axis, "rangemode": "tozero"}


def figure(traces: list[Figure], **layout: Any) -> Figure:
    return {"data": [{"type": "scatter", **trace} for trace in traces], "layout": {"height": 440, **layout}}
