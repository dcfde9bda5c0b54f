"""Moving-block bootstrap: how far a figure could be off because the run was finite.

Requests that queue together are slow together, so resampling single requests gives intervals that are too
narrow. Blocks of consecutive requests are resampled instead (Künsch 1989), long enough to hold that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "CONFIDENCE",
    "NUM_RESAMPLES",
    "TAIL",
    "SortedSample",
    "block_counts",
    "block_length",
    "effective_number",
    "interval",
    "percentile_interval",
]

NUM_RESAMPLES = 400
"""Resamples per interval. Assumed: moves the ends of a 95% interval by about a tenth of its half-width."""
CONFIDENCE = 0.95
"""Probability an interval is meant to cover with."""
TAIL = (1.0 - CONFIDENCE) / 2.0
CHUNK = 128

_ONES = np.ones(CHUNK)

Floats = NDArray[np.float64]


def block_length(series: Sequence[Floats]) -> int:
    """Block length [requests] that suits the most correlated of several series of equal length.

    The automatic choice of Politis and White for the mean, on ranks (heavy tails would hide the correlation),
    but never below n^(1/3) and never above min(3 n^(1/2), n / 3).

    Parameters
    ----------
    series : sequence of float64 arrays, shape (num_requests,)
        NaN marks undefined entries.

    Returns
    -------
    int
        At least 1.

    Sources
    -------
    D. Politis, H. White, "Automatic block-length selection for the dependent bootstrap", Econometric Reviews
    23(1), 2004, and the correction by A. Patton, D. Politis, H. White, Econometric Reviews 28(4), 2009.
    """
    num = len(series[0])
    longest = max(1, min(math.ceil(3.0 * math.sqrt(num)), num // 3))
    shortest = min(longest, math.ceil(num ** (1.0 / 3.0)))
    return int(np.clip(max(math.ceil(_politis_white(values)) for values in series), shortest, longest))


def effective_number(values: Floats) -> float:
    """How many independent values a dependent series is worth: their number over its autocorrelation time.

    The autocorrelation time is that of the ranks, summed over the lags that :func:`block_length` uses.

    Parameters
    ----------
    values : float64 array, shape (num,)
        NaN marks undefined entries, which count for nothing.

    Returns
    -------
    float
        At most the number of defined values, and 0 when there is none.
    """
    num = int(np.count_nonzero(~np.isnan(values)))
    variance, density, _ = _spectrum(values)
    return num * min(1.0, variance / density) if density > 0.0 else float(num)


def _politis_white(values: Floats) -> float:
    """Block length of one series by the rule of Politis and White; 1 when it does not vary."""
    _, density, slope = _spectrum(values)
    return float((1.5 * slope**2 / density**2 * len(values)) ** (1.0 / 3.0)) if density > 0.0 else 1.0


def _spectrum(values: Floats) -> tuple[float, float, float]:
    """Variance, spectral density and slope at frequency 0 of the ranks; zeros for a series that does not vary."""
    num = len(values)
    centred = _centred_ranks(values)
    variance = float(centred @ centred) / num
    if num < 8 or variance == 0.0:
        return 0.0, 0.0, 0.0
    window = max(5, math.ceil(math.sqrt(math.log10(num))))
    max_lag = min(num - 1, math.ceil(math.sqrt(num)) + window)
    autocov = _autocovariance(centred, max_lag)
    small = np.abs(autocov[1:]) < 2.0 * math.sqrt(math.log10(num) / num) * variance
    # The first lag after which `window` correlations in a row cannot be told from zero.
    quiet = np.flatnonzero(np.lib.stride_tricks.sliding_window_view(small, min(window, len(small))).all(axis=1))
    last_lag = int(quiet[0]) if len(quiet) else max_lag
    bandwidth = min(max(2 * last_lag, 1), max_lag)
    lags = np.arange(1, bandwidth + 1)
    taper = np.clip(2.0 * (1.0 - lags / bandwidth), 0.0, 1.0)
    slope = 2.0 * float(np.sum(taper * lags * autocov[1 : bandwidth + 1]))
    return variance, float(autocov[0] + 2.0 * np.sum(taper * autocov[1 : bandwidth + 1])), slope


def _centred_ranks(values: Floats) -> Floats:
    """Mid-ranks with mean zero; undefined entries are neutral (zero)."""
    defined = np.isfinite(values)
    _, inverse, counts = np.unique(values[defined], return_inverse=True, return_counts=True)
    ranks = np.zeros(len(values))
    if len(counts):
        mid = np.cumsum(counts) - (counts + 1) / 2.0
        ranks[defined] = mid[inverse] - (np.count_nonzero(defined) - 1) / 2.0
    return ranks


def _autocovariance(centred: Floats, max_lag: int) -> Floats:
    """Autocovariance at lags 0..max_lag, by FFT."""
    num = len(centred)
    size = 1 << (num + max_lag).bit_length()
    spectrum = np.fft.rfft(centred, size)
    power = spectrum.real**2 + spectrum.imag**2
    return np.asarray(np.fft.irfft(power, size)[: max_lag + 1] / num, dtype=np.float64)


def block_counts(
    num: int, length: int, *, seed: int, num_resamples: int = NUM_RESAMPLES
) -> Iterator[NDArray[np.int64]]:
    """Draw resamples: how often each of ``num`` entries is drawn.

    Each resample is ceil(num / length) blocks of ``length`` consecutive entries, the last one cut so that
    ``num`` entries are drawn. Same seed, same resamples.

    Yields
    ------
    int64 array, shape (num + 1,)
        Sums to ``num``; the extra last entry is 0.
    """
    num_blocks = math.ceil(num / length)
    lengths = np.full(num_blocks, length)
    lengths[-1] = num - (num_blocks - 1) * length
    rng = np.random.default_rng(seed)
    for _ in range(num_resamples):
        starts = rng.integers(0, num - length + 1, size=num_blocks)
        yield np.cumsum(np.bincount(starts, minlength=num + 1) - np.bincount(starts + lengths, minlength=num + 1))


class SortedSample:
    """A sample sorted once, to take percentiles (numpy's linear rule) of many resamples of it.

    Parameters
    ----------
    values : float64 array, shape (num,)
        NaN marks undefined entries.

    Attributes
    ----------
    ascending : float64 array, shape (num_defined,)
        The defined values.
    order : intp array, shape (num_defined,)
        Where each was in the sample.
    """

    __slots__ = ("_padded", "ascending", "order")

    def __init__(self, values: Floats) -> None:
        self.order = np.argsort(values)[: np.count_nonzero(~np.isnan(values))]  # NaN sorts last
        self.ascending = values[self.order]
        self._padded = np.append(self.order, np.full(-len(self.order) % CHUNK, len(values)))

    def percentiles(self, counts: NDArray[np.int64], qs: Floats) -> Floats:
        """Percentiles of the sample in which entry ``i`` occurs ``counts[i]`` times.

        Parameters
        ----------
        counts : int64 array, shape (num + 1,)
            As :func:`block_counts` yields them.
        qs : float64 array, shape (num_qs,)
            In [0, 100].

        Returns
        -------
        float64 array, shape (num_qs,)
            NaN when nothing defined was drawn.
        """
        # Sums of chunks, then the running sum within the few chunks that matter: a running sum over all
        # entries would take most of the time of a summary.
        chunks = counts.take(self._padded).astype(np.float64).reshape(-1, CHUNK)
        ends = np.cumsum(chunks @ _ONES)
        total = ends[-1] if len(ends) else 0.0
        if total == 0.0:
            return np.full(len(qs), np.nan)
        position = (total - 1.0) * (qs / 100.0)
        below = np.floor(position)
        ranks = np.concatenate((below, np.minimum(below + 1.0, total - 1.0)))
        chunk = np.searchsorted(ends, ranks, side="right")
        inner = np.cumsum(chunks[chunk], axis=1) + np.where(chunk > 0, ends[chunk - 1], 0.0)[:, None]
        at = chunk * CHUNK + np.count_nonzero(inner <= ranks[:, None], axis=1)
        low, high = self.ascending[at].reshape(2, -1)
        return np.asarray(low + (high - low) * (position - below), dtype=np.float64)


def interval(value: float, resampled: Floats) -> tuple[float, float]:
    """Ends of the interval: the 2.5% and 97.5% quantiles of the resamples, widened to hold the value."""
    defined = resampled[np.isfinite(resampled)]
    if len(defined) == 0:
        return math.nan, math.nan
    low, high = np.quantile(defined, [TAIL, 1.0 - TAIL])
    return min(float(low), value), max(float(high), value)


def percentile_interval(value: float, q: float, num: int, resampled: Floats) -> tuple[float, float]:
    """Interval of a latency percentile [s], with an end left open where the sample cannot bound it.

    The chance that a percentile lies beyond the sample's maximum is (q/100)^num. Where it is more than 2.5%
    the sample does not bound the percentile from above: fewer than 368 requests do not say how high P99 may
    be, fewer than 3,688 not for P99.9. A bootstrap, which never leaves the sample, would claim otherwise.

    Parameters
    ----------
    value : float [s]
    q : float
        Percentile, in (0, 100).
    num : int
        Independent values at most.
    resampled : float64 array, shape (num_resamples,) [s]

    Returns
    -------
    low, high : float [s]
        0 and infinity where open.
    """
    low, high = interval(value, resampled)
    if (1.0 - q / 100.0) ** num > TAIL:
        low = 0.0
    if (q / 100.0) ** num > TAIL:
        high = math.inf
    return low, high
