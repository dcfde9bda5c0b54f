"""TensorRT-LLM's V1 scheduler with pipeline stages, one replica (specification: docs/pipeline-parallelism.md).

As in ``pipeline.py`` decode rows form as many groups as there are stages, whose rows are never visited one by one; who
is started is decided as in ``trtllm.py``, with ``GUARANTEED_NO_EVICT``. At most as many batches are in flight as
there are stages, so a plan knows all tokens of the step that its group ran before.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from servewise.kernel import layout as lo
from servewise.kernel.clock import record_finish, record_gap, record_sample
from servewise.kernel.layout import Engine, Limits, Outputs, Prefix, Recorder, Replica, Requests, Times, compiled
from servewise.kernel.pipeline import CONTEXT, KNOT, ROWS, Pipeline, count_time, new_pipeline, pass_through
from servewise.kernel.prefix import lookup, release_stored_blocks, store_blocks, take_blocks, touch_hits
from servewise.kernel.rows import blocks_of
from servewise.kernel.steps import knot_at, mixed_step_s
from servewise.kernel.trtllm import PLAN, Trtllm, is_deferred, sort_by_arrival

__all__ = ["TrtllmPipeline", "advance", "new_trtllm_pipeline"]


class TrtllmPipeline(NamedTuple):
    """Stages of every replica, and the settings of ``trt``, whose arrays have the replica as their first axis.

    ``prompts``, shape (num_replicas, num_stages, max_num_seqs + 1), are the requests whose prompts each step in flight
    ends, ``num_prompts`` their numbers.
    """

    pipe: Pipeline
    trt: Trtllm
    prompts: NDArray[np.int32]
    num_prompts: NDArray[np.int64]


def new_trtllm_pipeline(
    engine: Engine, requests: Requests, num_replicas: int, shares: NDArray[np.float64], trt: Trtllm
) -> TrtllmPipeline:
    """Pipelines with nothing in flight; see ``pipeline.new_pipeline``."""
    stages = len(shares)
    return TrtllmPipeline(
        pipe=new_pipeline(engine, requests, num_replicas, shares),
        trt=trt,
        prompts=np.empty((num_replicas, stages, engine.max_num_seqs + 1), np.int32),
        num_prompts=np.zeros((num_replicas, stages), np.int64),
    )


@compiled
def _process(
    rep: Replica, req: Requests, state: TrtllmPipeline, i: int, past: int, px: Prefix, caching: bool, shift: int
) -> None:
    """The outputs of step number ``past`` are there: prompts are stored, requests that ended in it leave."""
    ints = rep.ints
    stages = len(state.pipe.shares)
    group = past % stages
    if caching:
        for j in range(state.num_prompts[i, group]):
            r = state.prompts[i, group, j]
            store_blocks(px, r, req.input_tokens[r] >> shift)
    state.num_prompts[i, group] = 0
    calendar = state.pipe.ring[i, group]
    place = (past // stages) & (len(calendar) - 1)
    r = calendar[place]
    calendar[place] = -1
    count = 0
    while r >= 0:
        rep.pending[count] = r
        count += 1
        r = rep.next_same[r]
    if caching and count > 1:
        sort_by_arrival(rep.pending, count)
    for j in range(count):
        r = rep.pending[j]
        whole = req.input_tokens[r] + req.output_tokens[r] - 1
        blocks = blocks_of(whole, shift)
        freed = release_stored_blocks(px, r, blocks, whole >> shift, True) if caching else blocks
        ints[lo.FREE] += freed + state.trt.blocks[r] - blocks
        ints[lo.NUM_RUNNING] -= 1


@compiled
def advance(
    rep: Replica,
    req: Requests,
    out: Outputs,
    times: Times,
    eng: Engine,
    lim: Limits,
    state: TrtllmPipeline,
    i: int,
    px: Prefix,
    rec: Recorder,
    horizon: float,
) -> int:
    """Simulate every step of replica ``i`` that is planned before ``horizon``; returns a status of ``layout``.

    Mutates everything but ``req``, ``times``, ``eng`` and ``lim``, and ``req.arrival`` in a closed loop. ``px``,
    ``rec`` and ``state.trt`` are the replica's own. ``eng.max_num_seqs`` is the most of all batches together.
    ``horizon`` as in ``trtllm.advance``.
    """
    ints, floats = rep.ints, rep.floats
    pipe, trt = state.pipe, state.trt
    groups, left, emitted, ends = pipe.groups[i], pipe.left[i], pipe.emitted[i], pipe.ends[i]
    step = ints[lo.STEP]
    head = ints[lo.QUEUE_HEAD]
    end = ints[lo.QUEUE_END]
    now = floats[lo.NOW]
    last_end = floats[lo.LAST_START]  # of the last step planned
    stages = len(left)
    shift = eng.block_shift
    phase_mask = (1 << shift) - 1
    caching = eng.caching != 0
    record_gaps = len(rec.gaps) > 0
    status = lo.DONE

    while True:
        at = max(now, ends[step % stages])
        if at >= horizon:
            break
        now = at
        if step >= stages:
            _process(rep, req, state, i, step - stages, px, caching, shift)
        trt.counts[PLAN] += 1
        plan = trt.counts[PLAN]
        group = step % stages
        turn = step // stages
        phase = pipe.phase[i, group]
        rows = groups[group, ROWS]
        context = groups[group, CONTEXT]

        # --- plan: the unfinished prompt, whose earlier chunks may still be in the pipeline.
        budget = eng.max_num_batched_tokens - rows
        seats = eng.max_num_seqs // stages - rows
        num_prompts = 0
        prefill_tokens = 0
        pairs = 0.0
        partial = ints[lo.PARTIAL]
        if partial >= 0:
            known = req.input_tokens[partial]
            done = ints[lo.PARTIAL_DONE]
            if caching:
                hit, _ = lookup(px, partial, known >> shift)
                is_deferred(trt, px, plan, partial, hit, known >> shift)
            chunk = known - done
            if chunk > budget:
                chunk = budget & ~phase_mask
                ints[lo.BUDGET_BOUND] = 1
            if seats == 0:
                chunk = 0
                ints[lo.SLOTS_BOUND] = 1
            seats -= 1
            budget -= chunk
            prefill_tokens = chunk
            pairs = chunk * (done + 0.5 * (chunk + 1))
            ints[lo.PARTIAL_DONE] += chunk
            if done + chunk == known:
                state.prompts[i, group, 0] = partial
                num_prompts = 1
                ints[lo.PARTIAL] = -1

        # --- those who wait, in order of arrival, until one does not fit.
        blocked = ints[lo.PARTIAL] >= 0
        j = 0
        while not blocked:
            if j < ints[lo.NUM_PREEMPTED_WAITING]:
                r = rep.preempted[j]
            elif head < end and req.arrival[rep.queue[head]] <= now:
                if ints[lo.NUM_RUNNING] + ints[lo.NUM_PREEMPTED_WAITING] >= eng.max_num_seqs:
                    ints[lo.SLOTS_BOUND] = 1
                    break
                r = rep.queue[head]
            else:
                break
            if seats <= 0:
                ints[lo.SLOTS_BOUND] = 1
                break
            known = req.input_tokens[r]
            hit = 0
            hit_free = 0
            if caching:
                hit, hit_free = lookup(px, r, (known - 1) >> shift)
                if is_deferred(trt, px, plan, r, hit, known >> shift):
                    if j == ints[lo.NUM_PREEMPTED_WAITING]:
                        head += 1
                        rep.preempted[j] = r
                        ints[lo.NUM_PREEMPTED_WAITING] += 1
                    j += 1
                    continue
            needed = trt.blocks[r]
            spared = hit - hit_free if trt.counts_reuse != 0 else 0
            if needed - spared > ints[lo.FREE]:
                ints[lo.MEMORY_BOUND] = 1
                break
            done = hit << shift
            counted = known - done if trt.counts_reuse != 0 else known
            if counted > budget:
                ints[lo.BUDGET_BOUND] = 1
                blocked = True
                counted = budget & ~phase_mask if trt.chunking != 0 else 0
                if counted == 0:
                    break
            chunk = min(counted, known - done)
            if j < ints[lo.NUM_PREEMPTED_WAITING]:
                ints[lo.NUM_PREEMPTED_WAITING] -= 1
                for k in range(j, ints[lo.NUM_PREEMPTED_WAITING]):
                    rep.preempted[k] = rep.preempted[k + 1]
            else:
                head += 1
            out.cached[r] = done
            budget -= counted
            seats -= 1
            ints[lo.FREE] -= needed - hit + hit_free
            ints[lo.NUM_RUNNING] += 1
            if caching:
                touch_hits(px, r, hit)
                take_blocks(px, blocks_of(known, shift) - hit)
            prefill_tokens += chunk
            pairs += chunk * (done + 0.5 * (chunk + 1))
            rep.state[r] = lo.PREFILLING
            if done + chunk == known:
                state.prompts[i, group, num_prompts] = r
                num_prompts += 1
            else:
                ints[lo.PARTIAL] = r
                ints[lo.PARTIAL_DONE] = done + chunk
        growth_blocks = phase[turn & phase_mask]
        if caching and growth_blocks > 0:
            take_blocks(px, growth_blocks)
        if caching and px.counters[0] != 0:
            status = lo.OVERFLOW
            break
        ints[lo.PEAK_BLOCKS] = max(ints[lo.PEAK_BLOCKS], eng.num_blocks - ints[lo.FREE])
        ints[lo.PEAK_RUNNING] = max(ints[lo.PEAK_RUNNING], ints[lo.NUM_RUNNING])
        if len(rec.samples) > 0 and now >= floats[lo.NEXT_SAMPLE]:
            floats[lo.NEXT_SAMPLE] = now + rec.sample_every
            running, used = ints[lo.NUM_RUNNING], eng.num_blocks - ints[lo.FREE]
            if not record_sample(rec, rep, req, head, end, now, running, ints[lo.NUM_PREEMPTED_WAITING], used):
                status = lo.OVERFLOW
                break

        # --- nothing to run: the step is processed with the one before it, or the replica is idle.
        if rows == 0 and prefill_tokens == 0:
            if ints[lo.NUM_RUNNING] > 0 or last_end > now:
                last_end = max(now, last_end)
                ends[step % stages] = last_end
                step += 1
                continue
            if ints[lo.NUM_PREEMPTED_WAITING] > 0 or (head < end and req.arrival[rep.queue[head]] <= now):
                status = lo.STUCK
                break
            if head == end or req.arrival[rep.queue[head]] >= horizon:
                break
            now = req.arrival[rep.queue[head]]
            continue

        # --- how long its pass takes, and when it leaves the pipeline.
        state.num_prompts[i, group] = num_prompts
        attention = 0.0
        if rows > 0:
            knot = knot_at(times, rows, context, groups[group, KNOT])
            groups[group, KNOT] = knot
            attention = times.attention_base[rows, knot] + times.attention_slope[rows, knot] * context
        if prefill_tokens > 0:
            emitting, tokens = rows + num_prompts, rows + prefill_tokens
            sampled = times.sample[emitting]
            layers = mixed_step_s(times, rows, context, attention, tokens, emitting, prefill_tokens, pairs) - sampled
            ints[lo.PEAK_TOKENS] = max(ints[lo.PEAK_TOKENS], tokens)
        else:
            sampled = times.sample[rows]
            layers = times.decode_fixed[rows] - sampled + attention
        count_time(rep, prefill_tokens > 0, rows, (layers + sampled) / stages)
        last_end = pass_through(left, pipe.shares, now, layers, sampled)
        ends[step % stages] = last_end
        if record_gaps and rows > 0 and not record_gap(rec, last_end - emitted[group], 0.0, 1, rows):
            status = lo.OVERFLOW
            break
        emitted[group] = last_end
        ints[lo.NUM_STEPS] += 1
        ints[lo.NUM_WINDOWS] += 1
        context += rows
        turn += 1

        # --- finished prompts emit a token and join the group.
        calendar = pipe.ring[i, group]
        for j in range(num_prompts):
            r = state.prompts[i, group, j]
            length = req.input_tokens[r]
            out.first[r] = last_end + req.extra[r]
            rep.state[r] = lo.DECODING
            place = (turn - 1 + req.output_tokens[r] - 1) & (len(calendar) - 1)
            rep.next_same[r] = calendar[place]
            calendar[place] = r
            rows += 1
            context += length + 1
            phase[(turn - length) & phase_mask] += 1

        # --- rows that emit their last token.
        r = calendar[(turn - 1) & (len(calendar) - 1)]
        while r >= 0:
            end = record_finish(rep, req, out, lim, r, last_end, end)
            rep.state[r] = lo.GONE
            length = req.input_tokens[r] + req.output_tokens[r] - 1
            rows -= 1
            context -= length + 1
            phase[(turn - length) & phase_mask] -= 1
            r = rep.next_same[r]
        groups[group, ROWS] = rows
        groups[group, CONTEXT] = context
        step += 1
        if ints[lo.NUM_BAD] > lim.max_bad:
            status = lo.BROKEN
            break

    ints[lo.STEP] = step
    ints[lo.QUEUE_HEAD] = head
    ints[lo.QUEUE_END] = end
    # whether something may finish, and that it may do so at once: see ``fleet``
    ints[lo.ROWS] = min(ints[lo.NUM_RUNNING], 1)
    ints[lo.NEXT_FINISH] = step
    floats[lo.NOW] = now
    floats[lo.LAST_START] = last_end
    return status
