"""Text Generation Inference's scheduler, one replica, with exact fast-forward (specification: docs/tgi-scheduler.md).

Requests beyond a number in flight are turned away when they arrive; the others wait in one queue. A request sets all
its blocks aside when it is admitted, so it has three events: it is admitted, its prompt is finished, its last token is
out. As in ``trtllm.py`` decode rows are never visited one by one, and a *window* of equal decode steps ends with the
first step in which something else can happen. Nothing is planned ahead.

A step that began before an arrival may end after it. Who is turned away is therefore decided when the step has ended,
with the number that was in flight while it ran.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from servewise.kernel import layout as lo
from servewise.kernel.clock import misses, record_gap, record_sample, send_next, steps_starting_before
from servewise.kernel.layout import Engine, Limits, Outputs, Prefix, Recorder, Replica, Requests, Times, compiled
from servewise.kernel.prefix import HASHED, OVERFLOWED, UNHASHED, lookup, release_blocks, take_blocks, touch_hits
from servewise.kernel.steps import knot_at, mixed_step_s, steps_to_knot

__all__ = ["Tgi", "advance", "new_tgi"]

# Integers of ``Tgi.ints``.
SEEN = 0
"""Place in the queue up to which it was decided who is turned away; the others stand before ``TAIL``."""
TAIL = 1
WAITING = 2
RESERVED = 3
"""Blocks of all that run, shared ones counted for each."""
MUST_RUN = 4
"""1 when the next step admits nobody."""
JUST_ENDED = 5
"""Requests that ended when the last step did."""
NUM_PARTIAL = 6
SINCE = 7
"""TGI's ``waiting_tokens``."""
NUM_TGI_INTS = 8

FAR = 1 << 60


class Tgi(NamedTuple):
    """What only TGI has.

    ``blocks``, shape (num_requests,), is what each request sets aside. Without ``chunking`` prompts run alone, and
    while n requests run it takes ``least_new[n]`` that can be admitted, or ``max_waiting`` steps of patience. The rest
    is state, the replica as the first axis: ``partial`` are the unfinished prompts in order of admission and ``chunks``
    their tokens of the next step, ``clock`` is the time that was reached.
    """

    blocks: NDArray[np.int32]
    chunking: int
    least_new: NDArray[np.int32]
    max_waiting: int
    ints: NDArray[np.int64]
    clock: NDArray[np.float64]
    partial: NDArray[np.int32]
    chunks: NDArray[np.int32]


def new_tgi(
    blocks: NDArray[np.int32],
    num_replicas: int,
    max_rows: int,
    *,
    chunking: bool,
    least_new: NDArray[np.int32],
    max_waiting: int,
) -> Tgi:
    """Replicas with nothing running; see :class:`Tgi`."""
    ints = np.zeros((num_replicas, NUM_TGI_INTS), np.int64)
    return Tgi(
        blocks=blocks,
        chunking=int(chunking),
        least_new=least_new,
        max_waiting=max_waiting,
        ints=ints,
        clock=np.zeros(num_replicas),
        partial=np.empty((num_replicas, max_rows + 1), np.int32),
        chunks=np.empty((num_replicas, max_rows + 1), np.int32),
    )


@compiled
def _log_finish(rep: Replica, time: float) -> None:
    """Count a request as finished; the log of times stays in order."""
    j = rep.ints[lo.NUM_FINISHED]
    rep.ints[lo.NUM_FINISHED] = j + 1
    if len(rep.finish_times) > 0:
        while j > rep.ints[lo.NUM_COUNTED] and rep.finish_times[j - 1] > time:
            rep.finish_times[j] = rep.finish_times[j - 1]
            j -= 1
        rep.finish_times[j] = time


@compiled
def _forget_others(px: Prefix, r: int, hit: int, others: int) -> None:
    """Forget all that is cached and not used, the first ``hit`` blocks of a request excepted; ``others`` blocks are
    free beside those."""
    touch_hits(px, r, hit)
    take_blocks(px, others)
    px.counters[UNHASHED] += others
    release_blocks(px, r, hit, hit, False)


@compiled
def _release(px: Prefix, r: int, blocks: int, full: int) -> int:
    """Give up an ended request's blocks, of which the first ``full`` enter the cache; returns how many are free now.

    Blocks that others have entered meanwhile count as used now, and its own copies of them are free.
    """
    hit = px.users[r, HASHED]
    found, unused = lookup(px, r, full)
    touch_hits(px, r, found)
    px.counters[UNHASHED] += found - hit
    return int(release_blocks(px, r, blocks, full, True) + found - hit - unused)


@compiled
def _num_admissible(rep: Replica, req: Requests, tgi: Tgi, head: int, waiting: int, free: int, budget: int) -> int:
    """Requests at the head of the queue whose blocks and whole prompts fit together."""
    for j in range(waiting):
        r = rep.queue[head + j]
        free -= tgi.blocks[r]
        budget -= req.input_tokens[r]
        if free < 0 or budget < 0:
            return j
    return waiting


@compiled
def _next_chunks(partial: Any, chunks: Any, count: int, rep: Replica, req: Requests, budget: int) -> None:
    """Share out the next step's tokens to the unfinished prompts, the newest first."""
    for j in range(count - 1, -1, -1):
        r = partial[j]
        chunks[j] = max(1, min(req.input_tokens[r] - rep.position[r], budget))
        budget -= chunks[j]


@compiled
def _sort(pending: Any, count: int) -> None:
    """Order requests as they were admitted."""
    for i in range(1, count):
        r = pending[i]
        j = i - 1
        while j >= 0 and pending[j] > r:
            pending[j + 1] = pending[j]
            j -= 1
        pending[j + 1] = r


@compiled
def _record_window(
    rep: Replica, rec: Recorder, top: int, since: float, now: float, first: float, growth: float, count: int, rows: int
) -> bool:
    """Record the gaps that ``count`` decode steps of ``rows`` rows from ``now`` on end; False without room.

    The ``top`` requests in ``rep.running`` have emitted their first token after ``since``, when the others emitted
    their last one, and all have waited for prompts that ran alone.
    """
    if top == 0 and since == now:
        return record_gap(rec, first, growth, count, rows)
    for i in range(top):
        if not record_gap(rec, now + first - rep.last_emit[rep.running[i]], 0.0, 1, 1):
            return False
    if rows > top and not record_gap(rec, now + first - since, 0.0, 1, rows - top):
        return False
    return count == 1 or record_gap(rec, first + growth, growth, count - 1, rows)


@compiled
def advance(
    rep: Replica,
    i: int,
    req: Requests,
    out: Outputs,
    times: Times,
    eng: Engine,
    lim: Limits,
    px: Prefix,
    tgi: Tgi,
    rec: Recorder,
    horizon: float,
) -> int:
    """Simulate every step that is planned before ``horizon``; returns a status of ``layout``.

    Mutates ``rep``, ``out``, ``px``, ``rec`` and the replica's part of ``tgi``, and ``req.arrival`` in a closed loop.
    ``horizon`` must be infinite or not exceed the arrival of any request that is not yet in the replica's queue.
    """
    ints, floats, own = rep.ints, rep.floats, tgi.ints[i]
    partial, chunks = tgi.partial[i], tgi.chunks[i]
    step = ints[lo.STEP]
    rows = ints[lo.ROWS]
    context = ints[lo.CONTEXT]
    num_running = ints[lo.NUM_RUNNING]
    top = ints[lo.RUN_TOP]
    free = ints[lo.FREE]
    head = ints[lo.QUEUE_HEAD]
    end = ints[lo.QUEUE_END]
    next_finish = ints[lo.NEXT_FINISH]
    knot = ints[lo.KNOT]
    seen = own[SEEN]
    tail = own[TAIL]
    waiting = own[WAITING]
    reserved = own[RESERVED]
    must_run = own[MUST_RUN]
    just_ended = own[JUST_ENDED]
    num_partial = own[NUM_PARTIAL]
    since = own[SINCE]
    now = tgi.clock[i]
    begun = floats[lo.LAST_START]
    last_emission = floats[lo.LAST_EMISSION]

    shift = eng.block_shift
    block = 1 << shift
    chunking = tgi.chunking != 0
    caching = eng.caching != 0
    record_gaps = len(rec.gaps) > 0
    ring_mask = len(rep.ring) - 1
    status = lo.DONE

    while True:
        # --- requests that have come: into the queue, or turned away.
        while seen < end and req.arrival[rep.queue[seen]] <= now:
            r = rep.queue[seen]
            in_flight = num_running + waiting
            if req.arrival[r] < now:
                in_flight += just_ended
            if in_flight >= eng.max_num_seqs:
                ints[lo.SLOTS_BOUND] = 1
                ints[lo.NUM_BAD] += 1
                out.rejected[r] = 1
                rep.state[r] = lo.GONE
                _log_finish(rep, req.arrival[r])
                if req.think >= 0.0:
                    end = send_next(req, end, req.arrival[r] + req.extra[r] + req.think)
            else:
                if waiting == 0:
                    head = seen
                    tail = seen
                rep.queue[tail] = r
                tail += 1
                waiting += 1
            seen += 1
        if ints[lo.NUM_BAD] > lim.max_bad:
            status = lo.BROKEN
            break
        if now >= horizon:
            break
        if num_running + waiting == 0:
            if seen == end or req.arrival[rep.queue[seen]] > horizon:
                break
            now = req.arrival[rep.queue[seen]]
            just_ended = 0
            continue

        # --- plan: unfinished prompts, then the queue, head first, until something does not fit.
        num_before = num_running
        num_prefilled = 0
        prefill_tokens = 0
        pairs = 0.0
        kept = 0
        for j in range(num_partial):
            r = partial[j]
            prefill_tokens += chunks[j]
            pairs += chunks[j] * (rep.position[r] + 0.5 * (chunks[j] + 1))
            rep.position[r] += chunks[j]
            if rep.position[r] == req.input_tokens[r]:
                rep.prefilled[num_prefilled] = r
                num_prefilled += 1
            else:
                partial[kept] = r
                kept += 1
        num_partial = kept
        may_admit = num_running == 0 or must_run == 0
        blocked = False
        patience = FAR
        budget = 0
        if waiting > 0 and may_admit:
            budget = eng.max_num_batched_tokens
            if chunking:
                budget -= rows + prefill_tokens
                if reserved > eng.num_blocks:
                    ints[lo.MEMORY_BOUND] = 1
                    budget = 0
                elif budget <= 0:
                    ints[lo.BUDGET_BOUND] = 1
                blocked = budget <= 0
            budget = (max(budget, 0) + block - 1) >> shift << shift
            if not chunking and num_running > 0 and since < tgi.max_waiting:
                least = tgi.least_new[num_running]
                if waiting < least:
                    patience = tgi.max_waiting - since
                elif _num_admissible(rep, req, tgi, head, waiting, free, budget) < least:
                    ints[lo.BUDGET_BOUND] = 1
                    ints[lo.MEMORY_BOUND] = 1
                    patience = tgi.max_waiting - since
        while budget > 0 and waiting > 0 and patience == FAR:
            r = rep.queue[head]
            hit = 0
            hit_free = 0
            if caching:
                hit, hit_free = lookup(px, r, req.input_tokens[r] >> shift)
            needed = tgi.blocks[r] - hit + hit_free
            if needed > free:
                ints[lo.MEMORY_BOUND] = 1
                blocked = True
                if caching:
                    _forget_others(px, r, hit, free - hit_free)
                break
            done = min(hit << shift, req.input_tokens[r] - 1)
            chunk = req.input_tokens[r] - done
            if chunk > budget:
                ints[lo.BUDGET_BOUND] = 1
                blocked = True
                if not chunking:
                    break
                chunk = budget
            ints[lo.PEAK_GATE] = max(ints[lo.PEAK_GATE], eng.num_blocks - free + needed)
            if caching:
                touch_hits(px, r, hit)
                take_blocks(px, tgi.blocks[r] - hit)
            out.cached[r] = done
            head += 1
            waiting -= 1
            num_running += 1
            free -= needed
            reserved += tgi.blocks[r]
            budget -= chunk
            prefill_tokens += chunk
            pairs += chunk * (done + 0.5 * (chunk + 1))
            rep.state[r] = lo.PREFILLING
            rep.position[r] = done + chunk
            if done + chunk == req.input_tokens[r]:
                rep.prefilled[num_prefilled] = r
                num_prefilled += 1
            else:
                partial[num_partial] = r
                num_partial += 1
            if budget == 0 and waiting > 0:
                ints[lo.BUDGET_BOUND] = 1
        if num_running == 0:
            status = lo.STUCK
            break
        if caching and px.counters[OVERFLOWED] != 0:
            status = lo.OVERFLOW
            break
        admitted = num_running > num_before
        ints[lo.PEAK_BLOCKS] = max(ints[lo.PEAK_BLOCKS], eng.num_blocks - free)
        ints[lo.PEAK_RUNNING] = max(ints[lo.PEAK_RUNNING], num_running)
        if len(rec.samples) > 0 and now >= floats[lo.NEXT_SAMPLE]:
            floats[lo.NEXT_SAMPLE] = now + rec.sample_every
            if not record_sample(rec, rep, req, seen, end, now, num_running, waiting, eng.num_blocks - free):
                status = lo.OVERFLOW
                break

        # --- run: one step, or a window of decode steps.
        decoding = rows if chunking or not admitted else 0
        attention = 0.0
        slope = 0.0
        if decoding > 0:
            knot = knot_at(times, rows, context, knot)
            slope = times.attention_slope[rows, knot]
            attention = times.attention_base[rows, knot] + slope * context
        growth = slope * decoding
        count = 1
        if prefill_tokens > 0:
            first = mixed_step_s(
                times,
                decoding,
                context,
                attention,
                decoding + prefill_tokens,
                decoding + num_prefilled,
                prefill_tokens,
                pairs,
            )
            ints[lo.PEAK_TOKENS] = max(ints[lo.PEAK_TOKENS], decoding + prefill_tokens)
        else:
            first = times.decode_fixed[rows] + attention
            if eng.single_step == 0 and (waiting == 0 or may_admit):
                count = min(next_finish - step, patience)
                count = min(count, steps_to_knot(times, rows, context, knot))
                # with as many in flight as may be, whoever comes is turned away
                if count > 1 and not blocked and num_running + waiting < eng.max_num_seqs:
                    arrival = min(horizon, req.arrival[rep.queue[seen]]) if seen < end else horizon
                    delay = arrival - now
                    if (count - 1) * (first + 0.5 * growth * (count - 2)) >= delay:
                        count = min(count, 1 + steps_starting_before(delay, first, growth))
        elapsed = count * first + 0.5 * growth * count * (count - 1)
        if record_gaps and decoding > 0:
            recorded = _record_window(rep, rec, top, last_emission, now, first, growth, count, rows)
            if not recorded:
                status = lo.OVERFLOW
                break
        begun = now
        now += elapsed
        ints[lo.NUM_STEPS] += count
        ints[lo.NUM_WINDOWS] += 1
        floats[lo.MIXED_TIME if prefill_tokens > 0 else lo.DECODE_TIME] += elapsed
        floats[lo.ROW_TIME] += decoding * elapsed
        context += decoding * count
        must_run = 1 if admitted and num_before > 0 else 0
        since = 1 if admitted else since + count
        if decoding > 0 or chunking:
            step += count
            last_emission = now
            top = 0
        if chunking and num_partial > 0:
            _next_chunks(partial, chunks, num_partial, rep, req, eng.max_num_batched_tokens - (num_running - 1))

        # --- finished prompts have emitted a token and decode from now on.
        for j in range(num_prefilled):
            r = rep.prefilled[j]
            out.first[r] = now + req.extra[r]
            finish = step + req.output_tokens[r] - 1
            rep.state[r] = lo.DECODING
            rep.next_same[r] = rep.ring[finish & ring_mask]
            rep.ring[finish & ring_mask] = r
            next_finish = min(next_finish, finish)
            rows += 1
            context += req.input_tokens[r] + 1
            if not chunking and req.output_tokens[r] > 1:
                rep.last_emit[r] = now
                rep.running[top] = r
                top += 1

        # --- rows that emitted their last token leave at once.
        just_ended = 0
        if next_finish == step:
            r = rep.ring[step & ring_mask]
            rep.ring[step & ring_mask] = -1
            while r >= 0:
                rep.pending[just_ended] = r
                just_ended += 1
                r = rep.next_same[r]
            if caching:
                _sort(rep.pending, just_ended)
            for j in range(just_ended):
                r = rep.pending[j]
                _log_finish(rep, now)
                out.last[r] = now + req.extra[r]
                if misses(req, out, lim, r):
                    ints[lo.NUM_BAD] += 1
                if req.think >= 0.0:
                    end = send_next(req, end, out.last[r] + req.think)
                rep.state[r] = lo.GONE
                rows -= 1
                num_running -= 1
                context -= req.input_tokens[r] + req.output_tokens[r]
                reserved -= tgi.blocks[r]
                free += _release(px, r, tgi.blocks[r], req.input_tokens[r] >> shift) if caching else tgi.blocks[r]
            next_finish = FAR
            if rows > 0:
                next_finish = step + 1
                while rep.ring[next_finish & ring_mask] < 0:
                    next_finish += 1
            if caching and px.counters[OVERFLOWED] != 0:
                status = lo.OVERFLOW
                break

    ints[lo.STEP] = step
    ints[lo.ROWS] = rows
    ints[lo.CONTEXT] = context
    ints[lo.NUM_RUNNING] = num_running
    ints[lo.RUN_TOP] = top
    ints[lo.FREE] = free
    ints[lo.PARTIAL] = partial[0] if num_partial > 0 else -1
    ints[lo.QUEUE_HEAD] = head if waiting > 0 else seen
    ints[lo.QUEUE_END] = end
    ints[lo.NEXT_FINISH] = next_finish
    ints[lo.KNOT] = knot
    own[SEEN] = seen
    own[TAIL] = tail
    own[WAITING] = waiting
    own[RESERVED] = reserved
    own[MUST_RUN] = must_run
    own[JUST_ENDED] = just_ended
    own[NUM_PARTIAL] = num_partial
    own[SINCE] = since
    tgi.clock[i] = now
    # A router must look whenever somebody may have been turned away, which may be while the last window runs.
    floats[lo.NOW] = now if horizon == math.inf else begun
    floats[lo.LAST_START] = begun
    floats[lo.LAST_EMISSION] = last_emission
    return status
