"""Hold a measured run against the plan that promised it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Literal

from servewise.errors import MeasurementError
from servewise.metrics import counted_log, itl_percentiles, summarize, unjudged
from servewise.types import (
    Candidate,
    Compared,
    Deployment,
    Endpoint,
    Estimate,
    Interval,
    LimitCheck,
    Measurement,
    PercentileLimit,
    Promise,
    RequestLog,
    Standing,
    Summary,
    Verification,
    VerifyVerdict,
)
from servewise.units import format_duration

__all__ = ["endpoint_warnings", "verify"]

COMPARED_PERCENTILES = ("p50", "p90", "p99")
TAIL = 0.025
"""Of the 95% intervals on either side."""
SEVERAL = 1.1
"""More requests than the arithmetic says: what it says is not exact."""


def verify(
    plan_name: str,
    candidate: Candidate,
    promise: Promise,
    measurement: Measurement,
    warnings: Sequence[str] = (),
    *,
    share: float = 1.0,
) -> Verification:
    """Whether a run kept a plan's promise, and whether it was what the plan predicted.

    Parameters
    ----------
    plan_name : str
    candidate : Candidate
        The plan's winner.
    promise : Promise
    measurement : Measurement
        Of the plan's own load.
    warnings : sequence of str
        About the load and the endpoint, in words.
    share : float
        Of the plan's traffic that the run had.

    Raises
    ------
    MeasurementError
        When no request counts, or the run lacks what the promise limits.
    """
    log = counted_log(measurement)
    if log.num_requests == 0:
        raise MeasurementError("no request was sent that counts; measure for longer")
    reasons = unjudged(log, promise)
    if reasons:
        raise MeasurementError(f"the promise cannot be judged by this run: {'; '.join(reasons)}")
    summary = summarize(log, promise)
    limits = tuple(_limits(promise, log, summary))
    standing = _together([check.standing for check in limits])
    verdict: VerifyVerdict = standing if measurement.trust.trustworthy else "not trustworthy"
    return Verification(
        plan=plan_name,
        endpoint=measurement.endpoint,
        load_words=measurement.load_words,
        trust=measurement.trust,
        verdict=verdict,
        promise=promise,
        summary=summary,
        limits=limits,
        compared=tuple(_compared(candidate, promise, summary, share)),
        warnings=tuple(warnings),
        more_requests=_more_requests(limits) if verdict == "too short to tell" else None,
    )


def _limits(promise: Promise, log: RequestLog, summary: Summary) -> list[LimitCheck]:
    """Each part of the promise with what the run says of it."""
    checks = []
    names = (("TTFT", promise.ttft_s), ("TPOT", promise.tpot_s), ("E2E", promise.e2e_s))
    joint = [f"{name} {format_duration(limit)}" for name, limit in names if limit is not None]
    if joint:
        words = f"{', '.join(joint)} kept by at least {promise.attainment:.4g} of the requests"
        checks.append(_share_check(words, summary.attainment, promise.attainment))
    checks += [_percentile_check(limit, log, summary) for limit in promise.percentiles]
    if promise.deadline_s is not None:
        took = summary.duration_s
        words = f"all done within {format_duration(promise.deadline_s)}"
        measured = Estimate(value=took, low=took, high=took, num_samples=1)
        checks.append(_exact_check(words, measured, took <= promise.deadline_s))
    if not joint and not promise.percentiles:
        everyone = summary.num_ok == summary.num_requests
        checks.append(_exact_check("every request is answered", summary.attainment, everyone))
    return checks


def _percentile_check(limit: PercentileLimit, log: RequestLog, summary: Summary) -> LimitCheck:
    """A percentile within its limit: so large a share of the requests is within it."""
    words = f"{limit.metric.upper()} p{limit.percentile:g} at most {format_duration(limit.limit_s)}"
    if limit.metric == "itl":
        found = summary.percentiles["itl"].get(f"p{limit.percentile:g}")
        if found is None:
            assert log.itl is not None  # noqa: S101 (or the promise could not be judged)
            value = float(itl_percentiles(log.itl, [limit.percentile])[0])
            found = Estimate(value=value, low=math.nan, high=math.nan, num_samples=0)
        standing = _standing(found.high <= limit.limit_s, found.low > limit.limit_s)
        return LimitCheck(limit=words, measured=found, wanted_frac=math.nan, standing=standing)
    share = limit.percentile / 100.0
    limits = {name: limit.limit_s if name == limit.metric else None for name in ("ttft", "tpot", "e2e")}
    only = Promise(ttft_s=limits["ttft"], tpot_s=limits["tpot"], e2e_s=limits["e2e"], attainment=share)
    return _share_check(f"{words}, so for {share:.4g} of the requests", summarize(log, only).attainment, share)


def _share_check(words: str, share: Estimate, wanted: float) -> LimitCheck:
    standing = _standing(share.low >= wanted, share.high < wanted)
    return LimitCheck(limit=words, measured=share, wanted_frac=wanted, standing=standing)


def _exact_check(words: str, measured: Estimate, kept: bool) -> LimitCheck:
    standing: Standing = "kept" if kept else "broken"
    return LimitCheck(limit=words, measured=measured, wanted_frac=math.nan, standing=standing)


def _standing(kept: bool, broken: bool) -> Standing:
    return "kept" if kept else "broken" if broken else "too short to tell"


def _together(standings: Sequence[Standing]) -> Standing:
    """Of the whole promise: broken with any part of it, kept with all."""
    if "broken" in standings:
        return "broken"
    return "kept" if all(standing == "kept" for standing in standings) else "too short to tell"


def _more_requests(checks: Sequence[LimitCheck]) -> int | None:
    """About how many requests would tell, if they went on as they did; None where their share is the promised one."""
    needed = []
    for check in checks:
        seen, share = check.measured, check.wanted_frac
        if check.standing != "too short to tell" or math.isnan(share):
            continue
        if seen.value == 1.0:  # even one that misses would be one in so many
            needed.append(math.log(TAIL) / math.log(share))
            continue
        distance, width = abs(seen.value - share), max(share - seen.low, seen.high - share)
        if distance == 0.0:
            return None
        needed.append(seen.num_samples * (width / distance) ** 2)
    return math.ceil(SEVERAL * max(needed)) if needed else None


def _compared(candidate: Candidate, promise: Promise, measured: Summary, share: float) -> list[Compared]:
    """Figures of the plan beside those of the run, which had a share of its traffic."""
    predicted, sure = candidate.summary, candidate.assurance
    if predicted is None:
        return []
    rows = []
    if any(limit is not None for limit in (promise.ttft_s, promise.tpot_s, promise.e2e_s)):
        stated = None if sure is None else sure.attainment
        rows.append(_row("attainment", "share", predicted.attainment.value, stated, measured.attainment))
    for metric, by_name in predicted.percentiles.items():
        for name in COMPARED_PERCENTILES:
            found = measured.percentiles.get(metric, {}).get(name)
            if found is None or math.isnan(found.value):
                continue
            stated = None if sure is None else sure.percentiles.get(metric, {}).get(name)
            rows.append(_row(f"{metric.upper()} {name}", "s", by_name[name].value, stated, found))
    for metric, mean in {} if sure is None else sure.means.items():
        value = measured.means.get(metric, math.nan)
        if not math.isnan(value):
            found = Estimate(value=value, low=math.nan, high=math.nan, num_samples=measured.num_ok)
            rows.append(_row(f"{metric.upper()} mean", "s", mean.value, Interval(low=mean.low, high=mean.high), found))
    rate = measured.throughput_tokens_per_s
    seen = Estimate(value=rate, low=math.nan, high=math.nan, num_samples=measured.num_ok)
    rows.append(_row("output", "tokens/s", share * predicted.throughput_tokens_per_s, None, seen))
    return rows


def _row(
    figure: str, unit: Literal["s", "tokens/s", "share"], predicted: float, stated: Interval | None, seen: Estimate
) -> Compared:
    inside: bool | None = None
    if stated is not None and not math.isnan(stated.low):
        inside = stated.low <= seen.value <= stated.high
        if not inside and seen.low <= stated.high and seen.high >= stated.low:
            inside = None
    return Compared(figure=figure, unit=unit, predicted=predicted, stated=stated, measured=seen, inside=inside)


def endpoint_warnings(deployment: Deployment, endpoint: Endpoint, max_context_tokens: int | None) -> tuple[str, ...]:
    """In what an endpoint is not the deployment that a plan names, as far as it can be recognised.

    Parameters
    ----------
    deployment : Deployment
    endpoint : Endpoint
    max_context_tokens : int or None [tokens]
        Longest request that the server says it takes.
    """
    found = []
    if endpoint.engine == "unknown":
        found.append(f"the engine of the endpoint was not recognised; the plan's is {deployment.engine}")
    elif endpoint.engine != deployment.engine:
        found.append(f"the endpoint runs {endpoint.engine}, the plan's engine is {deployment.engine}")
    elif not endpoint.engine_version:
        found.append(f"the endpoint does not say its version; the plan's is {deployment.engine_version}")
    elif _numbers(endpoint.engine_version) != _numbers(deployment.engine_version):
        planned = deployment.engine_version
        found.append(f"the endpoint runs {endpoint.engine} {endpoint.engine_version}, the plan is for {planned}")
    if _plain_name(endpoint.model) != _plain_name(deployment.model.name):
        found.append(f"the endpoint's model is called {endpoint.model}, the plan's is {deployment.model.name}")
    longest = deployment.max_request_tokens
    if max_context_tokens is not None and max_context_tokens != longest:
        found.append(f"the endpoint takes requests of {max_context_tokens:,} tokens, the plan's of {longest:,}")
    return tuple(found)


def _numbers(version: str) -> list[str]:
    """First three numbers of a version."""
    return re.findall(r"\d+", version)[:3]


def _plain_name(model: str) -> str:
    """The last part of a model's name or path, in small letters."""
    parts = [part for part in model.replace("\\", "/").split("/") if part and part != "config.json"]
    return parts[-1].lower() if parts else ""
