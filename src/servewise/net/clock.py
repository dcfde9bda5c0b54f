"""One clock for a run: monotonic, with the kernel's receive time stamps brought onto it.

The kernel stamps packets with the wall clock. It slews both clocks alike, so their distance changes only when the wall
clock is set, which may happen while a run goes on. The distance is taken again and again: when it jumps, stamps are
not believed for a second, and a stamp that cannot be true is never believed.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns, time_ns

__all__ = ["STEP_NS", "Clock"]

STEP_NS = 1_000_000
"""A larger change of the distance is a step [ns]; a smaller one is followed."""
DISTRUST_NS = 1_000_000_000
"""How long stamps are not believed after a step [ns]: packets stamped before it have been read by then."""
EARLY_NS = 200_000
"""How far a stamp may lie outside of what is possible [ns]: the distance is known no better than that."""
WIDE_NS = 50_000
"""A look that took longer is not used [ns]: the process was put aside between the two clocks."""
READS = 8
"""Of both clocks, before the first stamp."""


class Clock:
    """Monotonic time [ns], and wall clock stamps on it.

    Parameters
    ----------
    monotonic, wall : callable returning int [ns]
    """

    __slots__ = ("_distrust_until_ns", "_monotonic", "_offset_ns", "_wall", "steps")

    def __init__(self, monotonic: Callable[[], int] = monotonic_ns, wall: Callable[[], int] = time_ns) -> None:
        self._monotonic = monotonic
        self._wall = wall
        self._offset_ns = self._distance()
        self._distrust_until_ns = 0
        self.steps = 0
        """Steps of the wall clock seen so far."""

    def sync(self) -> None:
        """Look at both clocks, whose distance is needed for stamps."""
        before = self._monotonic()
        wall = self._wall()
        now = self._monotonic()
        if now - before > WIDE_NS:
            return
        offset = wall - (before + now) // 2
        if not -STEP_NS < offset - self._offset_ns < STEP_NS:
            self.steps += 1
            self._distrust_until_ns = now + DISTRUST_NS
        self._offset_ns = offset

    def _distance(self) -> int:
        """Wall minus monotonic clock by the quickest of some readings [ns]."""
        readings = [(self._monotonic(), self._wall(), self._monotonic()) for _ in range(READS)]
        before, wall, after = min(readings, key=lambda reading: reading[2] - reading[0])
        return wall - (before + after) // 2

    def received(self, stamp_ns: int, earliest_ns: int, now_ns: int) -> int:
        """Bring a kernel stamp onto the monotonic clock.

        Parameters
        ----------
        stamp_ns : int [ns]
            Of the wall clock.
        earliest_ns, now_ns : int [ns]
            Between which the packet came, by the monotonic clock.

        Returns
        -------
        int [ns]
            Within ``[earliest_ns, now_ns]``; -1 when the stamp cannot be believed.
        """
        if now_ns < self._distrust_until_ns:
            return -1
        at = stamp_ns - self._offset_ns
        if at > now_ns:
            return now_ns if at - now_ns < EARLY_NS else -1
        if at < earliest_ns:
            return earliest_ns if earliest_ns - at < EARLY_NS else -1
        return at
