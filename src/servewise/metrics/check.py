"""Whether a run kept its promise, and what was broken in words."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from servewise.errors import InputError
from servewise.metrics.itl import itl_percentiles
from servewise.metrics.latency import count_good, e2e_s, finished, refuse_empty, tpot_s, ttft_s, unjudged
from servewise.types import PercentileLimit, Promise, RequestLog
from servewise.units import format_duration

__all__ = ["broken", "end_s"]


def end_s(log: RequestLog) -> float:
    """When the run was over [s]: the last completion.

    A request that failed or was refused was over no earlier than its intended send, so the end is never
    before the last intended send.
    """
    done = log.last_token_s[finished(log)]
    last_intended_s = float(np.max(log.intended_s))
    return max(last_intended_s, float(np.max(done))) if len(done) else last_intended_s


def broken(log: RequestLog, promise: Promise) -> tuple[str, ...]:
    """What of the promise the run broke, in words; empty when it was kept.

    The joint form holds when attainment is at least the promised one, the marginal form when every percentile
    is within its limit (a request that did not finish counts as infinitely slow), the offline form when every
    request finished and the duration is within the deadline. Without any limit every request must finish.
    What cannot be judged is not kept, and says why. No intervals are computed: the search calls this for every
    fleet.

    Returns
    -------
    tuple of str
        E.g. ``attainment 0.963 < 0.99``.

    Raises
    ------
    InputError
        When the log is empty, a percentile is not in (0, 100), or a limit on gaps meets a log without gaps.
    """
    refuse_empty(log)
    if not_judged := unjudged(log, promise):
        return not_judged
    words = []
    has_joint = any(limit is not None for limit in (promise.ttft_s, promise.tpot_s, promise.e2e_s))
    if has_joint:
        share = count_good(log, promise) / log.num_requests
        if share < promise.attainment:
            words.append(f"attainment {_floor(share, promise.attainment)} < {promise.attainment:g}")
    words += [word for limit in promise.percentiles if (word := _broken_percentile(log, limit))]
    if promise.deadline_s is not None:
        duration_s = end_s(log) - float(np.min(log.intended_s))
        if duration_s > promise.deadline_s:
            words.append(f"duration {_pair(duration_s, promise.deadline_s)}")
    if promise.deadline_s is not None or not (has_joint or promise.percentiles):
        num_lost = log.num_requests - int(np.count_nonzero(finished(log)))
        if num_lost:
            words.append(f"{num_lost} of {log.num_requests} requests did not finish")
    return tuple(words)


def _broken_percentile(log: RequestLog, limit: PercentileLimit) -> str:
    """The broken limit in words; empty when it holds."""
    if not 0.0 < limit.percentile < 100.0:
        raise InputError(
            f"percentile {limit.percentile:g} of {limit.metric} is outside (0, 100); write 99 for ttft_p99_s"
        )
    name = f"{limit.metric} p{limit.percentile:g}"
    if limit.metric == "itl":
        if log.itl is None:
            raise InputError(f"the promise limits {name}, but this log holds no gaps between tokens")
        value = float(itl_percentiles(log.itl, [limit.percentile])[0])
        return f"{name} {_pair(value, limit.limit_s)}" if value > limit.limit_s else ""
    values = {"ttft": ttft_s, "tpot": tpot_s, "e2e": e2e_s}[limit.metric](log)
    value = _percentile_with_lost(values, finished(log), limit.percentile)
    if math.isinf(value):
        return f"{name} unbounded > {format_duration(limit.limit_s)}: too many requests did not finish"
    return f"{name} {_pair(value, limit.limit_s)}" if value > limit.limit_s else ""


def _percentile_with_lost(values: NDArray[np.float64], done: NDArray[np.bool_], q: float) -> float:
    """Percentile in which unfinished requests are infinitely slow; NaN when nothing is defined."""
    defined = values[done & np.isfinite(values)]
    num = len(defined) + int(np.count_nonzero(~done))
    if num == 0:
        return math.nan
    position = (num - 1) * (q / 100.0)
    below = math.floor(position)
    # Interpolating towards infinity is infinite, unless the position is a finite value itself.
    if below + (position > below) >= len(defined):
        return math.inf
    above = min(below + 1, len(defined) - 1)
    low, high = np.partition(defined, (below, above))[[below, above]]
    return float(low + (high - low) * (position - below))


def _floor(share: float, limit: float) -> str:
    """Share with as many digits as it takes to see that it is below the limit."""
    for digits in range(3, 16):
        text = f"{share:.{digits}f}"
        if float(text) < limit:
            return text
    return repr(share)


def _pair(value: float, limit: float) -> str:
    """``value > limit``, in seconds with more digits when the rounded ones look equal."""
    left, right = format_duration(value), format_duration(limit)
    if left == right:
        left, right = f"{value!r} s", f"{limit!r} s"
    return f"{left} > {right}"
