"""Waits for sockets: epoll where there is one, with waits as exact as select's; anything else elsewhere."""

from __future__ import annotations

import select
import selectors
from typing import Protocol

from servewise.errors import MeasurementError

__all__ = ["READ", "WRITE", "EpollPoll", "Poll", "PortablePoll", "make_poll"]

READ, WRITE = 1, 4
"""As epoll spells them; errors and hang-ups are reported as other bits, and are found by reading."""
SELECT_LIMIT = 1024
"""``select`` takes no descriptor from this on."""


class Poll(Protocol):
    """What the client needs of it."""

    def register(self, fd: int, mask: int) -> None:
        """Watch a descriptor."""

    def modify(self, fd: int, mask: int) -> None:
        """Watch it for something else."""

    def unregister(self, fd: int) -> None:
        """Watch it no longer."""

    def poll(self, timeout_s: float, max_events: int) -> list[tuple[int, int]]:
        """Wait for events: at most ``max_events`` pairs of descriptor and mask."""

    def close(self) -> None:
        """Release it."""


class EpollPoll:
    """Linux. epoll alone waits in whole milliseconds; select on its descriptor waits in microseconds."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._fds = [self._epoll.fileno()]
        if self._fds[0] >= SELECT_LIMIT:
            self._epoll.close()
            raise MeasurementError(f"this process has {SELECT_LIMIT} files open; measure from one that has fewer")
        self.register = self._epoll.register
        self.modify = self._epoll.modify
        self.unregister = self._epoll.unregister
        self.close = self._epoll.close

    def poll(self, timeout_s: float, max_events: int) -> list[tuple[int, int]]:
        if timeout_s > 0.0:
            select.select(self._fds, [], [], timeout_s)
        return self._epoll.poll(0, max_events)


class PortablePoll:
    """Where there is no epoll (macOS, BSD)."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._ready: list[tuple[int, int]] = []
        self.close = self._selector.close

    def register(self, fd: int, mask: int) -> None:
        self._selector.register(fd, _events(mask))

    def modify(self, fd: int, mask: int) -> None:
        self._selector.modify(fd, _events(mask))

    def unregister(self, fd: int) -> None:
        self._selector.unregister(fd)
        self._ready = [event for event in self._ready if event[0] != fd]

    def poll(self, timeout_s: float, max_events: int) -> list[tuple[int, int]]:
        if not self._ready:
            events = self._selector.select(timeout_s)
            self._ready = [
                (key.fd, (READ if mask & selectors.EVENT_READ else 0) | (WRITE if mask & selectors.EVENT_WRITE else 0))
                for key, mask in events
            ]
        now, self._ready = self._ready[:max_events], self._ready[max_events:]
        return now


def _events(mask: int) -> int:
    return (selectors.EVENT_READ if mask & READ else 0) | (selectors.EVENT_WRITE if mask & WRITE else 0)


def make_poll() -> Poll:
    """The best that the machine has."""
    return EpollPoll() if hasattr(select, "epoll") else PortablePoll()
