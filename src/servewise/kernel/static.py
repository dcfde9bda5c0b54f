"""Static batching, one replica, with exact fast-forward (specification: docs/baseline-schedulers.md).

A batch is made when nothing runs, computes its prompts in one step, padded to the longest, and decodes until all its
requests have ended. Nothing that arrives changes it, so a *window* of equal decode steps ends only with the first
step in which a row ends or a piece of the step table does.
"""

from __future__ import annotations

from typing import NamedTuple

from servewise.kernel import layout as lo
from servewise.kernel.clock import record_finish, record_gap, record_sample
from servewise.kernel.layout import Engine, Limits, Outputs, Recorder, Replica, Requests, Times, compiled
from servewise.kernel.steps import knot_at, mixed_step_s, steps_to_knot

__all__ = ["Batching", "advance"]


class Batching(NamedTuple):
    """How batches are made: at most ``slots`` requests with ``blocks`` KV blocks each; the first waits ``max_wait`` [s]
    for more.

    ``by_memory`` is 1 when memory, not ``max_batch_size``, decides the number of slots.
    """

    slots: int
    blocks: int
    by_memory: int
    max_wait: float


@compiled
def advance(
    rep: Replica,
    req: Requests,
    out: Outputs,
    times: Times,
    eng: Engine,
    lim: Limits,
    batching: Batching,
    rec: Recorder,
    horizon: float,
) -> int:
    """Simulate every step that is planned before ``horizon``; returns a status of ``layout``.

    Mutates ``rep``, ``out`` and ``rec``, and ``req.arrival`` in a closed loop. ``horizon`` must be infinite or not
    exceed the arrival of any request that is not yet in the replica's queue.
    """
    ints, floats = rep.ints, rep.floats
    step = ints[lo.STEP]
    rows = ints[lo.ROWS]  # that have not ended
    context = ints[lo.CONTEXT]
    size = ints[lo.NUM_RUNNING]  # of the batch, ended requests included
    head = ints[lo.QUEUE_HEAD]
    end = ints[lo.QUEUE_END]
    next_finish = ints[lo.NEXT_FINISH]
    knot = ints[lo.KNOT]
    now = floats[lo.NOW]

    ring_mask = len(rep.ring) - 1
    status = lo.DONE

    while True:
        # --- a batch, if nothing runs: as soon as it is full, or its first request has waited long enough.
        longest = 0
        if size == 0:
            if head == end:
                break
            start = req.arrival[rep.queue[head]] + batching.max_wait
            if head + batching.slots <= end:
                start = min(start, req.arrival[rep.queue[head + batching.slots - 1]])
            start = max(start, now)
            if start >= horizon:
                break
            now = start
            while size < batching.slots and head < end and req.arrival[rep.queue[head]] <= now:
                r = rep.queue[head]
                rep.prefilled[size] = r
                rep.state[r] = lo.PREFILLING
                longest = max(longest, req.input_tokens[r])
                size += 1
                head += 1
            if head < end and req.arrival[rep.queue[head]] <= now:
                ints[lo.MEMORY_BOUND if batching.by_memory != 0 else lo.SLOTS_BOUND] = 1
            ints[lo.PEAK_RUNNING] = max(ints[lo.PEAK_RUNNING], size)
            ints[lo.PEAK_BLOCKS] = max(ints[lo.PEAK_BLOCKS], size * batching.blocks)
        elif now >= horizon:
            break

        if len(rec.samples) > 0 and now >= floats[lo.NEXT_SAMPLE]:
            floats[lo.NEXT_SAMPLE] = now + rec.sample_every
            running = size if longest > 0 else rows
            if not record_sample(rec, rep, req, head, end, now, running, 0, size * batching.blocks):
                status = lo.OVERFLOW
                break

        # --- run: the prompts, or a window of decode steps, whose fixed part is that of the whole batch.
        count = 1
        growth = 0.0
        if longest > 0:
            tokens = size * longest
            first = mixed_step_s(times, 0, 0, 0.0, tokens, size, tokens, 0.5 * tokens * (longest + 1))
            ints[lo.PEAK_TOKENS] = max(ints[lo.PEAK_TOKENS], tokens)
        else:
            knot = knot_at(times, rows, context, knot)
            slope = times.attention_slope[rows, knot]
            first = times.decode_fixed[size] + times.attention_base[rows, knot] + slope * context
            growth = slope * rows
            if eng.single_step == 0:
                count = next_finish - step
                count = min(count, steps_to_knot(times, rows, context, knot))
        elapsed = count * first + 0.5 * growth * count * (count - 1)
        if longest == 0 and len(rec.gaps) > 0 and not record_gap(rec, first, growth, count, rows):
            status = lo.OVERFLOW
            break
        now += elapsed
        step += count
        context += rows * count
        ints[lo.NUM_STEPS] += count
        ints[lo.NUM_WINDOWS] += 1
        floats[lo.MIXED_TIME if longest > 0 else lo.DECODE_TIME] += elapsed
        if longest == 0:
            floats[lo.ROW_TIME] += size * elapsed

        # --- finished prompts have emitted a token and decode from now on.
        if longest > 0:
            next_finish = 1 << 60
            for i in range(size):
                r = rep.prefilled[i]
                out.first[r] = now + req.extra[r]
                finish = step + req.output_tokens[r] - 1
                rep.state[r] = lo.DECODING
                rep.next_same[r] = rep.ring[finish & ring_mask]
                rep.ring[finish & ring_mask] = r
                next_finish = min(next_finish, finish)
                rows += 1
                context += req.input_tokens[r] + 1

        # --- rows that emitted their last token; the batch goes on without their attention.
        if next_finish == step:
            r = rep.ring[step & ring_mask]
            rep.ring[step & ring_mask] = -1
            while r >= 0:
                end = record_finish(rep, req, out, lim, r, now, end)
                rep.state[r] = lo.GONE
                rows -= 1
                context -= req.input_tokens[r] + req.output_tokens[r]
                r = rep.next_same[r]
            next_finish = 1 << 60
            if rows > 0:
                next_finish = step + 1
                while rep.ring[next_finish & ring_mask] < 0:
                    next_finish += 1
            else:
                size = 0
            if ints[lo.NUM_BAD] > lim.max_bad:
                status = lo.BROKEN
                break

    ints[lo.STEP] = step
    ints[lo.ROWS] = rows
    ints[lo.CONTEXT] = context
    ints[lo.NUM_RUNNING] = size
    ints[lo.QUEUE_HEAD] = head
    ints[lo.QUEUE_END] = end
    ints[lo.NEXT_FINISH] = next_finish
    ints[lo.KNOT] = knot
    floats[lo.NOW] = now
    return status
