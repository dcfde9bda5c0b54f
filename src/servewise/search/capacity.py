"""A fixed fleet under other loads: the highest one it keeps the promise at, and the curve around it."""

from __future__ import annotations

from dataclasses import replace

from servewise.metrics import summarize
from servewise.search.fleet import Load, try_fleet
from servewise.search.shapes import Shape
from servewise.sim import to_log
from servewise.types import LoadPoint, MemoryReport, Summary

__all__ = ["capacity", "load_curve", "scaled"]

LARGEST_SCALE = 64.0
"""Loads beyond this multiple of the workload are not tried."""
RESOLUTION = 0.01
"""Relative width to which the capacity is narrowed down."""
CURVE = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)
"""Loads of the curve, as multiples of the capacity."""


def scaled(load: Load, scale: float) -> Load:
    """The same requests with arrivals ``scale`` times as fast."""
    requests = load.packed.requests
    return replace(
        load,
        workload=replace(load.workload, arrival_s=load.workload.arrival_s / scale),
        packed=replace(load.packed, requests=requests._replace(arrival=requests.arrival / scale)),
    )


def capacity(shape: Shape, memory: MemoryReport, load: Load, num_replicas: int) -> tuple[float, Summary] | None:
    """Highest load that a fleet keeps the promise at, which it keeps at load 1.

    Returns
    -------
    (scale, Summary) or None
        The load as a multiple of the workload, and the run at it; None when all requests arrive at once, so
        that a faster arrival means nothing.
    """
    if load.workload.span_s <= 0:
        return None
    low, high = 1.0, 1.25
    while high <= LARGEST_SCALE and try_fleet(shape, memory, scaled(load, high), num_replicas).kept:
        low, high = high, 1.5 * high
    high = min(high, LARGEST_SCALE)
    while high / low > 1 + RESOLUTION:
        middle = (low + high) / 2
        if try_fleet(shape, memory, scaled(load, middle), num_replicas).kept:
            low = middle
        else:
            high = middle
    at = scaled(load, low)
    trial = try_fleet(shape, memory, at, num_replicas)
    return low, summarize(to_log(at.workload, trial.outcome), load.promise, with_intervals=False)


def load_curve(
    shape: Shape, memory: MemoryReport, load: Load, num_replicas: int, capacity_scale: float
) -> tuple[LoadPoint, ...]:
    """Goodput and attainment of a fleet from a quarter to twice its capacity, the workload itself included."""
    points = []
    for scale in sorted({1.0, *(capacity_scale * share for share in CURVE)}):
        at = scaled(load, scale)
        trial = try_fleet(shape, memory, at, num_replicas, stop=False)
        summary = summarize(to_log(at.workload, trial.outcome), load.promise, with_intervals=False)
        points.append(
            LoadPoint(
                scale=scale,
                offered_rps=at.workload.num_requests / max(at.workload.span_s, 1e-9),
                attainment=summary.attainment.value,
                promise_kept=summary.promise_kept,
                goodput_tokens_per_s=summary.goodput_tokens_per_s,
                throughput_tokens_per_s=summary.throughput_tokens_per_s,
            )
        )
    return tuple(points)
