"""Inter-token latency: percentiles of all gaps of all requests, without storing the gaps.

The gaps are runs: a segment stands for ``steps`` gaps in arithmetic progression, each seen by ``weight``
requests.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from servewise.errors import InputError
from servewise.metrics.bootstrap import block_length, effective_number, percentile_interval
from servewise.metrics.cells import cell_counts, cell_percentiles, value_grid
from servewise.types import ItlSegments

__all__ = ["ItlResamples", "itl_intervals", "itl_mean_s", "itl_percentiles", "itl_resamples", "num_gaps"]

EXPAND_LIMIT = 1_000_000
"""Distinct gaps that are expanded and sorted at once; beyond it, selection discards segments first."""
PIVOT_SAMPLE = 1001
NUM_CELLS = 512
"""Cells of equal numbers of gaps, in order of time, that the interval resamples."""
GRID_SAMPLE = 200_000

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class _Runs(NamedTuple):
    """Ascending runs: gaps ``first + j * increment`` for ``start <= j < stop``, each seen by ``weight``."""

    first: Floats
    increment: Floats
    start: Ints
    stop: Ints
    weight: Ints

    def take(self, part: slice) -> _Runs:
        return _Runs(self.first[part], self.increment[part], self.start[part], self.stop[part], self.weight[part])

    def where(self, mask: NDArray[np.bool_], start: Ints, stop: Ints) -> _Runs:
        return _Runs(self.first[mask], self.increment[mask], start[mask], stop[mask], self.weight[mask])

    def value(self, j: Ints) -> Floats:
        return self.first + j * self.increment

    def num_steps(self) -> int:
        return int(np.sum(self.stop - self.start))

    def num_gaps(self) -> int:
        return int(np.sum((self.stop - self.start) * self.weight))


def num_gaps(segments: ItlSegments) -> int:
    """Number of gaps, over all requests."""
    return int(np.sum(segments.steps * segments.weight))


def itl_mean_s(segments: ItlSegments) -> float:
    """Mean gap [s]; NaN without gaps."""
    total = num_gaps(segments)
    if total == 0:
        return float("nan")
    sums = segments.steps * segments.first_s + segments.increment_s * (segments.steps * (segments.steps - 1) // 2)
    return float(np.sum(segments.weight * sums) / total)


def itl_percentiles(segments: ItlSegments, qs: Sequence[float] | Floats) -> Floats:
    """Percentiles of the pooled gaps [s], exactly as ``numpy.percentile`` of all gaps written out.

    Up to a million distinct gaps are sorted with their weights; beyond, a quickselect on whole segments
    discards what cannot matter, and its rank error is zero as well.

    Parameters
    ----------
    segments : ItlSegments
    qs : sequence of float, shape (num_qs,)
        Percentiles, in [0, 100].

    Returns
    -------
    float64 array, shape (num_qs,) [s]
        NaN when there are no gaps.

    Raises
    ------
    InputError
        When a segment is not finite or has negative steps or weight.
    """
    return _percentiles(_ascending(segments), np.asarray(qs, dtype=np.float64), EXPAND_LIMIT)


def _percentiles(runs: _Runs, qs: Floats, expand_limit: int) -> Floats:
    total = runs.num_gaps()
    if total == 0:
        return np.full(len(qs), np.nan)
    position = (total - 1) * (qs / 100.0)
    below = np.floor(position).astype(np.int64)
    above = np.minimum(below + 1, total - 1)
    ranks = np.unique(np.concatenate((below, above)))
    values = np.empty(len(ranks))
    for index, found in _select(runs, ranks, expand_limit):
        values[index] = found
    low, high = values[np.searchsorted(ranks, below)], values[np.searchsorted(ranks, above)]
    return np.asarray(low + (high - low) * (position - below), dtype=np.float64)


def _ascending(segments: ItlSegments) -> _Runs:
    """Check the segments, drop the empty ones and turn falling runs around."""
    first, increment, steps, weight = segments.first_s, segments.increment_s, segments.steps, segments.weight
    bad = ~(np.isfinite(first) & np.isfinite(increment)) | (steps < 0) | (weight < 0)
    if bad.any():
        i = int(np.argmax(bad))
        raise InputError(
            f"gap segment {i} is first_s={first[i]}, increment_s={increment[i]}, steps={steps[i]}, "
            f"weight={weight[i]}; times must be finite, steps and weight 0 or more"
        )
    first = np.where(increment < 0, first + (steps - 1) * increment, first)
    used = (steps > 0) & (weight > 0)
    return _Runs(first, np.abs(increment), np.zeros_like(steps), steps, weight).where(used, np.zeros_like(steps), steps)


def _expand(runs: _Runs) -> tuple[Floats, Ints, Ints]:
    """Write the gaps out: value, weight and run of each, in order."""
    lengths = runs.stop - runs.start
    run = np.repeat(np.arange(len(lengths)), lengths)
    j = np.arange(len(run)) - np.repeat(np.cumsum(lengths) - lengths, lengths) + runs.start[run]
    return runs.first[run] + j * runs.increment[run], runs.weight[run], run


def _select(runs: _Runs, ranks: Ints, expand_limit: int) -> Iterator[tuple[Ints, Floats | float]]:
    """Find the gaps at ascending 0-based ``ranks``: yields indices into ``ranks`` with their values."""
    todo: list[tuple[_Runs, Ints, Ints]] = [(runs, ranks, np.arange(len(ranks)))]
    while todo:
        runs, ranks, index = todo.pop()
        if len(ranks) == 0:
            continue
        if runs.num_steps() <= expand_limit:
            value, weight, _ = _expand(runs)
            order = np.argsort(value)
            cumulative = np.cumsum(weight[order])
            yield index, value[order[np.searchsorted(cumulative, ranks, side="right")]]
            continue
        pivot = _pivot(runs, float(np.median(ranks)) / runs.num_gaps())
        below = _count_until(runs, pivot, inclusive=False)
        upto = _count_until(runs, pivot, inclusive=True)
        num_below = int(np.sum((below - runs.start) * runs.weight))
        num_upto = int(np.sum((upto - runs.start) * runs.weight))
        left, right = ranks < num_below, ranks >= num_upto
        yield index[~(left | right)], pivot
        todo.append((runs.where(below > runs.start, runs.start, below), ranks[left], index[left]))
        todo.append((runs.where(upto < runs.stop, upto, runs.stop), ranks[right] - num_upto, index[right]))


def _pivot(runs: _Runs, share: float) -> float:
    """One of the gaps, near the given share of the whole: a weighted quantile of a sample of segments."""
    sample = runs.take(slice(None, None, 1 + len(runs.first) // PIVOT_SAMPLE))
    value = sample.value((sample.start + sample.stop - 1) // 2)
    order = np.argsort(value)
    cumulative = np.cumsum(((sample.stop - sample.start) * sample.weight)[order])
    at = int(np.searchsorted(cumulative, share * cumulative[-1]))
    return float(value[order[min(at, len(order) - 1)]])


def _count_until(runs: _Runs, limit: float, *, inclusive: bool) -> Ints:
    """First ``j`` of each run whose gap lies beyond ``limit``, by bisection in the runs that straddle it."""

    def within(value: Floats) -> NDArray[np.bool_]:
        return value <= limit if inclusive else value < limit

    has_first = within(runs.value(runs.start))
    has_last = within(runs.value(runs.stop - 1))
    result = np.where(has_last, runs.stop, runs.start)
    straddling = np.flatnonzero(has_first & ~has_last)
    first, increment = runs.first[straddling], runs.increment[straddling]
    low, high = runs.start[straddling], runs.stop[straddling] - 1  # within at low, not at high
    while np.any(high - low > 1):
        middle = (low + high) // 2
        inside = within(first + middle * increment)
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    result[straddling] = high
    return result


class ItlResamples(NamedTuple):
    """Gap percentiles of every resample, and how much the gaps are worth.

    Parameters
    ----------
    percentiles : float64 array, shape (num_resamples, num_qs) [s]
    num_steps : int
        Requests of one step see the same gap, so independent values are at most the steps.
    num_blocks : float
        Blocks a resample consists of.
    effective_frac : float
        Share of the cells that are worth an independent one.
    """

    percentiles: Floats
    num_steps: int
    num_blocks: float
    effective_frac: float


def itl_resamples(
    segments: ItlSegments, qs: Sequence[float] | Floats, values: Floats, *, least_frac: float = 0.0, seed: int
) -> ItlResamples | None:
    """Moving-block bootstrap of gap percentiles [s].

    The segments, in the order of the log, are cut into 512 cells of about equal numbers of gaps, and blocks
    of cells are resampled. Percentiles are exact to a grid of 2,000 values, dense in both tails.

    Parameters
    ----------
    segments : ItlSegments
    qs : sequence of float, shape (num_qs,)
        Percentiles, in (0, 100).
    values : float64 array, shape (num_qs,) [s]
        The percentiles themselves.
    least_frac : float
        A block is at least this share of all cells.
    seed : int

    Returns
    -------
    ItlResamples or None
        None without gaps.
    """
    runs = _ascending(segments)
    if len(runs.first) == 0:
        return None
    grid = _grid(runs, values)
    histogram = _histogram(runs, grid)
    per_cell = histogram.sum(axis=1)
    series = np.where(per_cell > 0, histogram @ np.arange(len(grid)) / np.maximum(per_cell, 1), np.nan)
    length = max(block_length([series]), math.ceil(least_frac * len(series)))
    counts = cell_counts(len(histogram), length, seed=seed)
    return ItlResamples(
        percentiles=cell_percentiles(counts, histogram, grid, np.asarray(qs, dtype=np.float64)),
        num_steps=runs.num_steps(),
        num_blocks=len(histogram) / length,
        effective_frac=effective_number(series) / len(series),
    )


def itl_intervals(
    segments: ItlSegments, qs: Sequence[float] | Floats, values: Floats, *, seed: int
) -> list[tuple[float, float]]:
    """Intervals (95%) of gap percentiles [s], from :func:`itl_resamples`."""
    found = itl_resamples(segments, qs, values, seed=seed)
    if found is None:
        return [(float("nan"), float("nan"))] * len(qs)
    return [
        percentile_interval(float(value), float(q), found.num_steps, found.percentiles[:, i])
        for i, (q, value) in enumerate(zip(qs, values, strict=True))
    ]


def _grid(runs: _Runs, values: Floats) -> Floats:
    """Grid of gap values, from a sample of the gaps; it ends at the largest gap."""
    lengths = runs.stop - runs.start
    ends = np.cumsum(lengths)
    at = np.linspace(0, ends[-1] - 1, min(int(ends[-1]), GRID_SAMPLE)).astype(np.int64)
    run = np.searchsorted(ends, at, side="right")
    j = at - (ends - lengths)[run] + runs.start[run]
    sample = runs.first[run] + j * runs.increment[run]
    order = np.argsort(sample)
    extra = np.append(values, np.max(runs.value(runs.stop - 1)))
    return value_grid(sample[order], runs.weight[run][order], extra)


def _histogram(runs: _Runs, grid: Floats) -> Floats:
    """Gaps by cell and grid bin; bin b holds gaps in ``(grid[b - 1], grid[b]]``."""
    gaps = (runs.stop - runs.start) * runs.weight
    centre = np.cumsum(gaps) - gaps / 2.0
    num_cells = min(NUM_CELLS, len(gaps))
    cell = np.minimum((centre / gaps.sum() * num_cells).astype(np.int64), num_cells - 1)
    histogram = np.zeros(num_cells * len(grid))
    step_ends = np.cumsum(runs.stop - runs.start)
    # A million gaps at a time, so that memory stays bounded.
    starts = np.searchsorted(step_ends, np.arange(0, int(step_ends[-1]), EXPAND_LIMIT), side="right")
    bounds = np.unique(np.append(starts, len(gaps)))
    for low, high in pairwise(bounds):
        value, weight, run = _expand(runs.take(slice(low, high)))
        at = cell[low + run] * len(grid) + np.minimum(np.searchsorted(grid, value), len(grid) - 1)
        histogram += np.bincount(at, weights=weight, minlength=len(histogram))
    return histogram.reshape(num_cells, len(grid))
