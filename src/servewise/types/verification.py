"""What came of a plan at a real endpoint: the promise, and what was predicted beside what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from servewise.types.assurance import Interval
from servewise.types.measurement import Endpoint, Trust
from servewise.types.promise import Estimate, Promise, Summary

__all__ = ["Compared", "LimitCheck", "Standing", "Verification", "VerifyVerdict"]

Standing = Literal["kept", "broken", "too short to tell"]
VerifyVerdict = Literal["kept", "broken", "too short to tell", "not trustworthy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitCheck:
    """One part of the promise.

    Parameters
    ----------
    limit : str
        In words, e.g. ``TTFT p99 at most 1.00 s``.
    measured : Estimate
        A share, or a time [s]; its interval is what the run's length leaves open (95%).
    wanted_frac : float
        Share of the requests that must be within; NaN where a part is not about shares.
    standing : Standing
        ``kept`` and ``broken`` when the whole interval says so.
    """

    limit: str
    measured: Estimate
    wanted_frac: float
    standing: Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One figure, predicted and measured.

    Parameters
    ----------
    figure : str
        E.g. ``TTFT p99``.
    unit : str
        ``s``, ``tokens/s`` or ``share``.
    predicted : float
    stated : Interval or None
        What the plan says of how far it may be off (90%); None where it says nothing.
    measured : Estimate
    inside : bool or None
        Whether the measured value lies in the stated interval; None without one, and where it lies outside but the
        run's own interval reaches into it.
    """

    figure: str
    unit: Literal["s", "tokens/s", "share"]
    predicted: float
    stated: Interval | None
    measured: Estimate
    inside: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """A plan's winner against the endpoint that is to be it.

    Parameters
    ----------
    plan : str
        Name of the service.
    endpoint : Endpoint
    load_words : str
    trust : Trust
    verdict : VerifyVerdict
    promise : Promise
    summary : Summary
        Of the requests that count.
    limits : tuple of LimitCheck
    compared : tuple of Compared
    warnings : tuple of str
        Where the endpoint or the load is not what the plan says.
    more_requests : int or None
        About how many requests would tell; None unless the run was too short, or none would.
    """

    plan: str
    endpoint: Endpoint
    load_words: str
    trust: Trust
    verdict: VerifyVerdict
    promise: Promise
    summary: Summary
    limits: tuple[LimitCheck, ...]
    compared: tuple[Compared, ...]
    warnings: tuple[str, ...]
    more_requests: int | None = None
