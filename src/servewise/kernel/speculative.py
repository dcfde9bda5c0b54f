"""vLLM's scheduler with speculative decoding, one replica (specification: docs/speculative-decoding.md).

All decode rows yield the same number of tokens in a step, by one schedule of integers: after ``s`` steps the *level* is
``floor(s * (unit + accepted) / unit)``. So a row is described by the level at which it ends, and everything that grows
within a window of equal steps by sums of levels, which have a closed form. A plan visits the running list once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from servewise.kernel import layout as lo
from servewise.kernel.clock import record_finish, record_gap, record_sample
from servewise.kernel.layout import Engine, Limits, Outputs, Recorder, Replica, Requests, Times, compiled
from servewise.kernel.rows import blocks_of
from servewise.kernel.steps import knot_at, mixed_step_s, steps_to_knot

__all__ = ["UNIT", "Speculative", "advance", "new_speculative"]

UNIT = 1_000_000
"""Accepted tokens are counted in so many parts."""
FAR = 1 << 60


class Speculative(NamedTuple):
    """A drafter, and what only its requests have.

    ``proposed`` tokens are verified for every row beside its own, ``accepted`` of them on average, in parts of
    ``UNIT``. ``lookahead`` KV slots are held beyond those, and no more than ``longest`` for a request. Every request
    of a step takes ``extra`` tokens of the budget beside its own. By request: the level at which it has its last token
    (``goal``), the step in which its prompt ended (``began``), the blocks it holds (``held``).
    """

    proposed: int
    accepted: int
    lookahead: int
    extra: int
    longest: int
    goal: NDArray[np.int64]
    began: NDArray[np.int64]
    held: NDArray[np.int64]


def new_speculative(
    num_requests: int, *, proposed: int, accepted: int, lookahead: int, extra: int, longest: int
) -> Speculative:
    """A drafter of requests of which none has begun."""
    return Speculative(
        proposed=proposed,
        accepted=accepted,
        lookahead=lookahead,
        extra=extra,
        longest=longest,
        goal=np.zeros(num_requests, np.int64),
        began=np.zeros(num_requests, np.int64),
        held=np.zeros(num_requests, np.int64),
    )


@compiled
def _level(spec: Speculative, steps: int) -> int:
    """Tokens that a row present from the first step on would have after so many steps."""
    return steps + steps * spec.accepted // UNIT


@compiled
def _first_step_at(spec: Speculative, level: int) -> int:
    """The first step after which the level is at least this."""
    return -(-level * UNIT // (UNIT + spec.accepted))


@compiled
def _floor_sum(count: int, unit: int, rate: int, start: int) -> int:
    """Sum of ``(rate * i + start) // unit`` over ``i`` from 0 to ``count - 1``, in logarithmic time."""
    total = 0
    while True:
        if rate >= unit:
            total += count * (count - 1) // 2 * (rate // unit)
            rate %= unit
        if start >= unit:
            total += count * (start // unit)
            start %= unit
        most = rate * count + start
        if most < unit:
            return total
        count = most // unit
        start = most % unit
        unit, rate = rate, unit


@compiled
def _growth(spec: Speculative, step: int, count: int) -> int:
    """Tokens that a row has more in steps ``step + 1 .. step + count`` than in the first of them, summed."""
    rate = UNIT + spec.accepted
    return _floor_sum(count, UNIT, rate, step * rate % UNIT)


@compiled
def _steps_within(spec: Speculative, step: int, limit: int, delay: float, first: float, slope: float) -> int:
    """Most steps, up to ``limit``, that together take less than ``delay``.

    Each takes ``first``, and ``slope`` for each token that a row has more than in the first.
    """
    low = 0
    high = limit
    while low < high:
        middle = (low + high + 1) // 2
        if middle * first + slope * _growth(spec, step, middle) < delay:
            low = middle
        else:
            high = middle - 1
    return low


@compiled
def _slots(spec: Speculative, req: Requests, r: int, step: int, lag: int) -> int:
    """KV slots that the plan of step ``step + 1`` needs for a decode row."""
    tokens = req.input_tokens[r] + req.output_tokens[r] - spec.goal[r] + spec.proposed + spec.lookahead
    if lag == 0 or spec.began[r] == step:
        tokens += _level(spec, step)
    else:  # all proposals in flight are taken for accepted
        tokens += _level(spec, step - 1) + 1 + spec.proposed
    return min(tokens, spec.longest)  # type: ignore[no-any-return]


@compiled
def _shortage(
    spec: Speculative, rep: Replica, req: Requests, num_running: int, step: int, count: int, lag: int, shift: int
) -> int:
    """Blocks that the last plan of a window of ``count`` steps needs beyond those that its rows hold."""
    total = 0
    for i in range(num_running):
        r = rep.running[i]
        if rep.state[r] == lo.DECODING:
            tokens = req.input_tokens[r] + req.output_tokens[r] - spec.goal[r] + spec.proposed + spec.lookahead
            if lag == 0:
                tokens += _level(spec, step + count - 1)
            else:
                tokens += _level(spec, step + count - 2) + 1 + spec.proposed
            total += max(0, blocks_of(min(tokens, spec.longest), shift) - spec.held[r])
    return total


@compiled
def _take_window(
    spec: Speculative, rep: Replica, req: Requests, num_running: int, step: int, lag: int, shift: int
) -> int:
    """Let the rows take the blocks that the plan of step ``step + 1``, the last of a window, needs; how many."""
    total = 0
    for i in range(num_running):
        r = rep.running[i]
        if rep.state[r] == lo.DECODING:
            more = blocks_of(_slots(spec, req, r, step, lag), shift) - spec.held[r]
            if more > 0:
                spec.held[r] += more
                total += more
    return total


@compiled
def _record_window(
    spec: Speculative,
    rep: Replica,
    rec: Recorder,
    num_running: int,
    step: int,
    count: int,
    first: float,
    slope: float,
    rows: int,
) -> bool:
    """Record the gaps of ``count`` steps of ``rows`` rows after step ``step``; False without room."""
    begin = _level(spec, step)
    i = 0
    while i < count:  # a stretch of steps that grow alike
        at = _level(spec, step + i) - begin
        yields = _level(spec, step + i + 1) - begin - at
        stretch = 1
        while i + stretch < count and _level(spec, step + i + stretch) - begin - at == stretch * yields:
            stretch += 1
        if not record_gap(rec, first + slope * at, slope * yields, stretch, rows):
            return False
        i += stretch
    at_once = rows * (_level(spec, step + count - 1) - begin - (count - 1))
    last = _level(spec, step + count) - _level(spec, step + count - 1)
    for j in range(num_running):
        r = rep.running[j]
        if rep.state[r] == lo.DECODING:
            at_once += min(last, spec.goal[r] - _level(spec, step + count - 1)) - 1
    return at_once == 0 or record_gap(rec, 0.0, 0.0, 1, at_once)


@compiled
def _remove_gone(rep: Replica, num_running: int) -> int:
    """Take requests that are gone out of the running list; returns its new length."""
    kept = 0
    for i in range(num_running):
        r = rep.running[i]
        if rep.state[r] != lo.GONE:
            rep.running[kept] = r
            kept += 1
    return kept


@compiled
def advance(
    rep: Replica,
    req: Requests,
    out: Outputs,
    times: Times,
    eng: Engine,
    lim: Limits,
    spec: Speculative,
    rec: Recorder,
    horizon: float,
) -> int:
    """Simulate every step that is planned before ``horizon``; returns a status of ``layout``.

    Mutates ``rep``, ``out``, ``rec`` and ``spec``, and ``req.arrival`` in a closed loop. ``horizon`` must be infinite
    or not exceed the arrival of any request that is not yet in the replica's queue.
    """
    ints, floats = rep.ints, rep.floats
    step = ints[lo.STEP]
    num_running = ints[lo.NUM_RUNNING]
    free = ints[lo.FREE]
    partial = ints[lo.PARTIAL]
    partial_done = ints[lo.PARTIAL_DONE]
    num_preempted = ints[lo.NUM_PREEMPTED_WAITING]
    head = ints[lo.QUEUE_HEAD]
    end = ints[lo.QUEUE_END]
    num_pending = ints[lo.NUM_PENDING]
    num_wasted = ints[lo.NUM_WASTED]
    busy = ints[lo.BUSY]
    knot = ints[lo.KNOT]
    now = floats[lo.NOW]
    last_start = floats[lo.LAST_START]

    shift = eng.block_shift
    lag = eng.lag
    queries = 1 + spec.proposed
    record_gaps = len(rec.gaps) > 0
    rows = ints[lo.ROWS]
    next_finish = ints[lo.NEXT_FINISH]
    status = lo.DONE

    while True:
        visible = last_start if (lag == 1 and busy == 1) else now
        if visible >= horizon:
            break

        # --- plan: the running list, in order.
        budget = eng.max_num_batched_tokens
        preempting = False
        rows = 0
        context = 0
        level = _level(spec, step)
        next_goal = FAR
        prefill_tokens = 0
        num_prefilled = 0
        pairs = 0.0
        i = 0
        while i < num_running:
            r = rep.running[i]
            i += 1
            state = rep.state[r]
            if state == lo.ENDED_BY_LENGTH:
                continue
            chunk = 0
            known = 0
            if state == lo.PREFILLING:
                known = req.input_tokens[r] + rep.generated[r]
                chunk = min(known - partial_done, budget - spec.extra)
                slots = min(partial_done + chunk + spec.lookahead, spec.longest)
            else:
                slots = _slots(spec, req, r, step, lag)
            needed = max(0, blocks_of(slots, shift) - spec.held[r])
            while needed > free and i <= num_running:
                preempting = True
                ints[lo.MEMORY_BOUND] = 1
                ints[lo.NUM_PREEMPTIONS] += 1
                num_running -= 1
                victim = rep.running[num_running]
                out.preemptions[victim] += 1
                free += spec.held[victim]
                spec.held[victim] = 0
                if rep.state[victim] == lo.PREFILLING:
                    partial = -1
                elif rep.state[victim] == lo.DECODING:
                    rep.generated[victim] = req.output_tokens[victim] - (spec.goal[victim] - level)
                    rep.last_emit[victim] = now
                else:
                    if rep.state[victim] == lo.ENDED_BY_STOP:
                        num_wasted -= 1
                    rep.state[victim] = lo.GONE
                    continue
                rep.state[victim] = lo.WAITING
                rep.preempted[num_preempted] = victim
                num_preempted += 1
            if i > num_running:  # it was itself the last to be preempted
                break
            free -= needed
            spec.held[r] += needed
            if state == lo.PREFILLING:
                budget -= chunk + spec.extra
                prefill_tokens = chunk
                pairs = chunk * (partial_done + 0.5 * (chunk + 1))
                partial_done += chunk
                if partial_done == known:
                    rep.prefilled[0] = r
                    num_prefilled = 1
                    partial = -1
                else:
                    ints[lo.BUDGET_BOUND] = 1
            else:
                budget -= queries + spec.extra
                rows += 1
                context += req.input_tokens[r] + req.output_tokens[r] - spec.goal[r] + level
                if state == lo.DECODING and spec.goal[r] < next_goal:
                    next_goal = spec.goal[r]
        next_finish = FAR if next_goal == FAR else _first_step_at(spec, next_goal)

        # --- plan: the waiting queue, head first, until something does not fit.
        blocked = False
        if not preempting:
            while num_preempted > 0 or (head < end and req.arrival[rep.queue[head]] <= visible):
                if budget <= spec.extra:
                    ints[lo.BUDGET_BOUND] = 1
                    blocked = True
                    break
                if num_running >= eng.max_num_seqs:
                    ints[lo.SLOTS_BOUND] = 1
                    blocked = True
                    break
                r = rep.preempted[num_preempted - 1] if num_preempted > 0 else rep.queue[head]
                known = req.input_tokens[r] + rep.generated[r]
                chunk = min(known, budget - spec.extra)
                taken = blocks_of(min(chunk + spec.lookahead, spec.longest), shift)
                needed = taken
                if eng.reserve_full != 0:
                    needed = max(taken, blocks_of(known, shift))
                if needed > free:
                    ints[lo.MEMORY_BOUND] = 1
                    blocked = True
                    break
                ints[lo.PEAK_GATE] = max(ints[lo.PEAK_GATE], eng.num_blocks - free + needed)
                if num_preempted > 0:
                    num_preempted -= 1
                else:
                    head += 1
                free -= taken
                spec.held[r] = taken
                rep.running[num_running] = r
                num_running += 1
                budget -= chunk + spec.extra
                prefill_tokens += chunk
                pairs += chunk * 0.5 * (chunk + 1)
                rep.state[r] = lo.PREFILLING
                if chunk == known:
                    rep.prefilled[num_prefilled] = r
                    num_prefilled += 1
                else:
                    partial = r
                    partial_done = chunk
        ints[lo.PEAK_BLOCKS] = max(ints[lo.PEAK_BLOCKS], eng.num_blocks - free)
        ints[lo.PEAK_RUNNING] = max(ints[lo.PEAK_RUNNING], num_running)

        # --- the previous step's output is processed: requests that ended leave, after this plan.
        released = False
        if lag == 1 and num_pending > 0:
            for j in range(num_pending):
                r = rep.pending[j]
                if rep.state[r] != lo.GONE:
                    free += spec.held[r]
                    spec.held[r] = 0
                    rep.state[r] = lo.GONE
                    released = True
            num_running = _remove_gone(rep, num_running)
        num_pending = 0

        if len(rec.samples) > 0 and now >= floats[lo.NEXT_SAMPLE]:
            floats[lo.NEXT_SAMPLE] = now + rec.sample_every
            used = eng.num_blocks - free
            if not record_sample(rec, rep, req, head, end, now, num_running, num_preempted, used):
                status = lo.OVERFLOW
                break

        if rows == 0 and prefill_tokens == 0:
            if busy == 1:
                busy = 0
                continue
            if num_preempted > 0 or (head < end and req.arrival[rep.queue[head]] <= now):
                status = lo.STUCK
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
        slope *= rows
        count = 1
        if prefill_tokens > 0:
            first = mixed_step_s(
                times,
                rows,
                context,
                attention,
                rows * queries + prefill_tokens,
                rows + num_prefilled,
                prefill_tokens,
                pairs,
            )
            ints[lo.PEAK_TOKENS] = max(ints[lo.PEAK_TOKENS], rows * queries + prefill_tokens)
        else:
            first = times.decode_fixed[rows] + attention
            if eng.single_step == 0 and num_wasted == 0 and not preempting and not (blocked and released):
                count = next_finish - step
                if knot + 1 < len(times.knots):
                    more = steps_to_knot(times, rows, context, knot)
                    count = min(count, _first_step_at(spec, level + more) - step)
                if count > 1 and not blocked:
                    arrival = horizon
                    if head < end:
                        arrival = min(arrival, req.arrival[rep.queue[head]])
                    delay = arrival - now
                    if delay <= 0.0:
                        count = 1
                    elif delay < math.inf:
                        within = _steps_within(spec, step, count, delay, first, slope)
                        count = min(count, 1 + lag + within)
                if count > 1 and _shortage(spec, rep, req, num_running, step, count, lag, shift) > free:
                    low = 1
                    while low + 1 < count:
                        middle = (low + count) // 2
                        if _shortage(spec, rep, req, num_running, step, middle, lag, shift) > free:
                            count = middle
                        else:
                            low = middle
                    count = low
                if count > 1:
                    free -= _take_window(spec, rep, req, num_running, step + count - 1, lag, shift)
                    ints[lo.PEAK_BLOCKS] = max(ints[lo.PEAK_BLOCKS], eng.num_blocks - free)

        # --- run: one step, or a window of decode steps.
        before_last = (count - 1) * first + slope * _growth(spec, step, count - 1)
        elapsed = count * first + slope * _growth(spec, step, count)
        if record_gaps and rows > num_wasted:
            decoding = rows - num_wasted
            if not _record_window(spec, rep, rec, num_running, step, count, first, slope, decoding):
                status = lo.OVERFLOW
                break
        last_start = now + before_last
        now += elapsed
        step += count
        busy = 1
        ints[lo.NUM_STEPS] += count
        ints[lo.NUM_WINDOWS] += 1
        floats[lo.MIXED_TIME if prefill_tokens > 0 else lo.DECODE_TIME] += elapsed
        floats[lo.ROW_TIME] += rows * elapsed
        level = _level(spec, step)
        level_before = _level(spec, step - 1)
        rows -= num_wasted
        num_wasted = 0

        # --- finished prompts have emitted a token and decode from now on.
        for j in range(num_prefilled):
            r = rep.prefilled[j]
            if rep.generated[r] == 0:
                out.first[r] = now + req.extra[r]
            elif record_gaps and not record_gap(rec, now - rep.last_emit[r], 0.0, 1, 1):
                status = lo.OVERFLOW
            rep.state[r] = lo.DECODING
            spec.goal[r] = level + req.output_tokens[r] - rep.generated[r] - 1
            spec.began[r] = step
            rows += 1
            next_finish = min(next_finish, _first_step_at(spec, spec.goal[r]))
        if status == lo.OVERFLOW:
            break

        # --- rows that emitted their last token.
        if next_finish <= step:
            for i in range(num_running):
                r = rep.running[i]
                if rep.state[r] != lo.DECODING or spec.goal[r] > level:
                    continue
                end = record_finish(rep, req, out, lim, r, now, end)
                rep.pending[num_pending] = r
                num_pending += 1
                rows -= 1
                # that it ends here was sure before the step if it ends by length and had one token to go
                sure = req.by_length[r] != 0 and (spec.began[r] == step or spec.goal[r] == level_before + 1)
                if lag == 1 and not sure:
                    rep.state[r] = lo.ENDED_BY_STOP
                    num_wasted += 1
                else:
                    rep.state[r] = lo.ENDED_BY_LENGTH
            rows += num_wasted
            next_goal = FAR
            for i in range(num_running):
                r = rep.running[i]
                if rep.state[r] == lo.DECODING:
                    next_goal = min(next_goal, spec.goal[r])
            next_finish = FAR if next_goal == FAR else _first_step_at(spec, next_goal)
            if ints[lo.NUM_BAD] > lim.max_bad:
                status = lo.BROKEN
                break
        if lag == 0 and num_pending > 0:  # the next plan knows that they ended
            for j in range(num_pending):
                r = rep.pending[j]
                free += spec.held[r]
                spec.held[r] = 0
                rep.state[r] = lo.GONE
            num_running = _remove_gone(rep, num_running)
            num_pending = 0

    ints[lo.STEP] = step
    ints[lo.ROWS] = rows
    ints[lo.NUM_RUNNING] = num_running
    ints[lo.FREE] = free
    ints[lo.PARTIAL] = partial
    ints[lo.PARTIAL_DONE] = partial_done
    ints[lo.NUM_PREEMPTED_WAITING] = num_preempted
    ints[lo.QUEUE_HEAD] = head
    ints[lo.QUEUE_END] = end
    ints[lo.NEXT_FINISH] = next_finish
    ints[lo.NUM_PENDING] = num_pending
    ints[lo.NUM_WASTED] = num_wasted
    ints[lo.BUSY] = busy
    ints[lo.KNOT] = knot
    floats[lo.NOW] = now
    floats[lo.LAST_START] = last_start
    return status
