"""Which request of a load is sent when: places, waits and the order, without a socket."""

from __future__ import annotations

from array import array
from collections import defaultdict, deque
from heapq import heappop, heappush

import numpy as np

from servewise.errors import InputError
from servewise.types import Load

__all__ = ["NEVER_NS", "Schedule", "check_load"]

NEVER_NS = 1 << 62


def check_load(load: Load) -> None:
    """Check that a load can be run.

    Raises
    ------
    InputError
        When a column's length or a value is out of range.
    """
    num = load.num_requests
    if not num or len(load.after) != num or len(load.think_s) != num:
        raise InputError(
            f"the load has {num} send times, {len(load.after)} predecessors and {len(load.think_s)} pauses; "
            "it needs one of each for every request, and one request or more"
        )
    for name, values in (("send_s", load.send_s), ("think_s", load.think_s)):
        if not (np.isfinite(values).all() and (values >= 0).all()):
            raise InputError(f"the load's {name} holds {values.min()} s; times must be finite and 0 or more")
    if (np.diff(load.send_s) < 0).any():
        raise InputError(f"the load's send_s falls at request {int(np.argmax(np.diff(load.send_s) < 0)) + 1}; sort it")
    wrong = (load.after < -1) | (load.after >= np.arange(num))
    if wrong.any():
        i = int(np.argmax(wrong))
        raise InputError(f"request {i} of the load waits for request {load.after[i]}; it must be an earlier one, or -1")
    limits = (("concurrency", load.concurrency), ("duration_s", load.duration_s), ("timeout_s", load.timeout_s))
    for name, value in limits:
        if value is not None and not value > 0:
            raise InputError(f"the load's {name} is {value}; it must be more than 0")


class Schedule:
    """Hands out the requests of a load when they are due. Times count from the start of the run [ns].

    Parameters
    ----------
    load : Load
        Checked.

    Attributes
    ----------
    roots : array of int
        Requests that wait for no other, in order.
    """

    def __init__(self, load: Load) -> None:
        self._due = array("q", (load.send_s * 1e9).astype(np.int64).tobytes())
        self._think = array("q", (load.think_s * 1e9).astype(np.int64).tobytes())
        self.roots = array("q", np.flatnonzero(load.after < 0).tobytes())
        self._root = 0
        self._followers: dict[int, list[int]] = defaultdict(list)
        for request in np.flatnonzero(load.after >= 0).tolist():
            self._followers[int(load.after[request])].append(request)
        self._waiting: list[tuple[int, int]] = []
        """Heap by time: requests whose predecessor has ended."""
        self._ready: list[tuple[int, int]] = []
        """Heap by request: those of them that are due, with that time."""
        self._places = None if load.concurrency is None else deque([0] * load.concurrency)
        """Since when each free place is free."""
        self._end_ns = NEVER_NS if load.duration_s is None else int(load.duration_s * 1e9)

    def next_ns(self, now_ns: int) -> int:
        """When a request can be sent, as far as is known; ``NEVER_NS`` when none can before something else ends."""
        if now_ns > self._end_ns or (self._places is not None and not self._places):
            return NEVER_NS
        if self._ready:
            return self._ready[0][1]
        at = self._waiting[0][0] if self._waiting else NEVER_NS
        if self._root < len(self.roots):
            at = min(at, self._due[self.roots[self._root]])
        return at if at <= self._end_ns else NEVER_NS

    def take(self, now_ns: int) -> tuple[int, int] | None:
        """Take the request to send now, with its intended send time; None when none is."""
        if now_ns > self._end_ns or (self._places is not None and not self._places):
            return None
        while self._waiting and self._waiting[0][0] <= now_ns:
            due, request = heappop(self._waiting)
            heappush(self._ready, (request, due))
        root = self.roots[self._root] if self._root < len(self.roots) else -1
        if root >= 0 and self._due[root] <= now_ns and not (self._ready and self._ready[0][0] < root):
            self._root += 1
            request, due = root, self._due[root]
        elif self._ready:
            request, due = heappop(self._ready)
        else:
            return None
        return request, due if self._places is None else max(due, self._places.popleft())

    def ended(self, request: int, at_ns: int) -> list[int]:
        """A request has ended: its place is free, and those that waited for it (returned) may follow."""
        if self._places is not None:
            self._places.append(at_ns)
        followers = self._followers.pop(request, [])
        for follower in followers:
            heappush(self._waiting, (max(self._due[follower], at_ns + self._think[follower]), follower))
        return followers
