"""Attainment and latency percentiles of every resample of a run's requests."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from servewise.metrics.bootstrap import NUM_RESAMPLES, SortedSample, block_counts
from servewise.metrics.cells import cell_counts, cell_percentiles, value_grid

__all__ = ["resample"]

ENTRY_LIMIT = 50_000
"""Requests that are resampled one by one; longer logs are resampled in cells."""
NUM_CELLS = 2048

Floats = NDArray[np.float64]


def resample(
    samples: Mapping[str, SortedSample], is_good: NDArray[np.bool_], qs: Floats, length: int, *, seed: int
) -> tuple[Floats, dict[str, Floats]]:
    """Draw blocks of requests and take the share of good ones and the percentiles of each draw.

    Parameters
    ----------
    samples : mapping of str to SortedSample
        One column a metric, of ``num_requests`` values each.
    is_good : bool array, shape (num_requests,)
    qs : float64 array, shape (num_qs,)
        In (0, 100).
    length : int
        Requests a block.
    seed : int
        Runs of equal length that are drawn with one seed and length are drawn alike, request by request.

    Returns
    -------
    shares : float64 array, shape (num_resamples,)
    percentiles : dict of str to float64 array, shape (num_resamples, num_qs)
    """
    draw = _resample_entries if len(is_good) <= ENTRY_LIMIT else _resample_cells
    return draw(samples, is_good, qs, length, seed)


def _resample_entries(
    samples: Mapping[str, SortedSample], is_good: NDArray[np.bool_], qs: Floats, length: int, seed: int
) -> tuple[Floats, dict[str, Floats]]:
    """Attainment and percentiles of every resample of the requests."""
    shares = np.empty(NUM_RESAMPLES)
    resampled = {name: np.empty((NUM_RESAMPLES, len(qs))) for name in samples}
    for i, counts in enumerate(block_counts(len(is_good), length, seed=seed)):
        shares[i] = np.sum(counts[:-1], where=is_good) / len(is_good)
        for name, sample in samples.items():
            resampled[name][i] = sample.percentiles(counts, qs)
    return shares, resampled


def _resample_cells(
    samples: Mapping[str, SortedSample], is_good: NDArray[np.bool_], qs: Floats, length: int, seed: int
) -> tuple[Floats, dict[str, Floats]]:
    """The same with cells of consecutive requests, for logs so long that it would take seconds."""
    num = len(is_good)
    cell = np.arange(num) * NUM_CELLS // num
    sizes = np.bincount(cell, minlength=NUM_CELLS)
    counts = cell_counts(NUM_CELLS, math.ceil(length * NUM_CELLS / num), seed=seed)
    shares = (counts @ np.bincount(cell[is_good], minlength=NUM_CELLS)) / (counts @ sizes)
    resampled = {}
    for name, sample in samples.items():
        resampled[name] = np.full((NUM_RESAMPLES, len(qs)), np.nan)
        if len(sample.ascending):
            extra = np.append(np.percentile(sample.ascending, qs), sample.ascending[-1])
            grid = value_grid(sample.ascending, np.ones(len(sample.ascending), dtype=np.int64), extra)
            at = cell[sample.order] * len(grid) + np.searchsorted(grid, sample.ascending)
            histogram = np.bincount(at, minlength=NUM_CELLS * len(grid)).astype(np.float64)
            resampled[name] = cell_percentiles(counts, histogram.reshape(NUM_CELLS, -1), grid, qs)
    return shares, resampled
