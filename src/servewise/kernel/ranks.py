"""Data parallel ranks of a model with experts in lock step (specification: docs/vllm-scheduler.md, "Ranks").

Every rank plans its own steps with its own queue and blocks, by vLLM's driver, but all ranks meet in the collectives
around the experts: a step takes as long as its slowest rank, and a rank without work runs a dummy batch along.

A window of equal steps is the shortest of the ranks' windows; it also ends where another rank becomes the slowest,
and where the next request has to be routed.
"""

from __future__ import annotations

from typing import Any

from servewise.kernel import layout as lo
from servewise.kernel import vllm
from servewise.kernel.clock import steps_starting_before
from servewise.kernel.layout import (
    Engine,
    Limits,
    Outputs,
    Prefix,
    Ranks,
    Recorder,
    Replica,
    Requests,
    Times,
    compiled,
)
from servewise.kernel.policy import policy_at
from servewise.kernel.steady import is_idle, is_steady, may_go_on, plan_on, run_on
from servewise.kernel.views import prefix_at, recorder_at, replica_at, turn_at

__all__ = ["UNLIMITED", "advance", "agree", "route", "shared_time"]

WAITING_SCORE = 3.0
"""A waiting request counts so much more than a running one."""
KV_SCORE = 6.0
KV_SCORE_FROM = 0.5
"""Newer versions: it counts more by so much for the share of the KV cache in use, above this share."""
UNLIMITED = 1 << 60


@compiled
def _rank(group: Any, i: int, eng: Engine) -> int:
    """The rank of replica ``i`` that gets the next request: the lowest score, the first after the last one chosen."""
    best = -1
    best_score = 0.0
    for j in range(group.size):
        rank = group.last[i] + 1 + j
        if rank >= group.size:
            rank -= group.size
        ints = group.replicas.ints[i * group.size + rank]
        waiting = ints[lo.NUM_PREEMPTED_WAITING] + ints[lo.QUEUE_END] - ints[lo.QUEUE_HEAD]
        unfinished = ints[lo.QUEUE_END] - ints[lo.NUM_FINISHED]
        extra = waiting * WAITING_SCORE
        if group.kv_aware != 0:  # in vLLM's order, so that equal scores stay equal when rounded
            used = (eng.num_blocks - ints[lo.FREE]) / eng.num_blocks
            extra = waiting * KV_SCORE * max(0.0, used - KV_SCORE_FROM)
        score = unfinished + extra
        if best < 0 or score < best_score:
            best = rank
            best_score = score
    return best


@compiled
def route(front: Replica, group: Any, i: int, req: Requests, eng: Engine, head: int, end: int, now: float) -> int:
    """Send what has arrived in replica ``i`` by ``now`` to its ranks, ``Ranks`` or ``StagedRanks``.

    ``head`` and ``end`` are those of the replica's queue; returns its new head.
    """
    while head < end and req.arrival[front.queue[head]] <= now:
        r = front.queue[head]
        rank = _rank(group, i, eng)
        group.last[i] = rank
        group.rank_of[r] = rank
        own = group.replicas.ints[i * group.size + rank]
        group.replicas.queue[i * group.size + rank, own[lo.QUEUE_END]] = r
        own[lo.QUEUE_END] += 1
        head += 1
    return head


@compiled
def shared_time(times: Times, size: int, most: int, total: int, prompts: bool, fills_up: bool) -> float:
    """What a step takes on every rank alike: ``most`` tokens on the fullest rank, ``total`` on all together."""
    padded = times.padded_mixed_tokens if prompts else times.padded_decode_tokens
    time = times.mixed_tokens[most] if prompts else times.decode_fixed[most] - times.sample[most]
    if most > padded and not (fills_up and not prompts and 2 * total >= size * most):
        time -= times.experts[size * most] - times.experts[total]
    return float(time)


@compiled
def agree(group: Any, base: int, times: Times, delay: float, dummy_tokens: int, fills_up: bool) -> int:
    """Settle the next step of all ranks, and how many alike follow, at most until ``delay`` is over.

    Writes the ranks' turns; returns the number of steps, 0 if nobody has planned one.

    Parameters
    ----------
    group : Ranks, SglangRanks or TrtllmRanks
    base : int
        The first of its ranks.
    times : Times
    delay : float [s]
    dummy_tokens : int
        Of a rank without a step.
    fills_up : bool
        Whether decode steps beyond the captured sizes are padded too, where that at most doubles their tokens.
    """
    most = 1
    total = 0
    prompts = False
    count = 0
    slowest = 0.0
    growth = 0.0
    for k in range(base, base + group.size):
        turn = group.turns.ints[k]
        tokens = dummy_tokens
        if turn[lo.PLANNED] != 0:
            rows = turn[lo.NUM_ROWS]
            tokens = rows + turn[lo.PREFILL_TOKENS]
            own = group.turns.floats[k, lo.FIRST]
            if turn[lo.PREFILL_TOKENS] > 0:
                prompts = True
                own -= times.mixed_tokens[tokens]
            else:
                own -= times.decode_fixed[rows] - times.sample[rows]
            group.turns.floats[k, lo.FIRST] = own
            if count == 0 or own > slowest or (own == slowest and group.turns.floats[k, lo.GROWTH] > growth):
                slowest = own
                growth = group.turns.floats[k, lo.GROWTH]
            count = turn[lo.COUNT] if count == 0 else min(count, turn[lo.COUNT])
            ints = group.replicas.ints[k]
            if turn[lo.BLOCKED] == 0 and ints[lo.QUEUE_HEAD] < ints[lo.QUEUE_END]:
                count = 1  # the next plan sees what was routed since this one
        most = max(most, tokens)
        total += tokens
    if count == 0:
        return 0
    first = shared_time(times, group.size, most, total, prompts, fills_up) + slowest
    if count > 1:
        for k in range(base, base + group.size):
            if group.turns.ints[k, lo.PLANNED] != 0:
                faster = group.turns.floats[k, lo.GROWTH] - growth
                behind = slowest - group.turns.floats[k, lo.FIRST]
                if faster > 0.0 and behind < faster * (count - 1):
                    count = 1 + int(behind / faster)
    if count > 1 and (count - 1) * (first + 0.5 * growth * (count - 2)) >= delay:
        count = min(count, 1 + steps_starting_before(delay, first, growth))
    for k in range(base, base + group.size):
        group.turns.ints[k, lo.COUNT] = count
        group.turns.floats[k, lo.FIRST] = first
        group.turns.floats[k, lo.GROWTH] = growth
    return int(count)


@compiled
def _take_turn(
    group: Ranks,
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
    rep = replica_at(group.replicas, k)
    rep.floats[lo.NOW] = now
    rep.floats[lo.LAST_START] = last_start
    turn, policy = turn_at(group.turns, k), policy_at(group.policy, k)
    own_px, own_rec = prefix_at(px, k), recorder_at(rec, k)
    return vllm.advance(rep, req, out, times, eng, lim, own_px, own_rec, turn, policy, float("inf"))


@compiled
def _plans_on(group: Ranks, k: int, times: Times, eng: Engine) -> bool:
    """Plan rank ``k``'s next step if it is like the last; False if not, with nothing planned."""
    ints = group.replicas.ints[k]
    if ints[lo.QUEUE_HEAD] < ints[lo.QUEUE_END] or not is_steady(ints):
        return False
    turn = group.turns.ints[k]
    return bool(plan_on(ints, group.replicas.phase[k], turn, group.turns.floats[k], times, eng))


@compiled
def advance(
    front: Replica,
    group: Ranks,
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
    ``req``, ``times``, ``eng`` and ``lim``. ``horizon`` as in ``vllm.advance``; arrivals must be given.
    """
    ints, floats = front.ints, front.floats
    base = i * group.size
    rank_lim = Limits(lim.ttft, lim.tpot, lim.e2e, UNLIMITED)
    now = floats[lo.NOW]
    last_start = floats[lo.LAST_START]
    head = ints[lo.QUEUE_HEAD]
    end = ints[lo.QUEUE_END]
    finished = ints[lo.NUM_FINISHED]
    status = lo.DONE
    # blocks with identities and what is recorded of single steps need the whole plan
    plain = group.policy is None and eng.caching == 0 and rec.gaps.shape[1] == 0 and rec.samples.shape[1] == 0
    while now < horizon:
        # --- ranks that run plan while the step before still ran, and then let go who has ended
        for k in range(base, base + group.size):
            if eng.lag == 0 or group.replicas.ints[k, lo.BUSY] == 0 or status != lo.DONE:
                continue
            if not (plain and _plans_on(group, k, times, eng)):
                status = _take_turn(group, k, now, last_start, req, out, times, eng, rank_lim, px, rec)
        # --- requests that came while it ran go to a rank
        head = route(front, group, i, req, eng, head, end, now)
        # --- ranks that did not run plan now
        for k in range(base, base + group.size):
            if group.turns.ints[k, lo.PLANNED] != 0 or status != lo.DONE:
                continue
            if not plain or not (is_idle(group.replicas.ints[k]) or _plans_on(group, k, times, eng)):
                status = _take_turn(group, k, now, last_start, req, out, times, eng, rank_lim, px, rec)
        if status != lo.DONE:
            break
        arrival = min(req.arrival[front.queue[head]], horizon) if head < end else horizon
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
            turn, own = group.turns.ints[k], group.replicas.ints[k]
            if plain and turn[lo.PLANNED] != 0 and may_go_on(own, turn, count):
                run_on(own, group.replicas.floats[k], group.replicas.phase[k], turn, eng, count, first, growth)
            elif turn[lo.PLANNED] != 0 and status == lo.DONE:
                status = _take_turn(group, k, now, last_start, req, out, times, eng, rank_lim, px, rec)
            num_bad += group.replicas.ints[k, lo.NUM_BAD]
            num_finished += group.replicas.ints[k, lo.NUM_FINISHED]
        last_start = now + (count - 1) * first + 0.5 * growth * (count - 1) * (count - 2)
        now += count * first + 0.5 * growth * count * (count - 1)
        if len(front.finish_times) > 0:
            front.finish_times[finished:num_finished] = now
        finished = num_finished
        ints[lo.NUM_BAD] = num_bad
        if status != lo.DONE:
            break
        if num_bad > lim.max_bad:
            status = lo.BROKEN
            break
    ints[lo.QUEUE_HEAD] = head
    ints[lo.NUM_FINISHED] = finished
    ints[lo.PARTIAL] = 0 if finished < head else -1  # whether something may finish: see ``fleet``
    floats[lo.NOW] = now
    floats[lo.LAST_START] = last_start
    return status
