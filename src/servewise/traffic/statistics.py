"""The statistics of a workload that matter for serving it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servewise.traffic.lru import hit_tokens_by_cache
from servewise.types import MaxTokensKind, Workload

__all__ = ["CACHE_TOKENS", "WINDOW_S", "LengthStatistics", "TrafficStatistics", "statistics", "window_counts"]

WINDOW_S = 60.0
"""Window in which arrivals are counted [s]."""
CACHE_TOKENS = (256_000, 512_000, 1_024_000, 2_560_000, 5_120_000, 10_240_000, 25_600_000)
"""Cache sizes for which the prefix hit rate is given [tokens]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthStatistics:
    """Tokens per request [tokens]; percentiles by linear interpolation."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficStatistics:
    """What a workload asks of a server.

    Parameters
    ----------
    name : str
    num_requests : int
    duration_s : float [s]
        First to last arrival.
    mean_rate_rps : float or None [requests/s]
        Requests over duration; None when all arrive at once.
    peak_rate_rps : float or None [requests/s]
        In the busiest full 60 s window; None when there is none, like the next two.
    peak_to_mean : float or None
        Busiest full window over the mean of all full windows.
    dispersion_60s : float or None
        Index of dispersion: variance over mean of the requests in full 60 s windows; 1 for Poisson arrivals.
    cv_interarrival : float or None
        Coefficient of variation of the gaps between arrivals; None with fewer than two gaps.
    zero_gap_frac : float or None
        Share of gaps of 0 s. When high, time stamps are bucketed and ``cv_interarrival`` shows the buckets.
    input, output : LengthStatistics [tokens]
    length_correlation : float or None
        Pearson correlation of input and output; None when one is constant.
    output_frac : float
        Share of output tokens in all tokens.
    block_size_tokens : int or None
        Of prefix blocks; None when prefixes are unknown, like the next two.
    prefix_hit_frac : float or None
        Share of prompt tokens in full blocks that an earlier request had, as an unbounded cache would find.
    prefix_hit_frac_by_cache : tuple of (int, float) or None
        The same with one LRU cache of so many tokens.
    num_sessions : int or None
        Conversations; None when unknown.
    max_tokens_kind : MaxTokensKind
    max_tokens_p50 : float [tokens]
    """

    name: str
    num_requests: int
    duration_s: float
    mean_rate_rps: float | None
    peak_rate_rps: float | None
    peak_to_mean: float | None
    dispersion_60s: float | None
    cv_interarrival: float | None
    zero_gap_frac: float | None
    input: LengthStatistics
    output: LengthStatistics
    length_correlation: float | None
    output_frac: float
    block_size_tokens: int | None
    prefix_hit_frac: float | None
    prefix_hit_frac_by_cache: tuple[tuple[int, float], ...] | None
    num_sessions: int | None
    max_tokens_kind: MaxTokensKind
    max_tokens_p50: float


def window_counts(arrival_s: NDArray[np.float64], window_s: float = WINDOW_S) -> NDArray[np.int64]:
    """Requests in each full window from time 0 to the last arrival, shape (num_windows,)."""
    num_windows = int(arrival_s[-1] // window_s)
    window = (arrival_s[: np.searchsorted(arrival_s, num_windows * window_s)] // window_s).astype(np.int64)
    return np.bincount(window, minlength=num_windows).astype(np.int64, copy=False)


def statistics(workload: Workload, cache_tokens: Sequence[int] = CACHE_TOKENS) -> TrafficStatistics:
    """Statistics of a workload.

    Parameters
    ----------
    workload : Workload
    cache_tokens : sequence of int [tokens]
        Sizes of the LRU cache to give the prefix hit rate for.
    """
    span_s = workload.span_s
    counts = window_counts(workload.arrival_s - workload.arrival_s[0])
    mean_count = float(counts.mean()) if len(counts) else 0.0
    gaps = np.diff(workload.arrival_s)
    num_input, num_output = int(workload.input_tokens.sum()), int(workload.output_tokens.sum())
    hits = None
    if workload.prefix is not None:
        hits = [tokens / num_input for tokens in hit_tokens_by_cache(workload, [*cache_tokens, np.inf])]
    return TrafficStatistics(
        name=workload.name,
        num_requests=workload.num_requests,
        duration_s=span_s,
        mean_rate_rps=workload.num_requests / span_s if span_s > 0 else None,
        peak_rate_rps=float(counts.max()) / WINDOW_S if mean_count else None,
        peak_to_mean=float(counts.max()) / mean_count if mean_count else None,
        dispersion_60s=float(counts.var()) / mean_count if mean_count else None,
        cv_interarrival=float(gaps.std() / gaps.mean()) if len(gaps) > 1 and span_s > 0 else None,
        zero_gap_frac=float(np.mean(gaps == 0)) if len(gaps) else None,
        input=_lengths(workload.input_tokens),
        output=_lengths(workload.output_tokens),
        length_correlation=_correlation(workload.input_tokens, workload.output_tokens),
        output_frac=num_output / (num_input + num_output),
        block_size_tokens=None if workload.prefix is None else workload.prefix.block_size_tokens,
        prefix_hit_frac=None if hits is None else hits[-1],
        prefix_hit_frac_by_cache=None if hits is None else tuple(zip(cache_tokens, hits[:-1], strict=True)),
        num_sessions=None if workload.session is None else len(np.unique(workload.session)),
        max_tokens_kind=workload.max_tokens_kind,
        max_tokens_p50=float(np.median(workload.max_tokens)),
    )


def _lengths(tokens: NDArray[np.int64]) -> LengthStatistics:
    p50, p90, p99 = (float(value) for value in np.percentile(tokens, [50, 90, 99]))
    return LengthStatistics(mean=float(tokens.mean()), p50=p50, p90=p90, p99=p99, max=int(tokens.max()))


def _correlation(x: NDArray[np.int64], y: NDArray[np.int64]) -> float | None:
    if x.min() == x.max() or y.min() == y.max():
        return None
    return float(np.corrcoef(x, y)[0, 1])
