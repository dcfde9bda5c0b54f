"""What two runs differ in, and whether that is more than noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Difference", "FigureDifference", "FigureVerdict"]

FigureVerdict = Literal["higher", "lower", "perhaps", "same", "unknown"]
"""B against A: higher or lower beyond noise; perhaps, which one of so many figures may show by chance; no difference
beyond noise; unknown, when the runs cannot tell.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureDifference:
    """One figure of two runs.

    Parameters
    ----------
    name : str
        ``ttft_p99_s`` and so on, ``attainment``, ``throughput_tokens_per_s``.
    a, b : float
        The figure: seconds, a share, or tokens/s. Of several runs the mean, of times and rates the geometric one.
    change : float
        b / a - 1; for a share b - a.
    low, high : float
        95% interval of the change, for this figure alone; NaN when unknown.
    p_value : float
        Chance of a change at least as large between runs of the same system; NaN when unknown.
    verdict : FigureVerdict
    reason : str
        Why it is unknown.
    """

    name: str
    a: float
    b: float
    change: float
    low: float
    high: float
    p_value: float
    verdict: FigureVerdict
    reason: str = ""

    @property
    def is_share(self) -> bool:
        """Whether the change is a difference of shares, not a ratio."""
        return self.name == "attainment"

    @property
    def could_miss(self) -> float:
        """The largest change that the interval leaves open."""
        return max(abs(self.low), abs(self.high))


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Two runs, or two groups of runs, figure by figure.

    Parameters
    ----------
    num_runs, num_requests : tuple of (int, int)
        Of A and B.
    figures : tuple of FigureDifference
    notes : tuple of str
        What a reader must know, e.g. that one run a side does not show what changes from run to run.
    """

    num_runs: tuple[int, int]
    num_requests: tuple[int, int]
    figures: tuple[FigureDifference, ...]
    notes: tuple[str, ...]
