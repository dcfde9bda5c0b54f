"""How sure it is that a fleet keeps its promise, and what more certainty costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["LIKELY_FRAC", "VERY_LIKELY_FRAC", "Assurance", "Interval", "MeanEstimate", "SafetyMargin", "Verdict"]

Verdict = Literal["very likely", "likely", "at risk"]
VERY_LIKELY_FRAC = 0.95
"""From this share of the draws on a promise is ``very likely`` kept."""
LIKELY_FRAC = 0.75
"""From this share of the draws on it is ``likely`` kept; below it is ``at risk``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Two ends of an interval; NaN when a draw leaves the figure undefined."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanEstimate:
    """A simulated mean [s] with the 90% interval that errors of comparable predictions leave.

    Parameters
    ----------
    value, low, high : float [s]
        The ends are ``value`` times the 5% and 95% quantiles of measured / predicted.
    error_class : str
        What of the deployment was among the measured runs, e.g. ``other model``.
    num_runs : int
        Held-out runs the errors come from; 0 when the interval is assumed.
    """

    value: float
    low: float
    high: float
    error_class: str
    num_runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetyMargin:
    """The smallest fleet of the same replicas, no smaller than the candidate's, that very likely keeps the promise.

    Parameters
    ----------
    num_replicas : int
    kept_frac : float
        Share of the draws in which it keeps the promise.
    extra_usd_per_h : float [$/h]
        More than the candidate's fleet costs.
    usd_per_mtok_output_at_load : float [$]
        Of this fleet, simulated with the step model that was not drawn.
    """

    num_replicas: int
    kept_frac: float
    extra_usd_per_h: float
    usd_per_mtok_output_at_load: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Assurance:
    """A fleet simulated with step times drawn from what the measurements leave open.

    The intervals here are *model-based*: 90% of the draws lie within. What the length of the traffic leaves open,
    *sampling*, is in the ``Estimate`` of the summary; neither contains the other.

    Parameters
    ----------
    num_draws : int
        At least 32.
    kept_frac : float
        Share of the draws in which the fleet keeps the whole promise.
    attainment : Interval
    percentiles : mapping of str to mapping of str to Interval [s]
        ``percentiles["ttft"]["p99"]``, for ttft, tpot, e2e and, when it is promised, itl; keys as the summary's.
    means : mapping of str to MeanEstimate [s]
        Of ttft and tpot.
    margin : SafetyMargin or None
        None when no fleet that was tried keeps the promise in enough of the draws.
    margin_tried : str
        Which fleets were tried for the margin, and what ended the search, in words.
    """

    num_draws: int
    kept_frac: float
    attainment: Interval
    percentiles: Mapping[str, Mapping[str, Interval]]
    means: Mapping[str, MeanEstimate]
    margin: SafetyMargin | None
    margin_tried: str

    @property
    def num_kept(self) -> int:
        """Draws in which the fleet keeps the promise."""
        return round(self.kept_frac * self.num_draws)

    @property
    def verdict(self) -> Verdict:
        """How sure it is that the promise is kept, as far as step times decide it."""
        if self.kept_frac >= VERY_LIKELY_FRAC:
            return "very likely"
        return "likely" if self.kept_frac >= LIKELY_FRAC else "at risk"
