"""Arrivals of a profile: a measured rate curve whose bursts below the curve's window are drawn anew.

The requests of each window are split in halves again and again. How unevenly a half of n requests splits is
beta-binomial with one concentration for each time scale, fitted to the trace's second moments: a small one is
bursty, infinity is Poisson. So the index of dispersion is the trace's at every scale, without keeping any of
its times.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["draw_arrivals", "fit_concentrations"]


def fit_concentrations(arrival_s: NDArray[np.float64], window_s: float, num_levels: int) -> list[float | None]:
    """Concentration of the split at each scale, from whole windows down; None is infinite (binomial).

    Parameters
    ----------
    arrival_s : float64 array, shape (num_requests,) [s]
        From 0.
    window_s : float [s]
    num_levels : int
        The finest scale is ``window_s / 2**num_levels``.
    """
    num_windows = int(arrival_s[-1] // window_s)
    inside = arrival_s[arrival_s < num_windows * window_s]
    fitted: list[float | None] = []
    for level in range(1, num_levels + 1):
        cells = np.floor(inside / window_s * 2**level).astype(np.int64)
        halves = np.bincount(cells, minlength=num_windows * 2**level).reshape(-1, 2)
        num = halves.sum(axis=1)
        # E[(left - right)^2] = n (2a + n) / (2a + 1), summed over all cells and solved for 2a.
        spread = int(((halves[:, 0] - halves[:, 1]) ** 2).sum())
        excess = spread - int(num.sum())
        twice = (int((num**2).sum()) - spread) / excess if excess > 0 else np.inf
        fitted.append(round(float(twice) / 2, 3) if np.isfinite(twice) else None)
    return fitted


def draw_arrivals(
    counts: NDArray[np.int64],
    window_s: float,
    duration_s: float,
    concentrations: Sequence[float | None],
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """Sorted times of arrival [s]; the first is 0.

    Parameters
    ----------
    counts : int64 array, shape (num_windows,)
        Requests of each window; the last window ends at ``duration_s``.
    window_s, duration_s : float [s]
    concentrations : sequence of float or None
        See :func:`fit_concentrations`.
    rng : numpy.random.Generator
    """
    last_window_s = duration_s - (len(counts) - 1) * window_s
    cells = np.flatnonzero(counts[:-1])
    num = counts[:-1][cells]
    for concentration in concentrations:
        left_share: NDArray[np.float64] | float = 0.5
        if concentration is not None:
            left_share = rng.beta(concentration, concentration, size=len(num))
        left = rng.binomial(num, left_share)
        cells = np.stack((cells * 2, cells * 2 + 1), axis=1).ravel()
        num = np.stack((left, num - left), axis=1).ravel()
        cells, num = cells[num > 0], num[num > 0]
    cell_s = window_s / 2 ** len(concentrations)
    starts_s = np.repeat(cells * cell_s, num)
    whole_s = starts_s + rng.random(len(starts_s)) * cell_s
    partial_s = (len(counts) - 1) * window_s + rng.random(int(counts[-1])) * last_window_s
    arrival_s = np.sort(np.concatenate((whole_s, partial_s)))
    # The trace's own first and last request are its bounds; so windows and mean rate stay aligned with it.
    arrival_s[0], arrival_s[-1] = 0.0, duration_s
    return arrival_s
