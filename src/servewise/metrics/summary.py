"""A run reduced to the figures of the glossary. Token counts of -1 are unknown: what rests on them is undefined."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from servewise.metrics.bootstrap import TAIL, SortedSample, block_length, interval, percentile_interval
from servewise.metrics.check import broken, end_s
from servewise.metrics.itl import itl_intervals, itl_mean_s, itl_percentiles, num_gaps
from servewise.metrics.latency import e2e_s, finished, good, refuse_empty, tpot_s, ttft_s
from servewise.metrics.resample import resample
from servewise.types import Estimate, ItlSegments, Promise, RequestLog, Summary

__all__ = ["PERCENTILES", "summarize"]

PERCENTILES: Mapping[str, float] = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p99.9": 99.9}
"""Percentiles every summary holds."""

Floats = NDArray[np.float64]

_QS = np.array(list(PERCENTILES.values()))


def summarize(log: RequestLog, promise: Promise, *, with_intervals: bool = True, seed: int = 0) -> Summary:
    """Reduce a run to attainment, goodput, latencies and whether the promise was kept.

    Parameters
    ----------
    log : RequestLog
    promise : Promise
    with_intervals : bool
        False leaves ``low`` and ``high`` of every estimate NaN and skips the bootstrap.
    seed : int
        Of the bootstrap: same log and seed, same summary.

    Returns
    -------
    Summary

    Raises
    ------
    InputError
        When the log is empty, or the promise limits gaps and the log holds none.
    """
    refuse_empty(log)
    done, is_good = finished(log), good(log, promise)
    stop_s = end_s(log)
    duration_s = stop_s - float(np.min(log.intended_s))
    known = log.input_tokens >= 0
    tokens = log.output_tokens, np.where(known & (log.output_tokens >= 0), log.input_tokens + log.output_tokens, -1)
    reasons = broken(log, promise)
    columns = {"ttft": ttft_s(log), "tpot": tpot_s(log), "e2e": e2e_s(log)}
    share, percentiles = _estimates(columns, is_good, with_intervals=with_intervals, seed=seed)
    means = {name: _mean(values) for name, values in columns.items()}
    if log.itl is not None:
        percentiles["itl"] = _itl_estimates(log.itl, with_intervals=with_intervals, seed=seed)
        means["itl"] = itl_mean_s(log.itl)
    return Summary(
        num_requests=log.num_requests,
        num_ok=int(np.count_nonzero(done)),
        num_good=int(np.count_nonzero(is_good)),
        attainment=share,
        promise_kept=not reasons,
        broken=reasons,
        duration_s=duration_s,
        drain_s=stop_s - float(np.max(log.intended_s)),
        throughput_tokens_per_s=_rate(tokens[0], done, duration_s),
        goodput_tokens_per_s=_rate(tokens[0], is_good, duration_s),
        throughput_rps=_rate(np.ones_like(tokens[0]), done, duration_s),
        goodput_rps=_rate(np.ones_like(tokens[0]), is_good, duration_s),
        total_tokens_per_s=_rate(tokens[1], done, duration_s),
        total_goodput_tokens_per_s=_rate(tokens[1], is_good, duration_s),
        percentiles=percentiles,
        means=means,
        cached_tokens_frac=_cached_frac(log, done),
        num_preemptions=_num_preemptions(log),
    )


def _rate(amount: NDArray[np.int64], mask: NDArray[np.bool_], duration_s: float) -> float:
    """Amount per second; 0 when there is none, infinite when all happened at one instant, NaN when one is unknown."""
    if np.any(amount[mask] < 0):
        return math.nan
    total = int(np.sum(amount[mask]))
    if total == 0:
        return 0.0
    return total / duration_s if duration_s > 0.0 else math.inf


def _mean(values: Floats) -> float:
    defined = values[np.isfinite(values)]
    return float(np.mean(defined)) if len(defined) else math.nan


def _cached_frac(log: RequestLog, done: NDArray[np.bool_]) -> float | None:
    known = done & (log.cached_tokens >= 0) & (log.input_tokens >= 0)
    total = int(np.sum(log.input_tokens[known]))
    return int(np.sum(log.cached_tokens[known])) / total if total else None


def _num_preemptions(log: RequestLog) -> int | None:
    known = log.num_preemptions[log.num_preemptions >= 0]
    return int(np.sum(known)) if len(known) else None


def _estimates(
    columns: Mapping[str, Floats], is_good: NDArray[np.bool_], *, with_intervals: bool, seed: int
) -> tuple[Estimate, dict[str, dict[str, Estimate]]]:
    """Attainment and latency percentiles, their intervals from one set of resamples of the requests."""
    num = len(is_good)
    num_good = int(np.count_nonzero(is_good))
    if not with_intervals:
        unknown = np.full((1, len(_QS)), np.nan)
        plain = {name: values[~np.isnan(values)] for name, values in columns.items()}
        percentiles = {name: _percentile_estimates(values, unknown) for name, values in plain.items()}
        return Estimate(value=num_good / num, low=math.nan, high=math.nan, num_samples=num), percentiles
    samples = {name: SortedSample(values) for name, values in columns.items()}
    length = block_length([*columns.values(), is_good.astype(np.float64)])
    shares, resampled = resample(samples, is_good, _QS, length, seed=seed)
    percentiles = {name: _percentile_estimates(samples[name].ascending, resampled[name]) for name in columns}
    return _share_estimate(num_good, num, shares), percentiles


def _percentile_estimates(sample: Floats, resampled: Floats) -> dict[str, Estimate]:
    num = len(sample)
    values = np.percentile(sample, _QS) if num else np.full(len(_QS), np.nan)
    estimates = {}
    for i, (name, q) in enumerate(PERCENTILES.items()):
        low, high = math.nan, math.nan
        if not np.isnan(resampled[:, i]).all():
            low, high = percentile_interval(float(values[i]), q, num, resampled[:, i])
        estimates[name] = Estimate(value=float(values[i]), low=low, high=high, num_samples=num)
    return estimates


def _share_estimate(num_good: int, num: int, shares: Floats) -> Estimate:
    """Attainment; when all or no requests are good, the far end is the exact binomial bound."""
    value = num_good / num
    low, high = interval(value, shares)
    # Resampling a constant gives a constant: certainty that no finite sample can give.
    if num_good == num:
        low = min(low, TAIL ** (1.0 / num))
    if num_good == 0:
        high = max(high, 1.0 - TAIL ** (1.0 / num))
    return Estimate(value=value, low=low, high=high, num_samples=num)


def _itl_estimates(segments: ItlSegments, *, with_intervals: bool, seed: int) -> dict[str, Estimate]:
    values = itl_percentiles(segments, _QS)
    ends = [(math.nan, math.nan)] * len(_QS)
    if with_intervals:
        ends = itl_intervals(segments, _QS, values, seed=seed)
    num = num_gaps(segments)
    return {
        name: Estimate(value=float(value), low=low, high=high, num_samples=num)
        for name, value, (low, high) in zip(PERCENTILES, values, ends, strict=True)
    }
