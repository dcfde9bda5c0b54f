"""A fleet: equal replicas behind a router."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from servewise.kernel import layout as lo
from servewise.kernel.drivers import advance
from servewise.kernel.layout import (
    Engine,
    Limits,
    Outputs,
    Prefix,
    Recorder,
    Replica,
    Requests,
    Times,
    compiled,
)
from servewise.kernel.views import replica_at

__all__ = [
    "DRAINING",
    "GONE",
    "LEAST_REQUESTS",
    "MAX_PREFIX_AWARE_REPLICAS",
    "PREFIX_AWARE",
    "ROUND_ROBIN",
    "SESSION_STICKY",
    "UP",
    "Routing",
    "route",
    "run_by_turns",
    "run_fleet",
]

ROUND_ROBIN = 0
LEAST_REQUESTS = 1
PREFIX_AWARE = 2
SESSION_STICKY = 3

# What a replica does (``Routing.serving``).
GONE = 0
"""Not started yet, or failed: it takes no steps."""
DRAINING = 1
"""Finishes what it was sent and takes no more."""
UP = 2

MAX_PREFIX_AWARE_REPLICAS = 62
"""The prefix-aware router keeps its replicas as bits of one integer."""

PREFIX_AWARE_SLACK_REQUESTS = 8
"""The prefix-aware router leaves a replica alone that has so many more requests than the least loaded one."""

INFINITY = float("inf")


class Routing(NamedTuple):
    """A router with what it knows.

    ``replica_of``, shape (num_requests,), is written: where each request was sent. ``in_flight``, ``serving``, shape
    (num_replicas,), are the requests at each replica and what it does. ``seen``, shape (num_shared,), has the replicas,
    as bits, that a node was sent to, ``prompt_nodes``, shape (num_requests,), the nodes of each prompt. ``session``,
    shape (num_requests,), is the conversation of each request, ``home``, shape (num_sessions,), the replica that a
    conversation was last sent to (-1: none). ``pointer``, shape (1,), is the replica whose turn it is.
    """

    router: int
    replica_of: NDArray[np.int32]
    in_flight: NDArray[np.int64]
    serving: NDArray[np.int8]
    seen: NDArray[np.int64]
    prompt_nodes: NDArray[np.int64]
    session: NDArray[np.int64]
    home: NDArray[np.int32]
    pointer: NDArray[np.int64]


@compiled
def _earliest_finish(ints: Any, floats: Any, times: Times) -> float:
    """A time before which no request of the replica can finish, if no other request comes."""
    if ints[lo.PARTIAL] >= 0 or ints[lo.NUM_PREEMPTED_WAITING] > 0 or ints[lo.QUEUE_HEAD] < ints[lo.QUEUE_END]:
        return float(floats[lo.NOW])
    rows = ints[lo.ROWS] - ints[lo.NUM_WASTED]
    if rows == 0:
        return INFINITY
    steps = ints[lo.NEXT_FINISH] - ints[lo.STEP]
    return float(floats[lo.NOW] + steps * times.decode_fixed[rows])


@compiled
def _choose(routing: Routing, allowed: int) -> int:
    """Replica with the fewest requests among those that are up and allowed (bits; -1: all), the first in turn.

    -1 if there is none.
    """
    best = -1
    num_replicas = len(routing.serving)
    for j in range(num_replicas):
        i = routing.pointer[0] + j
        if i >= num_replicas:
            i -= num_replicas
        if routing.serving[i] != UP or (allowed >= 0 and (allowed >> i) & 1 == 0):
            continue
        if best < 0 or routing.in_flight[i] < routing.in_flight[best]:
            best = i
        if routing.router == ROUND_ROBIN:
            break
    return best


@compiled
def _best_prefix(routing: Routing, px: Prefix, r: int) -> int:
    """Bits of the replicas that were sent the longest part of a prompt, among those not overloaded."""
    fewest = -1
    for i in range(len(routing.serving)):
        if routing.serving[i] == UP and (fewest < 0 or routing.in_flight[i] < fewest):
            fewest = routing.in_flight[i]
    best = 0
    for i in range(len(routing.serving)):
        if routing.serving[i] == UP and routing.in_flight[i] <= fewest + PREFIX_AWARE_SLACK_REQUESTS:
            best |= 1 << i
    for j in range(px.offsets[r], px.offsets[r] + routing.prompt_nodes[r]):
        longer = best & routing.seen[px.nodes[j]]
        if longer == 0:
            break
        best = longer
    return best


@compiled
def _send_to(routing: Routing, px: Prefix, r: int) -> int:
    """Choose a request's replica and remember it; -1 if none is up."""
    chosen = -1
    if routing.router == PREFIX_AWARE:
        chosen = _choose(routing, _best_prefix(routing, px, r))
    elif routing.router == SESSION_STICKY:
        chosen = routing.home[routing.session[r]]
        if chosen < 0 or routing.serving[chosen] != UP:
            chosen = _choose(routing, -1)
    else:
        chosen = _choose(routing, -1)
    if chosen < 0:
        return -1
    if routing.router == PREFIX_AWARE:
        for j in range(px.offsets[r], px.offsets[r] + routing.prompt_nodes[r]):
            routing.seen[px.nodes[j]] |= 1 << chosen
    if routing.router == SESSION_STICKY:
        routing.home[routing.session[r]] = chosen
    routing.pointer[0] = chosen + 1 if chosen + 1 < len(routing.serving) else 0
    routing.replica_of[r] = chosen
    routing.in_flight[chosen] += 1
    return int(chosen)


@compiled
def route(
    fleet: Replica,
    req: Requests,
    out: Outputs,
    times: Times,
    eng: Engine,
    lim: Limits,
    px: Prefix,
    rec: Recorder,
    driver: Any,
    routing: Routing,
    start: int,
    stop: int,
    horizon: float,
) -> int:
    """Send the requests from ``start`` to before ``stop`` on their way and simulate until ``horizon``.

    Returns a status of ``layout``. Parameters as in :func:`run_by_turns`; some replica must be up when there is a
    request. ``horizon`` must not exceed the arrival of any later request.
    """
    num_replicas = len(fleet.ints)
    for r in range(start, stop):
        arrival = req.arrival[r]
        bad = 0
        for i in range(num_replicas):
            ints = fleet.ints[i]
            if routing.serving[i] != GONE and _earliest_finish(ints, fleet.floats[i], times) <= arrival:
                rep = replica_at(fleet, i)
                status = advance(rep, i, req, out, times, eng, lim, px, rec, driver, arrival)
                if status != lo.DONE:
                    return status
            bad += ints[lo.NUM_BAD]
            # in_flight holds minus the finishes already counted off, plus the requests sent
            counted = ints[lo.NUM_COUNTED]
            while counted < ints[lo.NUM_FINISHED] and fleet.finish_times[i, counted] <= arrival:
                counted += 1
                routing.in_flight[i] -= 1
            ints[lo.NUM_COUNTED] = counted
        if bad > lim.max_bad:
            return lo.BROKEN
        chosen = _send_to(routing, px, r)
        rep = replica_at(fleet, chosen)
        status = advance(rep, chosen, req, out, times, eng, lim, px, rec, driver, arrival)
        if status != lo.DONE:
            return status
        rep.queue[rep.ints[lo.QUEUE_END]] = r
        rep.ints[lo.QUEUE_END] += 1
    bad = 0
    for i in range(num_replicas):
        if routing.serving[i] != GONE:
            rep = replica_at(fleet, i)
            left = Limits(lim.ttft, lim.tpot, lim.e2e, lim.max_bad - bad)
            status = advance(rep, i, req, out, times, eng, left, px, rec, driver, horizon)
            if status != lo.DONE:
                return status
        bad += fleet.ints[i, lo.NUM_BAD]
    return lo.DONE if bad <= lim.max_bad else lo.BROKEN


@compiled
def run_by_turns(
    fleet: Replica,
    req: Requests,
    out: Outputs,
    times: Times,
    eng: Engine,
    lim: Limits,
    px: Prefix,
    rec: Recorder,
    driver: Any,
    routing: Routing,
) -> int:
    """Simulate all requests on replicas that are all up and take turns; returns a status of ``layout``.

    In a closed loop there is one replica, and the caller has set its ``QUEUE_END`` to the number of requests that the
    client keeps in flight.

    Parameters
    ----------
    fleet, req, out, times, eng, lim, px, rec
        See ``layout``; arrays of ``fleet``, ``px`` and ``rec`` have the replica as their first axis. With ``Ranks``
        ``px`` and ``rec`` have the rank as their first axis, and ``fleet`` only the queues of the replicas and what
        has become of them.
    driver : NamedTuple or None
        Chooses the engine's scheduler by its type, see ``drivers.py``.
    routing : Routing
    """
    num_replicas = len(fleet.ints)
    num_requests = len(req.arrival)
    # replicas do not depend on each other: each is run to its end
    bad = 0
    for i in range(num_replicas):
        rep = replica_at(fleet, i)
        count = 0
        for r in range(i, num_requests, num_replicas):
            rep.queue[count] = r
            routing.replica_of[r] = i
            count += 1
        if req.think < 0.0:
            rep.ints[lo.QUEUE_END] = count
        left = Limits(lim.ttft, lim.tpot, lim.e2e, lim.max_bad - bad)
        status = advance(rep, i, req, out, times, eng, left, px, rec, driver, INFINITY)
        if status != lo.DONE:
            return status
        bad += rep.ints[lo.NUM_BAD]
    return lo.DONE


def run_fleet(
    fleet: Replica,
    req: Requests,
    out: Outputs,
    times: Times,
    eng: Engine,
    lim: Limits,
    px: Prefix,
    rec: Recorder,
    driver: Any,
    routing: Routing,
) -> int:
    """Simulate all requests on replicas that are all up; returns a status of ``layout``.

    Not compiled itself, so that of the two ways only the one that is gone is. Parameters as in :func:`run_by_turns`.
    """
    if routing.router == ROUND_ROBIN:
        return int(run_by_turns(fleet, req, out, times, eng, lim, px, rec, driver, routing))
    num_requests = len(req.arrival)
    return int(route(fleet, req, out, times, eng, lim, px, rec, driver, routing, 0, num_requests, INFINITY))
