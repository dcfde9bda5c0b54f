"""What of a run is compared with a simulation: quantiles of its latencies, with how sure they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from servewise.calibrate.runs import MeasuredRun
from servewise.metrics import block_counts, block_length, e2e_s, finished, tpot_s, ttft_s
from servewise.types import PointMetrics, RequestLog

__all__ = ["FLOORS", "Observed", "log_statistics", "metrics_of", "observed", "paired"]

Array = NDArray[np.float64]

FLOORS = {"ttft": 0.05, "tpot": 0.02, "e2e": 0.03}
"""Least standard deviation of ln(measured / predicted): how well the form can describe an engine at all. Assumed: half
of what repeated runs of one configuration differ by, a little more for first tokens (docs/accuracy.md)."""
NUM_RESAMPLES = 200
MIN_STRATUM = 10
"""Requests of a part of a run whose median is compared by itself."""
VALUES: dict[str, Callable[[RequestLog], Array]] = {"ttft": ttft_s, "tpot": tpot_s, "e2e": e2e_s}


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistic:
    """A quantile of a metric over some of a run's requests."""

    metric: str
    quantile: float
    requests: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What was measured of one run.

    Parameters
    ----------
    run : MeasuredRun
    statistics : tuple of Statistic
    metrics : tuple of str
        Of each statistic.
    logs : float64 array, shape (num_statistics,)
        Natural logarithm of each.
    resamples : tuple of int64 array, shape (num_requests,)
        How often each request is drawn.
    deviations : float64 array, shape (num_resamples, num_statistics)
        Of the logarithms in resampled runs, from those of the run.
    """

    run: MeasuredRun
    statistics: tuple[Statistic, ...]
    metrics: tuple[str, ...]
    logs: Array
    resamples: tuple[NDArray[np.int64], ...]
    deviations: Array


def observed(run: MeasuredRun) -> Observed:
    """Quantiles of a checked run, and how far they move when blocks of requests are drawn anew."""
    chosen = _chosen(run)
    columns = {name: values(run.log) for name, values in VALUES.items()}
    length = block_length(list(columns.values()))
    num = run.log.num_requests
    resamples = tuple(counts[:-1] for counts in block_counts(num, length, seed=0, num_resamples=NUM_RESAMPLES))
    moved = _moved(columns, chosen, resamples)
    return Observed(
        run=run,
        statistics=chosen,
        metrics=tuple(s.metric for s in chosen),
        logs=_quantiles(columns, chosen),
        resamples=resamples,
        deviations=moved,
    )


def paired(seen: Observed, log: RequestLog) -> Observed:
    """The same with the deviations of measured over simulated: what the requests' lengths explain is not in them.

    Parameters
    ----------
    seen : Observed
    log : RequestLog
        The run simulated, request by request.
    """
    measured, simulated = ({name: values(one) for name, values in VALUES.items()} for one in (seen.run.log, log))
    moved = _moved(measured, seen.statistics, seen.resamples) - _moved(simulated, seen.statistics, seen.resamples)
    return replace(seen, deviations=moved)


def _moved(columns: dict[str, Array], chosen: Sequence[Statistic], resamples: Sequence[NDArray[np.int64]]) -> Array:
    """Deviations of the statistics in resamples; a statistic of which a resample holds nothing did not move."""
    moved = np.array([_quantiles(columns, chosen, counts) for counts in resamples]) - _quantiles(columns, chosen)
    return np.where(np.isfinite(moved), moved, 0.0)


def log_statistics(seen: Observed, log: RequestLog) -> Array:
    """The same statistics of a simulation of the run, as natural logarithms."""
    return _quantiles({name: values(log) for name, values in VALUES.items()}, seen.statistics)


def _chosen(run: MeasuredRun) -> tuple[Statistic, ...]:
    """Median and 90th percentile of TTFT and TPOT, medians of short and long requests apart, and the median of E2E.

    Of a run whose queue grew only TPOT counts.
    """
    log = run.log
    everything, several = np.flatnonzero(run.counted), np.flatnonzero(run.counted & (log.output_tokens > 1))
    found = [Statistic(metric="tpot", quantile=q, requests=several) for q in (0.5, 0.9)]
    found += _strata("tpot", several, log.input_tokens + log.output_tokens // 2)
    if not run.queue_grew:
        found += [Statistic(metric="ttft", quantile=q, requests=everything) for q in (0.5, 0.9)]
        found += _strata("ttft", everything, log.input_tokens)
        found.append(Statistic(metric="e2e", quantile=0.5, requests=everything))
    return tuple(found)


def _strata(metric: str, among: NDArray[np.int64], size: NDArray[np.int64]) -> list[Statistic]:
    """Medians of the smaller and the larger half of the requests, where they differ."""
    middle = np.median(size[among])
    halves = [among[size[among] < middle], among[size[among] > middle]]
    if min(map(len, halves)) < MIN_STRATUM:
        return []
    return [Statistic(metric=metric, quantile=0.5, requests=half) for half in halves]


def _quantiles(
    columns: dict[str, Array], chosen: Sequence[Statistic], counts: NDArray[np.int64] | None = None
) -> Array:
    """Natural logarithm of each statistic; NaN where a resample has none of its requests."""
    out = np.full(len(chosen), np.nan)
    for i, statistic in enumerate(chosen):
        at = statistic.requests
        if counts is not None:
            at = np.repeat(at, counts[at])
        values = columns[statistic.metric][at]
        values = np.sort(values[np.isfinite(values)])
        if len(values):
            # np.quantile's own rule, without its overhead: it is taken thousands of times
            place = statistic.quantile * (len(values) - 1)
            below = int(place)
            above = min(below + 1, len(values) - 1)
            out[i] = np.log(values[below] + (place - below) * (values[above] - values[below]))
    return out


def metrics_of(run: MeasuredRun, log: RequestLog) -> PointMetrics:
    """Medians of the requests of a run that count, and the rate of their output, from its log or a simulated one."""
    count = run.counted & finished(log)
    duration_s = float(np.max(log.last_token_s[count]) - np.min(log.intended_s[count]))
    return PointMetrics(
        **{f"{name}_s": float(np.nanmedian(values(log)[count])) for name, values in VALUES.items()},
        throughput_tokens_per_s=float(log.output_tokens[count].sum() / duration_s),
    )
