"""TensorRT-LLM's V1 scheduler, one replica, with exact fast-forward (specification: docs/trtllm-scheduler.md).

As in ``vllm.py`` decode rows are never visited one by one, and a *window* of equal decode steps ends with the first
step in which something else can happen. With ``GUARANTEED_NO_EVICT`` ``ints[FREE]`` is what nobody has reserved, with
``MAX_UTILIZATION`` what nobody holds; only then the list of running requests is kept, in order of arrival.

``preempted`` holds the requests that wait ahead of the queue, paused or deferred, in order of arrival.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from servewise.kernel import layout as lo
from servewise.kernel.clock import record_finish, record_gap, record_sample, steps_starting_before
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
)
from servewise.kernel.prefix import (
    first_new_block,
    lookup,
    release_stored_blocks,
    store_blocks,
    take_blocks,
    touch_hits,
)
from servewise.kernel.rows import blocks_of, compact, steps_before_shortage, unlink
from servewise.kernel.steps import knot_at, mixed_step_s, steps_to_knot

__all__ = ["PLAN", "Trtllm", "advance", "is_deferred", "new_trtllm", "sort_by_arrival", "trtllm_at"]

FAR = 1 << 60

# Places in ``Trtllm.counts``.
NUM_TO_STORE = 0
PLAN = 1

# Columns of ``Trtllm.computing``.
IN_PLAN = 0
PLACE = 1


class Trtllm(NamedTuple):
    """What only TensorRT-LLM has; the arrays but ``blocks`` have the replica as their first axis.

    ``blocks``, shape (num_requests,), is what each request reserves. ``evicting`` is 1 with ``MAX_UTILIZATION``;
    ``counts_reuse`` when the scheduler knows what is cached before it starts a request. While rows decode, prompts
    wait for a batch of ``wait_tokens`` tokens (rows included), at most ``wait_steps`` plans. ``to_store`` lists the
    requests whose prompts the last step has finished. ``computing`` says, for each shared node, in which plan a block
    of it was the first new one of a request that was started, and which.
    """

    blocks: NDArray[np.int32]
    evicting: int
    chunking: int
    counts_reuse: int
    wait_steps: int
    wait_tokens: float
    to_store: NDArray[np.int32]
    computing: NDArray[np.int64]
    counts: NDArray[np.int64]


def new_trtllm(
    engine: Engine,
    num_replicas: int,
    num_shared: int,
    *,
    blocks: NDArray[np.int32],
    evicting: bool,
    chunking: bool,
    counts_reuse: bool,
    wait_steps: int,
    wait_tokens: float,
) -> Trtllm:
    """The state of replicas in which nothing runs; the parameters are those of :class:`Trtllm`."""
    return Trtllm(
        blocks=blocks,
        evicting=int(evicting),
        chunking=int(chunking),
        counts_reuse=int(counts_reuse),
        wait_steps=wait_steps,
        wait_tokens=wait_tokens,
        to_store=np.empty((num_replicas, engine.max_num_seqs + 1), np.int32),
        computing=np.zeros((num_replicas, num_shared if engine.caching else 0, 2), np.int64),
        counts=np.zeros((num_replicas, 2), np.int64),
    )


@compiled
def trtllm_at(trt: Trtllm, i: int) -> Trtllm:
    """Replica ``i``'s part."""
    return Trtllm(
        trt.blocks,
        trt.evicting,
        trt.chunking,
        trt.counts_reuse,
        trt.wait_steps,
        trt.wait_tokens,
        trt.to_store[i],
        trt.computing[i],
        trt.counts[i],
    )


@compiled
def _wait_in_order(rep: Replica, count: int, r: int) -> None:
    """Put a request among the ``count`` that wait ahead of the queue."""
    i = count
    while i > 0 and rep.preempted[i - 1] > r:
        rep.preempted[i] = rep.preempted[i - 1]
        i -= 1
    rep.preempted[i] = r


@compiled
def _run_in_order(rep: Replica, top: int, r: int) -> int:
    """Put a request into the running list, almost always at its end; returns the list's new length."""
    if top == len(rep.running):
        top = compact(rep, top)
    i = top
    while i > 0 and (rep.running[i - 1] < 0 or rep.running[i - 1] > r):
        other = rep.running[i - 1]
        rep.running[i] = other
        if other >= 0:
            rep.position[other] = i
        i -= 1
    rep.running[i] = r
    rep.position[r] = i
    return top + 1


@compiled
def sort_by_arrival(pending: NDArray[np.int32], count: int) -> None:
    """Order requests by arrival: so they are freed."""
    for i in range(1, count):
        r = pending[i]
        j = i - 1
        while j >= 0 and pending[j] > r:
            pending[j + 1] = pending[j]
            j -= 1
        pending[j + 1] = r


@compiled
def _next_finish(rep: Replica, step: int, rows: int) -> int:
    """The first step after ``step`` in which a row emits its last token."""
    mask = len(rep.ring) - 1
    if rows > 0:
        for finish in range(step + 1, step + 1 + mask):
            if rep.ring[finish & mask] >= 0:
                return finish
    return FAR


@compiled
def is_deferred(trt: Trtllm, px: Prefix, plan: int, r: int, hit: int, full: int) -> bool:
    """Whether the first new block of a request is being computed by another one; if not, it will be by this one."""
    node, place = first_new_block(px, r, hit, full)
    if node < 0:
        return False
    if trt.computing[node, IN_PLAN] == plan and trt.computing[node, PLACE] == place:
        return True
    trt.computing[node, IN_PLAN] = plan
    trt.computing[node, PLACE] = place
    return False


@compiled
def _pause(rep: Replica, req: Requests, out: Outputs, px: Prefix, caching: bool, shift: int, now: float) -> int:
    """Pause the request at the end of the running list; reads and writes ``ints``, returns the request."""
    ints = rep.ints
    step = ints[lo.STEP]
    ints[lo.RUN_TOP] -= 1
    r = rep.running[ints[lo.RUN_TOP]]
    ints[lo.NUM_RUNNING] -= 1
    ints[lo.NUM_PREEMPTIONS] += 1
    out.preemptions[r] += 1
    ended = False
    if r == ints[lo.PARTIAL]:
        blocks = blocks_of(req.input_tokens[r] + rep.generated[r], shift)
        known = ints[lo.PARTIAL_DONE]
        ints[lo.PARTIAL] = -1
    else:
        # the token that its running step samples is not known yet, and the last one that is has no place yet
        emitted = req.output_tokens[r] - (rep.finish_step[r] - step)
        length = req.input_tokens[r] + emitted - 1
        blocks = blocks_of(length, shift)
        known = length - 1
        ended = rep.state[r] != lo.DECODING
        if rep.state[r] != lo.ENDED_BY_LENGTH:
            ints[lo.ROWS] -= 1
            ints[lo.CONTEXT] -= length + 1
            rep.phase[(step - length) & ((1 << shift) - 1)] -= 1
        if rep.state[r] == lo.ENDED_BY_STOP:
            ints[lo.NUM_WASTED] -= 1
        if not ended:
            rep.generated[r] = emitted
            rep.last_emit[r] = now
            unlink(rep, r, rep.finish_step[r] & (len(rep.ring) - 1))
    ints[lo.FREE] += release_stored_blocks(px, r, blocks, known >> shift, ended) if caching else blocks
    if ended:
        rep.state[r] = lo.GONE
    else:
        rep.state[r] = lo.WAITING
        _wait_in_order(rep, ints[lo.NUM_PREEMPTED_WAITING], r)
        ints[lo.NUM_PREEMPTED_WAITING] += 1
    return int(r)


@compiled
def _last_running(rep: Replica) -> int:
    """The running request that arrived last, -1 if none does; cuts gaps off the end of the list."""
    top = rep.ints[lo.RUN_TOP]
    while top > 0 and rep.running[top - 1] < 0:
        top -= 1
    rep.ints[lo.RUN_TOP] = top
    return int(rep.running[top - 1]) if top > 0 else -1


@compiled
def _make_room(
    rep: Replica,
    req: Requests,
    out: Outputs,
    trt: Trtllm,
    px: Prefix,
    caching: bool,
    shift: int,
    now: float,
    needed: int,
    hit: int,
    r: int,
) -> int:
    """Pause running requests that arrived after request ``r`` until there are blocks for the decode rows that begin one
    and ``needed`` more, less those of the first ``hit`` ones of ``r`` that others hold.

    With ``r`` -1 for the decode rows alone. Reads and writes ``ints``; returns the last one paused, ``FAR`` if none.
    """
    ints = rep.ints
    limit = FAR
    while True:
        spared = 0
        if trt.counts_reuse != 0 and hit > 0:
            _, unused = lookup(px, r, hit)
            spared = hit - unused
        if needed - spared + rep.phase[ints[lo.STEP] & ((1 << shift) - 1)] <= ints[lo.FREE]:
            return limit
        last = _last_running(rep)
        if last < 0 or last < r or (r >= 0 and rep.state[last] == lo.PREFILLING):
            return limit
        limit = _pause(rep, req, out, px, caching, shift, now)


@compiled
def _must_wait(
    rep: Replica,
    req: Requests,
    eng: Engine,
    trt: Trtllm,
    px: Prefix,
    visible: float,
    limit: int,
    head: int,
    end: int,
    rows: int,
    kept: int,
) -> bool:
    """Whether the prompts that would start wait for more of them, ``kept`` blocks being spoken for; counts the plans
    they have waited."""
    shift = eng.block_shift
    tokens = rows
    budget = eng.max_num_batched_tokens - rows
    free = rep.ints[lo.FREE] - kept
    seats = eng.max_num_seqs - rep.ints[lo.NUM_RUNNING]
    num_returned = rep.ints[lo.NUM_PREEMPTED_WAITING]
    any_prompt = False
    i = 0
    while seats > 0:
        if i < num_returned:
            r = rep.preempted[i]
        elif head + i - num_returned < end and req.arrival[rep.queue[head + i - num_returned]] <= visible:
            r = rep.queue[head + i - num_returned]
        else:
            break
        if r >= limit:
            break
        i += 1
        seats -= 1
        known = req.input_tokens[r] + rep.generated[r]
        hit = 0
        hit_free = 0
        if eng.caching != 0:
            hit, hit_free = lookup(px, r, (known - 1) >> shift)
            if is_deferred(trt, px, trt.counts[PLAN] - 1, r, hit, known >> shift):
                continue
        needed = blocks_of(known, shift) if trt.evicting != 0 else trt.blocks[r]
        counted = known
        if trt.counts_reuse != 0:
            needed -= hit - hit_free
            counted -= hit << shift
        if needed > free or counted > budget:
            break
        any_prompt = True
        free -= needed
        budget -= counted
        tokens += counted
    if any_prompt and rep.ints[lo.WAITED] < trt.wait_steps and tokens < trt.wait_tokens:
        rep.ints[lo.WAITED] += 1
        return True
    if any_prompt:
        rep.ints[lo.WAITED] = 0
    return False


@compiled
def advance(
    rep: Replica,
    req: Requests,
    out: Outputs,
    times: Times,
    eng: Engine,
    lim: Limits,
    trt: Trtllm,
    px: Prefix,
    rec: Recorder,
    turn: Turn | None,
    horizon: float,
) -> int:
    """Simulate every step that is planned before ``horizon``; returns a status of ``layout``.

    Mutates everything but ``req``, ``times``, ``eng`` and ``lim``, and ``req.arrival`` in a closed loop.
    ``horizon`` must be infinite or not exceed the arrival of any request that is not yet in the replica's queue.
    A rank in lock step with others takes ``turn``s, as those of ``vllm.advance`` do.
    """
    ints, floats = rep.ints, rep.floats
    step = ints[lo.STEP]
    rows = ints[lo.ROWS]
    context = ints[lo.CONTEXT]
    head = ints[lo.QUEUE_HEAD]
    end = ints[lo.QUEUE_END]
    next_finish = ints[lo.NEXT_FINISH]
    num_pending = ints[lo.NUM_PENDING]
    busy = ints[lo.BUSY]
    knot = ints[lo.KNOT]
    now = floats[lo.NOW]
    last_start = floats[lo.LAST_START]

    shift = eng.block_shift
    phase_mask = (1 << shift) - 1
    ring_mask = len(rep.ring) - 1
    caching = eng.caching != 0
    evicting = trt.evicting != 0
    record_gaps = len(rec.gaps) > 0
    status = lo.DONE
    planned = 0
    prefill_tokens = 0
    num_prefilled = 0
    count = 1
    first = 0.0
    growth = 0.0
    if turn is not None:
        planned = turn.ints[lo.PLANNED]
        turn.ints[lo.PLANNED] = 0
        prefill_tokens = turn.ints[lo.PREFILL_TOKENS]
        num_prefilled = turn.ints[lo.NUM_PREFILLED]
        count = turn.ints[lo.COUNT]
        first = turn.floats[lo.FIRST]
        growth = turn.floats[lo.GROWTH]

    while True:
        if planned == 0:
            visible = last_start if busy == 1 else now
            if visible >= horizon:
                break
            trt.counts[PLAN] += 2
            plan = trt.counts[PLAN]

            # --- plan: pause until the decode rows that begin a block have one. Nobody from ``limit`` on is started
            # then.
            limit = FAR
            growth_blocks = rep.phase[step & phase_mask]
            if evicting and growth_blocks > ints[lo.FREE]:
                if eng.stop_at_preemption != 0:
                    status = lo.PREEMPTED
                    break
                ints[lo.MEMORY_BOUND] = 1
                ints[lo.STEP] = step
                ints[lo.ROWS] = rows
                ints[lo.CONTEXT] = context
                limit = _make_room(rep, req, out, trt, px, caching, shift, now, 0, 0, -1)
                rows = ints[lo.ROWS]
                context = ints[lo.CONTEXT]
                growth_blocks = rep.phase[step & phase_mask]

            # --- the unfinished prompt.
            budget = eng.max_num_batched_tokens - rows
            num_prefilled = 0
            prefill_tokens = 0
            pairs = 0.0
            partial = ints[lo.PARTIAL]
            if partial >= 0:
                known = req.input_tokens[partial] + rep.generated[partial]
                done = ints[lo.PARTIAL_DONE]
                if caching:
                    hit, _ = lookup(px, partial, known >> shift)
                    is_deferred(trt, px, plan, partial, hit, known >> shift)
                chunk = known - done
                if chunk > budget:
                    chunk = budget & ~phase_mask
                    ints[lo.BUDGET_BOUND] = 1
                budget -= chunk
                prefill_tokens = chunk
                pairs = chunk * (done + 0.5 * (chunk + 1))
                ints[lo.PARTIAL_DONE] += chunk
                if done + chunk == known:
                    rep.prefilled[num_prefilled] = partial
                    num_prefilled += 1
                    ints[lo.PARTIAL] = -1

            # --- those who wait, in order of arrival, until one does not fit.
            blocked = ints[lo.PARTIAL] >= 0
            waiting = False
            kept = growth_blocks if evicting else 0
            if trt.wait_steps > 0 and rows > 0 and not blocked and prefill_tokens == 0:
                waiting = _must_wait(rep, req, eng, trt, px, visible, limit, head, end, rows, kept)
            i = 0
            while not (blocked or waiting):
                if i < ints[lo.NUM_PREEMPTED_WAITING]:
                    r = rep.preempted[i]
                elif head < end and req.arrival[rep.queue[head]] <= visible:
                    if ints[lo.NUM_RUNNING] + ints[lo.NUM_PREEMPTED_WAITING] >= eng.max_num_seqs:
                        ints[lo.SLOTS_BOUND] = 1
                        blocked = True
                        break
                    r = rep.queue[head]
                else:
                    break
                if r >= limit:
                    break
                known = req.input_tokens[r] + rep.generated[r]
                hit = 0
                hit_free = 0
                if caching:
                    hit, hit_free = lookup(px, r, (known - 1) >> shift)
                    if is_deferred(trt, px, plan, r, hit, known >> shift):
                        if i == ints[lo.NUM_PREEMPTED_WAITING]:
                            head += 1
                            rep.preempted[i] = r
                            ints[lo.NUM_PREEMPTED_WAITING] += 1
                        i += 1
                        continue
                total = blocks_of(known, shift)
                needed = total if evicting else trt.blocks[r]
                spared = hit - hit_free if trt.counts_reuse != 0 else 0
                if (
                    evicting and needed - spared > ints[lo.FREE] - kept
                ):  # then a deferred one may take from younger ones
                    budget += rows
                    ints[lo.STEP] = step
                    ints[lo.ROWS] = rows
                    ints[lo.CONTEXT] = context
                    limit = min(limit, _make_room(rep, req, out, trt, px, caching, shift, now, needed, hit, r))
                    rows = ints[lo.ROWS]
                    context = ints[lo.CONTEXT]
                    budget -= rows
                    growth_blocks = rep.phase[step & phase_mask]
                    kept = growth_blocks
                    if caching:
                        hit, hit_free = lookup(px, r, hit)
                        spared = hit - hit_free if trt.counts_reuse != 0 else 0
                if needed - spared > ints[lo.FREE] - kept:
                    ints[lo.MEMORY_BOUND] = 1
                    blocked = True
                    break
                done = hit << shift
                counted = known - done if trt.counts_reuse != 0 else known
                if counted > budget:
                    ints[lo.BUDGET_BOUND] = 1
                    blocked = True
                    may_cut = trt.chunking != 0 or counted > eng.max_num_batched_tokens
                    counted = budget & ~phase_mask if may_cut else 0
                    if counted == 0:
                        break
                chunk = min(counted, known - done)
                if i < ints[lo.NUM_PREEMPTED_WAITING]:
                    ints[lo.NUM_PREEMPTED_WAITING] -= 1
                    for j in range(i, ints[lo.NUM_PREEMPTED_WAITING]):
                        rep.preempted[j] = rep.preempted[j + 1]
                else:
                    head += 1
                if out.preemptions[r] == 0:
                    out.cached[r] = done
                budget -= counted
                ints[lo.FREE] -= needed - hit + hit_free
                ints[lo.NUM_RUNNING] += 1
                if caching:
                    touch_hits(px, r, hit)
                    take_blocks(px, total - hit)
                if evicting:
                    ints[lo.RUN_TOP] = _run_in_order(rep, ints[lo.RUN_TOP], r)
                prefill_tokens += chunk
                pairs += chunk * (done + 0.5 * (chunk + 1))
                rep.state[r] = lo.PREFILLING
                if done + chunk == known:
                    rep.prefilled[num_prefilled] = r
                    num_prefilled += 1
                else:
                    ints[lo.PARTIAL] = r
                    ints[lo.PARTIAL_DONE] = done + chunk
            ints[lo.FREE] -= kept
            if caching and growth_blocks > 0:
                take_blocks(px, growth_blocks)
            if caching and px.counters[0] != 0:
                status = lo.OVERFLOW
                break
            if limit < FAR:
                next_finish = _next_finish(rep, step, rows)
            ints[lo.PEAK_BLOCKS] = max(ints[lo.PEAK_BLOCKS], eng.num_blocks - ints[lo.FREE])
            ints[lo.PEAK_RUNNING] = max(ints[lo.PEAK_RUNNING], ints[lo.NUM_RUNNING])

            # --- the previous step's output is processed, after this plan: prompts are stored, requests that ended
            # leave.
            changed = num_pending > 0 or trt.counts[NUM_TO_STORE] > 0
            for i in range(trt.counts[NUM_TO_STORE]):
                r = trt.to_store[i]
                if rep.state[r] != lo.WAITING and rep.state[r] != lo.GONE:  # else it was paused in this plan
                    store_blocks(px, r, (req.input_tokens[r] + rep.generated[r]) >> shift)
            trt.counts[NUM_TO_STORE] = 0
            if caching and num_pending > 1:
                sort_by_arrival(rep.pending, num_pending)
            for i in range(num_pending):
                r = rep.pending[i]
                if rep.state[r] == lo.GONE:
                    continue
                whole = req.input_tokens[r] + req.output_tokens[r] - 1
                blocks = blocks_of(whole + 1 if rep.state[r] == lo.ENDED_BY_STOP else whole, shift)
                ints[lo.FREE] += release_stored_blocks(px, r, blocks, whole >> shift, True) if caching else blocks
                if evicting:
                    rep.running[rep.position[r]] = -1
                else:
                    ints[lo.FREE] += trt.blocks[r] - blocks
                ints[lo.NUM_RUNNING] -= 1

            if rows == 0 and prefill_tokens == 0:
                num_pending = 0
                if busy == 1:
                    busy = 0
                    if turn is not None:
                        break
                    continue
                if ints[lo.NUM_PREEMPTED_WAITING] > 0 or (head < end and req.arrival[rep.queue[head]] <= now):
                    status = lo.STUCK
                    break
                if turn is not None:
                    break
                if head == end or req.arrival[rep.queue[head]] >= horizon:
                    break
                now = req.arrival[rep.queue[head]]
                continue

            if len(rec.samples) > 0 and now >= floats[lo.NEXT_SAMPLE]:
                floats[lo.NEXT_SAMPLE] = now + rec.sample_every
                running, used = ints[lo.NUM_RUNNING], eng.num_blocks - ints[lo.FREE]
                if not record_sample(rec, rep, req, head, end, now, running, ints[lo.NUM_PREEMPTED_WAITING], used):
                    status = lo.OVERFLOW
                    break

            # --- how long it takes, and how many decode steps are like it.
            attention = 0.0
            slope = 0.0
            if rows > 0:
                knot = knot_at(times, rows, context, knot)
                slope = times.attention_slope[rows, knot]
                attention = times.attention_base[rows, knot] + slope * context
            growth = slope * rows
            count = 1
            if prefill_tokens > 0:
                first = mixed_step_s(
                    times, rows, context, attention, rows + prefill_tokens, rows + num_prefilled, prefill_tokens, pairs
                )
                ints[lo.PEAK_TOKENS] = max(ints[lo.PEAK_TOKENS], rows + prefill_tokens)
            else:
                first = times.decode_fixed[rows] + attention
                settled = ints[lo.NUM_PREEMPTED_WAITING] == 0
                if blocked:  # it stays so, unless rows that arrived later run short of blocks and have to give them up
                    settled = not changed and (settled or not evicting or _last_running(rep) < rep.preempted[0])
                if eng.single_step == 0 and ints[lo.NUM_WASTED] == 0 and not waiting and limit == FAR and settled:
                    count = next_finish - step
                    count = min(count, steps_to_knot(times, rows, context, knot))
                    if evicting and count > 1:
                        count = 1 + steps_before_shortage(rep.phase, step + 1, ints[lo.FREE], rows, count - 1)
                    if count > 1 and not blocked:
                        arrival = min(horizon, req.arrival[rep.queue[head]]) if head < end else horizon
                        delay = arrival - now
                        if delay <= 0.0:
                            count = 1
                        elif (count - 1) * (first + 0.5 * growth * (count - 2)) >= delay:
                            count = min(count, 2 + steps_starting_before(delay, first, growth))
            if turn is not None:
                turn.ints[lo.PLANNED] = 1
                turn.ints[lo.NUM_ROWS] = rows
                turn.ints[lo.PREFILL_TOKENS] = prefill_tokens
                turn.ints[lo.NUM_PREFILLED] = num_prefilled
                turn.ints[lo.COUNT] = count
                turn.ints[lo.BLOCKED] = int(blocked)
                turn.floats[lo.FIRST] = first
                turn.floats[lo.GROWTH] = growth
                break
        planned = 0

        # --- run: one step, or a window of decode steps.
        if count > 1 and (evicting or caching):
            extra = ((count - 1) >> shift) * rows
            for i in range((count - 1) & ~phase_mask, count - 1):
                extra += rep.phase[(step + 1 + i) & phase_mask]
            if evicting:
                ints[lo.FREE] -= extra
                ints[lo.PEAK_BLOCKS] = max(ints[lo.PEAK_BLOCKS], eng.num_blocks - ints[lo.FREE])
            if caching and extra > 0:
                take_blocks(px, extra)
        elapsed = count * first + 0.5 * growth * count * (count - 1)
        emitting = rows - ints[lo.NUM_WASTED]
        if record_gaps and emitting > 0 and not record_gap(rec, first, growth, count, emitting):
            status = lo.OVERFLOW
            break
        last_start = now + (count - 1) * first + 0.5 * growth * (count - 1) * (count - 2)
        now += elapsed
        busy = 1
        ints[lo.NUM_STEPS] += count
        ints[lo.NUM_WINDOWS] += 1
        floats[lo.MIXED_TIME if prefill_tokens > 0 else lo.DECODE_TIME] += elapsed
        floats[lo.ROW_TIME] += rows * elapsed
        context += rows * count
        step += count

        # --- rows that ran in vain leave.
        for i in range(num_pending):
            r = rep.pending[i]
            if rep.state[r] == lo.ENDED_BY_STOP:
                length = req.input_tokens[r] + req.output_tokens[r]
                rows -= 1
                context -= length + 1
                rep.phase[(step - length) & phase_mask] -= 1
            rep.state[r] = lo.GONE
        num_pending = 0
        ints[lo.NUM_WASTED] = 0

        # --- finished prompts have emitted a token and decode from now on.
        for i in range(num_prefilled):
            r = rep.prefilled[i]
            length = req.input_tokens[r] + rep.generated[r]
            if rep.generated[r] == 0:
                out.first[r] = now + req.extra[r]
            elif record_gaps and not record_gap(rec, now - rep.last_emit[r], 0.0, 1, 1):
                status = lo.OVERFLOW
            finish = step + req.output_tokens[r] - rep.generated[r] - 1
            rep.finish_step[r] = finish
            rep.state[r] = lo.DECODING
            rep.next_same[r] = rep.ring[finish & ring_mask]
            rep.ring[finish & ring_mask] = r
            next_finish = min(next_finish, finish)
            rows += 1
            context += length + 1
            rep.phase[(step - length) & phase_mask] += 1
            if caching:
                trt.to_store[i] = r
        if caching:
            trt.counts[NUM_TO_STORE] = num_prefilled
        if status == lo.OVERFLOW:
            break

        # --- rows that emitted their last token.
        if next_finish == step:
            r = rep.ring[step & ring_mask]
            rep.ring[step & ring_mask] = -1
            while r >= 0:
                end = record_finish(rep, req, out, lim, r, now, end)
                rep.pending[num_pending] = r
                num_pending += 1
                if req.by_length[r] == 0:
                    rep.state[r] = lo.ENDED_BY_STOP
                    ints[lo.NUM_WASTED] += 1
                else:
                    rep.state[r] = lo.ENDED_BY_LENGTH
                    length = req.input_tokens[r] + req.output_tokens[r] - 1
                    rows -= 1
                    context -= length + 1
                    rep.phase[(step - length) & phase_mask] -= 1
                r = rep.next_same[r]
            next_finish = _next_finish(rep, step, rows - ints[lo.NUM_WASTED])
            if ints[lo.NUM_BAD] > lim.max_bad:
                status = lo.BROKEN
                break
        if turn is not None:
            break

    ints[lo.STEP] = step
    ints[lo.ROWS] = rows
    ints[lo.CONTEXT] = context
    ints[lo.QUEUE_HEAD] = head
    ints[lo.QUEUE_END] = end
    ints[lo.NEXT_FINISH] = next_finish
    ints[lo.NUM_PENDING] = num_pending
    ints[lo.BUSY] = busy
    ints[lo.KNOT] = knot
    floats[lo.NOW] = now
    floats[lo.LAST_START] = last_start
    return status
