"""What two runs differ in, and what was imported, as text for a terminal and as JSON."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table

from servewise.report import words
from servewise.report.blocks import facts, heading, line
from servewise.types import Difference, FigureDifference, ImportedRun, Promise
from servewise.units import format_duration

__all__ = ["DIFFERENCE_SCHEMA", "difference_json", "difference_terminal", "imported_json", "imported_terminal"]

DIFFERENCE_SCHEMA = "servewise.difference/1"


def difference_terminal(found: Difference, a: str, b: str, promise: Promise | None) -> RenderableType:
    """Lay out a comparison of two runs: what was compared, and a row a figure."""
    rows = [("A", _side(a, found, 0)), ("B", _side(b, found, 1))]
    if promise is not None:
        rows.append(("promise", words.promise_words(promise)))
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    table.add_column("figure", no_wrap=True)
    for name in ("A", "B"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("B against A", overflow="fold")
    for figure in found.figures:
        verdict, style = _verdict(figure)
        table.add_row(_label(figure), _value(figure, figure.a), _value(figure, figure.b), line(verdict, style))
    parts: list[RenderableType] = [line("B against A", "bold"), facts(rows), line(""), table]
    reasons: dict[str, list[str]] = {}
    for figure in found.figures:
        if figure.verdict == "unknown":
            reasons.setdefault(figure.reason, []).append(_label(figure))
    if reasons:
        parts.append(heading("Why it cannot be told"))
        parts += [Padding(line(f"- {', '.join(names)}: {why}"), (0, 0, 0, 2)) for why, names in reasons.items()]
    if found.notes:
        parts.append(heading("Know before you trust it"))
        parts += [Padding(line(f"- {note}"), (0, 0, 0, 2)) for note in found.notes]
    return Group(*parts)


def difference_json(found: Difference, a: str, b: str) -> dict[str, Any]:
    """A comparison of two runs as a JSON document; what is unknown is null."""
    return {
        "schema": DIFFERENCE_SCHEMA,
        "a": {"run": a, "num_runs": found.num_runs[0], "num_requests": found.num_requests[0]},
        "b": {"run": b, "num_runs": found.num_runs[1], "num_requests": found.num_requests[1]},
        "figures": [
            {
                "name": figure.name,
                "a": _finite(figure.a),
                "b": _finite(figure.b),
                "change": _finite(figure.change),
                "low": _finite(figure.low),
                "high": _finite(figure.high),
                "p_value": _finite(figure.p_value),
                "verdict": figure.verdict,
                "words": _verdict(figure)[0],
                "reason": figure.reason,
            }
            for figure in found.figures
        ],
        "notes": list(found.notes),
    }


def imported_terminal(run: ImportedRun, folder: Path) -> RenderableType:
    """Lay out what was read of another tool's file: whose it is, what its figures mean, what it lacks."""
    num_ok = int((run.log.status == 0).sum())
    version = "" if run.tool_version == "unknown" else f" {run.tool_version}"
    rows = [
        ("tool", f"{run.tool}{version}"),
        ("model", run.model),
        ("requests", f"{run.log.num_requests:,}, {num_ok:,} answered"),
        ("missing", ", ".join(run.missing) or "nothing"),
        ("kept in", str(folder)),
    ]
    parts: list[RenderableType] = [line(run.name, "bold"), facts(rows), heading("What its figures mean")]
    parts.append(facts([(name.upper(), text) for name, text in run.definitions.items()]))
    if run.notes:
        parts.append(heading("Know before you trust it"))
        parts += [Padding(line(f"- {note}"), (0, 0, 0, 2)) for note in run.notes]
    return Group(*parts)


def imported_json(run: ImportedRun, folder: Path) -> dict[str, Any]:
    """What was read of another tool's file as a JSON document."""
    return {
        "run_dir": str(folder),
        "tool": run.tool,
        "tool_version": run.tool_version,
        "name": run.name,
        "model": run.model,
        "num_requests": run.log.num_requests,
        "one_clock": run.one_clock,
        "definitions": dict(run.definitions),
        "missing": list(run.missing),
        "notes": list(run.notes),
    }


def _side(name: str, found: Difference, side: int) -> str:
    num_runs, num_requests = found.num_runs[side], found.num_requests[side]
    return f"{name}{f', {num_runs} runs' if num_runs > 1 else ''}, {num_requests:,} requests"


def _label(figure: FigureDifference) -> str:
    if figure.is_share:
        return "attainment"
    if figure.name == "throughput_tokens_per_s":
        return "output tokens/s"
    metric, percentile, _ = figure.name.split("_")
    return f"{metric.upper()} {percentile}"


def _value(figure: FigureDifference, value: float) -> str:
    if math.isnan(value):
        return "-"
    if figure.is_share:
        return f"{100 * value:.1f}%"
    return f"{value:,.0f}" if figure.name == "throughput_tokens_per_s" else format_duration(value)


def _verdict(figure: FigureDifference) -> tuple[str, str]:
    """The verdict in words, and its style."""
    if figure.verdict == "unknown":
        return "cannot be told", "dim"
    unit = " points" if figure.is_share else "%"
    if figure.verdict == "same":
        return f"no difference beyond noise (could miss up to {_points(figure.could_miss)}{unit})", ""
    more_is_better = figure.is_share or figure.name == "throughput_tokens_per_s"
    is_better = (figure.change > 0.0) == more_is_better
    better, worse = ("higher", "lower") if more_is_better else ("faster", "slower")
    adverb = better if is_better else worse
    near, far = sorted((abs(figure.low), abs(figure.high)))
    if figure.verdict == "perhaps":
        return (
            f"perhaps {adverb} by {_points(abs(figure.change))}{unit}: one of so many figures may show this by chance",
            "",
        )
    return f"{adverb} by {_points(near)}-{_points(far)}{unit}", "green" if is_better else "red"


def _points(share: float) -> str:
    """Per cent, with a digit after the point below 10."""
    return f"{100 * share:.0f}" if share >= 0.1 else f"{100 * share:.1f}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
