"""llama.cpp's server, alone or under Ollama, one replica, with exact fast-forward (docs/llamacpp-scheduler.md).

There are few slots, and which of them run decides how many passes a step takes, so each plan looks at every slot. What
is never visited one by one is steps: attention covers the cells up to the next multiple of 256, so decode steps take
equally long until the longest slot gets there. A *window* of them ends with the first step in which that happens, a
row finishes, a context is full, or a plan can see an arrival that finds a free slot.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from servewise.kernel import layout as lo
from servewise.kernel.clock import record_finish, record_gap, record_sample, send_next, steps_starting_before
from servewise.kernel.layout import (
    Engine,
    Limits,
    Outputs,
    Prefix,
    Recorder,
    Replica,
    Requests,
    Times,
    compiled,
)
from servewise.kernel.steps import mixed_step_s

__all__ = ["Slots", "advance", "new_slots"]

# Columns of ``Slots.table``.
REQUEST = 0
"""-1 in an idle slot."""
CONTENT = 1
OWNER = 2
"""The request whose tokens the content is, -1 for no content; after a context shift, when it can match none, -2 less
the request."""
RELEASED = 3
"""Counts releases; -1 when the slot never ran."""
REST = 4
"""Tokens of the prompt to compute."""
LEFT = 5
"""Output tokens to sample."""
TODO = 6
"""Tokens in the step that is being planned, ..."""
KIND = 7
"""... which is a row that generates (0) or part of a prompt (1)."""
NUM_COLUMNS = 8

# Places in ``Slots.counts``.
CLOCK = 0
USED = 1
"""Cells in use, of idle slots too."""
SAVED = 2
"""Contents in ``Slots.host``, ..."""
SAVED_TOKENS = 3
"""... and their tokens."""
NUM_COUNTS = 4

# Columns of ``Slots.host``.
HOST_OWNER = 0
HOST_CONTENT = 1

PAD_SHIFT = 8
"""Attention covers a multiple of 256 cells."""
FAR = 1 << 60


class Slots(NamedTuple):
    """The server's own settings, and its slots, the replica as first axis.

    ``split`` gives each slot a stream of ``cells`` cells, otherwise all share one of as many. A slot's content may have
    ``context`` tokens, of which ``keep`` survive a context shift (``shift``). ``fifo`` lets requests that waited into
    slots first in, first out. A model that was idle for more than ``keep_alive`` takes ``load`` to come back.
    ``host`` has contents that were copied to the memory of the host, oldest first, at most ``host_tokens`` tokens
    (0: none are copied), each of which takes ``copy`` on its way; ``paused`` is how long that was since the last step.
    """

    split: int
    cells: int
    context: int
    ubatch: int
    windows: int
    shift: int
    keep: int
    fifo: int
    keep_alive: float
    load: float
    host_tokens: int
    copy: float
    table: NDArray[np.int64]
    counts: NDArray[np.int64]
    host: NDArray[np.int64]
    paused: NDArray[np.float64]
    idle_since: NDArray[np.float64]


def new_slots(
    num_replicas: int,
    num_slots: int,
    *,
    split: bool,
    cells: int,
    context: int,
    ubatch: int,
    windows: bool,
    shift: bool,
    keep: int,
    fifo: bool,
    keep_alive: float,
    load: float,
    starts_loaded: bool,
    host_tokens: int,
    copy: float,
    max_saved: int,
) -> Slots:
    """Slots that never ran; see :class:`Slots`. No more than ``max_saved`` contents are ever on a host."""
    table = np.zeros((num_replicas, num_slots, NUM_COLUMNS), np.int64)
    table[:, :, [REQUEST, OWNER, RELEASED]] = -1
    return Slots(
        split=int(split),
        cells=cells,
        context=context,
        ubatch=ubatch,
        windows=int(windows),
        shift=int(shift),
        keep=keep,
        fifo=int(fifo),
        keep_alive=keep_alive,
        load=load,
        host_tokens=host_tokens,
        copy=copy,
        table=table,
        counts=np.zeros((num_replicas, NUM_COUNTS), np.int64),
        host=np.zeros((num_replicas, max_saved, 2), np.int64),
        paused=np.zeros(num_replicas),
        idle_since=np.full(num_replicas, np.inf if starts_loaded else -np.inf),
    )


@compiled
def _padded(tokens: int) -> int:
    return (tokens + (1 << PAD_SHIFT) - 1) >> PAD_SHIFT << PAD_SHIFT


@compiled
def _attention_s(times: Times, rows: int, context: int) -> float:
    knots = times.knots
    low = 0
    high = len(knots) - 1
    while low < high:
        middle = (low + high + 1) >> 1
        if context >= knots[middle] * rows:
            low = middle
        else:
            high = middle - 1
    return float(times.attention_base[rows, low] + times.attention_slope[rows, low] * context)


@compiled
def _prompt_pass_s(times: Times, rows: int, context: int, tokens: int, pairs: float, sampled: int) -> float:
    """Duration of a pass with prompt tokens."""
    attention = _attention_s(times, rows, context) if rows > 0 else 0.0
    return mixed_step_s(times, rows, context, attention, rows + tokens, sampled, tokens, pairs)


@compiled
def _common(px: Prefix, owner: int, content: int, r: int, tokens: int) -> int:
    """Tokens at the start of a request's first ``tokens`` that are the first of a content, too.

    Of different requests they are known in whole blocks.
    """
    if owner == r:
        return min(content, tokens)
    if owner < 0 or r < 0:
        return 0
    mine = px.offsets[r]
    other = px.offsets[owner]
    most = min(px.offsets[r + 1] - mine, px.offsets[owner + 1] - other)
    if most == 0 or px.nodes[mine] != px.nodes[other]:
        return 0
    low = 1
    while low < most:  # equal nodes have equal pasts
        middle = (low + most + 1) >> 1
        if px.nodes[mine + middle - 1] == px.nodes[other + middle - 1]:
            low = middle
        else:
            most = middle - 1
    return int(min(low << px.span_shift, content, tokens))


@compiled
def _move(host: Any, from_place: int, to_place: int) -> None:
    host[to_place, HOST_OWNER] = host[from_place, HOST_OWNER]
    host[to_place, HOST_CONTENT] = host[from_place, HOST_CONTENT]


@compiled
def _save(px: Prefix, table: Any, counts: Any, host: Any, most: int, s: int) -> int:
    """Copy a slot's content to the host, if there is any and it is not there; returns the tokens that were copied."""
    content = table[s, CONTENT]
    owner = table[s, OWNER]
    if content == 0 or content > most:
        return 0
    for e in range(counts[SAVED]):
        if _common(px, host[e, HOST_OWNER], host[e, HOST_CONTENT], owner, content) == content:
            return 0
    tokens = counts[SAVED_TOKENS]
    kept = 0
    for e in range(counts[SAVED]):  # what this content begins with goes
        saved = host[e, HOST_CONTENT]
        if _common(px, host[e, HOST_OWNER], saved, owner, content) == saved:
            tokens -= saved
        else:
            _move(host, e, kept)
            kept += 1
    oldest = 0
    while tokens + content > most:
        tokens -= host[oldest, HOST_CONTENT]
        oldest += 1
    for e in range(oldest, kept):
        _move(host, e, e - oldest)
    kept -= oldest
    host[kept, HOST_OWNER] = owner
    host[kept, HOST_CONTENT] = content
    counts[SAVED] = kept + 1
    counts[SAVED_TOKENS] = tokens + content
    return int(content)


@compiled
def _load(px: Prefix, table: Any, counts: Any, host: Any, cells: int, s: int, r: int, prompt: int) -> int:
    """Put what the host has in the place of a slot's content, where it suits a prompt better; returns its tokens.

    It must have more in common with the prompt, also as a share of itself, which must be at least a quarter. Where
    the cells do not suffice for it the slot is left empty.
    """
    length = table[s, CONTENT]
    common = _common(px, table[s, OWNER], length, r, prompt)
    before = length
    best = -1
    for e in range(counts[SAVED]):
        saved = host[e, HOST_CONTENT]
        found = _common(px, host[e, HOST_OWNER], saved, r, prompt)
        if 4 * found >= saved and found > common and (length == 0 or found * length > common * saved):
            best = e
            common = found
            length = saved
    if best < 0:
        return 0
    counts[USED] -= before
    if counts[USED] + length > cells:
        table[s, CONTENT] = 0
        table[s, OWNER] = -1
        return 0
    counts[USED] += length
    table[s, CONTENT] = length
    table[s, OWNER] = host[best, HOST_OWNER]
    counts[SAVED] -= 1
    counts[SAVED_TOKENS] -= length
    for e in range(best, counts[SAVED]):
        _move(host, e + 1, e)
    return int(length)


@compiled
def _take_slot(px: Prefix, slots: Slots, i: int, req: Requests, out: Outputs, r: int) -> tuple[int, int]:
    """Give a request the best free slot; returns the tokens of its prompt that are there, and how many were copied."""
    table, counts, host = slots.table[i], slots.counts[i], slots.host[i]
    prompt = req.input_tokens[r]
    best = -1
    best_common = prompt // 10  # more than a tenth of the prompt
    oldest = -1
    for s in range(len(table)):
        if table[s, REQUEST] >= 0:
            continue
        common = _common(px, table[s, OWNER], table[s, CONTENT], r, prompt)
        if common > best_common:
            best_common = common
            best = s
        if oldest < 0 or table[s, RELEASED] <= table[oldest, RELEASED]:
            oldest = s
    copied = 0
    loses = best < 0 or 2 * best_common < table[best, CONTENT]
    if best < 0:
        best = oldest
    if slots.host_tokens > 0 and loses:
        cells = slots.cells if slots.split == 0 else FAR
        copied += _save(px, table, counts, host, slots.host_tokens, best)
        copied += _load(px, table, counts, host, cells, best, r, prompt)
    common = min(_common(px, table[best, OWNER], table[best, CONTENT], r, prompt), prompt - 1)
    counts[USED] += common - table[best, CONTENT]
    table[best, REQUEST] = r
    table[best, OWNER] = r
    table[best, CONTENT] = common
    table[best, REST] = prompt - common
    table[best, LEFT] = req.output_tokens[r]
    out.cached[r] = common
    if slots.host_tokens > 0:
        for s in range(len(table)):
            if table[s, REQUEST] < 0:
                copied += _save(px, table, counts, host, slots.host_tokens, s)
                if slots.split == 0:
                    _clear(table, counts, s)
    return int(common), copied


@compiled
def _clear(table: Any, counts: Any, s: int) -> None:
    counts[USED] -= table[s, CONTENT]
    table[s, CONTENT] = 0
    table[s, OWNER] = -1


@compiled
def _decode_steps(times: Times, slots: Slots, table: Any, rows: int, used: int) -> tuple[float, int]:
    """Duration of a step in which ``rows`` slots generate, and how many such steps take as long."""
    if slots.split == 0:
        covered = _padded(used + rows)
        context = min(covered, slots.cells)
        return times.decode_fixed[rows] + _attention_s(times, rows, context), (covered - used) // rows
    total = 0.0
    steps = FAR
    run = 0
    longest = 0
    for s in range(len(table) + 1):
        if s < len(table) and table[s, REQUEST] >= 0:
            run += 1
            longest = max(longest, table[s, CONTENT])
        elif run > 0:
            covered = _padded(longest + 1)
            steps = min(steps, covered - longest)
            total += times.decode_fixed[run] + _attention_s(times, run, run * min(covered, slots.cells))
            run = 0
            longest = 0
    return total, steps


@compiled
def _plan_prompts(slots: Slots, table: Any, batch: int, rows: int) -> tuple[int, bool]:
    """Share a batch out among the slots; returns its tokens, and whether it was too small."""
    room = batch - rows
    bound = False
    for s in range(len(table)):
        table[s, TODO] = 0
        if table[s, REQUEST] < 0:
            continue
        rest = table[s, REST]
        table[s, KIND] = int(rest > 0)
        if rest == 0:
            table[s, TODO] = 1
            continue
        chunk = rest
        if slots.windows != 0:
            if rest > min(slots.ubatch + 4, batch):
                chunk = rest - min(slots.ubatch + 4, batch)
            elif rest > min(4, batch):
                chunk = rest - min(4, batch)
        if chunk > room:
            chunk = room
            bound = True
        table[s, TODO] = chunk
        room -= chunk
    return batch - room, bound


@compiled
def _unified_step_s(times: Times, slots: Slots, table: Any, rows: int, used: int) -> float:
    """Compute a batch in its order, ``ubatch`` tokens a pass."""
    total = 0.0
    room = slots.ubatch - rows
    tokens = 0
    pairs = 0.0
    sampled = rows
    used += rows
    for s in range(len(table)):
        if table[s, TODO] > 0 and table[s, KIND] == 0:
            table[s, CONTENT] += 1
            table[s, TODO] = 0
        while table[s, TODO] > 0:
            if room == 0:
                context = min(_padded(used), slots.cells)
                if tokens > 0:
                    total += _prompt_pass_s(times, rows, context, tokens, pairs, sampled)
                else:
                    total += times.decode_fixed[rows] + _attention_s(times, rows, context)
                room = slots.ubatch
                rows = tokens = sampled = 0
                pairs = 0.0
            part = min(table[s, TODO], room)
            pairs += part * (table[s, CONTENT] + 0.5 * (part + 1))
            table[s, CONTENT] += part
            table[s, TODO] -= part
            table[s, REST] -= part
            if table[s, REST] == 0:
                sampled += 1
            room -= part
            tokens += part
            used += part
    return total + _prompt_pass_s(times, rows, min(_padded(used), slots.cells), tokens, pairs, sampled)


@compiled
def _split_step_s(times: Times, slots: Slots, table: Any) -> float:
    """Compute a batch in passes of neighbouring slots with equally many tokens."""
    total = 0.0
    while True:
        first = -1
        last = -1
        fewest = FAR
        for kind in range(2):
            for s in range(len(table)):
                if table[s, TODO] > 0 and table[s, KIND] == kind and (first < 0 or s == last + 1):
                    if first < 0:
                        first = s
                    last = s
                    fewest = min(fewest, table[s, TODO])
        if first < 0:
            return total
        part = min(fewest, slots.ubatch // (last - first + 1))
        rows = 0
        tokens = 0
        pairs = 0.0
        sampled = 0
        longest = 0
        for s in range(first, last + 1):
            if table[s, KIND] == 0:
                rows += 1
                sampled += 1
            else:
                tokens += part
                pairs += part * (table[s, CONTENT] + 0.5 * (part + 1))
                table[s, REST] -= part
                if table[s, REST] == 0:
                    sampled += 1
            table[s, CONTENT] += part
            table[s, TODO] -= part
            longest = max(longest, table[s, CONTENT])
        context = rows * min(_padded(longest), slots.cells)
        if tokens > 0:
            total += _prompt_pass_s(times, rows, context, tokens, pairs, sampled)
        else:
            total += times.decode_fixed[rows] + _attention_s(times, rows, context)


@compiled
def _find_room(table: Any, counts: Any, cells: int, tokens: int) -> bool:
    """Clear idle slots until the tokens fit; False when they do not."""
    for s in range(len(table)):
        if counts[USED] + tokens <= cells:
            return True
        if table[s, REQUEST] < 0:
            _clear(table, counts, s)
    return bool(counts[USED] + tokens <= cells)


@compiled
def _release(table: Any, counts: Any, s: int) -> None:
    table[s, REQUEST] = -1
    table[s, RELEASED] = counts[CLOCK]
    counts[CLOCK] += 1


@compiled
def _fail_all(rep: Replica, table: Any, counts: Any, req: Requests, out: Outputs, now: float, end: int) -> int:
    """Turn everybody out of a full cache; returns the new end of the queue in a closed loop."""
    ints = rep.ints
    for s in range(len(table)):
        r = table[s, REQUEST]
        if r >= 0:
            if len(rep.finish_times) > 0:
                rep.finish_times[ints[lo.NUM_FINISHED]] = now
            ints[lo.NUM_FINISHED] += 1
            ints[lo.NUM_BAD] += 1
            out.rejected[r] = 1
            out.first[r] = float("nan")
            if req.think >= 0.0:
                end = send_next(req, end, now + req.extra[r] + req.think)
            _release(table, counts, s)
        table[s, CONTENT] = 0
        table[s, OWNER] = -1
    counts[USED] = 0
    return end


@compiled
def _largest_run(table: Any) -> int:
    """Most neighbouring slots that generate: no step of theirs is shorter than one of so many rows."""
    most = 0
    run = 0
    for s in range(len(table)):
        run = run + 1 if table[s, REQUEST] >= 0 and table[s, REST] == 0 else 0
        most = max(most, run)
    return most


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
    rec: Recorder,
    slots: Slots,
    horizon: float,
) -> int:
    """Simulate every step of replica ``i`` that is planned before ``horizon``; returns a status of ``layout``.

    ``px`` and ``slots`` are the whole fleet's. Mutates ``rep``, ``out``, ``rec`` and ``slots``, and ``req.arrival`` in
    a closed loop. ``horizon`` must be infinite or not exceed the arrival of any request that is not yet in the
    replica's queue.
    """
    ints, floats = rep.ints, rep.floats
    table, counts = slots.table[i], slots.counts[i]
    num_slots = eng.max_num_seqs
    bounded = slots.split == 0 and num_slots > 1
    record_gaps = len(rec.gaps) > 0
    step = ints[lo.STEP]
    head = ints[lo.QUEUE_HEAD]
    end = ints[lo.QUEUE_END]
    released = ints[lo.NUM_PENDING]
    now = floats[lo.NOW]
    last_start = floats[lo.LAST_START]
    busy = 0
    rows = 0
    held = 0  # cells of requests in slots
    for s in range(num_slots):
        if table[s, REQUEST] >= 0:
            busy += 1
            held += table[s, CONTENT]
            if table[s, REST] == 0:
                rows += 1
    copies = 0
    status = lo.DONE

    while True:
        if now >= horizon:
            break
        if busy == 0 and head < end and req.arrival[rep.queue[head]] < horizon:
            arrival = req.arrival[rep.queue[head]]
            if arrival - slots.idle_since[i] > slots.keep_alive:  # the model was unloaded
                counts[:] = 0
                table[:, CONTENT] = 0
                table[:, OWNER] = -1
                table[:, RELEASED] = -1
                now = arrival + slots.load
                slots.idle_since[i] = now
                continue

        # --- slots: those who waited get the ones that were released, then those who have come get the free ones.
        waited = 0
        while waited < released and head + waited < end and req.arrival[rep.queue[head + waited]] <= last_start:
            waited += 1
        released = 0
        if waited > 0:
            ints[lo.SLOTS_BOUND] = 1
        for j in range(waited):
            k = j if slots.fifo != 0 else waited - 1 - j
            common, copied = _take_slot(px, slots, i, req, out, rep.queue[head + k])
            held += common
            copies += copied
        head += waited
        busy += waited
        while copies == 0 and busy < num_slots and head < end and req.arrival[rep.queue[head]] <= now:
            common, copies = _take_slot(px, slots, i, req, out, rep.queue[head])
            held += common
            head += 1
            busy += 1
        if copies > 0:  # who comes meanwhile is seen by this plan
            now += copies * slots.copy
            slots.paused[i] += copies * slots.copy
            copies = 0
            continue

        if busy == 0:
            if head == end or req.arrival[rep.queue[head]] >= horizon:
                break
            now = req.arrival[rep.queue[head]]
            continue

        # --- what a slot that generates has room and output for.
        fewest = FAR
        if rows > 0:
            for s in range(num_slots):
                if table[s, REQUEST] < 0 or table[s, REST] > 0:
                    continue
                if slots.shift != 0:
                    content = table[s, CONTENT]
                    if content + 1 >= slots.context:
                        dropped = (content - min(slots.keep, slots.context - 4)) // 2
                        table[s, CONTENT] -= dropped
                        table[s, OWNER] = -2 - table[s, REQUEST]
                        counts[USED] -= dropped
                        held -= dropped
                    fewest = min(fewest, slots.context - 1 - table[s, CONTENT])
                fewest = min(fewest, table[s, LEFT])

        tokens = rows
        if rows < busy:
            tokens, bound = _plan_prompts(slots, table, eng.max_num_batched_tokens, rows)
            if bound:
                ints[lo.BUDGET_BOUND] = 1
        if bounded and counts[USED] + tokens > slots.cells:
            ints[lo.MEMORY_BOUND] = 1
            if not _find_room(table, counts, slots.cells, tokens):
                end = _fail_all(rep, table, counts, req, out, now, end)
                slots.idle_since[i] = now
                released = busy
                last_start = now
                busy = rows = held = 0
                if ints[lo.NUM_BAD] > lim.max_bad:
                    status = lo.BROKEN
                    break
                continue
        ints[lo.PEAK_RUNNING] = max(ints[lo.PEAK_RUNNING], busy)
        if len(rec.samples) > 0 and now >= floats[lo.NEXT_SAMPLE]:
            floats[lo.NEXT_SAMPLE] = now + rec.sample_every
            if not record_sample(rec, rep, req, head, end, now, busy, 0, held + tokens):
                status = lo.OVERFLOW
                break

        # --- run: a step with prompts, or a window of steps in which the same slots generate.
        count = 1
        if rows < busy:
            if slots.split != 0:
                first = _split_step_s(times, slots, table)
            else:
                first = _unified_step_s(times, slots, table, rows, counts[USED])
            ints[lo.PEAK_TOKENS] = max(ints[lo.PEAK_TOKENS], tokens)
            floats[lo.MIXED_TIME] += first
        else:
            first, count = _decode_steps(times, slots, table, rows, counts[USED])
            count = min(count, fewest)
            if eng.single_step != 0:
                count = 1
            if bounded:
                count = min(count, (slots.cells - counts[USED]) // rows)
            if count > 1 and busy < num_slots:
                delay = (min(horizon, req.arrival[rep.queue[head]]) if head < end else horizon) - now
                if (count - 1) * first >= delay:
                    count = min(count, 1 + steps_starting_before(delay, first, 0.0))
            tokens = rows * count
            floats[lo.DECODE_TIME] += count * first
        if record_gaps and rows > 0 and not record_gap(rec, first + slots.paused[i], 0.0, count, rows):
            status = lo.OVERFLOW
            break
        slots.paused[i] = 0.0
        counts[USED] += tokens
        held += tokens
        ints[lo.PEAK_BLOCKS] = max(ints[lo.PEAK_BLOCKS], held)
        ints[lo.NUM_STEPS] += count
        ints[lo.NUM_WINDOWS] += 1
        floats[lo.ROW_TIME] += rows * count * first
        last_start = now + (count - 1) * first
        now += count * first
        step += count

        # --- tokens are delivered in the order of slots; who has its last one leaves.
        mixed = rows < busy
        for s in range(num_slots):
            r = table[s, REQUEST]
            if r < 0 or table[s, REST] > 0:
                continue
            if not mixed:
                table[s, CONTENT] += count
            elif table[s, KIND] == 1:
                rows += 1
                out.first[r] = now + req.extra[r]
            table[s, LEFT] -= count
            if table[s, LEFT] > 0:
                continue
            end = record_finish(rep, req, out, lim, r, now, end)
            _release(table, counts, s)
            released += 1
            busy -= 1
            rows -= 1
            held -= table[s, CONTENT]
        if released > 0:
            slots.idle_since[i] = now
            if ints[lo.NUM_BAD] > lim.max_bad:
                status = lo.BROKEN
                break

    fewest = FAR
    for s in range(num_slots):
        if table[s, REQUEST] >= 0 and table[s, REST] == 0:
            fewest = min(fewest, table[s, LEFT])
    ints[lo.STEP] = step
    ints[lo.ROWS] = _largest_run(table)
    ints[lo.CONTEXT] = held
    ints[lo.NUM_RUNNING] = busy
    ints[lo.PARTIAL] = 0 if rows < busy else -1
    ints[lo.QUEUE_HEAD] = head
    ints[lo.QUEUE_END] = end
    ints[lo.NEXT_FINISH] = step + fewest
    ints[lo.NUM_PENDING] = released
    floats[lo.NOW] = now
    floats[lo.LAST_START] = last_start
    return status
