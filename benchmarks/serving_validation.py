"""How predictions fare on serving runs they were fitted without, and intervals of their errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.serving_fit import Fit, Linear, Predicted, Prepared, all_overheads, predict, solve
from servewise.errors import InputError

__all__ = [
    "GROUPINGS",
    "HeldOut",
    "Interval",
    "enough",
    "groups_of",
    "hold_out",
    "interval_score",
    "intervals",
    "quantiles",
]

Array = NDArray[np.float64]

GROUPINGS = ("group", "model", "gpu", "engine", "deployment")
"""What is left out at once: model x engine x GPU x precision; a model; a GPU; an engine; a group at one parallelism."""
COVERAGE = 0.9
FEWEST_RESIDUALS = 20
FEWEST_GROUPS = 3
"""Residuals, and groups they come from, below which a class borrows those of a wider one: many rows of one deployment
say little about another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Predictions of rows by fits without the rows' own group.

    Parameters
    ----------
    grouping : str
    groups : tuple of str
        Of each row.
    predicted : Predicted
    """

    grouping: str
    groups: tuple[str, ...]
    predicted: Predicted


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """90% intervals of measured over predicted, shape (num_rows, 2, 2): row, (TTFT, TPOT), (low, high)."""

    ratio: Array

    def holds(self, ratio: Array) -> NDArray[np.bool_]:
        """Whether measured over predicted, shape (num_rows, 2), lies within."""
        return np.asarray((self.ratio[..., 0] <= ratio) & (ratio <= self.ratio[..., 1]))

    @property
    def width(self) -> Array:
        """High less low, shape (num_rows, 2)."""
        return np.asarray(self.ratio[..., 1] - self.ratio[..., 0])


def groups_of(prepared: Prepared, grouping: str) -> tuple[str, ...]:
    """Label of what each row is left out with."""
    if grouping == "model":
        return tuple(p.deployment.model.name for p in prepared.rows)
    if grouping == "gpu":
        return tuple(p.deployment.gpu.name for p in prepared.rows)
    if grouping == "engine":
        return tuple(p.deployment.engine for p in prepared.rows)
    return tuple(p.row.group for p in prepared.rows) if grouping == "group" else prepared.groups


def hold_out(prepared: Prepared, fit: Fit, linear: Linear, grouping: str) -> HeldOut:
    """Predict every row with a fit without its group.

    ``linear`` are the residuals and slopes at ``fit``; the problem without the group is solved on them, and the
    rows of the group are simulated with its solution.

    Raises
    ------
    InputError
        When there is one group only: nothing would be left to fit.
    """
    labels = np.array(groups_of(prepared, grouping))
    if len(set(labels)) < 2:
        raise InputError(f"every row has the same {grouping} ({labels[0]}): without it nothing is left to fit")
    times, saturated = np.zeros((len(labels), 2)), np.zeros(len(labels), np.bool_)
    for name in sorted(set(labels)):
        held = [int(i) for i in np.flatnonzero(labels == name)]
        without = solve(prepared, fit, linear, [int(i) for i in np.flatnonzero(labels != name)])
        found = predict(prepared, all_overheads(prepared, without), held)
        times[held], saturated[held] = found.times_ms, found.saturated
    predicted = Predicted(times_ms=times, saturated=saturated)
    return HeldOut(grouping=grouping, groups=tuple(labels.tolist()), predicted=predicted)


def intervals(prepared: Prepared, held_out: HeldOut) -> Interval:
    """Interval of every row from the residuals of the other groups of its class.

    A class is an engine, near saturation or not; with few residuals all engines together.
    """
    ratio = np.exp(prepared.measured) / held_out.predicted.times_ms
    engines = np.array([p.deployment.engine for p in prepared.rows])
    groups, saturated = np.array(held_out.groups), held_out.predicted.saturated
    out = np.zeros((*ratio.shape, 2))
    for i in range(len(ratio)):
        for j in range(2):
            others = (groups != groups[i]) & (prepared.weights[:, j] > 0)
            alike = others & (saturated == saturated[i])
            own = alike & (engines == engines[i])
            chosen = next(c for c in (own, alike, others) if enough(groups[c]) or c is others)
            out[i, j] = quantiles(ratio[chosen, j])
    return Interval(ratio=out)


def enough(groups: NDArray[np.str_]) -> bool:
    """Whether residuals of these groups make an interval of their own."""
    return len(groups) >= FEWEST_RESIDUALS and len(set(groups.tolist())) >= FEWEST_GROUPS


def quantiles(ratio: Array) -> tuple[float, float]:
    """5% and 95% quantiles, a little outside for few values.

    Raises
    ------
    InputError
        When there are no values.
    """
    if not len(ratio):
        raise InputError("no residual of another group that no rule sets aside: there is nothing to make intervals of")
    tail = 0.5 * (1.0 - COVERAGE)
    shift = 1.0 / (len(ratio) + 1)
    low, high = np.quantile(ratio, [max(tail - shift, 0.0), min(1.0 - tail + shift, 1.0)])
    return float(low), float(high)


def interval_score(interval: Interval, ratio: Array, chosen: Sequence[int] | NDArray[np.int64], figure: int) -> float:
    """Mean interval score of a figure over the chosen rows: width, plus what a miss exceeds it by, times 2 / 10%."""
    low, high = interval.ratio[chosen, figure, 0], interval.ratio[chosen, figure, 1]
    value = ratio[chosen, figure]
    miss = np.maximum(low - value, 0.0) + np.maximum(value - high, 0.0)
    return float(np.mean(high - low + 2.0 / (1.0 - COVERAGE) * miss))
