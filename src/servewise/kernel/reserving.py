"""Engines that set a request's whole KV cache aside when they admit it, one replica, with exact fast-forward.

TensorRT-LLM mixes prompts and decode rows in a step, SGLang runs prompts alone (specification:
docs/reserving-scheduler.md). Nothing that was admitted ever waits for memory again, so a request has three
events: it is admitted, its prompt is finished, its last token is out. As in ``vllm.py`` decode rows are never
visited one by one, and a *window* of equal decode steps ends with the first step in which something else can
happen: a row finishes, a piece of the step table ends, or a plan can see an arrival.

Both engines plan a step while the one before it runs (a lag of one step). The calendar of finishes counts the
steps in which decode rows run.
"""

from __future__ import annotations

import math

from servewise.kernel import layout as lo
from servewise.kernel.clock import misses, record_gap, record_sample, send_next, steps_starting_before
from servewise.kernel.layout import (
    Engine,
    Limits,
    Outputs,
    Recorder,
    Replica,
    Requests,
    Reservation,
    Times,
    compiled,
)

__all__ = ["advance"]


@compiled
def _record_window(
    rep: Replica, rec: Recorder, top: int, since: float, now: float, first: float, growth: float, count: int, rows: int
) -> bool:
    """Record the gaps that ``count`` decode steps of ``rows`` rows from ``now`` on end; False without room.

    Where prompts run alone, rows wait for them: the ``top`` requests in ``rep.running`` have emitted their first
    token after ``since``, when the others emitted their last one.
    """
    if top == 0 and since == now:
        return record_gap(rec, first, growth, count, rows)
    for i in range(top):
        if not record_gap(rec, now + first - rep.last_emit[rep.running[i]], 0.0, 1, 1):
            return False
    older = rows - top
    if older > 0 and not record_gap(rec, now + first - since, 0.0, 1, older):
        return False
    return count == 1 or record_gap(rec, first + growth, growth, count - 1, rows)


@compiled
def _must_wait(
    rep: Replica, req: Requests, eng: Engine, res: Reservation, visible: float, head: int, end: int, free: int
) -> bool:
    """Whether the prompts that could run now wait for more of them; counts the steps they have waited."""
    ints = rep.ints
    tokens = ints[lo.ROWS]
    slots = eng.max_num_seqs - ints[lo.NUM_RUNNING]
    budget = eng.max_num_batched_tokens - tokens
    any_prompt = False
    while head < end and slots > 0 and req.arrival[rep.queue[head]] <= visible:
        r = rep.queue[head]
        prompt = req.input_tokens[r]
        if res.blocks[r] > free or prompt > budget:
            break
        any_prompt = True
        slots -= 1
        free -= res.blocks[r]
        budget -= prompt
        tokens += prompt
        head += 1
    if any_prompt and ints[lo.WAITED] < res.wait_steps and tokens < res.wait_tokens:
        ints[lo.WAITED] += 1
        return True
    if any_prompt:
        ints[lo.WAITED] = 0
    return False


@compiled
def advance(
    rep: Replica,
    req: Requests,
    out: Outputs,
    times: Times,
    eng: Engine,
    lim: Limits,
    res: Reservation,
    rec: Recorder,
    horizon: float,
) -> int:
    """Simulate every step that is planned before ``horizon``; returns a status of ``layout``.

    Mutates ``rep``, ``out`` and ``rec``, and ``req.arrival`` in a closed loop. ``horizon`` must be infinite or not
    exceed the arrival of any request that is not yet in the replica's queue.
    """
    ints, floats = rep.ints, rep.floats
    step = ints[lo.STEP]
    rows = ints[lo.ROWS]
    context = ints[lo.CONTEXT]
    num_running = ints[lo.NUM_RUNNING]
    top = ints[lo.RUN_TOP]
    free = ints[lo.FREE]
    partial = ints[lo.PARTIAL]
    partial_done = ints[lo.PARTIAL_DONE]
    head = ints[lo.QUEUE_HEAD]
    end = ints[lo.QUEUE_END]
    next_finish = ints[lo.NEXT_FINISH]
    num_pending = ints[lo.NUM_PENDING]
    num_wasted = ints[lo.NUM_WASTED]
    busy = ints[lo.BUSY]
    knot = ints[lo.KNOT]
    now = floats[lo.NOW]
    last_start = floats[lo.LAST_START]
    last_emission = floats[lo.LAST_EMISSION]

    exclusive = res.exclusive != 0
    record_gaps = len(rec.gaps) > 0
    ring_mask = len(rep.ring) - 1
    num_knots = len(times.knots)
    status = lo.DONE

    while True:
        visible = last_start if busy == 1 else now
        if visible >= horizon:
            break

        # --- plan: the unfinished prompt first, then the queue, head first, until something does not fit.
        budget = eng.max_num_batched_tokens if exclusive else eng.max_num_batched_tokens - rows
        num_prefilled = 0
        prefill_tokens = 0
        pairs = 0.0
        if partial >= 0:
            chunk = req.input_tokens[partial] - partial_done
            if chunk > budget:
                chunk = budget // res.cut * res.cut
                ints[lo.BUDGET_BOUND] = 1
            budget -= (chunk + res.charge - 1) // res.charge * res.charge
            prefill_tokens = chunk
            pairs = chunk * (partial_done + 0.5 * (chunk + 1))
            partial_done += chunk
            if partial_done == req.input_tokens[partial]:
                rep.prefilled[num_prefilled] = partial
                num_prefilled += 1
                partial = -1
        blocked = partial >= 0
        waiting = False
        if res.wait_steps > 0 and rows > 0 and not blocked and prefill_tokens == 0:
            ints[lo.ROWS] = rows
            ints[lo.NUM_RUNNING] = num_running
            waiting = _must_wait(rep, req, eng, res, visible, head, end, free)
        while not (blocked or waiting) and head < end and req.arrival[rep.queue[head]] <= visible:
            r = rep.queue[head]
            if num_running >= eng.max_num_seqs:
                ints[lo.SLOTS_BOUND] = 1
                blocked = True
                break
            if res.blocks[r] > free:
                ints[lo.MEMORY_BOUND] = 1
                blocked = True
                break
            chunk = req.input_tokens[r]
            charged = (chunk + res.charge - 1) // res.charge * res.charge
            if charged > budget:
                ints[lo.BUDGET_BOUND] = 1
                blocked = True
                chunk = budget // res.cut * res.cut if res.chunking != 0 else 0
                if chunk == 0:
                    break
                partial = r
                partial_done = chunk
            else:
                rep.prefilled[num_prefilled] = r
                num_prefilled += 1
            budget -= charged
            head += 1
            free -= res.blocks[r]
            num_running += 1
            prefill_tokens += chunk
            pairs += chunk * 0.5 * (chunk + 1)
            rep.state[r] = lo.PREFILLING
        ints[lo.PEAK_BLOCKS] = max(ints[lo.PEAK_BLOCKS], eng.num_blocks - free)
        ints[lo.PEAK_RUNNING] = max(ints[lo.PEAK_RUNNING], num_running)

        # --- the previous step's output is processed: requests that ended leave, after this plan.
        released = num_pending > 0
        for i in range(num_pending):
            free += res.blocks[rep.pending[i]]
            num_running -= 1

        if rows == 0 and prefill_tokens == 0:
            num_pending = 0
            if busy == 1:
                busy = 0
                continue
            if head < end and req.arrival[rep.queue[head]] <= now:
                status = lo.STUCK
                break
            if head == end or req.arrival[rep.queue[head]] >= horizon:
                break
            now = req.arrival[rep.queue[head]]
            continue

        if len(rec.samples) > 0 and now >= floats[lo.NEXT_SAMPLE]:
            floats[lo.NEXT_SAMPLE] = now + rec.sample_every
            if not record_sample(rec, rep, req, head, end, now, num_running, 0, eng.num_blocks - free):
                status = lo.OVERFLOW
                break

        # --- run: one step, or a window of decode steps.
        decoding = 0 if exclusive and prefill_tokens > 0 else rows
        attention = 0.0
        slope = 0.0
        if decoding > 0:
            while context < times.knots[knot] * rows:
                knot -= 1
            while knot + 1 < num_knots and context >= times.knots[knot + 1] * rows:
                knot += 1
            slope = times.attention_slope[rows, knot]
            attention = times.attention_base[rows, knot] + slope * context
            if prefill_tokens > 0:
                attention = max(attention, times.mixed_row_fixed * rows + times.mixed_row_per_token * context)
        growth = slope * decoding
        count = 1
        if prefill_tokens > 0:
            first = (
                times.mixed_tokens[decoding + prefill_tokens]
                + attention
                + times.sample[decoding + num_prefilled]
                + times.prefill_fixed
                + times.prefill_per_token * prefill_tokens
                + times.prefill_per_pair * pairs
            )
            ints[lo.PEAK_TOKENS] = max(ints[lo.PEAK_TOKENS], decoding + prefill_tokens)
        else:
            first = times.decode_fixed[rows] + attention
            if eng.single_step == 0 and num_wasted == 0 and not waiting and not (blocked and released):
                count = next_finish - step
                if knot + 1 < num_knots:
                    count = min(count, math.ceil((times.knots[knot + 1] * rows - context) / rows))
                if count > 1 and not blocked:
                    arrival = min(horizon, req.arrival[rep.queue[head]]) if head < end else horizon
                    delay = arrival - now
                    if delay <= 0.0:
                        count = 1
                    elif (count - 1) * (first + 0.5 * growth * (count - 2)) >= delay:
                        count = min(count, 2 + steps_starting_before(delay, first, growth))
        elapsed = count * first + 0.5 * growth * count * (count - 1)
        if decoding > 0 and record_gaps and rows > num_wasted:
            since = last_emission if exclusive else now
            if not _record_window(rep, rec, top, since, now, first, growth, count, rows - num_wasted):
                status = lo.OVERFLOW
                break
        last_start = now + (count - 1) * first + 0.5 * growth * (count - 1) * (count - 2)
        now += elapsed
        busy = 1
        ints[lo.NUM_STEPS] += count
        ints[lo.NUM_WINDOWS] += 1
        floats[lo.MIXED_TIME if prefill_tokens > 0 else lo.DECODE_TIME] += elapsed
        floats[lo.ROW_TIME] += decoding * elapsed
        context += decoding * count
        if decoding > 0 or not exclusive:
            step += count
            last_emission = now
            top = 0

        # --- rows that ran in vain leave, without having run if prompts ran alone.
        for i in range(num_pending):
            r = rep.pending[i]
            if rep.state[r] == lo.ENDED_BY_STOP:
                rows -= 1
                context -= req.input_tokens[r] + req.output_tokens[r] + (1 if decoding > 0 else 0)
            rep.state[r] = lo.GONE
        num_pending = 0
        num_wasted = 0

        # --- finished prompts have emitted a token and decode from now on.
        for i in range(num_prefilled):
            r = rep.prefilled[i]
            out.first[r] = now + req.extra[r]
            finish = step + req.output_tokens[r] - 1
            rep.state[r] = lo.DECODING
            rep.next_same[r] = rep.ring[finish & ring_mask]
            rep.ring[finish & ring_mask] = r
            next_finish = min(next_finish, finish)
            rows += 1
            context += req.input_tokens[r] + 1
            if exclusive and req.output_tokens[r] > 1:
                rep.last_emit[r] = now
                rep.running[top] = r
                top += 1

        # --- rows that emitted their last token.
        if next_finish == step:
            r = rep.ring[step & ring_mask]
            rep.ring[step & ring_mask] = -1
            while r >= 0:
                if len(rep.finish_times) > 0:
                    rep.finish_times[ints[lo.NUM_FINISHED]] = now
                ints[lo.NUM_FINISHED] += 1
                out.last[r] = now + req.extra[r]
                if misses(req, out, lim, r):
                    ints[lo.NUM_BAD] += 1
                if req.think >= 0.0:
                    end = send_next(req, end, out.last[r] + req.think)
                rep.pending[num_pending] = r
                num_pending += 1
                if req.by_length[r] == 0:
                    rep.state[r] = lo.ENDED_BY_STOP
                    num_wasted += 1
                else:
                    rep.state[r] = lo.ENDED_BY_LENGTH
                    rows -= 1
                    context -= req.input_tokens[r] + req.output_tokens[r]
                r = rep.next_same[r]
            next_finish = 1 << 60
            if rows > num_wasted:
                next_finish = step + 1
                while rep.ring[next_finish & ring_mask] < 0:
                    next_finish += 1
            if ints[lo.NUM_BAD] > lim.max_bad:
                status = lo.BROKEN
                break

    ints[lo.STEP] = step
    ints[lo.ROWS] = rows
    ints[lo.CONTEXT] = context
    ints[lo.NUM_RUNNING] = num_running
    ints[lo.RUN_TOP] = top
    ints[lo.FREE] = free
    ints[lo.PARTIAL] = partial
    ints[lo.PARTIAL_DONE] = partial_done
    ints[lo.QUEUE_HEAD] = head
    ints[lo.QUEUE_END] = end
    ints[lo.NEXT_FINISH] = next_finish
    ints[lo.NUM_PENDING] = num_pending
    ints[lo.NUM_WASTED] = num_wasted
    ints[lo.BUSY] = busy
    ints[lo.KNOT] = knot
    floats[lo.NOW] = now
    floats[lo.LAST_START] = last_start
    floats[lo.LAST_EMISSION] = last_emission
    return status
