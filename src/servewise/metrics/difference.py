"""Whether two runs differ by more than noise, figure by figure. ``docs/comparing-runs.md`` has the method in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from servewise.errors import InputError
from servewise.metrics.bootstrap import CONFIDENCE
from servewise.metrics.latency import refuse_empty
from servewise.metrics.sampled import SampledFigure, dependent_requests, sampled_figures
from servewise.metrics.student import student_p_value, student_quantile
from servewise.types import Difference, FigureDifference, Promise, RequestLog

__all__ = ["difference"]

ONE_RUN = (
    "one run a side: what changes from run to run (a restart, other load on the machine) is in no interval; "
    "several runs a side would show it"
)


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
    runs, limits = (*a, *b), promise or Promise()
    for log in runs:
        refuse_empty(log)
    lengths = [dependent_requests(log, limits, with_rates=with_rates) for log in runs]
    seeds = [seed + i for i in range(len(runs))]
    alone = len(runs) == 2
    if alone and a[0].num_requests == b[0].num_requests:
        # Drawn alike, request by request: what one load does to both sides cancels.
        lengths, seeds = [max(lengths)] * 2, [seed] * 2
    sampled = [
        sampled_figures(log, limits, length, with_rates=with_rates, seed=one)
        for log, length, one in zip(runs, lengths, seeds, strict=True)
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


def _compare(name: str, a: Sequence[SampledFigure], b: Sequence[SampledFigure]) -> FigureDifference:
    """The change of one figure, its interval and its p-value; the verdict comes when all figures are known."""
    is_share = name == "attainment"
    mean_a, mean_b = (float(np.mean([run.value for run in side])) for side in (a, b))
    change = mean_b - mean_a
    reasons = [run.reason or (run.thin if len(a) < 2 or len(b) < 2 else "") for run in (*a, *b)]
    unknown = FigureDifference(
        name=name,
        a=mean_a if is_share else math.exp(mean_a),
        b=mean_b if is_share else math.exp(mean_b),
        change=change if is_share else math.expm1(change),
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
    return replace(
        unknown,
        low=low if is_share else math.expm1(low),
        high=high if is_share else math.expm1(high),
        p_value=student_p_value(change / error, degrees) if error > 0.0 else float(change == 0.0),
        verdict="same",
    )


def _variance(a: Sequence[SampledFigure], b: Sequence[SampledFigure]) -> tuple[float, float]:
    """Variance of the change, and the degrees of freedom it rests on.

    One run a side: the bootstrap, of both together when they were drawn alike. Several: the variance between
    runs, pooled over both sides, but not less than what the bootstrap finds within them.
    """
    if len(a) == len(b) == 1:
        together = float(np.var(b[0].resampled - a[0].resampled, ddof=1)) * max(a[0].inflation, b[0].inflation)
        return max(together, a[0].floor + b[0].floor), min(a[0].degrees, b[0].degrees)
    within = sum(float(np.mean([run.variance for run in side])) / len(side) for side in (a, b))
    degrees = len(a) + len(b) - 2
    scatter = sum(float(np.var([run.value for run in side])) * len(side) for side in (a, b))
    return max(scatter / degrees * (1.0 / len(a) + 1.0 / len(b)), within), degrees


def _judge(figures: Sequence[FigureDifference]) -> tuple[FigureDifference, ...]:
    """Verdicts by Holm's procedure: the chance of any false "higher" or "lower" among all figures is at most 5%."""
    known = sorted((figure for figure in figures if figure.verdict != "unknown"), key=lambda figure: figure.p_value)
    beyond_chance = set()
    for rank, figure in enumerate(known):
        if figure.p_value > (1.0 - CONFIDENCE) / (len(known) - rank):
            break
        beyond_chance.add(figure.name)
    return tuple(_with_verdict(figure, beyond_chance=figure.name in beyond_chance) for figure in figures)


def _with_verdict(figure: FigureDifference, *, beyond_chance: bool) -> FigureDifference:
    if figure.verdict == "unknown":
        return figure
    if beyond_chance:
        return replace(figure, verdict="higher" if figure.change > 0.0 else "lower")
    return replace(figure, verdict="perhaps" if figure.p_value <= 1.0 - CONFIDENCE else "same")
