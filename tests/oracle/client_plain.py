"""The client of a closed loop in plain Python, in front of any of the plain engines."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace

from oracle.plain_engine import Live, PlainEngine, Request


def run_closed_loop(
    engine: PlainEngine,
    requests: Iterable[Request],
    *,
    concurrency: int,
    think_s: float,
    extra_s: Callable[[Request], float],
) -> list[Request]:
    """Run until all are done; returns the requests as they were sent, in order.

    ``concurrency`` slots send the next request of the list whenever they are idle: first at 0, and then
    ``extra_s`` and ``think_s`` after the last token of the one before left the engine, or it was turned away there.
    """
    waiting = deque(requests)
    idle_s = [0.0] * concurrency  # a heap: when slots have, or will have, nothing in flight
    unfinished: list[Live] = []
    sent: list[Request] = []
    while True:
        limit_s = idle_s[0] if waiting and idle_s else math.inf
        if engine.advance(limit_s):
            for live in [live for live in unfinished if live.finished]:
                unfinished.remove(live)
                heapq.heappush(idle_s, live.last_token_s + extra_s(live.request) + think_s)
        elif waiting and idle_s:
            sent.append(replace(waiting.popleft(), arrival_s=heapq.heappop(idle_s)))
            live = engine.submit(sent[-1])
            if live.finished:
                heapq.heappush(idle_s, live.last_token_s + extra_s(live.request) + think_s)
            else:
                unfinished.append(live)
        else:
            return sent
