"""vLLM's V1 scheduler, one replica, with exact fast-forward (specification: docs/vllm-scheduler.md).

Every decode row gains one token a step, so rows are never visited one by one: the batch is its number of
rows, the sum of their contexts, a calendar of finishing steps and a histogram of the steps before which rows
need a block. A request costs its few events, whatever the batch size.

A *window* is a run of identical decode steps. It ends with the first step in which something else can happen:
a row finishes, the free blocks run out, a piece of the step table ends, or a plan can see an arrival.
"""

from __future__ import annotations

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
from servewise.kernel.policy import (
    BUDGET,
    NUM_PARTIAL,
    NUM_PREFILLED,
    PREEMPTED,
    PREFILL_TOKENS,
    Policy,
    needs_every_row,
    plan_running,
    pop_first,
    push,
)
from servewise.kernel.prefix import hash_blocks, lookup, take_blocks, touch_hits
from servewise.kernel.rows import (
    blocks_of,
    compact,
    next_finish_after,
    release,
    sort_by_position,
    steps_before_shortage,
    unlink,
)
from servewise.kernel.steps import knot_at, mixed_step_s, steps_to_knot

__all__ = ["advance"]


@compiled
def _hash_named_outputs(rep: Replica, req: Requests, px: Prefix, top: int, step: int, lag: int, shift: int) -> None:
    """Give the blocks that running rows have filled with known tokens their identity, where the trace names it."""
    for i in range(top):
        r = rep.running[i]
        if r >= 0 and (rep.state[r] == lo.DECODING or rep.state[r] == lo.ENDED_BY_STOP):
            whole = req.input_tokens[r] + req.output_tokens[r] - 1
            known = whole - (rep.finish_step[r] - step) + 1 - lag
            hash_blocks(px, r, min(known, whole) >> shift)


@compiled
def _first_waiting(rep: Replica, policy: Policy | None, num_preempted: int, head: int) -> int:
    if policy is not None and policy.by_priority != 0:
        return policy.waiting[0]  # type: ignore[no-any-return]
    return rep.preempted[num_preempted - 1] if num_preempted > 0 else rep.queue[head]  # type: ignore[no-any-return]


@compiled
def advance(
    rep: Replica,
    req: Requests,
    out: Outputs,
    times: Times,
    eng: Engine,
    lim: Limits,
    px: Prefix,
    rec: Recorder,
    turn: Turn | None,
    policy: Policy | None,
    horizon: float,
) -> int:
    """Simulate every step that is planned before ``horizon``; returns a status of ``layout``.

    Mutates everything but ``req``, ``times``, ``eng`` and ``lim``, and ``req.arrival`` in a closed loop.
    ``horizon`` must be infinite or not exceed the arrival of any request that is not yet in the replica's queue.

    A rank in lock step with others takes ``turn``s (numba compiles a function of its own for it): it plans a step
    and returns, and with the next call it runs the step as ``turn`` says by then. A plan that turns out empty
    leaves ``turn`` without one. A ``policy`` (again a function of its own) has the settings that are off by default.
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
    num_preempted = ints[lo.NUM_PREEMPTED_WAITING]
    head = ints[lo.QUEUE_HEAD]
    end = ints[lo.QUEUE_END]
    next_finish = ints[lo.NEXT_FINISH]
    num_pending = ints[lo.NUM_PENDING]
    num_wasted = ints[lo.NUM_WASTED]
    busy = ints[lo.BUSY]
    knot = ints[lo.KNOT]
    peak_running = ints[lo.PEAK_RUNNING]
    least_free = eng.num_blocks - ints[lo.PEAK_BLOCKS]
    peak_tokens = ints[lo.PEAK_TOKENS]
    budget_bound = ints[lo.BUDGET_BOUND]
    slots_bound = ints[lo.SLOTS_BOUND]
    memory_bound = ints[lo.MEMORY_BOUND]
    peak_gate = ints[lo.PEAK_GATE]
    now = floats[lo.NOW]
    last_start = floats[lo.LAST_START]
    mixed_time = floats[lo.MIXED_TIME]
    decode_time = floats[lo.DECODE_TIME]
    row_time = floats[lo.ROW_TIME]
    next_sample = floats[lo.NEXT_SAMPLE]
    if policy is not None:
        partial = -1  # there may be several: the policy keeps them
    steps = 0
    windows = 0
    preemptions = 0

    shift = eng.block_shift
    phase_mask = (1 << shift) - 1
    ring_mask = len(rep.ring) - 1
    lag = eng.lag
    caching = eng.caching != 0
    names_output = caching and px.names_output != 0
    whole_prompts = eng.reserve_full == 2  # they take their blocks when they are admitted
    record_gaps = len(rec.gaps) > 0
    record_samples = len(rec.samples) > 0
    far = 1 << 60
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
            visible = last_start if (lag == 1 and busy == 1) else now
            if visible >= horizon:
                break
            preempting = False
            by_rows = False
            pairs = 0.0
            most_tokens = far
            overtaken = False
            if policy is not None:
                if policy.by_priority != 0:
                    while head < end and req.arrival[rep.queue[head]] <= visible:
                        push(policy, num_preempted, rep.queue[head])
                        num_preempted += 1
                        head += 1
                if policy.most_tokens != 0:
                    others = num_running + num_preempted
                    if head < end and req.arrival[rep.queue[head]] <= visible:
                        others += 1
                    if head + 1 < end and req.arrival[rep.queue[head + 1]] <= visible:
                        others += 1
                    if others > 1:
                        most_tokens = policy.most_tokens
                by_rows = needs_every_row(rep, policy, step, free)
                if by_rows:
                    ints[lo.ROWS] = rows
                    ints[lo.CONTEXT] = context
                    ints[lo.NUM_RUNNING] = num_running
                    ints[lo.RUN_TOP] = top
                    ints[lo.FREE] = free
                    ints[lo.NUM_PREEMPTED_WAITING] = num_preempted
                    ints[lo.NUM_WASTED] = num_wasted
                    allowed, pairs = plan_running(rep, req, out, eng, px, policy, most_tokens, step, now)
                    if not allowed:
                        status = lo.PREEMPTED
                        break
                    rows = ints[lo.ROWS]
                    context = ints[lo.CONTEXT]
                    num_running = ints[lo.NUM_RUNNING]
                    top = ints[lo.RUN_TOP]
                    free = ints[lo.FREE]
                    num_preempted = ints[lo.NUM_PREEMPTED_WAITING]
                    num_wasted = ints[lo.NUM_WASTED]
                    preemptions += policy.ints[PREEMPTED]
                    preempting = policy.ints[PREEMPTED] > 0
                    if preempting:
                        memory_bound = 1
            # --- plan: the running list. Decode rows take one token each, the unfinished prefill (always the last
            # admitted request) the rest of the budget.
            demand = rep.phase[step & phase_mask]
            if policy is not None and by_rows:
                demand = 0
            chunk = 0
            chunk_blocks = 0
            if partial >= 0:
                known = req.input_tokens[partial] + rep.generated[partial]
                chunk = min(known - partial_done, eng.max_num_batched_tokens - rows)
                if not whole_prompts:
                    chunk_blocks = blocks_of(partial_done + chunk, shift) - blocks_of(partial_done, shift)
            if eng.stop_at_preemption != 0 and demand + chunk_blocks > free:
                status = lo.PREEMPTED
                break
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
                if r == partial:
                    held = req.input_tokens[r] + rep.generated[r] if whole_prompts else partial_done
                    free += release(px, caching, r, held, partial_done, False, shift)
                    partial = -1
                    chunk = 0
                    chunk_blocks = 0
                else:
                    emitted = req.output_tokens[r] - (rep.finish_step[r] - step)
                    length = req.input_tokens[r] + emitted - 1
                    # the token that its running step samples is not known yet, so neither is its last input's block
                    known = length - lag if emitted > rep.generated[r] + 1 else length
                    free += release(px, caching, r, length, known, rep.state[r] != lo.DECODING, shift)
                    if rep.state[r] != lo.ENDED_BY_LENGTH:
                        rows -= 1
                        context -= length + 1
                        rep.phase[(step - length) & phase_mask] -= 1
                        demand = rep.phase[step & phase_mask]
                        if rep.state[r] == lo.ENDED_BY_STOP:
                            num_wasted -= 1
                    if rep.state[r] != lo.DECODING:
                        rep.state[r] = lo.GONE
                        continue
                    rep.generated[r] = emitted
                    rep.last_emit[r] = now
                    unlink(rep, r, rep.finish_step[r] & ring_mask)
                rep.state[r] = lo.WAITING
                rep.preempted[num_preempted] = r
                num_preempted += 1
            if preempting and rows > 0:
                if next_finish < far:
                    next_finish = next_finish_after(rep, step, far)
            elif preempting:
                next_finish = far
            free -= demand + chunk_blocks - granted
            if caching and demand + chunk_blocks > granted:
                take_blocks(px, demand + chunk_blocks - granted)
            if names_output and rep.phase[(step + 1 - lag) & phase_mask] > 0:
                _hash_named_outputs(rep, req, px, top, step, lag, shift)
            budget = eng.max_num_batched_tokens - rows - chunk
            num_prefilled = 0
            prefill_tokens = chunk
            if policy is not None and by_rows:
                budget = policy.ints[BUDGET]
                num_prefilled = policy.ints[NUM_PREFILLED]
                prefill_tokens = policy.ints[PREFILL_TOKENS]
                if budget == 0:
                    budget_bound = 1
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

            # --- plan: the waiting queue, head first, until something does not fit.
            blocked = False
            if not preempting:
                while num_preempted > 0 or (head < end and req.arrival[rep.queue[head]] <= visible):
                    if budget <= 0:
                        budget_bound = 1
                        blocked = True
                        break
                    if num_running >= eng.max_num_seqs:
                        slots_bound = 1
                        blocked = True
                        break
                    r = _first_waiting(rep, policy, num_preempted, head)
                    known = req.input_tokens[r] + rep.generated[r]
                    hit = 0
                    hit_free = 0
                    if caching:
                        hit, hit_free = lookup(px, r, (known - 1) >> shift)
                    done = hit << shift
                    chunk = min(known - done, budget)
                    if policy is not None:
                        chunk = min(chunk, most_tokens)
                    gate = known if eng.reserve_full != 0 else done + chunk
                    needed = blocks_of(gate, shift) - hit + hit_free
                    if policy is not None and num_running > 0:
                        needed += policy.watermark_blocks
                    if needed > free:
                        memory_bound = 1
                        blocked = True
                        if policy is not None:
                            overtaken = policy.by_priority != 0
                        break
                    peak_gate = max(peak_gate, eng.num_blocks - free + needed)
                    if num_preempted > 0:
                        num_preempted -= 1
                    else:
                        head += 1
                        out.cached[r] = done
                    if policy is not None and policy.by_priority != 0:
                        pop_first(policy, num_preempted + 1)
                        if out.preemptions[r] == 0:
                            out.cached[r] = done
                    fresh = blocks_of(known if whole_prompts else done + chunk, shift) - hit
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
                        if policy is None:
                            partial = r
                            partial_done = done + chunk
                        else:
                            policy.ints[NUM_PARTIAL] += 1
                            policy.done[r] = done + chunk
            if caching and px.counters[0] != 0:
                status = lo.OVERFLOW
                break
            if free < least_free:
                least_free = free
            if num_running > peak_running:
                peak_running = num_running

            # --- the previous step's output is processed: requests that ended leave, after this plan.
            released = False
            if caching and num_pending > 1:
                sort_by_position(rep, num_pending)
            if lag == 1 and num_pending > 0:
                for i in range(num_pending):
                    r = rep.pending[i]
                    if rep.state[r] == lo.GONE:
                        continue
                    whole = req.input_tokens[r] + req.output_tokens[r] - 1
                    scheduled = whole + 1 if rep.state[r] == lo.ENDED_BY_STOP else whole
                    free += release(px, caching, r, scheduled, whole, True, shift)
                    rep.running[rep.position[r]] = -1
                    num_running -= 1
                    released = True
            if num_running == 0:
                top = 0

            if record_samples and now >= next_sample:
                next_sample = now + rec.sample_every
                used = eng.num_blocks - free
                if not record_sample(rec, rep, req, head, end, now, num_running, num_preempted, used):
                    status = lo.OVERFLOW
                    break

            if rows == 0 and prefill_tokens == 0:
                num_pending = 0
                if busy == 1:
                    busy = 0
                    if turn is not None:
                        break
                    continue
                if num_preempted > 0 or (head < end and req.arrival[rep.queue[head]] <= now):
                    status = lo.STUCK
                    break
                if turn is not None:
                    break
                if head == end or req.arrival[rep.queue[head]] >= horizon:
                    break
                now = req.arrival[rep.queue[head]]
                continue

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
            else:
                first = times.decode_fixed[rows] + attention
                if (
                    eng.single_step == 0
                    and num_wasted == 0
                    and not by_rows
                    and not preempting
                    and not (blocked and released)
                ):
                    count = next_finish - step
                    count = min(count, steps_to_knot(times, rows, context, knot))
                    if count > 1:
                        count = 1 + steps_before_shortage(rep.phase, step + 1, free, rows, count - 1)
                    if names_output:  # blocks that fill up get their identity in the plan of that very step
                        silent = 1
                        while silent < count and rep.phase[(step + 1 - lag + silent) & phase_mask] == 0:
                            silent += 1
                        count = silent
                    if count > 1 and (overtaken or not blocked):
                        arrival = horizon
                        if head < end:
                            arrival = min(arrival, req.arrival[rep.queue[head]])
                        delay = arrival - now
                        if delay <= 0.0:
                            count = 1
                        elif (count - 1) * (first + 0.5 * growth * (count - 2)) >= delay:
                            count = min(count, 1 + lag + steps_starting_before(delay, first, growth))
            if turn is not None:
                turn.ints[lo.PLANNED] = 1
                turn.ints[lo.NUM_ROWS] = rows
                turn.ints[lo.PREFILL_TOKENS] = prefill_tokens
                turn.ints[lo.NUM_PREFILLED] = num_prefilled
                turn.ints[lo.COUNT] = count
                turn.ints[lo.BLOCKED] = int(blocked and not overtaken)
                turn.floats[lo.FIRST] = first
                turn.floats[lo.GROWTH] = growth
                break
        planned = 0

        # --- run: one step, or a window of decode steps.
        if count > 1:
            extra = ((count - 1) >> shift) * rows
            for i in range((count - 1) & ~phase_mask, count - 1):
                extra += rep.phase[(step + 1 + i) & phase_mask]
            free -= extra
            if free < least_free:
                least_free = free
            if caching and extra > 0:
                take_blocks(px, extra)
        elapsed = count * first + 0.5 * growth * count * (count - 1)
        if prefill_tokens > 0:
            mixed_time += elapsed
            peak_tokens = max(peak_tokens, rows + prefill_tokens)
        else:
            decode_time += elapsed
        if record_gaps and rows > num_wasted and not record_gap(rec, first, growth, count, rows - num_wasted):
            status = lo.OVERFLOW
            break
        last_start = now + (count - 1) * first + 0.5 * growth * (count - 1) * (count - 2)
        row_time += rows * elapsed
        now += elapsed
        step += count
        context += rows * count
        steps += count
        windows += 1
        busy = 1

        # --- rows that ran in vain leave.
        if num_wasted > 0:
            for i in range(num_pending):
                r = rep.pending[i]
                if rep.state[r] == lo.ENDED_BY_STOP:
                    length = req.input_tokens[r] + req.output_tokens[r]
                    rows -= 1
                    context -= length + 1
                    rep.phase[(step - length) & phase_mask] -= 1
            num_wasted = 0
        for i in range(num_pending):
            rep.state[rep.pending[i]] = lo.GONE
        num_pending = 0

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
            bucket = finish & ring_mask
            rep.next_same[r] = rep.ring[bucket]
            rep.ring[bucket] = r
            if finish < next_finish:
                next_finish = finish
            rows += 1
            context += length + 1
            rep.phase[(step - length) & phase_mask] += 1
        if status == lo.OVERFLOW:
            break

        # --- rows that emitted their last token.
        if next_finish == step:
            bucket = step & ring_mask
            r = rep.ring[bucket]
            rep.ring[bucket] = -1
            while r >= 0:
                end = record_finish(rep, req, out, lim, r, now, end)
                rep.pending[num_pending] = r
                num_pending += 1
                if lag == 1 and req.by_length[r] == 0:
                    rep.state[r] = lo.ENDED_BY_STOP
                    num_wasted += 1
                else:
                    rep.state[r] = lo.ENDED_BY_LENGTH
                    length = req.input_tokens[r] + req.output_tokens[r] - 1
                    rows -= 1
                    context -= length + 1
                    rep.phase[(step - length) & phase_mask] -= 1
                r = rep.next_same[r]
            if rows - num_wasted > 0:
                next_finish = step + 1
                while rep.ring[next_finish & ring_mask] < 0:
                    next_finish += 1
            else:
                next_finish = far
            if ints[lo.NUM_BAD] > lim.max_bad:
                status = lo.BROKEN
                break
        if lag == 0 and num_pending > 0:  # the next plan knows that they ended
            if caching and num_pending > 1:
                sort_by_position(rep, num_pending)
            for i in range(num_pending):
                r = rep.pending[i]
                if rep.state[r] == lo.ENDED_BY_LENGTH:
                    whole = req.input_tokens[r] + req.output_tokens[r] - 1
                    free += release(px, caching, r, whole, whole, True, shift)
                    rep.running[rep.position[r]] = -1
                    rep.state[r] = lo.GONE
                    num_running -= 1
            num_pending = 0
        if turn is not None:
            break

    ints[lo.STEP] = step
    ints[lo.ROWS] = rows
    ints[lo.CONTEXT] = context
    ints[lo.NUM_RUNNING] = num_running
    ints[lo.RUN_TOP] = top
    ints[lo.FREE] = free
    ints[lo.PARTIAL] = partial
    if policy is not None:
        ints[lo.PARTIAL] = policy.ints[NUM_PARTIAL] - 1  # whether there is one, for the router
    ints[lo.PARTIAL_DONE] = partial_done
    ints[lo.NUM_PREEMPTED_WAITING] = num_preempted
    ints[lo.QUEUE_HEAD] = head
    ints[lo.QUEUE_END] = end
    ints[lo.NEXT_FINISH] = next_finish
    ints[lo.NUM_PENDING] = num_pending
    ints[lo.NUM_WASTED] = num_wasted
    ints[lo.BUSY] = busy
    ints[lo.KNOT] = knot
    ints[lo.NUM_STEPS] += steps
    ints[lo.NUM_WINDOWS] += windows
    ints[lo.NUM_PREEMPTIONS] += preemptions
    ints[lo.PEAK_RUNNING] = peak_running
    ints[lo.PEAK_BLOCKS] = eng.num_blocks - least_free
    ints[lo.PEAK_TOKENS] = peak_tokens
    ints[lo.BUDGET_BOUND] = budget_bound
    ints[lo.SLOTS_BOUND] = slots_bound
    ints[lo.MEMORY_BOUND] = memory_bound
    ints[lo.PEAK_GATE] = peak_gate
    floats[lo.NOW] = now
    floats[lo.LAST_START] = last_start
    floats[lo.MIXED_TIME] = mixed_time
    floats[lo.DECODE_TIME] = decode_time
    floats[lo.ROW_TIME] = row_time
    floats[lo.NEXT_SAMPLE] = next_sample
    return status
