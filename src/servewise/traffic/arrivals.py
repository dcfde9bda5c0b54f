"""Arrival processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from servewise.errors import InputError

__all__ = ["Arrivals", "draw_arrival_times"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """When requests (or conversations) start.

    Parameters
    ----------
    process : {"constant", "poisson", "gamma"}
        Equal gaps; exponential gaps; gamma gaps with the given ``cv``.
    rate_rps : float or None [requests/s]
        Mean rate. None when ``curve`` gives it.
    cv : float
        Coefficient of variation of gamma gaps: 1 is Poisson, more is burstier.
    curve : tuple of (float, float)
        Rate curve as steps of (duration [s], rate [requests/s]), repeated as long as needed. Gaps shrink and
        stretch with the rate, so that each process keeps its burstiness.
    """

    process: Literal["constant", "poisson", "gamma"] = "poisson"
    rate_rps: float | None = None
    cv: float = 1.0
    curve: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        if self.process not in ("constant", "poisson", "gamma"):
            raise InputError(f"process is {self.process!r}; allowed: constant, poisson, gamma")
        if (self.rate_rps is None) == (not self.curve):
            raise InputError("arrivals need either rate_rps or a rate curve, and not both")
        if self.rate_rps is not None and not 0 < self.rate_rps < np.inf:
            raise InputError(f"rate_rps is {self.rate_rps}; it must be a positive number")
        if not 0 < self.cv < np.inf:
            raise InputError(f"cv is {self.cv}; it must be a positive number")
        if self.cv != 1.0 and self.process != "gamma":
            raise InputError(f"cv is {self.cv}, but only gamma arrivals have one; set process: gamma")
        for duration_s, rate_rps in self.curve:
            if not (0 < duration_s < np.inf and 0 <= rate_rps < np.inf):
                message = f"curve step ({duration_s}, {rate_rps}); durations must be above 0 s, rates at least 0"
                raise InputError(message)
        if self.curve and not any(rate for _, rate in self.curve):
            raise InputError("every rate of the curve is 0; at least one must be above")


def draw_arrival_times(arrivals: Arrivals, num: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """The first ``num`` times of arrival [s], sorted; without a curve the first is 0."""
    gaps: NDArray[np.float64]
    if arrivals.process == "constant":
        gaps = np.ones(num)
    elif arrivals.process == "poisson":
        gaps = rng.exponential(size=num)
    else:
        shape = arrivals.cv**-2
        gaps = rng.gamma(shape, 1 / shape, size=num)
    expected: NDArray[np.float64] = np.cumsum(gaps)
    if arrivals.rate_rps is not None:
        expected -= expected[0]
        expected /= arrivals.rate_rps
        return expected
    return _at_expected(arrivals.curve, expected)


def _at_expected(curve: tuple[tuple[float, float], ...], expected: NDArray[np.float64]) -> NDArray[np.float64]:
    """Times at which the expected number of arrivals under the repeated curve reaches ``expected``."""
    durations_s, rates_rps = np.array(curve, dtype=np.float64).T
    times_s = np.concatenate(([0.0], np.cumsum(durations_s)))
    reached = np.concatenate(([0.0], np.cumsum(durations_s * rates_rps)))
    cycles, within = np.divmod(expected, reached[-1])
    # Steps of rate 0 reach nothing: the first time at which a number is reached ends them.
    step = np.searchsorted(reached, within, side="right") - 1
    step = np.minimum(step, len(rates_rps) - 1)
    since_step_s = (within - reached[step]) / rates_rps[step]
    arrival_s: NDArray[np.float64] = cycles * times_s[-1] + times_s[step] + since_step_s
    return arrival_s
