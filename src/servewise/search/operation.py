"""What the winner's fleet does when a replica fails, and what a fleet that follows the load would cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from servewise.metrics import summarize
from servewise.perf import start_up_s
from servewise.search.pricing import usd_per_h
from servewise.search.results import Result
from servewise.sim import ClusterRun, Life, simulate_cluster, simulate_group_cluster
from servewise.types import Autoscaling, Failure, MemoryReport, Outage, Role, Search, StepModel, Summary
from servewise.units import HOURS_PER_MONTH, SECONDS_PER_HOUR

__all__ = ["autoscaling", "busiest_s", "failure", "lives_by_rate", "paid"]

PERIOD_S = 60.0
"""How often the fleet is looked at."""
WINDOW_S = 300.0
"""Over how long the rate is counted."""
STABLE_S = 600.0
"""Replicas are given up when nothing asked for them for so long."""
HEADROOMS = (1.0, 1.25, 1.5, 2.0, 3.0)
"""Tried in turn until the promise is kept."""
SHORTEST_SPAN = 10.0
"""Traffic has to go on for so many times the time in which the fleet can react, or there is nothing to follow."""


def failure(search: Search, result: Result) -> Failure | None:
    """One of the winner's replicas fails at the start of the busiest stretch as long as its start-up.

    A group of prefill and decode instances fails, and starts, as a whole: what outlives one of its instances is not
    simulated. None where all requests come at once.
    """
    load, num_replicas = result.load, result.candidate.deployment.num_replicas
    if load.workload.span_s <= 0:
        return None
    start_s = _start_up_s(search, result)
    at_s = busiest_s(load.workload.arrival_s, start_s)
    lives = [Life(ready_s=at_s + start_s)]
    if at_s > 0.0:
        lives.append(Life(until_s=at_s, ends="failure"))

    def outage(size: int) -> Outage:
        run = _cluster(result, [Life()] * (size - 1) + lives)
        summary = _summary(result, run)
        return Outage(
            num_replicas=size,
            attainment=summary.attainment.value,
            promise_kept=summary.promise_kept,
            num_retries=int(run.num_retries.sum()),
            usd_per_h=_usd_per_h(search, result, size),
        )

    return Failure(at_s=at_s, start_up_s=start_s, planned=outage(num_replicas), one_more=outage(num_replicas + 1))


def autoscaling(search: Search, result: Result) -> Autoscaling | None:
    """A fleet that follows the rate, with the least headroom that keeps the promise (or the most, if none does).

    None where the traffic is too short to follow, one replica is enough, or the capacity is not known.
    """
    load, candidate = result.load, result.candidate
    start_s, span_s = _start_up_s(search, result), load.workload.span_s
    num_replicas = candidate.deployment.num_replicas
    kept = [point for point in candidate.load_curve if point.promise_kept]
    if num_replicas < 2 or not kept or span_s < SHORTEST_SPAN * (start_s + WINDOW_S + STABLE_S):
        return None
    replica_rps = max(point.offered_rps for point in kept) / num_replicas
    for headroom in HEADROOMS:
        lives = lives_by_rate(load.workload.arrival_s, replica_rps / headroom, start_s, num_replicas)
        run = _cluster(result, lives)
        summary = _summary(result, run)
        if summary.promise_kept:
            break
    end_s = float(load.workload.arrival_s[-1])
    spans = [
        (max(0.0, life.ready_s - start_s), max(min(life.until_s, end_s), float(busy)))
        for life, busy in zip(lives, run.busy_until_s, strict=True)
    ]
    usd, replica_s = paid(search, result, spans)
    ups = _most_at_once([(life.ready_s, life.until_s) for life in lives])
    return Autoscaling(
        headroom=headroom,
        fewest=ups[0],
        most=ups[1],
        mean_replicas=replica_s / span_s,
        num_starts=len(lives) - num_replicas,
        attainment=summary.attainment.value,
        promise_kept=summary.promise_kept,
        usd_per_month=usd / span_s * SECONDS_PER_HOUR * HOURS_PER_MONTH,
        fixed_usd_per_month=_usd_per_h(search, result, num_replicas) * HOURS_PER_MONTH,
    )


def lives_by_rate(arrival_s: np.ndarray, replica_rps: float, start_s: float, first: int) -> list[Life]:
    """Replicas of a fleet that is ordered by the rate of the last minutes.

    Every ``PERIOD_S`` it should have as many replicas as the rate of the last ``WINDOW_S`` needs, at least one, and as
    many as any look of the last ``STABLE_S`` asked for. What is missing is started, serving ``start_s`` later; of
    what is too much the youngest drain.

    Parameters
    ----------
    arrival_s : float64 array [s]
        Sorted, from 0 on.
    replica_rps : float
        Load of a replica [requests/s].
    start_s : float [s]
    first : int
        Replicas that are up when the traffic begins.
    """
    ready = [0.0] * first
    until = [math.inf] * first
    active = list(range(first))
    wanted: list[int] = []
    for now in np.arange(WINDOW_S, float(arrival_s[-1]), PERIOD_S):
        come = np.searchsorted(arrival_s, now) - np.searchsorted(arrival_s, now - WINDOW_S)
        wanted.append(max(1, math.ceil(come / WINDOW_S / replica_rps)))
        target = max(wanted[-int(STABLE_S / PERIOD_S) :])
        if now < STABLE_S + WINDOW_S:
            target = max(target, first)  # nothing is given up before it was watched for long enough
        for _ in range(target - len(active)):
            active.append(len(ready))
            ready.append(float(now) + start_s)
            until.append(math.inf)
        for _ in range(len(active) - target):
            last = active.pop()
            until[last] = float(now)
    # one that was given up before it was ready never served
    return [Life(ready_s=r, until_s=u) for r, u in zip(ready, until, strict=True) if r < u]


def _cluster(result: Result, lives: Sequence[Life]) -> ClusterRun:
    memory, load, deployment = result.shape.memory, result.load, result.candidate.deployment
    assert memory is not None  # noqa: S101 (it was simulated)
    if load.prefill_model is not None and result.shape.prefill_memory is not None:
        models: dict[Role, StepModel] = {"prefill": load.prefill_model, "decode": load.step_model}
        memories: dict[Role, MemoryReport] = {"prefill": result.shape.prefill_memory, "decode": memory}
        return simulate_group_cluster(load.workload, deployment, models, memories, lives, record_itl=load.records_itl)
    return simulate_cluster(load.workload, deployment, load.step_model, memory, lives, record_itl=load.records_itl)


def _summary(result: Result, run: ClusterRun) -> Summary:
    return summarize(run.log, result.load.promise, with_intervals=False)


def _start_up_s(search: Search, result: Result) -> float:
    """Until a replica serves [s]; the instances of a group start side by side."""
    if search.start_up_s is not None:
        return search.start_up_s
    shape, group = result.shape, result.candidate.deployment.disaggregation
    starting = [(shape.memory, result.candidate.deployment.parallelism)]
    if group is not None:
        starting.append((shape.prefill_memory, group.prefill.parallelism))
    return max(start_up_s(memory, spread.num_gpus)[0] for memory, spread in starting if memory is not None)


def _usd_per_h(search: Search, result: Result, num_replicas: int) -> float:
    return usd_per_h(search, result.candidate.deployment, num_replicas)


def busiest_s(arrival_s: np.ndarray, stretch_s: float) -> float:
    """Start of the stretch in which most requests come [s]."""
    ends = np.searchsorted(arrival_s, arrival_s + stretch_s, side="right")
    return float(arrival_s[np.argmax(ends - np.arange(len(arrival_s)))])


def paid(search: Search, result: Result, spans: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Dollars of a fleet whose replicas are paid for in the given spans, in nodes, and replica-seconds."""
    moments = sorted({t for span in spans for t in span})
    usd = replica_s = 0.0
    for start, end in pairwise(moments):
        num = sum(a <= start and end <= b for a, b in spans)
        replica_s += num * (end - start)
        if num:
            usd += _usd_per_h(search, result, num) * (end - start) / SECONDS_PER_HOUR
    return usd, replica_s


def _most_at_once(spans: Sequence[tuple[float, float]]) -> tuple[int, int]:
    """Fewest and most spans that hold a moment between the first start and the last."""
    starts = sorted({a for a, _ in spans})
    counts = [sum(a <= t < b for a, b in spans) for t in sorted({*starts, *(b for _, b in spans if b < math.inf)})]
    return min(counts), max(counts)
