"""Percentiles of durations as they come, in 10 kB."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["Sketch"]

_LEAST_NS = 1_000.0
_GROWTH = 1.02
"""Of the cells: a percentile is off by 1% at most."""
_CELLS = int(math.log(1e12 / _LEAST_NS) / math.log(_GROWTH)) + 2
_PER_LOG = 1.0 / math.log(_GROWTH)


class Sketch:
    """Counts durations [ns] in cells that grow by 2%, from a microsecond to a quarter of an hour."""

    __slots__ = ("_counts", "largest_ns")

    def __init__(self) -> None:
        self._counts = np.zeros(_CELLS, dtype=np.int64)
        self.largest_ns = 0

    def add(self, duration_ns: int, count: int = 1) -> None:
        """Count a duration."""
        cell = int(math.log(duration_ns / _LEAST_NS) * _PER_LOG) + 1 if duration_ns > _LEAST_NS else 0
        self._counts[min(cell, _CELLS - 1)] += count
        self.largest_ns = max(self.largest_ns, duration_ns)

    def add_all(self, durations_ns: NDArray[np.int64]) -> None:
        """Count many."""
        if len(durations_ns) == 0:
            return
        cells = (np.log(np.maximum(durations_ns, _LEAST_NS) / _LEAST_NS) * _PER_LOG).astype(np.int64) + 1
        cells[durations_ns <= _LEAST_NS] = 0
        self._counts += np.bincount(np.minimum(cells, _CELLS - 1), minlength=_CELLS)
        self.largest_ns = max(self.largest_ns, int(durations_ns.max()))

    def merge(self, other: Sketch) -> None:
        """Count what another has counted."""
        self._counts += other._counts
        self.largest_ns = max(self.largest_ns, other.largest_ns)

    def percentile_s(self, percent: float) -> float:
        """A percentile [s]; NaN when nothing was counted."""
        total = int(self._counts.sum())
        if not total:
            return math.nan
        cell = int(np.searchsorted(np.cumsum(self._counts), percent / 100.0 * total))
        return min(_LEAST_NS * _GROWTH ** (cell - 0.5), self.largest_ns) / 1e9 if cell else _LEAST_NS / 1e9
