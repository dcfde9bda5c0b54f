"""The search for the highest load that keeps a promise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from servewise.measure.trust import MAX_FAILED_FRAC
from servewise.types import Edge, SweepPoint

__all__ = ["is_judged", "search_edge"]

REPEATS: Final = 3
"""Runs on each side of the edge."""
UNTRUSTED_RUNS: Final = 3
"""Of one load, after which the search gives up: the client cannot send it."""
MAX_POINTS: Final = 60
LEAST_RPS: Final = 1e-3


Measure = Callable[[float, int], SweepPoint]
"""Runs a load, or takes its result from an earlier search."""


def is_judged(point: SweepPoint) -> bool:
    """Whether a run says something about the server: nothing but failed requests speaks against its numbers."""
    # a server that fails has broken its promise; the client is not at fault
    failed = point.trust.facts.get("failed_frac", 0.0) > MAX_FAILED_FRAC
    return len(point.trust.reasons) <= int(failed) and point.summary is not None


def search_edge(measure: Measure, *, start: float, whole: bool, tolerance: float = 0.1, most: float = math.inf) -> Edge:
    """Search the highest load that keeps the promise.

    The load is doubled until the promise breaks (or halved until it is kept), the interval is halved until its ends
    are within ``tolerance`` of each other, and then each end is run three times in all. A load keeps the promise when
    most of its runs do: when more runs of an end say otherwise, the search goes on from there. A run whose numbers
    cannot be trusted decides nothing and is made again, twice at most.

    Parameters
    ----------
    measure : callable
        ``(load, repeat)`` to :class:`SweepPoint`.
    start : float
    whole : bool
        Only whole numbers are loads (a concurrency).
    tolerance : float
        Relative width of the interval.
    most : float
        Highest load to try.
    """
    return _Search(measure, whole=whole, tolerance=tolerance, most=most).run(start)


class _Search:
    def __init__(self, measure: Measure, *, whole: bool, tolerance: float, most: float) -> None:
        self._measure = measure
        self._whole = whole
        self._tolerance = tolerance
        self._most = most
        self._least = 1.0 if whole else LEAST_RPS
        self._points: list[SweepPoint] = []

    def run(self, start: float) -> Edge:
        load: float | None = min(max(start, self._least), self._most)
        while load is not None:
            if len(self._points) >= MAX_POINTS:
                return self._edge(f"the search took {MAX_POINTS} runs")
            point = self._measure(load, sum(earlier.load == load for earlier in self._points))
            self._points.append(point)
            if is_judged(point):
                load = self._next()
            elif sum(not is_judged(run) for run in self._points if run.load == load) == UNTRUSTED_RUNS:
                reasons = "; ".join(point.trust.reasons) or "no request counted"
                return self._edge(f"{UNTRUSTED_RUNS} runs at {load:g} cannot be trusted, the last: {reasons}")
        low, high = self._sides()
        if high is None:
            return self._edge(f"{low:g} keeps the promise, and is the highest load to try")
        return self._edge("" if low is not None else f"{high:g} breaks the promise, and is the lowest load to try")

    def _next(self) -> float | None:
        """The load to run next; None when each side of the edge was run often enough."""
        low, high = self._sides()
        if high is None and low is not None and low < self._most:
            return min(2.0 * low, self._most)
        if low is None and high is not None and high > self._least:
            return max(math.floor(0.5 * high) if self._whole else 0.5 * high, self._least)
        if low is not None and high is not None and not self._is_narrow(low, high):
            middle = math.sqrt(low * high)
            return min(max(round(middle), low + 1), high - 1) if self._whole else middle
        return next((side for side in (low, high) if side is not None and len(self._runs(side)) < REPEATS), None)

    def _is_narrow(self, low: float, high: float) -> bool:
        return high - low <= 1 if self._whole else high <= low * (1.0 + self._tolerance)

    def _sides(self) -> tuple[float | None, float | None]:
        """The lowest load that breaks the promise in most of its runs, and the highest below it that does not."""
        loads = sorted({point.load for point in self._points if is_judged(point)})
        high = next((load for load in loads if not self._keeps(load)), None)
        low = max((load for load in loads if high is None or load < high), default=None)
        return low, high

    def _keeps(self, load: float) -> bool:
        runs = self._runs(load)
        return 2 * sum(point.kept for point in runs) > len(runs)

    def _runs(self, load: float) -> list[SweepPoint]:
        return [point for point in self._points if point.load == load and is_judged(point)]

    def _edge(self, stopped: str) -> Edge:
        low, high = self._sides()
        runs = [[] if side is None else self._runs(side) for side in (low, high)]
        low_kept, high_kept = ((sum(point.kept for point in side), len(side)) for side in runs)
        return Edge(
            low=low, high=high, low_kept=low_kept, high_kept=high_kept, points=tuple(self._points), stopped=stopped
        )
