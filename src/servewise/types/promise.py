"""What is promised to users, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["Estimate", "Metric", "PercentileLimit", "Promise", "Summary"]

Metric = Literal["ttft", "tpot", "e2e", "itl"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PercentileLimit:
    """A marginal limit: percentile ``percentile`` of ``metric`` is at most ``limit_s``, e.g. ``ttft_p99_s: 1.0``."""

    metric: Metric
    percentile: float
    limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """The service-level objective.

    Joint form: the share of requests that meet all of ``ttft_s``, ``tpot_s``, ``e2e_s`` (those given, <=) is at
    least ``attainment``. Marginal form: every one of ``percentiles`` holds. Offline form: the whole job ends
    within ``deadline_s``. All forms given must hold. Without any limit only finishing counts.

    Parameters
    ----------
    ttft_s, tpot_s, e2e_s : float or None [s]
    attainment : float
        In (0, 1); has a meaning only with a joint limit.
    percentiles : tuple of PercentileLimit
    deadline_s : float or None [s]
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    attainment: float = 0.99
    percentiles: tuple[PercentileLimit, ...] = ()
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value with the interval that sampling alone leaves open (95%, moving-block bootstrap)."""

    value: float
    low: float
    high: float
    num_samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A run reduced to the figures of the glossary.

    Parameters
    ----------
    num_requests, num_ok, num_good : int
        All, finished, and those that meet every joint limit.
    attainment : Estimate
        good / all; failed and rejected requests count as bad.
    promise_kept : bool
        Joint, marginal and offline forms together.
    broken : tuple of str
        What was broken or could not be judged, in words, e.g. ``attainment 0.963 < 0.99``.
    duration_s, drain_s : float [s]
        First intended send to last completion; the part of it after the last intended send.
    throughput_tokens_per_s, goodput_tokens_per_s : float [output tokens/s]
        These and the totals are NaN when the tokens of a request are unknown.
    throughput_rps, goodput_rps : float [requests/s]
    total_tokens_per_s : float [input + output tokens/s]
    total_goodput_tokens_per_s : float [input + output tokens of good requests/s]
    percentiles : mapping of str to mapping of str to Estimate
        ``percentiles["ttft"]["p99"]`` [s], for ttft, tpot, e2e and, when recorded, itl; keys p50 p90 p95 p99 p99.9.
    means : mapping of str to float [s]
    cached_tokens_frac : float or None
        Share of prompt tokens served from the prefix cache; None when unknown.
    num_preemptions : int or None
    """

    num_requests: int
    num_ok: int
    num_good: int
    attainment: Estimate
    promise_kept: bool
    broken: tuple[str, ...]
    duration_s: float
    drain_s: float
    throughput_tokens_per_s: float
    goodput_tokens_per_s: float
    throughput_rps: float
    goodput_rps: float
    total_tokens_per_s: float
    total_goodput_tokens_per_s: float
    percentiles: Mapping[str, Mapping[str, Estimate]]
    means: Mapping[str, float]
    cached_tokens_frac: float | None
    num_preemptions: int | None
