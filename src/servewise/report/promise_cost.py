"""What the promise costs: dollars per million tokens of goodput over its limits and over the load."""

from __future__ import annotations

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table

from servewise.report.advice_changes import asked, limit_name, limit_words
from servewise.report.blocks import heading, line
from servewise.types import Plan, Promise
from servewise.units import format_usd

__all__ = ["promise_cost_blocks", "promise_cost_rows"]

POINTS_A_LINE = 6
"""So many fit in 80 columns."""
COLUMN = 8
"""Letters of the widest value, such as ``120.00 s``."""


def promise_cost_rows(plan: Plan, promise: Promise) -> list[tuple[str, list[tuple[str, str, bool]]]]:
    """By what was varied: its values, the cheapest fleet's dollars at each, and whether it is the plan's own value."""
    if plan.what_if is None:
        return []
    return [
        (
            limit_name(variation.variable),
            [
                (
                    _short(variation.variable, point.value),
                    "-" if point.best is None else format_usd(point.best.usd_per_mtok_output_at_load),
                    point.value == asked(promise, variation.variable),
                )
                for point in variation.points
            ],
        )
        for variation in plan.what_if.variations
    ]


def _short(variable: str, value: float) -> str:
    return f"{value:g} x" if variable == "load" else limit_words(variable, value)


def promise_cost_blocks(plan: Plan, promise: Promise) -> list[RenderableType]:
    """Two lines for each variable: its values and the dollars of the cheapest fleet at them."""
    rows = promise_cost_rows(plan, promise)
    if not rows:
        return []
    blocks: list[RenderableType] = [
        heading("What the promise costs ($ per Mtok output at load of the cheapest fleet, planned again; -: none)")
    ]
    for name, points in rows:
        for start in range(0, len(points), POINTS_A_LINE):
            shown = points[start : start + POINTS_A_LINE]
            table = Table.grid(padding=(0, 1))
            table.add_column(width=17)
            for _ in shown:
                table.add_column(justify="right", no_wrap=True, min_width=COLUMN)
            table.add_row(line("" if start else name), *(line(value, "bold" if own else "") for value, _, own in shown))
            table.add_row("", *(line(usd.removeprefix("$"), "bold" if own else "") for _, usd, own in shown))
            blocks.append(Padding(table, (0, 0, 0, 2)))
    return blocks
