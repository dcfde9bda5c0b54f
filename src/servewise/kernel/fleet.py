"""A fleet: equal replicas behind a router."""

from __future__ import annotations

from typing import Any

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

__all__ = ["LEAST_REQUESTS", "MAX_PREFIX_AWARE_REPLICAS", "PREFIX_AWARE", "ROUND_ROBIN", "run_fleet"]

ROUND_ROBIN = 0
LEAST_REQUESTS = 1
PREFIX_AWARE = 2

MAX_PREFIX_AWARE_REPLICAS = 62
"""The prefix-aware router keeps its replicas as bits of one integer."""

PREFIX_AWARE_SLACK_REQUESTS = 8
"""The prefix-aware router leaves a replica alone that has so many more requests than the least loaded one."""

INFINITY = float("inf")


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
def _choose(in_flight: Any, allowed: int, pointer: int, num_replicas: int) -> int:
    """Replica with the fewest requests among those allowed (bits; -1: all), the first from ``pointer`` on."""
    best = -1
    for j in range(num_replicas):
        i = pointer + j
        if i >= num_replicas:
            i -= num_replicas
        if allowed >= 0 and (allowed >> i) & 1 == 0:
            continue
        if best < 0 or in_flight[i] < in_flight[best]:
            best = i
    return best


@compiled
def _best_prefix(px: Prefix, seen: Any, prompt_nodes: int, r: int, in_flight: Any, num_replicas: int) -> int:
    """Bits of the replicas that were sent the longest part of a prompt, among those not overloaded."""
    fewest = in_flight[0]
    for i in range(1, num_replicas):
        fewest = min(fewest, in_flight[i])
    best = 0
    for i in range(num_replicas):
        if in_flight[i] <= fewest + PREFIX_AWARE_SLACK_REQUESTS:
            best |= 1 << i
    for j in range(px.offsets[r], px.offsets[r] + prompt_nodes):
        longer = best & seen[px.nodes[j]]
        if longer == 0:
            break
        best = longer
    return best


@compiled
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
    router: int,
    replica_of: Any,
    in_flight: Any,
    seen: Any,
    prompt_nodes: Any,
) -> int:
    """Simulate all requests; returns a status of ``layout``.

    In a closed loop there is one replica, the router is ``ROUND_ROBIN``, and the caller has set the replica's
    ``QUEUE_END`` to the number of requests that the client keeps in flight.

    Parameters
    ----------
    fleet, req, out, times, eng, lim, px, rec
        See ``layout``; arrays of ``fleet``, ``px`` and ``rec`` have the replica as their first axis. With ``Ranks``
        ``px`` and ``rec`` have the rank as their first axis, and ``fleet`` only the queues of the replicas and what
        has become of them.
    driver : NamedTuple or None
        Chooses the engine's scheduler by its type, see ``drivers.py``.
    router : int
    replica_of : int32 array, shape (num_requests,)
        Written: where each request was sent.
    in_flight : int64 array, shape (num_replicas,)
        Scratch of zeros.
    seen : int64 array, shape (num_shared,)
        Scratch of zeros: the replicas, as bits, that the prefix-aware router sent a node to.
    prompt_nodes : int64 array, shape (num_requests,)
        Nodes of each request that lie within its prompt.
    """
    num_replicas = len(fleet.ints)
    num_requests = len(req.arrival)
    bad = 0
    if router == ROUND_ROBIN:
        for i in range(num_replicas):
            rep = replica_at(fleet, i)
            count = 0
            for r in range(i, num_requests, num_replicas):
                rep.queue[count] = r
                replica_of[r] = i
                count += 1
            if req.think < 0.0:
                rep.ints[lo.QUEUE_END] = count
            left = Limits(lim.ttft, lim.tpot, lim.e2e, lim.max_bad - bad)
            status = advance(rep, i, req, out, times, eng, left, px, rec, driver, INFINITY)
            if status != lo.DONE:
                return status
            bad += rep.ints[lo.NUM_BAD]
        return lo.DONE

    pointer = 0
    for r in range(num_requests):
        arrival = req.arrival[r]
        bad = 0
        for i in range(num_replicas):
            ints = fleet.ints[i]
            if _earliest_finish(ints, fleet.floats[i], times) <= arrival:
                rep = replica_at(fleet, i)
                status = advance(rep, i, req, out, times, eng, lim, px, rec, driver, arrival)
                if status != lo.DONE:
                    return status
            bad += ints[lo.NUM_BAD]
            # in_flight holds minus the finishes already counted off, plus the requests sent
            counted = ints[lo.NUM_COUNTED]
            while counted < ints[lo.NUM_FINISHED] and fleet.finish_times[i, counted] <= arrival:
                counted += 1
                in_flight[i] -= 1
            ints[lo.NUM_COUNTED] = counted
        if bad > lim.max_bad:
            return lo.BROKEN
        allowed = -1
        if router == PREFIX_AWARE:
            allowed = _best_prefix(px, seen, prompt_nodes[r], r, in_flight, num_replicas)
        chosen = _choose(in_flight, allowed, pointer, num_replicas)
        if router == PREFIX_AWARE:
            for j in range(px.offsets[r], px.offsets[r] + prompt_nodes[r]):
                seen[px.nodes[j]] |= 1 << chosen
        pointer = chosen + 1 if chosen + 1 < num_replicas else 0
        replica_of[r] = chosen
        in_flight[chosen] += 1
        rep = replica_at(fleet, chosen)
        status = advance(rep, chosen, req, out, times, eng, lim, px, rec, driver, arrival)
        if status != lo.DONE:
            return status
        rep.queue[rep.ints[lo.QUEUE_END]] = r
        rep.ints[lo.QUEUE_END] += 1
    bad = 0
    for i in range(num_replicas):
        rep = replica_at(fleet, i)
        left = Limits(lim.ttft, lim.tpot, lim.e2e, lim.max_bad - bad)
        status = advance(rep, i, req, out, times, eng, left, px, rec, driver, INFINITY)
        if status != lo.DONE:
            return status
        bad += rep.ints[lo.NUM_BAD]
    return lo.DONE if bad <= lim.max_bad else lo.BROKEN
