"""The figures of one run with their resamples: what a comparison of runs rests on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servewise.metrics.bootstrap import NUM_RESAMPLES, TAIL, SortedSample, block_length, effective_number
from servewise.metrics.cells import cell_counts
from servewise.metrics.check import end_s
from servewise.metrics.itl import itl_percentiles, itl_resamples
from servewise.metrics.latency import e2e_s, finished, good, tpot_s, ttft_s
from servewise.metrics.resample import resample
from servewise.types import Promise, RequestLog

__all__ = ["SampledFigure", "dependent_requests", "sampled_figures"]

PERCENTILES: Mapping[str, float] = {"p50": 50.0, "p90": 90.0, "p99": 99.0}
RESIDENCES = 2.0
"""A block lasts at least this many times as long as a request stays, and as the load remembers. Chosen by simulation:
with it, runs that differ in nothing but their seed are told apart about as rarely as they should be."""
NUM_LOAD_CELLS = 100
"""Parts of a run whose load is looked at: few, so that a memory of a sixth of the run is seen."""
LEAST_BLOCKS = 4.0
"""A run of fewer blocks says nothing of how much runs differ by chance."""
NUM_CELLS = 2048

Floats = NDArray[np.float64]

_QS = np.array(list(PERCENTILES.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledFigure:
    """A figure of one run: the logarithm of a time or a rate, or a share.

    Parameters
    ----------
    value : float
    resampled : float64 array, shape (num_resamples,)
    num_blocks : float
        Blocks a resample consists of.
    independent : float
        Independent values that decide the figure: for a percentile those beyond it, on the rarer side.
    floor : float
        What the variance is at least.
    reason : str
        Why the figure does not exist; empty when it does.
    thin : str
        Why one run does not say how far the figure could be off; empty when it does.
    """

    value: float
    resampled: Floats
    num_blocks: float
    independent: float
    floor: float = 0.0
    reason: str = ""
    thin: str = ""

    @property
    def degrees(self) -> float:
        """Degrees of freedom of the variance."""
        return max(min(self.independent, self.num_blocks - 1.0), 1.0)

    @property
    def inflation(self) -> float:
        """By how much a resample of few blocks understates the variance."""
        return self.num_blocks / (self.num_blocks - 1.0) if self.num_blocks > 1.0 else 1.0

    @property
    def variance(self) -> float:
        """Variance of the value over runs like this one."""
        return max(float(np.var(self.resampled, ddof=1)) * self.inflation, self.floor)


def dependent_requests(log: RequestLog, promise: Promise, *, with_rates: bool) -> int:
    """Requests a block: as for the intervals of a summary, but never fewer than those that shared a state of load.

    How many requests are in flight makes all of them slow together, each by little: hidden in the noise of their
    lengths, it still moves every percentile. It changes as requests leave, and more slowly near saturation.
    """
    columns = _columns(log)
    num = log.num_requests
    length = float(block_length([*columns.values(), good(log, promise).astype(np.float64)]))
    over_s = np.where(np.isfinite(log.last_token_s), log.last_token_s, log.intended_s)
    duration_s = float(np.max(over_s) - np.min(log.intended_s))
    if with_rates and duration_s > 0.0:
        stays_s = over_s - log.intended_s
        # Long requests are in flight for longer: weighted by their stay.
        stay_s = float(stays_s @ stays_s) / max(float(np.sum(stays_s)), 1e-300)
        in_flight = np.arange(1, num + 1) - np.searchsorted(np.sort(over_s), log.intended_s, side="right")
        num_cells = min(NUM_LOAD_CELLS, num)
        cell = np.arange(num) * num_cells // num
        load = np.bincount(cell, weights=in_flight) / np.bincount(cell)
        memory = num / max(effective_number(load), 1.0)
        length = max(length, RESIDENCES * max(stay_s * num / duration_s, memory))
    return min(math.ceil(length), num)


def sampled_figures(
    log: RequestLog, promise: Promise, length: int, *, with_rates: bool, seed: int
) -> dict[str, SampledFigure]:
    """Percentiles of TTFT, TPOT, E2E and gaps, attainment and throughput, with their resamples.

    Parameters
    ----------
    log : RequestLog
        With at least one request.
    promise : Promise
    length : int
        Requests a block.
    with_rates : bool
        False when the log does not say when requests were sent.
    seed : int
    """
    columns, is_good, num = _columns(log), good(log, promise), log.num_requests
    samples = {name: SortedSample(values) for name, values in columns.items()}
    shares, resampled = resample(samples, is_good, _QS, length, seed=seed)
    num_blocks = num / length
    found: dict[str, SampledFigure] = {}
    for name, sample in samples.items():
        values = np.percentile(sample.ascending, _QS) if len(sample.ascending) else np.full(len(_QS), np.nan)
        effective = effective_number(columns[name])
        found |= _percentiles(name, values, resampled[name], effective=effective, num_blocks=num_blocks)
    found |= _gaps(log, length / num, seed)
    effective = effective_number(is_good.astype(np.float64))
    share = float(np.mean(is_good))
    # One good and one bad request more a side (Agresti and Caffo 2000): a share of 1 is never certain.
    near = (share * effective + 1.0) / (effective + 2.0)
    floor = near * (1.0 - near) / (effective + 2.0)
    found["attainment"] = SampledFigure(
        value=share,
        resampled=shares,
        num_blocks=num_blocks,
        independent=effective,
        floor=floor,
        thin=_too_few(num_blocks),
    )
    if with_rates:
        found["throughput_tokens_per_s"] = _throughput(log, length / num, seed)
    return found


def _columns(log: RequestLog) -> dict[str, Floats]:
    return {"ttft": ttft_s(log), "tpot": tpot_s(log), "e2e": e2e_s(log)}


def _missing(reason: str) -> SampledFigure:
    nothing = np.zeros(NUM_RESAMPLES)
    return SampledFigure(value=math.nan, resampled=nothing, num_blocks=1.0, independent=1.0, reason=reason)


def _too_few(num_blocks: float) -> str:
    """Why so few blocks are too few; empty when they are enough."""
    if num_blocks >= LEAST_BLOCKS:
        return ""
    longer = math.ceil(10.0 * LEAST_BLOCKS / num_blocks) / 10.0
    return f"needs a run {longer:.1f} times as long: too many of its requests depend on each other"


def _percentiles(
    name: str, values_s: Floats, resampled_s: Floats, *, effective: float, num_blocks: float
) -> dict[str, SampledFigure]:
    """Percentiles of a metric, as logarithms; ``effective`` independent values stand behind them."""
    found = {}
    for i, (label, q) in enumerate(PERCENTILES.items()):
        figure = f"{name}_{label}_s"
        if math.isnan(values_s[i]):
            found[figure] = _missing("not defined for any request")
            continue
        if not (values_s[i] > 0.0 and np.all(resampled_s[:, i] > 0.0)):
            found[figure] = _missing("not always above 0")
            continue
        tail = min(q, 100.0 - q) / 100.0
        thin = _too_few(num_blocks)
        if not thin and (1.0 - tail) ** effective > TAIL:
            needed = math.ceil(math.log(TAIL) / math.log(1.0 - tail))
            thin = f"needs {needed} independent values; these are worth {effective:.0f}"
        found[figure] = SampledFigure(
            value=math.log(values_s[i]),
            resampled=np.log(resampled_s[:, i]),
            num_blocks=num_blocks,
            independent=effective * tail,
            thin=thin,
        )
    return found


def _gaps(log: RequestLog, least_frac: float, seed: int) -> dict[str, SampledFigure]:
    """Percentiles of the gaps between tokens; none when the log has no gaps."""
    if log.itl is None:
        return {}
    values = itl_percentiles(log.itl, _QS)
    drawn = itl_resamples(log.itl, _QS, values, least_frac=least_frac, seed=seed)
    if drawn is None:
        return {}
    effective = drawn.num_steps * drawn.effective_frac
    return _percentiles("itl", values, drawn.percentiles, effective=effective, num_blocks=drawn.num_blocks)


def _throughput(log: RequestLog, least_frac: float, seed: int) -> SampledFigure:
    """Output tokens per second: tokens and time of blocks of consecutive completions."""
    done = finished(log)
    tokens = np.where(done, log.output_tokens, 0)
    start_s = float(np.min(log.intended_s))
    total, duration_s = float(np.sum(tokens)), end_s(log) - start_s
    if np.any(tokens < 0):
        return _missing("the tokens of some requests are unknown")
    if total <= 0.0 or duration_s <= 0.0:
        return _missing("no tokens, or no time passed")
    over_s = np.where(done, log.last_token_s, log.intended_s)
    order = np.argsort(over_s, kind="stable")
    num_cells = min(NUM_CELLS, log.num_requests)
    cell = np.arange(log.num_requests) * num_cells // log.num_requests
    took_s = np.diff(over_s[order], prepend=start_s)
    amounts = np.bincount(cell, weights=tokens[order], minlength=num_cells).astype(np.float64)
    times_s = np.bincount(cell, weights=took_s, minlength=num_cells).astype(np.float64)
    excess = amounts - total / duration_s * times_s
    length = max(block_length([amounts, times_s, excess]), math.ceil(least_frac * num_cells))
    counts = cell_counts(num_cells, length, seed=seed)
    with np.errstate(divide="ignore"):
        rates = np.log(counts @ amounts) - np.log(counts @ times_s)
    if not np.all(np.isfinite(rates)):
        return _missing("too few completions")
    num_blocks = num_cells / length
    return SampledFigure(
        value=math.log(total / duration_s),
        resampled=rates,
        num_blocks=num_blocks,
        independent=num_blocks,
        thin=_too_few(num_blocks),
    )
