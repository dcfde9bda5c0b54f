"""The bootstrap of samples too large to resample entry by entry.

Consecutive entries are put into cells, their values into the bins of a grid, and blocks of cells are
resampled: the ends of an interval are exact to the grid.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from servewise.metrics.bootstrap import block_counts

__all__ = ["cell_counts", "cell_percentiles", "value_grid"]

NUM_GRID = 2000

Floats = NDArray[np.float64]


def value_grid(ascending: Floats, weights: NDArray[np.int64], extra: Floats) -> Floats:
    """Grid of values at ranks 1e-5 to 1 - 1e-5, even in the logit: dense in both tails.

    Parameters
    ----------
    ascending : float64 array, shape (num,)
        A sample.
    weights : int64 array, shape (num,)
        How often each value occurs.
    extra : float64 array
        Values that the grid must hold, the largest of all among them.

    Returns
    -------
    float64 array, ascending
    """
    share = np.cumsum(weights, dtype=np.float64)
    ranks = 1.0 / (1.0 + np.exp(-np.linspace(-11.5, 11.5, NUM_GRID)))
    nodes = ascending[np.searchsorted(share, ranks * share[-1])]
    return np.unique(np.concatenate((nodes, extra)))


def cell_counts(num_cells: int, length: int, *, seed: int) -> Floats:
    """How often each cell is drawn, in blocks of ``length``: shape (num_resamples, num_cells)."""
    return np.stack(list(block_counts(num_cells, length, seed=seed)))[:, :-1].astype(np.float64)


def cell_percentiles(counts: Floats, histogram: Floats, grid: Floats, qs: Floats) -> Floats:
    """Percentiles of every resample, rounded up to the grid.

    Parameters
    ----------
    counts : float64 array, shape (num_resamples, num_cells)
    histogram : float64 array, shape (num_cells, num_grid)
        Entries by cell and bin; bin b holds values in ``(grid[b - 1], grid[b]]``.
    grid : float64 array, shape (num_grid,)
    qs : float64 array, shape (num_qs,)
        Percentiles, in (0, 100).

    Returns
    -------
    float64 array, shape (num_resamples, num_qs)
        NaN where nothing was drawn.
    """
    cumulative = counts @ np.cumsum(histogram, axis=1)
    total = cumulative[:, -1]
    columns = [np.argmax(cumulative >= (q / 100.0) * total[:, None], axis=1) for q in qs]
    found = grid[np.stack(columns, axis=1)]
    return np.where(total[:, None] > 0, found, np.nan)
