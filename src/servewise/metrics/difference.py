"""Whether two runs differ by more than noise, figure by figure. ``docs/comparing-runs.md`` has the method in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from servewise.errors import InputError
from servewise.metrics.bootstrap import (
    CONFIDENCE,
    NUM_RESAMPLES,
    TAIL,
    SortedSample,
    block_length,
    effective_number,
)
from servewise.metrics.cells import cell_counts
from servewise.metrics.check import end_s
from servewise.metrics.itl import itl_percentiles, itl_resamples
from servewise.metrics.latency import e2e_s, finished, good, refuse_empty, tpot_s, ttft_s
from servewise.metrics.resample import resample
from servewise.metrics.student import student_p_value, student_quantile
from servewise.types import Difference, FigureDifference, Promise, RequestLog

__all__ = ["difference"]

PERCENTILES: Mapping[str, float] = {"p50": 50.0, "p90": 90.0, "p99": 99.0}
NUM_CELLS = 2048
ONE_RUN = (
    "one run a side: what changes from run to run (a restart, other load on the machine) is in no interval; "
    "several runs a side would show it"
)

Floats = NDArray[np.float64]

_QS = np.array(list(PERCENTILES.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figure:
    """A figure of one run: the logarithm of a time or rate, or a share, with its resamples.

    ``degrees`` says how many independent values its variance rests on, ``inflation`` by how much blocks
    understate it, ``floor`` what it is at least. ``reason`` says why the figure cannot be compared, ``thin`` why not
    with one run a side.
    """

    value: float
    resampled: Floats
    degrees: float
    inflation: float = 1.0
    floor: float = 0.0
    reason: str = ""
    thin: str = ""

    @property
    def variance(self) -> float:
        return max(float(np.var(self.resampled, ddof=1)) * self.inflation, self.floor)


def difference(
    a: Sequence[RequestLog],
    b: Sequence[RequestLog],
    promise: Promise | None = None,
    *,
    with_rates: bool = True,
    seed: int = 0,
) -> Difference:
    """Compare two runs, or two groups of repeated runs of the same load, and say what differs beyond noise.

    Parameters
    ----------
    a, b : sequence of RequestLog
        The runs of either side, at least one each.
    promise : Promise or None
        Whose joint limits decide attainment; without one it is the share of requests that finished.
    with_rates : bool
        False when the logs do not say when requests were sent.
    seed : int
        Of the bootstrap: same logs and seed, same result.

    Raises
    ------
    InputError
        When a side has no run or a run no request.
    """
    if not a or not b:
        raise InputError("a comparison needs at least one run on each side")
    for log in (*a, *b):
        refuse_empty(log)
    limits = promise or Promise()
    alone = len(a) == len(b) == 1
    length = None
    if alone and a[0].num_requests == b[0].num_requests:
        # Drawn alike, request by request: what the same load does to both sides cancels.
        length = max(_length(a[0], limits), _length(b[0], limits))
    seeds = [seed + (0 if length is not None else i) for i in range(len(a) + len(b))]
    sampled = [
        _figures(log, limits, length, with_rates=with_rates, seed=one) for log, one in zip((*a, *b), seeds, strict=True)
    ]
    compared = [
        _compare(name, [run[name] for run in sampled[: len(a)]], [run[name] for run in sampled[len(a) :]])
        for name in sampled[0]
        if all(name in run for run in sampled)
    ]
    return Difference(
        num_runs=(len(a), len(b)),
        num_requests=(sum(log.num_requests for log in a), sum(log.num_requests for log in b)),
        figures=_judge(compared),
        notes=(ONE_RUN,) if alone else (),
    )


def _columns(log: RequestLog) -> dict[str, Floats]:
    return {"ttft": ttft_s(log), "tpot": tpot_s(log), "e2e": e2e_s(log)}


def _length(log: RequestLog, promise: Promise) -> int:
    return block_length([*_columns(log).values(), good(log, promise).astype(np.float64)])


def _figures(
    log: RequestLog, promise: Promise, length: int | None, *, with_rates: bool, seed: int
) -> dict[str, _Figure]:
    """Every figure of a run with its resamples."""
    columns, is_good, num = _columns(log), good(log, promise), log.num_requests
    blocks = _length(log, promise) if length is None else length
    shares, resampled = resample(
        {name: SortedSample(values) for name, values in columns.items()}, is_good, _QS, blocks, seed=seed
    )
    inflation = num / (num - blocks) if num > blocks else 1.0
    found: dict[str, _Figure] = {}
    for name, values in columns.items():
        effective = effective_number(values)
        defined = values[~np.isnan(values)]
        percentiles = np.percentile(defined, _QS) if len(defined) else np.full(len(_QS), np.nan)
        for i, label in enumerate(PERCENTILES):
            found[f"{name}_{label}_s"] = _percentile(
                percentiles[i], _QS[i], resampled[name][:, i], effective, effective, inflation
            )
    if log.itl is not None:
        found |= _gap_figures(log, seed)
    effective = effective_number(is_good.astype(np.float64))
    share = float(np.mean(is_good))
    # One good and one bad request more a side (Agresti and Caffo 2000): a share of 1 is never certain.
    near = (share * effective + 1.0) / (effective + 2.0)
    found["attainment"] = _Figure(
        value=share,
        resampled=shares,
        degrees=max(effective - 1.0, 1.0),
        inflation=inflation,
        floor=near * (1.0 - near) / (effective + 2.0),
    )
    if with_rates:
        found["throughput_tokens_per_s"] = _throughput(log, seed)
    return found


def _gap_figures(log: RequestLog, seed: int) -> dict[str, _Figure]:
    if log.itl is None:
        return {}
    values = itl_percentiles(log.itl, _QS)
    drawn = itl_resamples(log.itl, _QS, values, seed=seed)
    if drawn is None:
        return {}
    inflation = drawn.num_blocks / (drawn.num_blocks - 1.0) if drawn.num_blocks > 1.0 else 1.0
    effective = drawn.num_steps * drawn.effective_frac
    return {
        f"itl_{label}_s": _percentile(
            values[i], _QS[i], drawn.percentiles[:, i], effective, drawn.num_blocks, inflation
        )
        for i, label in enumerate(PERCENTILES)
    }


def _percentile(
    value: float, q: float, resampled_s: Floats, effective: float, most_degrees: float, inflation: float
) -> _Figure:
    """A percentile as its logarithm. Its variance rests on the independent values beyond it, on the rarer side."""
    if math.isnan(value):
        return _unknown("not defined for any request")
    if value <= 0.0 or not np.all(resampled_s > 0.0):
        return _unknown("not above 0")
    tail = min(q, 100.0 - q) / 100.0
    thin = ""
    if (1.0 - tail) ** effective > TAIL:
        needed = math.ceil(math.log(TAIL) / math.log(1.0 - tail))
        thin = f"needs {needed} independent values, these are worth {effective:.0f}"
    degrees = max(min(effective * tail, most_degrees), 1.0)
    return _Figure(
        value=math.log(value), resampled=np.log(resampled_s), degrees=degrees, inflation=inflation, thin=thin
    )


def _unknown(reason: str) -> _Figure:
    return _Figure(value=math.nan, resampled=np.zeros(NUM_RESAMPLES), degrees=1.0, reason=reason)


def _throughput(log: RequestLog, seed: int) -> _Figure:
    """Output tokens per second: tokens and time of blocks of consecutive completions."""
    done = finished(log)
    tokens = np.where(done, log.output_tokens, 0)
    if np.any(tokens < 0):
        return _unknown("the tokens of some requests are unknown")
    over_s = np.where(done, log.last_token_s, log.intended_s)
    order = np.argsort(over_s, kind="stable")
    start_s = float(np.min(log.intended_s))
    took_s = np.diff(over_s[order], prepend=start_s)
    num_cells = min(NUM_CELLS, log.num_requests)
    cell = np.arange(log.num_requests) * num_cells // log.num_requests
    amounts = np.bincount(cell, weights=tokens[order], minlength=num_cells).astype(np.float64)
    times_s = np.bincount(cell, weights=took_s, minlength=num_cells).astype(np.float64)
    total, duration_s = float(np.sum(tokens)), end_s(log) - start_s
    if total <= 0.0 or duration_s <= 0.0:
        return _unknown("no tokens, or no time passed")
    excess = amounts - total / duration_s * times_s
    length = block_length([amounts, times_s, excess])
    counts = cell_counts(num_cells, length, seed=seed)
    with np.errstate(divide="ignore"):
        rates = np.log(counts @ amounts) - np.log(counts @ times_s)
    num_blocks = num_cells / length
    if not np.all(np.isfinite(rates)) or num_blocks < 2.0:
        return _unknown("too few completions")
    return _Figure(
        value=math.log(total / duration_s),
        resampled=rates,
        degrees=max(num_blocks - 1.0, 1.0),
        inflation=num_blocks / (num_blocks - 1.0),
    )


def _compare(name: str, a: Sequence[_Figure], b: Sequence[_Figure]) -> FigureDifference:
    """The change of one figure, its interval and its p-value; the verdict comes when all figures are known."""
    is_share = name == "attainment"
    mean_a, mean_b = (float(np.mean([run.value for run in side])) for side in (a, b))
    value_a, value_b = (mean_a, mean_b) if is_share else (math.exp(mean_a), math.exp(mean_b))
    change = mean_b - mean_a
    shown = change if is_share else math.expm1(change)
    reasons = [run.reason or (run.thin if len(a) < 2 or len(b) < 2 else "") for run in (*a, *b)]
    unknown = FigureDifference(
        name=name,
        a=value_a,
        b=value_b,
        change=shown,
        low=math.nan,
        high=math.nan,
        p_value=math.nan,
        verdict="unknown",
        reason=next(filter(None, reasons), ""),
    )
    if unknown.reason:
        return unknown
    variance, degrees = _variance(a, b)
    error = math.sqrt(variance)
    reach = student_quantile(CONFIDENCE, degrees) * error
    low, high = change - reach, change + reach
    p_value = student_p_value(change / error, degrees) if error > 0.0 else float(change == 0.0)
    return replace(
        unknown,
        low=low if is_share else math.expm1(low),
        high=high if is_share else math.expm1(high),
        p_value=p_value,
        verdict="same",
    )


def _variance(a: Sequence[_Figure], b: Sequence[_Figure]) -> tuple[float, float]:
    """Variance of the change, and the degrees of freedom it rests on.

    One run a side: the bootstrap, of both together when they were drawn alike. Several: the variance between
    runs, pooled over both sides, but not less than what the bootstrap finds within them.
    """
    within = sum(float(np.mean([run.variance for run in side])) / len(side) for side in (a, b))
    if len(a) == len(b) == 1:
        together = float(np.var(b[0].resampled - a[0].resampled, ddof=1)) * max(a[0].inflation, b[0].inflation)
        return max(together, a[0].floor + b[0].floor), min(a[0].degrees, b[0].degrees)
    degrees = len(a) + len(b) - 2
    scatter = sum(float(np.var([run.value for run in side])) * len(side) for side in (a, b))
    return max(scatter / degrees * (1.0 / len(a) + 1.0 / len(b)), within), degrees


def _judge(figures: Sequence[FigureDifference]) -> tuple[FigureDifference, ...]:
    """Verdicts by Holm's procedure: the chance of any false "higher" or "lower" among all figures is at most 5%."""
    known = sorted((figure for figure in figures if figure.verdict != "unknown"), key=lambda figure: figure.p_value)
    significant = set()
    for rank, figure in enumerate(known):
        if figure.p_value > (1.0 - CONFIDENCE) / (len(known) - rank):
            break
        significant.add(figure.name)
    return tuple(_with_verdict(figure, beyond_chance=figure.name in significant) for figure in figures)


def _with_verdict(figure: FigureDifference, *, beyond_chance: bool) -> FigureDifference:
    if figure.verdict == "unknown":
        return figure
    if beyond_chance:
        return replace(figure, verdict="higher" if figure.change > 0.0 else "lower")
    return replace(figure, verdict="perhaps" if figure.p_value <= 1.0 - CONFIDENCE else "same")
