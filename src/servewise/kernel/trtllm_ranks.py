"""TensorRT-LLM's ranks with attention data parallelism (specification: docs/trtllm-scheduler.md, "Ranks").

Every rank plans with its own blocks, by TensorRT-LLM's driver; lock step, dummies and windows are those of
``ranks.py``. What has arrived is divided among the ranks at the beginning of a step, so that the prompts of their
requests are balanced.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from servewise.kernel import layout as lo
from servewise.kernel import trtllm
from servewise.kernel.layout import (
    Engine,
    Limits,
    Outputs,
    Prefix,
    Recorder,
    Replica,
    Requests,
    Times,
    Turn,
    compiled,
    new_fleet,
)
from servewise.kernel.ranks import UNLIMITED, agree
from servewise.kernel.trtllm import Trtllm, trtllm_at
from servewise.kernel.views import prefix_at, recorder_at, replica_at, turn_at

__all__ = ["TrtllmRanks", "advance", "new_trtllm_ranks"]

# Columns of ``TrtllmRanks.active``.
FIRST = 0
"""Place in the rank's queue before which all requests have ended."""
NUM = 1
"""Requests that have not ended."""
TOKENS = 2
"""Of their prompts."""


class TrtllmRanks(NamedTuple):
    """Ranks of every replica, ``size`` of each, one after the other in ``replicas``, ``turns`` and ``states``.

    ``active``, shape (num_ranks, 3), is what each rank has to do, ``longest``, shape (num_replicas, requests of all
    ranks), the requests in the order in which they choose. ``rank_of`` is written: the rank that served each request.
    """

    size: int
    replicas: Replica
    turns: Turn
    states: Trtllm
    active: NDArray[np.int64]
    longest: NDArray[np.int32]
    rank_of: NDArray[np.int32]


def new_trtllm_ranks(
    engine: Engine, requests: Requests, num_replicas: int, size: int, queue_size: int, states: Trtllm
) -> TrtllmRanks:
    """Ranks with nothing running; see ``layout.new_fleet`` and ``trtllm.new_trtllm``."""
    n = num_replicas * size
    return TrtllmRanks(
        size=size,
        replicas=new_fleet(engine, requests, n, queue_size, False),
        turns=Turn(ints=np.zeros((n, lo.NUM_TURN_INTS), np.int64), floats=np.zeros((n, lo.NUM_TURN_FLOATS))),
        states=states,
        active=np.zeros((n, 3), np.int64),
        longest=np.empty((num_replicas, size * engine.max_num_seqs), np.int32),
        rank_of=np.zeros(len(requests.arrival), np.int32),
    )


@compiled
def _count_active(group: TrtllmRanks, k: int, req: Requests) -> int:
    """Count what rank ``k`` has to do; returns the number of requests."""
    rep, active = group.replicas, group.active[k]
    end = rep.ints[k, lo.QUEUE_END]
    active[NUM] = 0
    active[TOKENS] = 0
    for j in range(active[FIRST], end):
        r = rep.queue[k, j]
        if rep.state[r] <= lo.PREFILLING:
            active[NUM] += 1
            active[TOKENS] += req.input_tokens[r]
        elif active[FIRST] == j:
            active[FIRST] += 1
    return int(active[NUM])


@compiled
def _divide(
    front: Replica, group: TrtllmRanks, i: int, req: Requests, eng: Engine, head: int, end: int, now: float
) -> int:
    """Divide what has arrived in replica ``i`` by ``now`` among its ranks, as far as they have seats.

    ``head`` and ``end`` are those of the replica's queue; returns its new head.
    """
    if head == end or req.arrival[front.queue[head]] > now:
        return head
    base = i * group.size
    total = 0
    most = 0
    for k in range(base, base + group.size):
        num = _count_active(group, k, req)
        total += num
        most = max(most, num)
    longest = group.longest[i]
    num_new = 0
    while (
        head + num_new < end
        and total + num_new < group.size * eng.max_num_seqs
        and req.arrival[front.queue[head + num_new]] <= now
    ):
        r = front.queue[head + num_new]
        j = num_new
        while j > 0 and req.input_tokens[longest[j - 1]] < req.input_tokens[r]:
            longest[j] = longest[j - 1]
            j -= 1
        longest[j] = r
        num_new += 1
    if head + num_new < end and req.arrival[front.queue[head + num_new]] <= now:
        group.replicas.ints[base, lo.SLOTS_BOUND] = 1
    share = max(-(-(total + num_new) // group.size), most)
    for j in range(num_new):
        best = -1
        for k in range(base, base + group.size):
            active = group.active[k]
            if active[NUM] >= share:
                continue
            if (
                best < 0
                or active[TOKENS] < group.active[best, TOKENS]
                or (active[TOKENS] == group.active[best, TOKENS] and active[NUM] < group.active[best, NUM])
            ):
                best = k
        group.active[best, NUM] += 1
        group.active[best, TOKENS] += req.input_tokens[longest[j]]
        group.rank_of[longest[j]] = best - base
    for j in range(head, head + num_new):
        r = front.queue[j]
        own = group.replicas.ints[base + group.rank_of[r]]
        group.replicas.queue[base + group.rank_of[r], own[lo.QUEUE_END]] = r
        own[lo.QUEUE_END] += 1
    return head + num_new


@compiled
def _take_turn(
    group: TrtllmRanks,
    k: int,
    now: float,
    last_start: float,
    req: Requests,
    out: Outputs,
    times: Times,
    eng: Engine,
    lim: Limits,
    px: Prefix,
    rec: Recorder,
) -> int:
    """Let rank ``k`` plan its next step at ``now``, or run the one it has planned."""
    rep, trt = replica_at(group.replicas, k), trtllm_at(group.states, k)
    rep.floats[lo.NOW] = now
    rep.floats[lo.LAST_START] = last_start
    own_px, own_rec, turn = prefix_at(px, k), recorder_at(rec, k), turn_at(group.turns, k)
    return trtllm.advance(rep, req, out, times, eng, lim, trt, own_px, own_rec, turn, float("inf"))


@compiled
def advance(
    front: Replica,
    group: TrtllmRanks,
    i: int,
    req: Requests,
    out: Outputs,
    times: Times,
    eng: Engine,
    lim: Limits,
    px: Prefix,
    rec: Recorder,
    horizon: float,
) -> int:
    """Simulate every step of replica ``i`` that starts before ``horizon``; returns a status of ``layout``.

    ``front`` holds the replica's queue and clock, and what has become of its requests. Mutates everything but
    ``req``, ``times``, ``eng`` and ``lim``. ``horizon`` as in ``trtllm.advance``; arrivals must be given.
    """
    ints, floats = front.ints, front.floats
    base = i * group.size
    rank_lim = Limits(lim.ttft, lim.tpot, lim.e2e, UNLIMITED)
    now = floats[lo.NOW]
    last_start = floats[lo.LAST_START]
    head = ints[lo.QUEUE_HEAD]
    end = ints[lo.QUEUE_END]
    status = lo.DONE
    while now < horizon:
        # --- ranks that run planned while the step before still ran, and then let go who has ended
        for k in range(base, base + group.size):
            if group.replicas.ints[k, lo.BUSY] == 1 and status == lo.DONE:
                status = _take_turn(group, k, now, last_start, req, out, times, eng, rank_lim, px, rec)
        head = _divide(front, group, i, req, eng, head, end, now)
        # --- ranks that have nothing planned plan now
        for k in range(base, base + group.size):
            if group.turns.ints[k, lo.PLANNED] == 0 and status == lo.DONE:
                status = _take_turn(group, k, now, last_start, req, out, times, eng, rank_lim, px, rec)
        if status != lo.DONE:
            break
        arrival = horizon
        if head < end and req.arrival[front.queue[head]] > now:  # else it waits until somebody leaves
            arrival = min(arrival, req.arrival[front.queue[head]])
        count = agree(group, base, times, arrival - now, 1, False)
        if count == 0:  # nobody has anything to do
            if head == end or arrival >= horizon:
                break
            now = arrival
            continue
        # --- all of them run
        first = group.turns.floats[base, lo.FIRST]
        growth = group.turns.floats[base, lo.GROWTH]
        num_bad = 0
        num_finished = 0
        for k in range(base, base + group.size):
            if group.turns.ints[k, lo.PLANNED] != 0 and status == lo.DONE:
                status = _take_turn(group, k, now, last_start, req, out, times, eng, rank_lim, px, rec)
            num_bad += group.replicas.ints[k, lo.NUM_BAD]
            num_finished += group.replicas.ints[k, lo.NUM_FINISHED]
        last_start = now + (count - 1) * first + 0.5 * growth * (count - 1) * (count - 2)
        now += count * first + 0.5 * growth * count * (count - 1)
        if len(front.finish_times) > 0:
            front.finish_times[ints[lo.NUM_FINISHED] : num_finished] = now
        ints[lo.NUM_FINISHED] = num_finished
        ints[lo.NUM_BAD] = num_bad
        if status != lo.DONE:
            break
        if num_bad > lim.max_bad:
            status = lo.BROKEN
            break
    ints[lo.QUEUE_HEAD] = head
    ints[lo.PARTIAL] = 0 if ints[lo.NUM_FINISHED] < head else -1  # whether something may finish: see ``fleet``
    floats[lo.NOW] = now
    floats[lo.LAST_START] = last_start
    return status
