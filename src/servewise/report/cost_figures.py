"""Figures of what the promise costs: dollars per million tokens of goodput over each limit and over the load."""

from __future__ import annotations

from typing import Final

from servewise.report.advice_changes import asked, limit_name
from servewise.report.advice_parts import Said, Side
from servewise.report.escape import html_text
from servewise.report.figures import GOOD, LIMIT, PALETTE, Figure, axis, figure
from servewise.report.view import PlanReport
from servewise.report.words import several_models
from servewise.types import Hosted, Variation
from servewise.units import format_usd

__all__ = ["COST_FIGURE", "cost_figures"]

COST_FIGURE: Final = "cost-"
"""How the names of these figures begin."""
NUM_HOSTED: Final = 3


def cost_figures(report: PlanReport) -> dict[str, Figure]:
    """By what was varied, the dollars of the cheapest fleet; none where nothing was planned again."""
    found = report.plan.what_if
    if found is None:
        return {}
    said = Said(plan=report.plan, promise=report.promise, several_models=several_models(report.plan))
    return {f"{COST_FIGURE}{v.variable}": _cost_figure(said, v, found.hosted) for v in found.variations}


def _cost_figure(said: Said, variation: Variation, hosted: tuple[Hosted, ...]) -> Figure:
    points = said.curve(variation.variable)
    own = _place(variation.variable, asked(said.promise, variation.variable))
    values = [_place(variation.variable, point.value) for point in points]
    dollars = [None if point.best is None else point.best.usd_per_mtok for point in points]
    hover = ["nothing keeps the promise" if point.best is None else _hover(point.best) for point in points]
    traces: list[Figure] = [
        {
            "name": "cheapest fleet",
            "mode": "lines+markers",
            "line": {"color": PALETTE[0], "width": 2},
            "marker": {
                "size": [14 if value == own else 8 for value in values],
                "color": [GOOD if value == own else PALETTE[0] for value in values],
            },
            "x": values,
            "y": dollars,
            "text": hover,
            "hovertemplate": "%{x:.4g}: %{text}<extra></extra>",
        },
        {
            "name": "a fleet like this plan's",
            "mode": "lines",
            "line": {"color": PALETTE[1], "width": 1, "dash": "dash"},
            "x": values,
            "y": [None if point.stay is None else point.stay.usd_per_mtok for point in points],
        },
    ]
    if variation.variable == "load":
        for offer, color in zip(hosted[:NUM_HOSTED], (LIMIT, *PALETTE[1:]), strict=False):
            traces.append(
                {
                    "name": html_text(f"{offer.price.provider}, by the token"),
                    "mode": "lines",
                    "line": {"color": color, "dash": "dot"},
                    "x": [values[0], values[-1]],
                    "y": [offer.usd_per_mtok_output] * 2,
                }
            )
    known = [side.usd_per_mtok for point in points for side in (point.best, point.stay) if side is not None]
    name = limit_name(variation.variable)
    title = {"load": "times the load", "attainment": "requests that may miss the limits [%]"}.get(
        variation.variable, f"{name} [s]"
    )
    return figure(
        traces,
        height=340,
        xaxis=axis(title, values),
        yaxis={**axis("$ per Mtok output at load", known), "tickprefix": "$"},
    )


def _place(variable: str, value: float) -> float:
    """Where a value stands on the axis: each nine of an attainment is a decade of what it leaves."""
    return 100 * (1 - value) if variable == "attainment" else value


def _hover(side: Side) -> str:
    dollars = f"{format_usd(side.usd_per_mtok)} per Mtok output, {format_usd(side.usd_per_h)}/h"
    return f"{dollars}<br>{html_text(side.words)}"
