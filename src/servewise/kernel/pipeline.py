"""vLLM's scheduler with pipeline stages, one replica (specification: docs/pipeline-parallelism.md).

Decode rows form as many *groups* as there are stages; step number ``j`` belongs to group ``j % num_stages``, whose
``j // num_stages``-th *turn* it is. Rows are never visited one by one: a group is its number of rows, the sum of their
contexts, a histogram of the turns before which rows need a block, and a calendar of last tokens.

When a batch leaves the pipeline is known when it is planned, because batches never overtake each other. So its tokens
are delivered at once; what a plan may not know yet, blocks and seats of requests that ended, stays until the step is
processed, before plan ``j + depth``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from servewise.kernel import layout as lo
from servewise.kernel.clock import record_finish, record_gap, record_sample
from servewise.kernel.layout import Engine, Limits, Outputs, Prefix, Recorder, Replica, Requests, Times, compiled
from servewise.kernel.prefix import hash_blocks, lookup, take_blocks, touch_hits
from servewise.kernel.rows import blocks_of, compact, release, sort_by_position
from servewise.kernel.steps import knot_at, mixed_step_s

__all__ = [
    "CONTEXT",
    "KNOT",
    "LAYERS",
    "NUM_FLIGHT_FLOATS",
    "NUM_FLIGHT_INTS",
    "PREFILL_TOKENS",
    "REAL",
    "ROWS",
    "ROWS_RUN",
    "SAMPLED",
    "Flight",
    "Pipeline",
    "advance",
    "count_time",
    "deliver",
    "new_pipeline",
    "pass_through",
]

# Columns of ``Pipeline.groups``.
ROWS = 0
CONTEXT = 1
WASTED = 2
KNOT = 3

# Integers and floats of ``Flight``.
REAL = 0
"""Whether the pass has rows: it is a dummy otherwise."""
ROWS_RUN = 1
PREFILL_TOKENS = 2
NUM_PREFILLED = 3
EMITTING = 4
"""Decode rows that emit a token."""
KEEPS = 5
"""Whether the group's next pass waits for a token of this one."""
NUM_FLIGHT_INTS = 6
LAYERS = 0
"""What its rows take in the layers beside the passes' common part [s]."""
SAMPLED = 1
NUM_FLIGHT_FLOATS = 2


class Pipeline(NamedTuple):
    """Stages of every replica, the replica as the first axis of what changes.

    ``shares``, shape (num_stages,), are the parts of the layers on each stage. ``groups``, shape (n, num_stages, 4),
    are the rows of each group, the sum of their contexts, rows that will run in vain, and the place in the step table;
    ``phase`` and ``ring`` as in ``Replica``, for each group and by turns. ``left``, shape (n, num_stages), is when the
    last batch left each stage, ``emitted``, of the same shape, when the tokens came that each group's next step needs.
    ``ends``, shape (n, depth), holds when the last ``depth`` steps are processed. ``seen``, shape (num_requests,), is
    the last step of a preempted request's rows.
    """

    shares: NDArray[np.float64]
    groups: NDArray[np.int64]
    phase: NDArray[np.int64]
    ring: NDArray[np.int32]
    left: NDArray[np.float64]
    emitted: NDArray[np.float64]
    ends: NDArray[np.float64]
    seen: NDArray[np.int64]


class Flight(NamedTuple):
    """One pass of a rank, its rows and the requests whose prompts it ends; of ``num_resolved`` passes the times are
    known."""

    num_resolved: int
    ints: NDArray[np.int64]
    floats: NDArray[np.float64]
    prefilled: NDArray[np.int32]


def new_pipeline(engine: Engine, requests: Requests, num_replicas: int, shares: NDArray[np.float64]) -> Pipeline:
    """Pipelines with nothing in flight."""
    n, p = num_replicas, len(shares)
    longest = int(requests.output_tokens.max(initial=0))
    return Pipeline(
        shares=shares,
        groups=np.zeros((n, p, 4), np.int64),
        phase=np.zeros((n, p, 1 << engine.block_shift), np.int64),
        ring=np.full((n, p, 1 << (longest + 4).bit_length()), -1, np.int32),
        left=np.zeros((n, p)),
        emitted=np.zeros((n, p)),
        ends=np.zeros((n, p + engine.lag)),
        seen=np.zeros(len(requests.arrival), np.int64),
    )


@compiled
def unlink(rep: Replica, calendar: Any, r: int, place: int) -> None:
    """Take a request out of a group's calendar."""
    other = calendar[place]
    if other == r:
        calendar[place] = rep.next_same[r]
        return
    while rep.next_same[other] != r:
        other = rep.next_same[other]
    rep.next_same[other] = rep.next_same[r]


@compiled
def _drop(rep: Replica, num_preempted: int, place: int) -> int:
    """Take a request out of the stack of preempted ones; returns its new height."""
    for i in range(place + 1, num_preempted):
        rep.preempted[i - 1] = rep.preempted[i]
    return num_preempted - 1


@compiled
def _hash_named_outputs(
    rep: Replica, req: Requests, px: Prefix, top: int, step: int, stages: int, lag: int, shift: int
) -> None:
    """Give the blocks that a group's rows have filled with known tokens their identity, where the trace names it."""
    for i in range(top):
        r = rep.running[i]
        if r < 0 or (rep.finish_step[r] - step) % stages != 0:
            continue
        if rep.state[r] == lo.DECODING or rep.state[r] == lo.ENDED_BY_STOP:
            whole = req.input_tokens[r] + req.output_tokens[r] - 1
            known = whole - (rep.finish_step[r] - step) // stages - lag
            hash_blocks(px, r, min(known, whole) >> shift)


@compiled
def pass_through(left: Any, shares: Any, ready: float, layers: float, sampled: float) -> float:
    """Send a batch through the stages from ``ready`` on; returns when it leaves the last one."""
    at = ready
    last = len(left) - 1
    for s in range(last):
        at = max(at, left[s]) + layers * shares[s]
        left[s] = at
    at = max(at, left[last]) + layers * shares[last] + sampled
    left[last] = at
    return float(at)


@compiled
def count_time(rep: Replica, prompts: bool, rows: int, spent: float) -> None:
    """Add a batch's time, as the mean stage spends it."""
    rep.floats[lo.MIXED_TIME if prompts else lo.DECODE_TIME] += spent
    rep.floats[lo.ROW_TIME] += rows * spent


@compiled
def _deliver_first(rep: Replica, req: Requests, out: Outputs, rec: Recorder, r: int, at: float) -> bool:
    """The token at the end of a request's prompt is there, the first of all or of those since a preemption.

    False when there is no room to record it.
    """
    if np.isnan(out.first[r]):
        out.first[r] = at + req.extra[r]
        return True
    return len(rec.gaps) == 0 or record_gap(rec, at - rep.last_emit[r], 0.0, 1, 1)


@compiled
def deliver(
    front: Replica,
    rep: Replica,
    pipe: Pipeline,
    i: int,
    k: int,
    req: Requests,
    out: Outputs,
    lim: Limits,
    rec: Recorder,
    flight: Flight,
    spent: float,
    at: float,
) -> bool:
    """Pass number ``k`` of rank ``i`` leaves the pipeline ``at``, where it ``spent`` so much time on the mean stage.

    ``front`` is the rank's replica. False when there is no room to record its tokens.
    """
    stages = len(pipe.shares)
    group = k % stages
    emitted = pipe.emitted[i]
    num_bad = front.ints[lo.NUM_BAD]
    count_time(rep, flight.ints[PREFILL_TOKENS] > 0, flight.ints[ROWS_RUN], spent)
    emitting = flight.ints[EMITTING]
    fits = True
    if emitting > 0 and len(rec.gaps) > 0:
        fits = record_gap(rec, at - emitted[group], 0.0, 1, emitting)
    for j in range(flight.ints[NUM_PREFILLED]):
        fits = _deliver_first(rep, req, out, rec, flight.prefilled[j], at) and fits
    for j in range(rep.ints[lo.NUM_PREEMPTED_WAITING]):
        r = rep.preempted[j]
        if rep.state[r] == lo.WAITING and rep.finish_step[r] == k:
            rep.last_emit[r] = at
    if flight.ints[KEEPS] != 0:
        emitted[group] = at
    r = pipe.ring[i, group, (k // stages) & (pipe.ring.shape[2] - 1)]
    while r >= 0:
        record_finish(front, req, out, lim, r, at, 0)
        r = rep.next_same[r]
    rep.ints[lo.NUM_BAD] += front.ints[lo.NUM_BAD] - num_bad
    return fits


@compiled
def advance(
    rep: Replica,
    pipe: Pipeline,
    i: int,
    req: Requests,
    out: Outputs,
    times: Times,
    eng: Engine,
    lim: Limits,
    px: Prefix,
    rec: Recorder,
    flight: Flight | None,
    horizon: float,
) -> int:
    """Simulate every step of replica ``i`` that is planned before ``horizon``; returns a status of ``layout``.

    Mutates everything but ``req``, ``times``, ``eng`` and ``lim``, and ``req.arrival`` in a closed loop. ``px`` and
    ``rec`` are the replica's own. ``horizon`` as in ``vllm.advance``.

    Of a rank (numba compiles a function of its own for it) one plan is made, now, and put into ``flight``.
    """
    ints, floats = rep.ints, rep.floats
    groups, left, emitted, ends = pipe.groups[i], pipe.left[i], pipe.emitted[i], pipe.ends[i]
    step = ints[lo.STEP]
    num_running = ints[lo.NUM_RUNNING]
    top = ints[lo.RUN_TOP]
    free = ints[lo.FREE]
    partial = ints[lo.PARTIAL]
    partial_done = ints[lo.PARTIAL_DONE]
    num_preempted = ints[lo.NUM_PREEMPTED_WAITING]
    head = ints[lo.QUEUE_HEAD]
    end = ints[lo.QUEUE_END]
    peak_running = ints[lo.PEAK_RUNNING]
    least_free = eng.num_blocks - ints[lo.PEAK_BLOCKS]
    peak_tokens = ints[lo.PEAK_TOKENS]
    budget_bound = ints[lo.BUDGET_BOUND]
    slots_bound = ints[lo.SLOTS_BOUND]
    memory_bound = ints[lo.MEMORY_BOUND]
    peak_gate = ints[lo.PEAK_GATE]
    now = floats[lo.NOW]
    last_end = floats[lo.LAST_START]  # of the last step planned
    next_sample = floats[lo.NEXT_SAMPLE]
    steps = 0
    preemptions = 0

    stages = len(left)
    depth = len(ends)
    lag = eng.lag
    shift = eng.block_shift
    phase_mask = (1 << shift) - 1
    ring_mask = pipe.ring.shape[2] - 1
    caching = eng.caching != 0
    names_output = caching and px.names_output != 0
    record_gaps = len(rec.gaps) > 0
    record_samples = len(rec.samples) > 0
    status = lo.DONE

    while True:
        at = max(now, ends[step % depth])
        if at >= horizon:
            break
        now = at
        # --- the step that lies `depth` back is processed: requests that ended in it leave.
        past = step - depth
        if past >= 0:
            calendar = pipe.ring[i, past % stages]
            place = (past // stages) & ring_mask
            r = calendar[place]
            calendar[place] = -1
            num_pending = 0
            while r >= 0:
                if rep.state[r] == lo.GONE:  # preempted since its last token was planned
                    j = num_preempted - 1
                    while rep.preempted[j] != r:
                        j -= 1
                    num_preempted = _drop(rep, num_preempted, j)
                else:
                    rep.pending[num_pending] = r
                    num_pending += 1
                if flight is not None:
                    ints[lo.NUM_FINISHED] += 1  # which the router between the ranks looks at
                r = rep.next_same[r]
            if caching and num_pending > 1:
                sort_by_position(rep, num_pending)
            for j in range(num_pending):
                r = rep.pending[j]
                whole = req.input_tokens[r] + req.output_tokens[r] - 1
                scheduled = whole + 1 if rep.state[r] == lo.ENDED_BY_STOP else whole
                free += release(px, caching, r, scheduled, whole, True, shift)
                rep.running[rep.position[r]] = -1
                rep.state[r] = lo.GONE
                num_running -= 1
            if num_running == 0:
                top = 0

        # --- plan: the running list. The group's rows take one token each, the unfinished prefill (always the last
        # admitted request) the rest of the budget.
        group = step % stages
        turn = step // stages
        phase = pipe.phase[i, group]
        rows = groups[group, ROWS]
        context = groups[group, CONTEXT]
        demand = phase[turn & phase_mask]
        chunk = 0
        chunk_blocks = 0
        if partial >= 0:
            known = req.input_tokens[partial] + rep.generated[partial]
            chunk = min(known - partial_done, eng.max_num_batched_tokens - rows)
            chunk_blocks = blocks_of(partial_done + chunk, shift) - blocks_of(partial_done, shift)
        if eng.stop_at_preemption != 0 and demand + chunk_blocks > free:
            status = lo.PREEMPTED
            break
        preempting = False
        granted = 0
        while demand + chunk_blocks - granted > free:
            preempting = True
            memory_bound = 1
            # rows ahead of the one that fails have taken their blocks before the victim gives up its own
            ahead = min(demand - granted, free)
            granted += ahead
            free -= ahead
            if caching and ahead > 0:
                take_blocks(px, ahead)
            preemptions += 1
            while rep.running[top - 1] < 0:
                top -= 1
            top -= 1
            r = rep.running[top]
            num_running -= 1
            out.preemptions[r] += 1
            rep.preempted[num_preempted] = r
            num_preempted += 1
            if r == partial:
                free += release(px, caching, r, partial_done, partial_done, False, shift)
                pipe.seen[r] = step - 1
                rep.state[r] = lo.WAITING
                partial = -1
                chunk = 0
                chunk_blocks = 0
                continue
            finish = rep.finish_step[r]
            its_group = finish % stages
            its_turn = turn if its_group >= group else turn + 1
            last_row = min(finish, step - 1 - (step - 1 - finish) % stages)
            tokens = req.output_tokens[r] - (finish - last_row) // stages
            length = req.input_tokens[r] + tokens - 1
            # the token that a step in flight samples is not known yet, so neither is its last input's block
            known = length - lag if tokens > rep.generated[r] + 1 else length
            free += release(px, caching, r, length, known, rep.state[r] != lo.DECODING, shift)
            pipe.seen[r] = last_row
            if rep.state[r] != lo.ENDED_BY_LENGTH:
                groups[its_group, ROWS] -= 1
                groups[its_group, CONTEXT] -= length + 1
                pipe.phase[i, its_group, (its_turn - length) & phase_mask] -= 1
                rows = groups[group, ROWS]
                context = groups[group, CONTEXT]
                demand = phase[turn & phase_mask]
                if rep.state[r] == lo.ENDED_BY_STOP:
                    groups[its_group, WASTED] -= 1
            if rep.state[r] != lo.DECODING:
                rep.state[r] = lo.GONE
                continue
            rep.generated[r] = tokens
            rep.state[r] = lo.WAITING
            unlink(rep, pipe.ring[i, its_group], r, (finish // stages) & ring_mask)
            if flight is None or last_row < flight.num_resolved:
                rep.last_emit[r] = emitted[its_group]
            if flight is not None:  # else ``deliver`` writes when the token of its last row comes
                rep.finish_step[r] = last_row
        free -= demand + chunk_blocks - granted
        if caching and demand + chunk_blocks > granted:
            take_blocks(px, demand + chunk_blocks - granted)
        if names_output and phase[(turn + 1 - lag) & phase_mask] > 0:
            _hash_named_outputs(rep, req, px, top, step, stages, lag, shift)
        budget = eng.max_num_batched_tokens - rows - chunk
        num_prefilled = 0
        prefill_tokens = chunk
        pairs = 0.0
        if partial >= 0:
            pairs = chunk * (partial_done + 0.5 * (chunk + 1))
            partial_done += chunk
            if caching:
                hash_blocks(px, partial, partial_done >> shift)
            if partial_done == req.input_tokens[partial] + rep.generated[partial]:
                rep.prefilled[num_prefilled] = partial
                num_prefilled += 1
                partial = -1
            else:
                budget_bound = 1

        # --- plan: the waiting list, preempted requests first, until something does not fit. Those with a row in
        # flight are passed over.
        place = num_preempted - 1
        waits = preempting
        while not preempting:
            while place >= 0 and pipe.seen[rep.preempted[place]] > past:
                place -= 1
                waits = True
            if place < 0 and (head == end or req.arrival[rep.queue[head]] > now):
                break
            if budget <= 0:
                budget_bound = 1
                break
            if num_running >= eng.max_num_seqs:
                slots_bound = 1
                break
            r = rep.preempted[place] if place >= 0 else rep.queue[head]
            known = req.input_tokens[r] + rep.generated[r]
            hit = 0
            hit_free = 0
            if caching:
                hit, hit_free = lookup(px, r, (known - 1) >> shift)
            done = hit << shift
            chunk = min(known - done, budget)
            gate = known if eng.reserve_full != 0 else done + chunk
            needed = blocks_of(gate, shift) - hit + hit_free
            if needed > free:
                memory_bound = 1
                break
            peak_gate = max(peak_gate, eng.num_blocks - free + needed)
            if place >= 0:
                num_preempted = _drop(rep, num_preempted, place)
                place -= 1
            else:
                head += 1
                out.cached[r] = done
            fresh = blocks_of(done + chunk, shift) - hit
            free -= fresh + hit_free
            if caching:
                touch_hits(px, r, hit)
                take_blocks(px, fresh)
                hash_blocks(px, r, (done + chunk) >> shift)
            if top == len(rep.running):
                top = compact(rep, top)
            rep.running[top] = r
            rep.position[r] = top
            top += 1
            num_running += 1
            budget -= chunk
            prefill_tokens += chunk
            pairs += chunk * (done + 0.5 * (chunk + 1))
            if done + chunk == known:
                rep.prefilled[num_prefilled] = r
                num_prefilled += 1
            else:
                rep.state[r] = lo.PREFILLING
                partial = r
                partial_done = done + chunk
        if caching and px.counters[0] != 0:
            status = lo.OVERFLOW
            break
        least_free = min(least_free, free)
        peak_running = max(peak_running, num_running)
        if record_samples and now >= next_sample:
            next_sample = now + rec.sample_every
            used = eng.num_blocks - free
            if not record_sample(rec, rep, req, head, end, now, num_running, num_preempted, used):
                status = lo.OVERFLOW
                break

        # --- nothing to run: the step is processed with the one before it, or the replica is idle.
        if rows == 0 and prefill_tokens == 0:
            if flight is not None:
                if num_running == 0 and not waits and (num_preempted > 0 or head < end):
                    status = lo.STUCK
                break
            if num_running > 0 or waits or last_end > now:
                last_end = max(now, last_end)
                ends[step % depth] = last_end
                step += 1
                continue
            if num_preempted > 0 or (head < end and req.arrival[rep.queue[head]] <= now):
                status = lo.STUCK
                break
            if head == end or req.arrival[rep.queue[head]] >= horizon:
                break
            now = req.arrival[rep.queue[head]]
            continue

        # --- how long its pass takes, and when it leaves the pipeline.
        attention = 0.0
        if rows > 0:
            knot = knot_at(times, rows, context, groups[group, KNOT])
            groups[group, KNOT] = knot
            attention = times.attention_base[rows, knot] + times.attention_slope[rows, knot] * context
        wasted = groups[group, WASTED]
        if prefill_tokens > 0:
            emitting = rows + num_prefilled
            sampled = times.sample[emitting]
            whole = mixed_step_s(
                times, rows, context, attention, rows + prefill_tokens, emitting, prefill_tokens, pairs
            )
            layers = whole - sampled
            peak_tokens = max(peak_tokens, rows + prefill_tokens)
        else:
            sampled = times.sample[rows]
            layers = times.decode_fixed[rows] - sampled + attention
        if flight is not None:
            flight.ints[REAL] = 1
            flight.ints[ROWS_RUN] = rows
            flight.ints[PREFILL_TOKENS] = prefill_tokens
            flight.ints[NUM_PREFILLED] = num_prefilled
            flight.ints[EMITTING] = rows - wasted
            tokens = rows + prefill_tokens
            alike = times.mixed_tokens[tokens] if prefill_tokens > 0 else times.decode_fixed[rows] - times.sample[rows]
            flight.floats[LAYERS] = layers - alike
            flight.floats[SAMPLED] = sampled
        else:
            count_time(rep, prefill_tokens > 0, rows, (layers + sampled) / stages)
            # the first stage waits for the tokens of the step that the group ran before
            last_end = pass_through(left, pipe.shares, max(now, emitted[group]), layers, sampled)
            ends[step % depth] = last_end
            gap = last_end - emitted[group]
            if record_gaps and rows > wasted and not record_gap(rec, gap, 0.0, 1, rows - wasted):
                status = lo.OVERFLOW
                break
        needed_later = rows > wasted
        context += rows
        turn += 1
        steps += 1

        # --- rows that run in vain leave the group.
        calendar = pipe.ring[i, group]
        if wasted > 0:
            r = calendar[(turn - 2) & ring_mask]
            while r >= 0:
                if rep.state[r] == lo.ENDED_BY_STOP:
                    length = req.input_tokens[r] + req.output_tokens[r]
                    rows -= 1
                    context -= length + 1
                    phase[(turn - length) & phase_mask] -= 1
                r = rep.next_same[r]
            groups[group, WASTED] = 0

        # --- finished prompts emit a token and join the group.
        for j in range(num_prefilled):
            r = rep.prefilled[j]
            length = req.input_tokens[r] + rep.generated[r]
            if flight is not None:
                flight.prefilled[j] = r
            elif not _deliver_first(rep, req, out, rec, r, last_end):
                status = lo.OVERFLOW
            left_over = req.output_tokens[r] - rep.generated[r] - 1
            needed_later |= left_over > 0 or req.by_length[r] == 0
            rep.finish_step[r] = step + stages * left_over
            rep.state[r] = lo.DECODING
            place = (turn - 1 + left_over) & ring_mask
            rep.next_same[r] = calendar[place]
            calendar[place] = r
            rows += 1
            context += length + 1
            phase[(turn - length) & phase_mask] += 1
        if status == lo.OVERFLOW:
            break
        if flight is not None:
            flight.ints[KEEPS] = int(needed_later)
        elif needed_later:
            emitted[group] = last_end

        # --- rows that emit their last token.
        r = calendar[(turn - 1) & ring_mask]
        while r >= 0:
            if flight is None:
                end = record_finish(rep, req, out, lim, r, last_end, end)
            if lag == 1 and req.by_length[r] == 0:
                rep.state[r] = lo.ENDED_BY_STOP
                groups[group, WASTED] += 1
            else:
                rep.state[r] = lo.ENDED_BY_LENGTH
                length = req.input_tokens[r] + req.output_tokens[r] - 1
                rows -= 1
                context -= length + 1
                phase[(turn - length) & phase_mask] -= 1
            r = rep.next_same[r]
        groups[group, ROWS] = rows
        groups[group, CONTEXT] = context
        step += 1
        if flight is not None:
            break
        if ints[lo.NUM_BAD] > lim.max_bad:
            status = lo.BROKEN
            break

    ints[lo.STEP] = step
    ints[lo.NUM_RUNNING] = num_running
    ints[lo.RUN_TOP] = top
    ints[lo.FREE] = free
    ints[lo.PARTIAL] = partial
    ints[lo.PARTIAL_DONE] = partial_done
    ints[lo.NUM_PREEMPTED_WAITING] = num_preempted
    ints[lo.QUEUE_HEAD] = head
    ints[lo.QUEUE_END] = end
    # whether something may finish, and that it may do so at once: see ``fleet``
    ints[lo.ROWS] = num_running
    ints[lo.NEXT_FINISH] = step
    ints[lo.NUM_STEPS] += steps
    ints[lo.NUM_WINDOWS] += steps
    ints[lo.NUM_PREEMPTIONS] += preemptions
    ints[lo.PEAK_RUNNING] = peak_running
    ints[lo.PEAK_BLOCKS] = eng.num_blocks - least_free
    ints[lo.PEAK_TOKENS] = peak_tokens
    ints[lo.BUDGET_BOUND] = budget_bound
    ints[lo.SLOTS_BOUND] = slots_bound
    ints[lo.MEMORY_BOUND] = memory_bound
    ints[lo.PEAK_GATE] = peak_gate
    floats[lo.NOW] = now
    floats[lo.LAST_START] = last_end
    floats[lo.NEXT_SAMPLE] = next_sample
    return status
