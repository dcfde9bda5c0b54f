"""Data parallel ranks with pipeline stages (specification: docs/pipeline-parallelism.md, "Ranks").

Every rank plans as a pipeline of its own (``pipeline.py``), but on each stage the ranks meet around the experts: pass
number ``k`` of one rank runs beside pass ``k`` of all others, and a rank whose plan is empty sends a dummy pass and
waits until that has left the last stage. Step numbers of a rank are the numbers of its passes.

The ranks' plans are simulated in order of time. A rank may be several passes ahead of another one; the times of a pass
are *resolved* when all ranks have sent it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from servewise.kernel import layout as lo
from servewise.kernel import pipeline
from servewise.kernel.layout import Engine, Limits, Outputs, Prefix, Recorder, Replica, Requests, Times, compiled
from servewise.kernel.pipeline import (
    LAYERS,
    NUM_FLIGHT_FLOATS,
    NUM_FLIGHT_INTS,
    PREFILL_TOKENS,
    REAL,
    ROWS_RUN,
    SAMPLED,
    Flight,
    Pipeline,
)
from servewise.kernel.ranks import route, shared_time
from servewise.kernel.views import prefix_at, recorder_at, replica_at

__all__ = ["StagedRanks", "advance", "new_staged_ranks"]

INFINITY = float("inf")

# Columns of ``StagedRanks.clocks``, of whole numbers and of times.
SENT = 0
"""Passes that the rank has sent."""
WAITS_FOR = 1
"""The pass that must have left the last stage before its next plan; negative for none."""
ASLEEP = 2
"""Nobody has anything to do."""
NUM_CLOCKS = 3


class StagedRanks(NamedTuple):
    """Ranks of every replica, ``size`` of each, one after the other in ``replicas`` and ``pipe``.

    ``clocks``, shape (num_ranks, NUM_CLOCKS), and ``ready``, shape (num_ranks,), are where each rank is in time;
    ``sent_at``, shape (num_ranks, depth), when it sent its last passes, and ``flights`` what is in them. ``resolved``,
    shape (num_replicas,), counts the passes whose times are known. Of ``pipe.left`` and ``pipe.ends`` the rows of each
    replica's first rank count. The rest is as in ``layout.Ranks``.
    """

    size: int
    kv_aware: int
    replicas: Replica
    pipe: Pipeline
    clocks: NDArray[np.int64]
    ready: NDArray[np.float64]
    sent_at: NDArray[np.float64]
    flights: Flight
    resolved: NDArray[np.int64]
    last: NDArray[np.int64]
    rank_of: NDArray[np.int32]


def new_staged_ranks(
    engine: Engine,
    requests: Requests,
    num_replicas: int,
    size: int,
    queue_size: int,
    kv_aware: bool,
    shares: NDArray[np.float64],
) -> StagedRanks:
    """Ranks with nothing in flight, all asleep; see ``layout.new_ranks`` and ``pipeline.new_pipeline``."""
    n = num_replicas * size
    pipe = pipeline.new_pipeline(engine, requests, n, shares)
    depth = pipe.ends.shape[1]
    clocks = np.zeros((n, NUM_CLOCKS), np.int64)
    clocks[:, WAITS_FOR] = -1
    clocks[:, ASLEEP] = 1
    return StagedRanks(
        size=size,
        kv_aware=int(kv_aware),
        replicas=lo.new_fleet(engine, requests, n, queue_size, False),
        pipe=pipe,
        clocks=clocks,
        ready=np.zeros(n),
        sent_at=np.zeros((n, depth)),
        flights=Flight(
            num_resolved=0,
            ints=np.zeros((n, depth, NUM_FLIGHT_INTS), np.int64),
            floats=np.zeros((n, depth, NUM_FLIGHT_FLOATS)),
            prefilled=np.empty((n, depth, engine.max_num_seqs + 1), np.int32),
        ),
        resolved=np.zeros(num_replicas, np.int64),
        last=np.full(num_replicas, size - 1, np.int64),
        rank_of=np.zeros(len(requests.arrival), np.int32),
    )


@compiled
def _flight_at(group: StagedRanks, rank: int, k: int, num_resolved: int) -> Flight:
    """What pass ``k`` of a rank has in it."""
    flights = group.flights
    slot = k % flights.ints.shape[1]
    return Flight(num_resolved, flights.ints[rank, slot], flights.floats[rank, slot], flights.prefilled[rank, slot])


@compiled
def _has_work(group: StagedRanks, base: int) -> bool:
    """Whether some rank of a replica has a request whose last token it has not processed."""
    for rank in range(base, base + group.size):
        ints = group.replicas.ints[rank]
        if ints[lo.NUM_RUNNING] + ints[lo.NUM_PREEMPTED_WAITING] > 0 or ints[lo.QUEUE_HEAD] < ints[lo.QUEUE_END]:
            return True
    return False


@compiled
def _ready_at(group: StagedRanks, base: int, rank: int, num_resolved: int) -> float:
    """When a rank can make its next plan; infinite while it sleeps or waits for a pass that is not resolved."""
    waits_for = group.clocks[rank, WAITS_FOR]
    if group.clocks[rank, ASLEEP] != 0 or waits_for >= num_resolved:
        return INFINITY
    ends = group.pipe.ends[base]
    return float(max(group.ready[rank], ends[waits_for % len(ends)]) if waits_for >= 0 else group.ready[rank])


@compiled
def _next_rank(group: StagedRanks, base: int, num_resolved: int) -> int:
    """The rank that plans next, the first one among equals."""
    best = base
    for rank in range(base + 1, base + group.size):
        if _ready_at(group, base, rank, num_resolved) < _ready_at(group, base, best, num_resolved):
            best = rank
    return best


@compiled
def _resolve(
    front: Replica,
    group: StagedRanks,
    base: int,
    k: int,
    req: Requests,
    out: Outputs,
    times: Times,
    lim: Limits,
    rec: Recorder,
) -> bool:
    """Settle the times of pass ``k``, which all ranks have sent, and deliver its tokens; False without room to record
    them."""
    pipe = group.pipe
    stages = len(pipe.shares)
    slot = k % pipe.ends.shape[1]
    left = pipe.left[base]
    begin = 0.0
    most = 1
    total = 0
    prompts = False
    any_rows = False
    slowest = 0.0
    slowest_last = 0.0  # on the last stage, where sampling adds to it
    for rank in range(base, base + group.size):
        flight = _flight_at(group, rank, k, k)
        begin = max(begin, group.sent_at[rank, slot])
        tokens = 1  # of a dummy pass
        if flight.ints[REAL] != 0:
            any_rows = True
            tokens = flight.ints[ROWS_RUN] + flight.ints[PREFILL_TOKENS]
            prompts |= flight.ints[PREFILL_TOKENS] > 0
            begin = max(begin, pipe.emitted[rank, k % stages])
            own = flight.floats[LAYERS]
            slowest = max(slowest, own)
            slowest_last = max(slowest_last, own * pipe.shares[stages - 1] + flight.floats[SAMPLED])
        most = max(most, tokens)
        total += tokens
    alike = shared_time(times, group.size, most, total, prompts, False)
    at = begin
    for s in range(stages):
        start = max(at if any_rows else begin, left[s])  # dummies wait for no stage
        spent = (alike + slowest) * pipe.shares[s] if s < stages - 1 else alike * pipe.shares[s] + slowest_last
        at = start + spent
        left[s] = at
    pipe.ends[base, slot] = at
    fits = True
    for rank in range(base, base + group.size):
        flight = _flight_at(group, rank, k, k)
        if flight.ints[REAL] != 0:
            mean = (alike + slowest * (1.0 - pipe.shares[stages - 1]) + slowest_last) / stages
            rep, own_rec = replica_at(group.replicas, rank), recorder_at(rec, rank)
            fits = pipeline.deliver(front, rep, pipe, rank, k, req, out, lim, own_rec, flight, mean, at) and fits
    return fits


@compiled
def advance(
    front: Replica,
    group: StagedRanks,
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
    """Simulate every plan that a rank of replica ``i`` makes before ``horizon``; returns a status of ``layout``.

    ``front`` holds the replica's queue, and what has become of its requests. Mutates everything but ``req``,
    ``times``, ``eng`` and ``lim``. ``horizon`` as in ``vllm.advance``; arrivals must be given.
    """
    ints, floats = front.ints, front.floats
    base = i * group.size
    last_rank = base + group.size
    pipe = group.pipe
    depth = pipe.ends.shape[1]
    head = ints[lo.QUEUE_HEAD]
    end = ints[lo.QUEUE_END]
    now = floats[lo.NOW]
    num_resolved = group.resolved[i]
    status = lo.DONE
    while status == lo.DONE:
        # --- the next plan; an arrival wakes ranks that sleep
        chosen = _next_rank(group, base, num_resolved)
        at = _ready_at(group, base, chosen, num_resolved)
        sleeping = False
        for rank in range(base, last_rank):
            sleeping |= group.clocks[rank, ASLEEP] != 0
        if sleeping and head < end and req.arrival[front.queue[head]] <= at:
            at = req.arrival[front.queue[head]]
            if at >= horizon:
                break
            for rank in range(base, last_rank):
                if group.clocks[rank, ASLEEP] != 0:
                    group.clocks[rank, ASLEEP] = 0
                    group.ready[rank] = at
            chosen = _next_rank(group, base, num_resolved)
        if at >= horizon:
            break
        now = at
        head = route(front, group, i, req, eng, head, end, now)
        # --- the rank plans, and sends a pass: its rows, or a dummy while anybody has something to do
        k = group.clocks[chosen, SENT]
        rep = replica_at(group.replicas, chosen)
        rep.ints[lo.STEP] = k
        rep.floats[lo.NOW] = now
        flight = _flight_at(group, chosen, k, num_resolved)
        flight.ints[:] = 0
        own_px, own_rec = prefix_at(px, chosen), recorder_at(rec, chosen)
        status = pipeline.advance(rep, pipe, chosen, req, out, times, eng, lim, own_px, own_rec, flight, INFINITY)
        ahead = False
        for rank in range(base, last_rank):
            ahead |= group.clocks[rank, SENT] > k
        if flight.ints[REAL] == 0 and not ahead and not _has_work(group, base):
            group.clocks[chosen, ASLEEP] = 1
            continue
        group.clocks[chosen, SENT] = k + 1
        group.clocks[chosen, WAITS_FOR] = k + 1 - depth if flight.ints[REAL] != 0 else k
        group.sent_at[chosen, k % depth] = group.ready[chosen] = now
        for rank in range(base, last_rank):
            if group.clocks[rank, ASLEEP] != 0:
                group.clocks[rank, ASLEEP] = 0
                group.ready[rank] = now
        # --- passes that all ranks have sent
        fewest = group.clocks[base, SENT]
        for rank in range(base + 1, last_rank):
            fewest = min(fewest, group.clocks[rank, SENT])
        while num_resolved < fewest and status == lo.DONE:
            if not _resolve(front, group, base, num_resolved, req, out, times, lim, rec):
                status = lo.OVERFLOW
            num_resolved += 1
        if status == lo.DONE and ints[lo.NUM_BAD] > lim.max_bad:
            status = lo.BROKEN
    group.resolved[i] = num_resolved
    ints[lo.QUEUE_HEAD] = head
    ints[lo.PARTIAL] = 0 if ints[lo.NUM_FINISHED] < head else -1  # whether something may finish: see ``fleet``
    floats[lo.NOW] = now
    return status
