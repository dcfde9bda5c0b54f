"""The accuracy page: errors of predicted means on public serving runs, by engine, GPU, model and load."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.serving_fit import Predicted, Prepared
from benchmarks.serving_rows import Placed, Unplaced, exclusions
from benchmarks.serving_validation import HeldOut, interval_score, intervals

__all__ = ["ServingResults", "serving_section"]

Array = NDArray[np.float64]
CONCURRENCIES = ((1, 4), (5, 8), (9, 16), (17, 32), (33, 64), (65, 128), (129, 1_000_000))
REFERENCE = (
    "AIConfigurator 0.12.0 on the rows that it covers (855 with TPOT, 676 with TTFT)",
    (11.8, 39.5, 6.5),
    (39.0, 79.9, -25.9),
)
"""Errors of AIConfigurator's own predictions for these rows, which include its training data."""
HEADER = "| | rows | TPOT median | p90 | bias | TTFT median | p90 | bias |\n|---|---:|---:|---:|---:|---:|---:|---:|\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingResults:
    """Everything the page tells of serving runs.

    Parameters
    ----------
    prepared : Prepared
    unplaced : tuple of Unplaced
    shipped : Predicted
        With the overheads as shipped.
    held_out : mapping of str to HeldOut
        By what was left out.
    """

    prepared: Prepared
    unplaced: tuple[Unplaced, ...]
    shipped: Predicted
    held_out: Mapping[str, HeldOut]


def cells(prepared: Prepared, predicted: Predicted, chosen: NDArray[np.bool_], *, kept: bool) -> str:
    """Cells of a line: count, and median, p90 and bias of TPOT and TTFT over the chosen rows."""
    measured = np.exp(prepared.measured)
    out, counts = [], []
    for j in (1, 0):
        use = chosen & ((prepared.weights[:, j] > 0) if kept else True)
        counts.append(int(use.sum()))
        if not use.any():
            out.append("- | - | -")
            continue
        error = 100.0 * (predicted.times_ms[use, j] / measured[use, j] - 1.0)
        size = np.abs(error)
        out.append(f"{np.median(size):.1f} | {np.quantile(size, 0.9):.1f} | {np.median(error):+.1f}")
    count = str(counts[0]) if counts[0] == counts[1] else f"{counts[0]} / {counts[1]}"
    return f"{count} | {' | '.join(out)} |"


def two_lines(results: ServingResults, predicted: Predicted, name: str, chosen: NDArray[np.bool_]) -> str:
    """A line over every placed row, and one without the rows that a rule sets aside."""
    everything = cells(results.prepared, predicted, chosen, kept=False)
    without = cells(results.prepared, predicted, chosen, kept=True)
    return f"| {name}, every row | {everything}\n| {name}, without exclusions | {without}\n"


def breakdown(results: ServingResults, title: str, label: Callable[[Placed], str]) -> str:
    """A table of held-out errors by a property of the rows."""
    labels = np.array([label(placed) for placed in results.prepared.rows])
    predicted = results.held_out["group"].predicted
    lines = "".join(two_lines(results, predicted, name, labels == name) for name in sorted(set(labels)))
    return f"### By {title}\n\n{HEADER}{lines}\n"


def load_label(placed: Placed) -> str:
    """Range of concurrency, sortable."""
    load = placed.client.concurrency
    low, high = next(r for r in CONCURRENCIES if r[0] <= load <= r[1])
    return f"{low:3d} to {high:3d} requests at once" if high < CONCURRENCIES[-1][1] else f"{low:3d} requests or more"


def calibration_table(results: ServingResults) -> str:
    """How often 90% intervals hold, how wide they are, and their score, by engine and near saturation or not."""
    held = results.held_out["group"]
    interval, kept = intervals(results.prepared, held), results.prepared.weights > 0
    ratio = np.exp(results.prepared.measured) / held.predicted.times_ms
    engines = np.array([p.deployment.engine for p in results.prepared.rows])
    text = (
        "| class | figure | rows | held by the 90% interval | median width | interval score |\n"
        "|---|---|---:|---:|---:|---:|\n"
    )
    holds, width = interval.holds(ratio), interval.width
    for engine in ("all engines", *sorted(set(engines))):
        for load, at in (("", ~held.predicted.saturated), (", saturated", held.predicted.saturated)):
            for j, figure in ((1, "TPOT"), (0, "TTFT")):
                use = kept[:, j] & at & ((engines == engine) | (engine == "all engines"))
                if not use.any():
                    continue
                score = interval_score(interval, ratio, np.flatnonzero(use), j)
                text += (
                    f"| {engine}{load} | {figure} | {int(use.sum())} | {100 * holds[use, j].mean():.0f}% | "
                    f"{100 * np.median(width[use, j]):.0f}% | {100 * score:.0f}% |\n"
                )
    return text


def exclusion_table() -> str:
    """Rules by which rows are set aside."""
    text = "| rule | figures | reason |\n|---|---|---|\n"
    for rule in exclusions():
        words = " and ".join(" ".join(comparison) for comparison in rule.comparisons)
        figures = " and ".join(sorted(figure.upper() for figure in rule.figures))
        text += f"| `{words}` | {figures} | {rule.reason} |\n"
    return text


def unplaced_lines(unplaced: Sequence[Unplaced]) -> str:
    """Reasons for which rows could not be placed, counted."""
    reasons: dict[str, int] = {}
    for row in unplaced:
        reasons[row.reason] = reasons.get(row.reason, 0) + 1
    return "".join(f"- {count} rows: {reason}\n" for reason, count in sorted(reasons.items())) or "- none\n"


def serving_section(results: ServingResults) -> str:
    """Markdown of everything about serving runs."""
    everything = np.ones(len(results.prepared.rows), np.bool_)
    held = {name: found.predicted for name, found in results.held_out.items()}
    lines: dict[str, Any] = {
        "as shipped (fitted to these rows)": results.shipped,
        "without the row's model x engine x GPU x precision": held["group"],
        "the same at one parallelism": held["deployment"],
        "without the row's model": held["model"],
        "without the row's GPU": held["gpu"],
        "without the row's engine": held["engine"],
    }
    text = HEADER + "".join(two_lines(results, predicted, name, everything) for name, predicted in lines.items())
    name, tpot, ttft = REFERENCE
    text += f"| {name} | | {tpot[0]} | {tpot[1]} | {tpot[2]:+} | {ttft[0]} | {ttft[1]} | {ttft[2]:+} |\n\n"
    text += "## Where the errors are\n\nWithout the row's model x engine x GPU x precision.\n\n"
    text += breakdown(results, "engine", lambda p: p.deployment.engine)
    text += breakdown(results, "GPU", lambda p: p.deployment.gpu.name)
    text += breakdown(results, "model", lambda p: p.deployment.model.name)
    text += breakdown(results, "load", load_label)
    text += "## How sure\n\n" + calibration_table(results)
    text += "\n## Rows not placed\n\n" + unplaced_lines(results.unplaced)
    return text + "\n## Rows set aside\n\n" + exclusion_table()
