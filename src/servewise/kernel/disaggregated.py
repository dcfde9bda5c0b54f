"""Groups of prefill and decode instances with a link between them (specification: docs/disaggregation.md).

Instances are simulated together, by the earliest thing that any of them has to do: end a step, plan one, or receive
what a link or the router brings. Prompts are stepped singly. Decode rows are never visited one by one (see
``vllm.py``): a decode instance runs a *window* of equal steps, which is only settled when its last step begins (with
lag; without, when it ends), so that whatever reaches the instance before can still cut it short.

A decode instance of the group (row ``k`` of ``ints``) goes through: ``_begin_decode`` (how long is the window),
``_settle`` (what it did) and ``_plan_decode`` (the step after it), ``_finish`` (its end: last tokens leave). With lag
the two in the middle happen at the start of the window's last step, otherwise at its end.
"""

from __future__ import annotations

from servewise.kernel import group as gr
from servewise.kernel import layout as lo
from servewise.kernel.clock import record_finish, record_gap, record_sample, steps_starting_before
from servewise.kernel.group import Group
from servewise.kernel.layout import Limits, Outputs, Recorder, Replica, Requests, compiled
from servewise.kernel.rows import blocks_of, steps_before_shortage
from servewise.kernel.steps import knot_at, mixed_step_s, steps_to_knot

__all__ = ["advance"]

FAR = 1 << 60
INFINITY = float("inf")


# ---------------------------------------------------------------- queues and routers


@compiled
def _append(g: Group, k: int, first: int, r: int) -> None:
    """Put a request at the end of one of instance ``k``'s queues."""
    ints = g.ints[k]
    g.live[r, gr.LINK] = -1
    if ints[first] < 0:
        ints[first] = r
    else:
        g.live[ints[first + 1], gr.LINK] = r
    ints[first + 1] = r


@compiled
def _pop(g: Group, k: int, first: int) -> int:
    """Take the head of one of instance ``k``'s queues."""
    ints = g.ints[k]
    r = ints[first]
    ints[first] = g.live[r, gr.LINK]
    return int(r)


@compiled
def _choose(g: Group, base: int, num: int, pointer: int) -> int:
    """The instance, of ``num`` from row ``base`` on, that gets the next request."""
    best = pointer
    if g.protocol.router == gr.LEAST_REQUESTS:
        for j in range(1, num):
            other = pointer + j
            if other >= num:
                other -= num
            if g.ints[base + other, gr.ROUTED] < g.ints[base + best, gr.ROUTED]:
                best = other
    return best


@compiled
def _notice(g: Group, k: int, now: float, late: bool) -> None:
    """Let decode instance ``k`` look at what has just come in its first plan from ``now`` on.

    ``late``: plans of this very instant were made before it came.
    """
    ints, floats = g.ints[k], g.floats[k]
    if ints[lo.BUSY] == 0 or ints[gr.PLANNED] == 1:
        ints[gr.NEWS] = 1
        return
    first, growth = floats[gr.FIRST], floats[gr.GROWTH]
    delay = now - floats[gr.START]
    step = 0  # the first of the window's steps that does not start before now
    if delay > 0.0:
        step = ints[gr.COUNT]
        if step * (first + 0.5 * growth * (step - 1)) >= delay:
            step = min(step, 1 + steps_starting_before(delay, first, growth))
    if late and floats[gr.START] + step * (first + 0.5 * growth * (step - 1)) == now:
        step += 1
    count = max(step + g.decode.engine.lag, 1)
    if count < ints[gr.COUNT]:
        _set_window(g, k, count)


@compiled
def _set_window(g: Group, k: int, count: int) -> None:
    """Let the step that decode instance ``k`` has begun be the first of ``count`` equal ones."""
    floats = g.floats[k]
    first, growth, start = floats[gr.FIRST], floats[gr.GROWTH], floats[gr.START]
    g.ints[k, gr.COUNT] = count
    floats[gr.END_AT] = start + count * first + 0.5 * growth * count * (count - 1)
    floats[gr.PLAN_AT] = floats[gr.END_AT]
    if g.decode.engine.lag == 1:
        floats[gr.PLAN_AT] = start + (count - 1) * first + 0.5 * growth * (count - 1) * (count - 2)
    floats[gr.NEXT_AT] = floats[gr.PLAN_AT]


@compiled
def _send(g: Group, r: int, blocks: int, last: bool, now: float) -> None:
    """Ask for the transfer of ``blocks`` more blocks of a request; the ``last`` one makes it ready on D."""
    p, d = g.live[r, gr.PREFILL_OF], g.live[r, gr.DECODE_OF]
    start = max(now, g.floats[p, gr.LINK_FREE], g.floats[d, gr.LINK_FREE])
    free = start + g.clocks[r, gr.WIRE] * (blocks / g.live[r, gr.PREFILL_BLOCKS])
    g.live[r, gr.SENT] += blocks
    g.floats[p, gr.LINK_FREE] = free
    g.floats[d, gr.LINK_FREE] = free
    if last:
        g.clocks[r, gr.TRANSFER_ASKED] = now
        g.clocks[r, gr.TRANSFER_START] = start
        g.clocks[r, gr.TRANSFER_END] = free + g.protocol.latency
        if g.ints[p, gr.TRANSFER_FIRST] < 0:
            g.floats[p, gr.ARRIVES_AT] = g.clocks[r, gr.TRANSFER_END]
        _append(g, p, gr.TRANSFER_FIRST, r)


@compiled
def _choose_decode(g: Group, i: int, base: int, r: int) -> int:
    """Send a request to a decode instance of group ``i``; returns the instance's row."""
    decodes = base + g.prefill.num
    chosen = _choose(g, decodes, g.decode.num, g.routers[i, gr.NEXT_D])
    g.routers[i, gr.NEXT_D] = chosen + 1 if chosen + 1 < g.decode.num else 0
    d = decodes + chosen
    g.live[r, gr.DECODE_OF] = d
    g.ints[d, gr.ROUTED] += 1
    return int(d)


@compiled
def _arrive_on_decode(g: Group, d: int, r: int, now: float, late: bool) -> None:
    """Put a request into the queue of decode instance ``d``."""
    _append(g, d, gr.QUEUE_FIRST, r)
    if g.ints[d, gr.BLOCKED] == 0 or g.ints[d, lo.BUSY] == 0:
        _notice(g, d, now, late)


@compiled
def _end_request(
    g: Group, front: Replica, k: int, r: int, now: float, req: Requests, out: Outputs, lim: Limits
) -> None:
    """The last token of a request leaves instance ``k``."""
    ints = front.ints
    bad = ints[lo.NUM_BAD]
    ints[lo.QUEUE_END] = record_finish(front, req, out, lim, r, now, ints[lo.QUEUE_END])
    g.ints[k, lo.NUM_FINISHED] += 1
    g.ints[k, lo.NUM_BAD] += ints[lo.NUM_BAD] - bad
    if g.live[r, gr.DECODE_OF] >= 0:
        g.ints[g.live[r, gr.DECODE_OF], gr.ROUTED] -= 1


# ---------------------------------------------------------------- prefill instances


@compiled
def _plan_prefill(g: Group, k: int, q: int, req: Requests) -> None:
    """Plan the next step of prefill instance ``k``: the unfinished prompt, then the queue, until something is short."""
    ints = g.ints[k]
    eng, protocol = g.prefill.engine, g.protocol
    half = 1 - ints[gr.PARITY]
    budget = eng.max_num_batched_tokens
    size = 0
    tokens = 0
    pairs = 0.0
    cut = -1
    while True:
        r = ints[lo.PARTIAL]
        done = ints[lo.PARTIAL_DONE]
        if r < 0:
            r = ints[gr.QUEUE_FIRST]
            done = 0
            if r < 0:
                break
            if ints[lo.NUM_RUNNING] >= eng.max_num_seqs:
                ints[lo.SLOTS_BOUND] = 1
                break
            if g.live[r, gr.PREFILL_BLOCKS] + protocol.margin > ints[lo.FREE]:
                ints[lo.MEMORY_BOUND] = 1
                break
        chunk = req.input_tokens[r] - done
        charged = (chunk + protocol.charge - 1) // protocol.charge * protocol.charge
        if charged > budget:
            ints[lo.BUDGET_BOUND] = 1
            chunk = budget // protocol.cut * protocol.cut if protocol.chunking != 0 else 0
            if chunk == 0:
                break
            cut = r
        budget -= charged
        if ints[lo.PARTIAL] < 0:
            _pop(g, k, gr.QUEUE_FIRST)
            ints[lo.NUM_RUNNING] += 1
            ints[lo.FREE] -= g.live[r, gr.PREFILL_BLOCKS]
        tokens += chunk
        pairs += chunk * (done + 0.5 * (chunk + 1))
        if cut >= 0:
            ints[lo.PARTIAL] = r
            ints[lo.PARTIAL_DONE] = done + chunk
            break
        ints[lo.PARTIAL] = -1
        ints[lo.PARTIAL_DONE] = 0
        g.batch[q, half, size] = r
        size += 1
    ints[gr.BATCH_SIZE + half] = size
    ints[gr.BATCH_CUT + half] = cut
    ints[gr.BATCH_CUT_DONE + half] = ints[lo.PARTIAL_DONE]
    ints[gr.PREFILL_TOKENS] = tokens
    g.floats[k, gr.PAIRS] = pairs
    ints[gr.HAS_STEP] = 1 if tokens > 0 else 0
    ints[gr.NEWS] = 0
    ints[lo.PEAK_RUNNING] = max(ints[lo.PEAK_RUNNING], ints[lo.NUM_RUNNING])
    ints[lo.PEAK_BLOCKS] = max(ints[lo.PEAK_BLOCKS], eng.num_blocks - ints[lo.FREE])
    ints[lo.PEAK_TOKENS] = max(ints[lo.PEAK_TOKENS], tokens)


@compiled
def _go_on_prefill(g: Group, k: int, q: int, now: float, req: Requests) -> None:
    """Begin what prefill instance ``k`` has planned, or can plan now, and plan the step after it."""
    ints, floats = g.ints[k], g.floats[k]
    if ints[gr.HAS_ENDED] == 0 or ints[gr.HAS_STEP] == 0:
        _plan_prefill(g, k, q, req)
    ints[gr.HAS_ENDED] = 0
    if ints[gr.HAS_STEP] == 0:
        ints[lo.BUSY] = 0
        floats[gr.NEXT_AT] = INFINITY
        return
    ints[gr.PARITY] = 1 - ints[gr.PARITY]
    tokens = ints[gr.PREFILL_TOKENS]
    times = g.prefill.times
    sampled = ints[gr.BATCH_SIZE + ints[gr.PARITY]]
    duration = mixed_step_s(times, 0, 0, 0.0, tokens, sampled, tokens, floats[gr.PAIRS])
    ints[lo.BUSY] = 1
    ints[lo.NUM_STEPS] += 1
    ints[lo.NUM_WINDOWS] += 1
    floats[lo.MIXED_TIME] += duration
    floats[lo.NOW] = now
    floats[gr.END_AT] = now + duration
    floats[gr.NEXT_AT] = floats[gr.END_AT]
    ints[gr.HAS_STEP] = 0
    if g.prefill.engine.lag == 1:
        _plan_prefill(g, k, q, req)


@compiled
def _end_prefill_step(
    g: Group,
    front: Replica,
    i: int,
    base: int,
    k: int,
    q: int,
    now: float,
    late: bool,
    req: Requests,
    out: Outputs,
    lim: Limits,
) -> None:
    """A step of prefill instance ``k`` ends: finished prompts are handed over."""
    ints = g.ints[k]
    ints[gr.HAS_ENDED] = 1
    half = ints[gr.PARITY]
    kind = g.protocol.kind
    for j in range(ints[gr.BATCH_SIZE + half]):
        r = g.batch[q, half, j]
        ints[gr.ROUTED] -= 1
        g.clocks[r, gr.PREFILL_END] = now
        if kind == gr.PUSH:
            ints[gr.NUM_HELD] += 1
            _send(g, r, g.live[r, gr.PREFILL_BLOCKS] - g.live[r, gr.SENT], True, now)
            continue
        ints[lo.NUM_RUNNING] -= 1
        if kind == gr.HANDOFF:
            g.live[r, gr.GENERATED] = 1
            g.clocks[r, gr.LAST_EMIT] = now
            out.first[r] = now + req.extra[r]
            if req.output_tokens[r] == 1:
                ints[lo.FREE] += g.live[r, gr.PREFILL_BLOCKS]
                _end_request(g, front, k, r, now, req, out, lim)
                continue
        _arrive_on_decode(g, _choose_decode(g, i, base, r), r, now, late)
    r = ints[gr.BATCH_CUT + half]
    if r >= 0 and kind == gr.PUSH:
        whole = ints[gr.BATCH_CUT_DONE + half] >> g.prefill.engine.block_shift
        if whole > g.live[r, gr.SENT]:
            _send(g, r, whole - g.live[r, gr.SENT], False, now)


@compiled
def _end_transfers(g: Group, k: int, now: float, late: bool) -> None:
    """Transfers of prefill instance ``k`` end: its blocks are free, the request is ready."""
    ints = g.ints[k]
    while ints[gr.TRANSFER_FIRST] >= 0 and g.clocks[ints[gr.TRANSFER_FIRST], gr.TRANSFER_END] <= now:
        r = _pop(g, k, gr.TRANSFER_FIRST)
        ints[lo.FREE] += g.live[r, gr.PREFILL_BLOCKS]
        ints[gr.NEWS] = 1
        if g.protocol.kind == gr.PUSH:
            ints[lo.NUM_RUNNING] -= 1
            ints[gr.NUM_HELD] -= 1
        d = g.live[r, gr.DECODE_OF]
        _append(g, d, gr.READY_FIRST, r)
        _notice(g, d, now, late)
    first = ints[gr.TRANSFER_FIRST]
    g.floats[k, gr.ARRIVES_AT] = g.clocks[first, gr.TRANSFER_END] if first >= 0 else INFINITY


# ---------------------------------------------------------------- decode instances: blocks and rows


@compiled
def _blocks_of(g: Group, r: int, tokens: int) -> int:
    """Blocks that a request with so many tokens in its KV cache holds on D."""
    if g.protocol.kind == gr.HANDOFF:
        return int(g.live[r, gr.DECODE_BLOCKS])
    return blocks_of(tokens, g.decode.engine.block_shift)


@compiled
def _add_row(g: Group, k: int, d: int, r: int, length: int, finish: int) -> None:
    """Let a request with ``length`` tokens in its KV cache decode from the next step on, until step ``finish``."""
    ints = g.ints[k]
    g.live[r, gr.FINISH_STEP] = finish
    g.live[r, gr.STATE] = lo.DECODING
    bucket = finish & (g.ring.shape[1] - 1)
    g.live[r, gr.NEXT_SAME] = g.ring[d, bucket]
    g.ring[d, bucket] = r
    ints[lo.NEXT_FINISH] = min(ints[lo.NEXT_FINISH], finish)
    ints[lo.ROWS] += 1
    ints[lo.CONTEXT] += length + 1
    g.phase[d, (ints[lo.STEP] - length) & (g.phase.shape[1] - 1)] += 1


@compiled
def _drop_row(g: Group, k: int, d: int, length: int) -> None:
    """Take a row whose KV cache has ``length`` tokens now."""
    ints = g.ints[k]
    ints[lo.ROWS] -= 1
    ints[lo.CONTEXT] -= length + 1
    g.phase[d, (ints[lo.STEP] - length) & (g.phase.shape[1] - 1)] -= 1


@compiled
def _seat(g: Group, k: int, d: int, r: int) -> None:
    """Put a request at the end of the list of those that run."""
    ints = g.ints[k]
    top = ints[lo.RUN_TOP]
    if top == g.running.shape[1]:
        kept = 0
        for j in range(top):
            other = g.running[d, j]
            if other >= 0:
                g.running[d, kept] = other
                g.live[other, gr.POSITION] = kept
                kept += 1
        top = kept
    g.running[d, top] = r
    g.live[r, gr.POSITION] = top
    ints[lo.RUN_TOP] = top + 1


@compiled
def _join(g: Group, k: int, d: int, r: int, length: int, output_tokens: int) -> None:
    """Let a ready request decode from the next step on."""
    ints = g.ints[k]
    _add_row(g, k, d, r, length, ints[lo.STEP] + output_tokens - g.live[r, gr.GENERATED])
    g.joined[d, ints[gr.NUM_JOINED]] = r
    ints[gr.NUM_JOINED] += 1
    _seat(g, k, d, r)


@compiled
def _find_next_finish(g: Group, k: int, d: int) -> None:
    """Look for the next step in which a row emits its last token."""
    ints = g.ints[k]
    mask = g.ring.shape[1] - 1
    step = ints[lo.STEP]
    ints[lo.NEXT_FINISH] = FAR
    if ints[lo.ROWS] - ints[lo.NUM_WASTED] > 0:
        ahead = step + 1
        while ahead - step <= mask and g.ring[d, ahead & mask] < 0:
            ahead += 1
        if ahead - step <= mask:
            ints[lo.NEXT_FINISH] = ahead


@compiled
def _unlink(g: Group, d: int, r: int) -> None:
    """Take a request out of the calendar."""
    bucket = g.live[r, gr.FINISH_STEP] & (g.ring.shape[1] - 1)
    other = g.ring[d, bucket]
    if other == r:
        g.ring[d, bucket] = g.live[r, gr.NEXT_SAME]
        return
    while g.live[other, gr.NEXT_SAME] != r:
        other = g.live[other, gr.NEXT_SAME]
    g.live[other, gr.NEXT_SAME] = g.live[r, gr.NEXT_SAME]


@compiled
def _evict(g: Group, k: int, d: int, r: int, req: Requests, out: Outputs) -> None:
    """Take the blocks, the row and the seat of a request that has a row or had one until its last token."""
    ints = g.ints[k]
    emitted = req.output_tokens[r] - (g.live[r, gr.FINISH_STEP] - ints[lo.STEP])
    length = req.input_tokens[r] + emitted - 1
    ints[lo.FREE] += _blocks_of(g, r, length)
    ints[lo.NUM_RUNNING] -= 1
    ints[lo.NUM_PREEMPTIONS] += 1
    out.preemptions[r] += 1
    g.running[d, g.live[r, gr.POSITION]] = -1
    if g.live[r, gr.STATE] != lo.ENDED_BY_LENGTH:
        _drop_row(g, k, d, length)
        if g.live[r, gr.STATE] == lo.ENDED_BY_STOP:
            ints[lo.NUM_WASTED] -= 1
    if g.live[r, gr.STATE] != lo.DECODING:
        g.live[r, gr.STATE] = lo.GONE
        return
    _unlink(g, d, r)
    g.live[r, gr.GENERATED] = emitted
    g.clocks[r, gr.LAST_EMIT] = g.floats[k, lo.LAST_EMISSION]
    g.live[r, gr.STATE] = lo.WAITING


# ---------------------------------------------------------------- decode instances: plans


@compiled
def _plan_pull(g: Group, k: int, d: int, now: float, req: Requests, out: Outputs) -> None:
    """vLLM's plan: rows and the unfinished recomputation first, then whoever waits."""
    ints = g.ints[k]
    eng = g.decode.engine
    shift = eng.block_shift
    step = ints[lo.STEP]
    mask = g.phase.shape[1] - 1
    chunk = 0
    chunk_blocks = 0
    partial = ints[lo.PARTIAL]
    done = ints[lo.PARTIAL_DONE]
    if partial >= 0:
        chunk = min(
            req.input_tokens[partial] + g.live[partial, gr.GENERATED] - done, eng.max_num_batched_tokens - ints[lo.ROWS]
        )
        chunk_blocks = blocks_of(done + chunk, shift) - blocks_of(done, shift)
    while g.phase[d, step & mask] + chunk_blocks > ints[lo.FREE]:
        ints[gr.PREEMPTED] = 1
        ints[lo.MEMORY_BOUND] = 1
        while g.running[d, ints[lo.RUN_TOP] - 1] < 0:
            ints[lo.RUN_TOP] -= 1
        ints[lo.RUN_TOP] -= 1
        r = g.running[d, ints[lo.RUN_TOP]]
        if r == partial:
            ints[lo.FREE] += blocks_of(done, shift)
            ints[lo.NUM_RUNNING] -= 1
            ints[lo.NUM_PREEMPTIONS] += 1
            out.preemptions[r] += 1
            g.live[r, gr.STATE] = lo.WAITING
            partial = -1
            chunk = 0
            chunk_blocks = 0
        else:
            _evict(g, k, d, r, req, out)
        if g.live[r, gr.STATE] == lo.WAITING:
            g.live[r, gr.LINK] = ints[gr.RETURNED_FIRST]
            ints[gr.RETURNED_FIRST] = r
    if ints[gr.PREEMPTED] != 0:
        _find_next_finish(g, k, d)
    ints[lo.FREE] -= g.phase[d, step & mask] + chunk_blocks
    budget = eng.max_num_batched_tokens - ints[lo.ROWS] - chunk
    tokens = chunk
    pairs = 0.0
    num_prefilled = 0
    if partial >= 0:
        pairs = chunk * (done + 0.5 * (chunk + 1))
        done += chunk
        if done == req.input_tokens[partial] + g.live[partial, gr.GENERATED]:
            g.prefilled[d, num_prefilled] = partial
            num_prefilled += 1
            partial = -1
    while ints[gr.PREEMPTED] == 0:
        ready = ints[gr.READY_FIRST] >= 0
        returned = ints[gr.RETURNED_FIRST] >= 0
        if not (ready or returned or ints[gr.QUEUE_FIRST] >= 0):
            break
        ints[gr.BLOCKED] = 1
        if budget <= 0:
            ints[lo.BUDGET_BOUND] = 1
            break
        if ints[lo.NUM_RUNNING] >= eng.max_num_seqs:
            ints[lo.SLOTS_BOUND] = 1
            break
        if ready:
            r = _pop(g, k, gr.READY_FIRST)
            ints[lo.NUM_RUNNING] += 1
            _join(g, k, d, r, req.input_tokens[r] - 1, req.output_tokens[r])
            budget -= 1
        elif returned:
            r = ints[gr.RETURNED_FIRST]
            known = req.input_tokens[r] + g.live[r, gr.GENERATED]
            chunk = min(known, budget)
            if blocks_of(known if eng.reserve_full != 0 else chunk, shift) > ints[lo.FREE]:
                ints[lo.MEMORY_BOUND] = 1
                break
            _pop(g, k, gr.RETURNED_FIRST)
            ints[lo.FREE] -= blocks_of(chunk, shift)
            ints[lo.NUM_RUNNING] += 1
            _seat(g, k, d, r)
            budget -= chunk
            tokens += chunk
            pairs += chunk * 0.5 * (chunk + 1)
            if chunk == known:
                g.prefilled[d, num_prefilled] = r
                num_prefilled += 1
            else:
                g.live[r, gr.STATE] = lo.PREFILLING
                partial = r
                done = chunk
        else:
            r = ints[gr.QUEUE_FIRST]
            if blocks_of(req.input_tokens[r], shift) > ints[lo.FREE]:
                ints[lo.MEMORY_BOUND] = 1
                break
            _pop(g, k, gr.QUEUE_FIRST)
            ints[lo.FREE] -= blocks_of(req.input_tokens[r], shift)
            _send(g, r, g.live[r, gr.PREFILL_BLOCKS], True, now)
        ints[gr.BLOCKED] = 0
    ints[lo.PARTIAL] = partial
    ints[lo.PARTIAL_DONE] = done
    ints[gr.PREFILL_TOKENS] = tokens
    ints[gr.NUM_PREFILLED] = num_prefilled
    g.floats[k, gr.PAIRS] = pairs
    ints[gr.HAS_STEP] = 1 if ints[lo.ROWS] > 0 or tokens > 0 else 0


@compiled
def _is_within_reserve(g: Group, k: int, tokens: int) -> bool:
    """Whether SGLang has so many tokens and the reserve for one more request."""
    ints = g.ints[k]
    reserved = g.protocol.reserved
    free = ints[lo.FREE] << g.decode.engine.block_shift
    return bool(tokens + reserved <= free - reserved * ints[lo.NUM_RUNNING])


@compiled
def _victim(g: Group, k: int, d: int, req: Requests) -> int:
    """Who is retracted: the fewest tokens generated, then the longest prompt, then the last that became a row."""
    ints = g.ints[k]
    best = -1
    fewest = 0
    for j in range(ints[lo.RUN_TOP]):
        r = g.running[d, j]
        if r < 0:
            continue
        emitted = req.output_tokens[r] - (g.live[r, gr.FINISH_STEP] - ints[lo.STEP])
        if best < 0 or emitted < fewest or (emitted == fewest and req.input_tokens[r] >= req.input_tokens[best]):
            best = r
            fewest = emitted
    return best


@compiled
def _leave_joined(g: Group, k: int, d: int, r: int) -> bool:
    """Whether a request was to become a row in the planned step; it is taken out of the list of those."""
    joined = g.ints[k, gr.NUM_JOINED]
    found = False
    for j in range(joined):
        found = found or g.joined[d, j] == r
        if found and j + 1 < joined:
            g.joined[d, j] = g.joined[d, j + 1]
    if found:
        g.ints[k, gr.NUM_JOINED] -= 1
    return found


@compiled
def _plan_push(g: Group, front: Replica, k: int, d: int, now: float, req: Requests, out: Outputs, lim: Limits) -> None:
    """SGLang's plan: the retracted come back, new requests get pages, ready ones join, and each row gets its page."""
    ints = g.ints[k]
    slots = g.decode.engine.max_num_seqs
    shift = g.decode.engine.block_shift
    while ints[gr.RETURNED_FIRST] >= 0:
        r = ints[gr.RETURNED_FIRST]
        length = req.input_tokens[r] + g.live[r, gr.GENERATED] - 1
        if ints[lo.NUM_RUNNING] >= slots or not _is_within_reserve(g, k, length):
            break
        _pop(g, k, gr.RETURNED_FIRST)
        ints[lo.FREE] -= blocks_of(length, shift)
        ints[lo.NUM_RUNNING] += 1
        _join(g, k, d, r, length, req.output_tokens[r])
    while ints[gr.RETURNED_FIRST] < 0 and ints[gr.QUEUE_FIRST] >= 0:
        r = ints[gr.QUEUE_FIRST]
        ints[gr.BLOCKED] = 1
        if ints[lo.NUM_RUNNING] >= slots:
            ints[lo.SLOTS_BOUND] = 1
            break
        if not _is_within_reserve(g, k, req.input_tokens[r]):
            ints[lo.MEMORY_BOUND] = 1
            break
        ints[gr.BLOCKED] = 0
        _pop(g, k, gr.QUEUE_FIRST)
        ints[lo.FREE] -= blocks_of(req.input_tokens[r], shift)
        ints[lo.NUM_RUNNING] += 1
        ints[gr.NUM_HELD] += 1
        p = g.live[r, gr.PREFILL_OF]
        _append(g, p, gr.QUEUE_FIRST, r)
        g.ints[p, gr.NEWS] = 1
    if ints[gr.RETURNED_FIRST] >= 0:
        ints[gr.BLOCKED] = 1
    while ints[gr.READY_FIRST] >= 0:
        r = _pop(g, k, gr.READY_FIRST)
        ints[gr.NUM_HELD] -= 1
        g.live[r, gr.GENERATED] = 1
        g.clocks[r, gr.LAST_EMIT] = now
        out.first[r] = now + req.extra[r]
        if req.output_tokens[r] == 1:
            ints[lo.FREE] += blocks_of(req.input_tokens[r], shift)
            ints[lo.NUM_RUNNING] -= 1
            ints[gr.RELEASED] = 1
            _end_request(g, front, k, r, now, req, out, lim)
        else:
            _join(g, k, d, r, req.input_tokens[r], req.output_tokens[r])
    bucket = ints[lo.STEP] & (g.phase.shape[1] - 1)
    ints[gr.HAS_STEP] = 1
    if g.phase[d, bucket] > ints[lo.FREE]:
        ints[lo.MEMORY_BOUND] = 1
        ints[gr.PREEMPTED] = 1
        if ints[lo.NUM_PENDING] > 0:
            ints[gr.HAS_STEP] = 0
            return
    while g.phase[d, bucket] > ints[lo.FREE]:
        r = _victim(g, k, d, req)
        emitted_at = g.clocks[r, gr.LAST_EMIT]
        _evict(g, k, d, r, req, out)
        if _leave_joined(g, k, d, r):
            g.clocks[r, gr.LAST_EMIT] = emitted_at
        _append(g, k, gr.RETURNED_FIRST, r)
        ints[gr.BLOCKED] = 1
    if ints[gr.PREEMPTED] != 0:
        _find_next_finish(g, k, d)
    ints[lo.FREE] -= g.phase[d, bucket]
    ints[gr.HAS_STEP] = 1 if ints[lo.ROWS] > 0 else 0


@compiled
def _plan_handoff(g: Group, k: int, d: int, now: float, req: Requests) -> None:
    """TensorRT-LLM's plan: ready requests join, new ones are admitted with all that they may need."""
    ints = g.ints[k]
    while ints[gr.READY_FIRST] >= 0:
        r = _pop(g, k, gr.READY_FIRST)
        ints[gr.NUM_HELD] -= 1
        _join(g, k, d, r, req.input_tokens[r], req.output_tokens[r])
    while ints[gr.QUEUE_FIRST] >= 0:
        r = ints[gr.QUEUE_FIRST]
        ints[gr.BLOCKED] = 1
        if ints[lo.NUM_RUNNING] >= g.decode.engine.max_num_seqs:
            ints[lo.SLOTS_BOUND] = 1
            break
        if g.live[r, gr.DECODE_BLOCKS] > ints[lo.FREE]:
            ints[lo.MEMORY_BOUND] = 1
            break
        ints[gr.BLOCKED] = 0
        _pop(g, k, gr.QUEUE_FIRST)
        ints[lo.FREE] -= g.live[r, gr.DECODE_BLOCKS]
        ints[lo.NUM_RUNNING] += 1
        ints[gr.NUM_HELD] += 1
        _send(g, r, g.live[r, gr.PREFILL_BLOCKS], True, now)
    ints[gr.HAS_STEP] = 1 if ints[lo.ROWS] > 0 else 0


@compiled
def _plan_decode(
    g: Group, front: Replica, k: int, d: int, now: float, req: Requests, out: Outputs, lim: Limits
) -> None:
    """Plan the next step of decode instance ``k``; ``HAS_STEP`` says whether there is one."""
    ints = g.ints[k]
    ints[gr.NEWS] = 0
    ints[gr.BLOCKED] = 0
    ints[gr.RELEASED] = 0
    ints[gr.PREEMPTED] = 0
    ints[gr.PREFILL_TOKENS] = 0
    ints[gr.NUM_PREFILLED] = 0
    if g.protocol.kind == gr.PULL:
        _plan_pull(g, k, d, now, req, out)
    elif g.protocol.kind == gr.PUSH:
        _plan_push(g, front, k, d, now, req, out, lim)
    else:
        _plan_handoff(g, k, d, now, req)
    ints[lo.PEAK_RUNNING] = max(ints[lo.PEAK_RUNNING], ints[lo.NUM_RUNNING])
    ints[lo.PEAK_BLOCKS] = max(ints[lo.PEAK_BLOCKS], g.decode.engine.num_blocks - ints[lo.FREE])


# ---------------------------------------------------------------- decode instances: steps


@compiled
def _begin_decode(g: Group, k: int, d: int, now: float) -> None:
    """Begin the step that decode instance ``k`` has planned, and as many like it as are sure to follow."""
    ints, floats = g.ints[k], g.floats[k]
    times = g.decode.times
    rows = ints[lo.ROWS]
    context = ints[lo.CONTEXT]
    tokens = ints[gr.PREFILL_TOKENS]
    knot = ints[lo.KNOT]
    attention = 0.0
    slope = 0.0
    if rows > 0:
        knot = knot_at(times, rows, context, knot)
        slope = times.attention_slope[rows, knot]
        attention = times.attention_base[rows, knot] + slope * context
    count = 1
    growth = 0.0
    if tokens > 0:
        first = mixed_step_s(
            times, rows, context, attention, rows + tokens, rows + ints[gr.NUM_PREFILLED], tokens, floats[gr.PAIRS]
        )
        ints[lo.PEAK_TOKENS] = max(ints[lo.PEAK_TOKENS], rows + tokens)
    else:
        first = times.decode_fixed[rows] + attention
        growth = slope * rows
        if (
            g.decode.engine.single_step == 0
            and ints[lo.NUM_WASTED] == 0
            and ints[gr.PREEMPTED] == 0
            and ints[gr.NEWS] == 0
            and not (ints[gr.BLOCKED] == 1 and ints[gr.RELEASED] == 1)
        ):
            count = ints[lo.NEXT_FINISH] - ints[lo.STEP]
            count = min(count, steps_to_knot(times, rows, context, knot))
            if count > 1 and g.protocol.kind != gr.HANDOFF:
                count = 1 + steps_before_shortage(g.phase[d], ints[lo.STEP] + 1, ints[lo.FREE], rows, count - 1)
    ints[lo.KNOT] = knot
    ints[lo.BUSY] = 1
    ints[gr.PLANNED] = 0
    floats[lo.NOW] = now
    floats[gr.START] = now
    floats[gr.FIRST] = first
    floats[gr.GROWTH] = growth
    _set_window(g, k, count)


@compiled
def _settle(g: Group, k: int, d: int, req: Requests, out: Outputs, rec: Recorder) -> bool:
    """What the window of decode instance ``k`` did, except that last tokens leave at its end; False without room."""
    ints, floats = g.ints[k], g.floats[k]
    count = ints[gr.COUNT]
    first, growth, start, end = floats[gr.FIRST], floats[gr.GROWTH], floats[gr.START], floats[gr.END_AT]
    rows = ints[lo.ROWS]
    mask = g.phase.shape[1] - 1
    if count > 1 and g.protocol.kind != gr.HANDOFF:
        extra = ((count - 1) >> g.decode.engine.block_shift) * rows
        for j in range((count - 1) & ~mask, count - 1):
            extra += g.phase[d, (ints[lo.STEP] + 1 + j) & mask]
        ints[lo.FREE] -= extra
        ints[lo.PEAK_BLOCKS] = max(ints[lo.PEAK_BLOCKS], g.decode.engine.num_blocks - ints[lo.FREE])
    elapsed = end - start
    floats[lo.MIXED_TIME if ints[gr.PREFILL_TOKENS] > 0 else lo.DECODE_TIME] += elapsed
    floats[lo.ROW_TIME] += rows * elapsed
    floats[lo.LAST_EMISSION] = end
    ints[lo.NUM_STEPS] += count
    ints[lo.NUM_WINDOWS] += 1
    ints[lo.STEP] += count
    ints[lo.CONTEXT] += rows * count

    # --- gaps, and first tokens that D computes
    joined = ints[gr.NUM_JOINED]
    older = rows - joined - ints[lo.NUM_WASTED]
    record_gaps = len(rec.gaps) > 0
    room = True
    if record_gaps and older > 0:
        room = record_gap(rec, first, growth, count, older)
    for j in range(joined):
        r = g.joined[d, j]
        if g.protocol.kind == gr.PULL:
            out.first[r] = start + first + req.extra[r]
        elif record_gaps:
            room = record_gap(rec, start + first - g.clocks[r, gr.LAST_EMIT], 0.0, 1, 1) and room
    if record_gaps and joined > 0 and count > 1:
        room = record_gap(rec, first + growth, growth, count - 1, joined) and room
    ints[gr.NUM_JOINED] = 0

    # --- rows that ran in vain leave
    for j in range(ints[lo.NUM_PENDING]):
        r = g.pending[d, j]
        if g.live[r, gr.STATE] == lo.ENDED_BY_STOP:
            _drop_row(g, k, d, req.input_tokens[r] + req.output_tokens[r])
        g.live[r, gr.STATE] = lo.GONE
    ints[lo.NUM_WASTED] = 0
    ints[lo.NUM_PENDING] = 0

    # --- recomputed requests have emitted a token and decode from now on
    for j in range(ints[gr.NUM_PREFILLED]):
        r = g.prefilled[d, j]
        if record_gaps:
            room = record_gap(rec, end - g.clocks[r, gr.LAST_EMIT], 0.0, 1, 1) and room
        length = req.input_tokens[r] + g.live[r, gr.GENERATED]
        _add_row(g, k, d, r, length, ints[lo.STEP] + req.output_tokens[r] - g.live[r, gr.GENERATED] - 1)

    # --- rows that emitted their last token
    step = ints[lo.STEP]
    if ints[lo.NEXT_FINISH] == step:
        bucket = step & (g.ring.shape[1] - 1)
        r = g.ring[d, bucket]
        g.ring[d, bucket] = -1
        while r >= 0:
            g.pending[d, ints[lo.NUM_PENDING]] = r
            ints[lo.NUM_PENDING] += 1
            if req.by_length[r] == 0 and g.decode.engine.lag == 1:
                g.live[r, gr.STATE] = lo.ENDED_BY_STOP
                ints[lo.NUM_WASTED] += 1
            else:
                g.live[r, gr.STATE] = lo.ENDED_BY_LENGTH
                _drop_row(g, k, d, req.input_tokens[r] + req.output_tokens[r] - 1)
            r = g.live[r, gr.NEXT_SAME]
        _find_next_finish(g, k, d)
    return bool(room)


@compiled
def _finish(g: Group, front: Replica, k: int, d: int, now: float, req: Requests, out: Outputs, lim: Limits) -> None:
    """A window of decode instance ``k`` ends: last tokens leave, and blocks and seats are free."""
    ints = g.ints[k]
    ints[gr.HAS_ENDED] = 1
    planned = ints[gr.PLANNED] == 1 and ints[gr.HAS_STEP] == 1
    for j in range(ints[lo.NUM_PENDING]):
        r = g.pending[d, j]
        _end_request(g, front, k, r, now, req, out, lim)
        if g.live[r, gr.STATE] == lo.GONE:  # preempted with its last token in flight
            continue
        length = req.input_tokens[r] + req.output_tokens[r] - 1
        if g.live[r, gr.STATE] == lo.ENDED_BY_STOP:
            if planned:
                length += 1
            else:
                _drop_row(g, k, d, length)
        ints[lo.FREE] += _blocks_of(g, r, length)
        ints[lo.NUM_RUNNING] -= 1
        ints[gr.RELEASED] = 1
        g.running[d, g.live[r, gr.POSITION]] = -1
    if not planned:
        ints[lo.NUM_PENDING] = 0
        ints[lo.NUM_WASTED] = 0
    if ints[lo.NUM_RUNNING] == ints[gr.NUM_HELD]:
        ints[lo.RUN_TOP] = 0


@compiled
def _go_on_decode(
    g: Group, front: Replica, k: int, d: int, now: float, req: Requests, out: Outputs, lim: Limits, rec: Recorder
) -> bool:
    """Let decode instance ``k`` begin and plan what is due now; False without room for what is recorded."""
    ints, floats = g.ints[k], g.floats[k]
    room = True
    if ints[gr.HAS_ENDED] == 1 or (ints[lo.BUSY] == 0 and ints[gr.NEWS] == 1):
        if ints[gr.HAS_ENDED] == 0 or ints[gr.PLANNED] == 0 or ints[gr.HAS_STEP] == 0:
            _plan_decode(g, front, k, d, now, req, out, lim)
            while ints[gr.HAS_STEP] == 0 and (ints[gr.PREEMPTED] == 1 or ints[gr.RELEASED] == 1):
                _plan_decode(g, front, k, d, now, req, out, lim)
        ints[gr.HAS_ENDED] = 0
        ints[gr.PLANNED] = 0
        if ints[gr.HAS_STEP] == 0:
            ints[lo.BUSY] = 0
            floats[gr.NEXT_AT] = INFINITY
            return True
        _begin_decode(g, k, d, now)
    if ints[lo.BUSY] == 1 and ints[gr.PLANNED] == 0 and g.decode.engine.lag == 1 and floats[gr.PLAN_AT] <= now:
        room = _settle(g, k, d, req, out, rec)
        _plan_decode(g, front, k, d, now, req, out, lim)
        ints[gr.PLANNED] = 1
        floats[gr.NEXT_AT] = floats[gr.END_AT]
    return bool(room)


# ---------------------------------------------------------------- the group


@compiled
def _is_due(g: Group, k: int, now: float) -> bool:
    """Whether decode instance ``k`` has a step to begin or to plan."""
    ints = g.ints[k]
    if ints[lo.BUSY] == 0 or ints[gr.HAS_ENDED] == 1:
        return bool(ints[gr.HAS_ENDED] == 1 or ints[gr.NEWS] == 1)
    return bool(ints[gr.PLANNED] == 0 and g.floats[k, gr.PLAN_AT] <= now)


@compiled
def _next_event(g: Group, base: int) -> float:
    """When the next step or transfer of a group has something due."""
    at = INFINITY
    for k in range(base, base + g.prefill.num + g.decode.num):
        at = min(at, g.floats[k, gr.NEXT_AT], g.floats[k, gr.ARRIVES_AT])
    return at


@compiled
def _sample(g: Group, front: Replica, rec: Recorder, req: Requests, base: int, now: float) -> bool:
    """Record the group's state: who computes, who waits or is on the way, the blocks of all instances."""
    running = 0
    used = 0
    for k in range(base, base + g.prefill.num + g.decode.num):
        ints = g.ints[k]
        is_prefill = k < base + g.prefill.num
        used += (g.prefill.engine.num_blocks if is_prefill else g.decode.engine.num_blocks) - ints[lo.FREE]
        running += ints[lo.NUM_RUNNING] - ints[gr.NUM_HELD]
    head = front.ints[lo.QUEUE_HEAD]
    waiting = head - front.ints[lo.NUM_FINISHED] - running
    return bool(record_sample(rec, front, req, head, head, now, running, waiting, used))


@compiled
def _route(g: Group, i: int, base: int, r: int, now: float, late: bool) -> None:
    """Send a request to a prefill instance of group ``i``, with SGLang by way of a decode instance."""
    p = _choose(g, base, g.prefill.num, g.routers[i, gr.NEXT_P])
    g.routers[i, gr.NEXT_P] = p + 1 if p + 1 < g.prefill.num else 0
    g.live[r, gr.PREFILL_OF] = base + p
    g.ints[base + p, gr.ROUTED] += 1
    if g.protocol.kind == gr.PUSH:
        _arrive_on_decode(g, _choose_decode(g, i, base, r), r, now, late)
    else:
        _append(g, base + p, gr.QUEUE_FIRST, r)
        g.ints[base + p, gr.NEWS] = 1


@compiled
def _end_steps(
    g: Group,
    front: Replica,
    i: int,
    now: float,
    late: bool,
    req: Requests,
    out: Outputs,
    lim: Limits,
    rec: Recorder,
) -> bool:
    """Let the steps of group ``i`` end that are due; False without room for what is recorded."""
    x, y = g.prefill.num, g.decode.num
    base = i * (x + y)
    room = True
    for j in range(x):
        k = base + j
        if g.ints[k, lo.BUSY] == 1 and g.floats[k, gr.END_AT] <= now and g.ints[k, gr.HAS_ENDED] == 0:
            _end_prefill_step(g, front, i, base, k, i * x + j, now, late, req, out, lim)
    for j in range(y):
        k = base + x + j
        if g.ints[k, lo.BUSY] == 1 and g.floats[k, gr.END_AT] <= now and g.ints[k, gr.HAS_ENDED] == 0:
            if g.ints[k, gr.PLANNED] == 0:
                room = _settle(g, k, i * y + j, req, out, rec) and room
            _finish(g, front, k, i * y + j, now, req, out, lim)
    return bool(room)


@compiled
def advance(
    front: Replica,
    g: Group,
    i: int,
    req: Requests,
    out: Outputs,
    lim: Limits,
    rec: Recorder,
    horizon: float,
) -> int:
    """Simulate everything that happens in group ``i`` before ``horizon``; returns a status of ``layout``.

    ``front`` holds the group's queue and what has become of its requests; ``rec`` is the group's own. Mutates
    ``front``, ``g``, ``out`` and ``rec``, and ``req.arrival`` in a closed loop. ``horizon`` as in ``vllm.advance``.
    """
    ints, floats = front.ints, front.floats
    x, y = g.prefill.num, g.decode.num
    base = i * (x + y)
    status = lo.DONE
    last = -INFINITY
    while True:
        now = _next_event(g, base)
        head = ints[lo.QUEUE_HEAD]
        if head < ints[lo.QUEUE_END]:
            now = min(now, req.arrival[front.queue[head]])
        if now >= horizon or now == INFINITY:
            if horizon == INFINITY and ints[lo.NUM_FINISHED] < head:
                status = lo.STUCK
            break
        late = now == last
        last = now
        floats[lo.NOW] = now

        # --- steps end, transfers arrive, requests come
        if not _end_steps(g, front, i, now, late, req, out, lim, rec):
            status = lo.OVERFLOW
        for k in range(base, base + x):
            if g.floats[k, gr.ARRIVES_AT] <= now:
                _end_transfers(g, k, now, late)
        head = ints[lo.QUEUE_HEAD]
        while head < ints[lo.QUEUE_END] and req.arrival[front.queue[head]] <= now:
            _route(g, i, base, front.queue[head], now, late)
            head += 1
        ints[lo.QUEUE_HEAD] = head

        # --- steps begin and are planned
        for j in range(y):
            if _is_due(g, base + x + j, now) and not _go_on_decode(
                g, front, base + x + j, i * y + j, now, req, out, lim, rec
            ):
                status = lo.OVERFLOW
        for j in range(x):
            k = base + j
            if g.ints[k, gr.HAS_ENDED] == 1 or (g.ints[k, lo.BUSY] == 0 and g.ints[k, gr.NEWS] == 1):
                _go_on_prefill(g, k, i * x + j, now, req)

        if len(rec.samples) > 0 and now >= floats[lo.NEXT_SAMPLE]:
            floats[lo.NEXT_SAMPLE] = now + rec.sample_every
            if not _sample(g, front, rec, req, base, now):
                status = lo.OVERFLOW
        if status != lo.DONE:
            break
        if ints[lo.NUM_BAD] > lim.max_bad:
            status = lo.BROKEN
            break
    # what ends at the horizon has ended when the request that comes there is routed
    if status == lo.DONE and horizon < INFINITY and not _end_steps(g, front, i, horizon, False, req, out, lim, rec):
        status = lo.OVERFLOW
    ints[lo.PARTIAL] = 0 if ints[lo.NUM_FINISHED] < ints[lo.QUEUE_HEAD] else -1  # whether something may finish
    return status
