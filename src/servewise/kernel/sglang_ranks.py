"""SGLang's ranks with attention data parallelism in lock step (specification: docs/sglang-scheduler.md, "Ranks").

The schedulers of all ranks exchange what they have planned before a step may start, so plans are made at the same
instants, and a rank without rows runs an idle batch along. Windows are those of ``ranks.py``; one also ends where the
plan of an idle rank may turn out otherwise.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from servewise.kernel import layout as lo
from servewise.kernel import sglang
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
from servewise.kernel.sglang import Sglang, sglang_at
from servewise.kernel.views import prefix_at, recorder_at, replica_at, turn_at

__all__ = ["SglangRanks", "advance", "new_sglang_ranks"]


class SglangRanks(NamedTuple):
    """Ranks of every replica, ``size`` of each, one after the other in ``replicas``, ``turns`` and ``states``.

    ``by_load`` is 1 when a request goes to the rank with the fewest requests, 0 when ranks take turns; ``next_rank``,
    shape (num_replicas,), is whose turn it is. ``rank_of`` is written: the rank that served each request.
    """

    size: int
    by_load: int
    replicas: Replica
    turns: Turn
    states: Sglang
    next_rank: NDArray[np.int64]
    rank_of: NDArray[np.int32]


def new_sglang_ranks(
    engine: Engine, requests: Requests, num_replicas: int, size: int, queue_size: int, by_load: bool, states: Sglang
) -> SglangRanks:
    """Ranks with nothing running; see ``layout.new_fleet`` and ``sglang.new_sglang``."""
    n = num_replicas * size
    return SglangRanks(
        size=size,
        by_load=int(by_load),
        replicas=new_fleet(engine, requests, n, queue_size, False),
        turns=Turn(ints=np.zeros((n, lo.NUM_TURN_INTS), np.int64), floats=np.zeros((n, lo.NUM_TURN_FLOATS))),
        states=states,
        next_rank=np.zeros(num_replicas, np.int64),
        rank_of=np.zeros(len(requests.arrival), np.int32),
    )


@compiled
def _rank(group: SglangRanks, i: int) -> int:
    """The rank of replica ``i`` that gets the next request."""
    if group.by_load == 0:
        rank = group.next_rank[i]
        group.next_rank[i] = rank + 1 if rank + 1 < group.size else 0
        return int(rank)
    best = 0
    fewest = UNLIMITED
    for rank in range(group.size):
        ints = group.replicas.ints[i * group.size + rank]
        unfinished = ints[lo.QUEUE_END] - ints[lo.NUM_FINISHED]
        if unfinished < fewest:
            best = rank
            fewest = unfinished
    return best


@compiled
def _take_turn(
    group: SglangRanks,
    k: int,
    req: Requests,
    out: Outputs,
    times: Times,
    eng: Engine,
    lim: Limits,
    px: Prefix,
    rec: Recorder,
) -> int:
    """Let rank ``k`` plan its next step and process the one that ends, or run the one it has planned."""
    rep, state = replica_at(group.replicas, k), sglang_at(group.states, k)
    own_px, own_rec, turn = prefix_at(px, k), recorder_at(rec, k), turn_at(group.turns, k)
    return sglang.advance(rep, req, out, times, eng, lim, state, own_px, own_rec, turn, float("inf"))


@compiled
def _is_waiting(group: SglangRanks, base: int) -> bool:
    """Whether a rank without a step may have one next time although nothing arrives."""
    for k in range(base, base + group.size):
        ints = group.replicas.ints[k]
        if group.turns.ints[k, lo.PLANNED] == 0 and (ints[lo.NUM_RUNNING] > 0 or ints[lo.NUM_PREEMPTED_WAITING] > 0):
            return True
    return False


@compiled
def advance(
    front: Replica,
    group: SglangRanks,
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
    """Simulate every step of replica ``i`` that is planned before ``horizon``; returns a status of ``layout``.

    ``front`` holds the replica's queue and clock, and what has become of its requests. Mutates everything but
    ``req``, ``times``, ``eng`` and ``lim``. ``horizon`` as in ``sglang.advance``; arrivals must be given.
    """
    ints, floats = front.ints, front.floats
    base = i * group.size
    end = base + group.size
    rank_lim = Limits(lim.ttft, lim.tpot, lim.e2e, UNLIMITED)
    status = lo.DONE
    while True:
        busy = ints[lo.BUSY]
        now = floats[lo.NOW]
        visible = floats[lo.LAST_START] if busy == 1 else now
        if visible >= horizon:
            break
        while ints[lo.QUEUE_HEAD] < ints[lo.QUEUE_END] and req.arrival[front.queue[ints[lo.QUEUE_HEAD]]] <= visible:
            r = front.queue[ints[lo.QUEUE_HEAD]]
            rank = _rank(group, i)
            group.rank_of[r] = rank
            group.replicas.queue[base + rank, group.replicas.ints[base + rank, lo.QUEUE_END]] = r
            group.replicas.ints[base + rank, lo.QUEUE_END] += 1
            ints[lo.QUEUE_HEAD] += 1
        # --- every rank plans, while the step before runs, and then lets go who has ended
        num_bad = 0
        num_finished = 0
        for k in range(base, end):
            group.replicas.ints[k, lo.BUSY] = busy
            group.replicas.floats[k, lo.NOW] = now
            group.replicas.floats[k, lo.LAST_START] = floats[lo.LAST_START]
            if status == lo.DONE:
                status = _take_turn(group, k, req, out, times, eng, rank_lim, px, rec)
            num_bad += group.replicas.ints[k, lo.NUM_BAD]
            num_finished += group.replicas.ints[k, lo.NUM_FINISHED]
        if len(front.finish_times) > 0:
            front.finish_times[ints[lo.NUM_FINISHED] : num_finished] = now
        ints[lo.NUM_FINISHED] = num_finished
        ints[lo.NUM_BAD] = num_bad
        if status != lo.DONE:
            break
        if num_bad > lim.max_bad:
            status = lo.BROKEN
            break
        arrival = horizon
        if ints[lo.QUEUE_HEAD] < ints[lo.QUEUE_END]:
            arrival = min(arrival, req.arrival[front.queue[ints[lo.QUEUE_HEAD]]])
        delay = 0.0 if _is_waiting(group, base) else max(arrival - now, 0.0)
        if agree(group, base, times, delay, 0, True) == 0:  # nobody has planned anything
            ints[lo.BUSY] = 0
            if busy == 1:
                continue
            for k in range(base, end):
                if group.replicas.ints[k, lo.NUM_RUNNING] > 0 or group.replicas.ints[k, lo.NUM_PREEMPTED_WAITING] > 0:
                    return lo.STUCK
                sglang.rest(sglang_at(group.states, k))
            if arrival >= horizon:
                break
            floats[lo.NOW] = arrival
            continue
        # --- all of them run
        for k in range(base, end):
            if group.turns.ints[k, lo.PLANNED] != 0:
                if status == lo.DONE:
                    status = _take_turn(group, k, req, out, times, eng, rank_lim, px, rec)
                floats[lo.LAST_START] = group.replicas.floats[k, lo.LAST_START]
                floats[lo.NOW] = group.replicas.floats[k, lo.NOW]
        ints[lo.BUSY] = 1
        if status != lo.DONE:
            break
    ints[lo.PARTIAL] = 0 if ints[lo.NUM_FINISHED] < ints[lo.QUEUE_HEAD] else -1  # may finish: see ``fleet``
    return status
