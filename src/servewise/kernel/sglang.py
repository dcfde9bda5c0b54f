"""SGLang's scheduler, one replica, with exact fast-forward (specification: docs/sglang-scheduler.md).

As in ``vllm.py`` decode rows are never visited one by one. The calendar of finishes counts the steps in which decode
rows run. A *window* of equal decode steps ends with the first step in which something else can happen: a row finishes,
pages run out, a piece of the step table ends, or a plan can see an arrival. While somebody waits and decode steps
follow each other, the latch is set, since a batch of prompts that was tried in vain sets it: nothing is tried until
somebody leaves, so nothing else ends a window.

A plan may retract a request whose token the running step samples; the token is lost then, even if it was the last one.
So the outputs of a step are processed after the plan that is made while it runs.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

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
from servewise.kernel.radix import AVAILABLE, Radix, drop, evict, hold, keep, look_up, node_of, release
from servewise.kernel.rows import compact, sort_by_position, steps_before_shortage, unlink
from servewise.kernel.steps import knot_at, mixed_step_s, steps_to_knot

__all__ = [
    "Sglang",
    "advance",
    "end_rows",
    "join",
    "new_sglang",
    "plan_prompts",
    "process_outputs",
    "rest",
    "retract",
    "see_arrivals",
    "sglang_at",
    "take_pages",
]

CLIP_TOKENS = 4096
DECAY_STEPS = 600
RETRACT_STEPS = 20
LOOKED_UP = 128
REFRESH_EVERY = 32
DEFER_TOKENS = 32
"""A request that has no more than so many tokens in the tree, and so many in common with one before it, goes last."""
FAR = 1 << 60

# Integers of ``Sglang.ints``.
WAITING_HEAD = 0
LATCH = 1
LATCH_OFF = 2
"""Somebody has left since the last plan, or the running step is one after which the latch is off."""
CHUNK_RAN = 3
RATIO_STEPS = 4
WANTED = 5
"""Sum over running requests of ``M`` less the tokens that they have emitted, those in flight included."""
NUM_CLIPPED = 6
"""Running requests whose ``M`` is beyond what is counted."""
NUM_TRIED = 7
DECODED = 8
"""Whether decode rows ran in the running step: they have a token in flight."""
NUM_EMITTING = 9
"""Decode rows of the running step whose token will be delivered."""
FIRST_JOINED = 10
NUM_JOINED = 11
"""Where in ``Replica.running`` the requests stand whose prompts the running step completes."""
NUM_FRESH = 12
"""Requests in ``Replica.preempted``: they have emitted their first token since decode rows ran last."""
NUM_STATE_INTS = 13

# Floats of ``Sglang.floats``.
RATIO_START = 0
PREVIOUS_EMISSION = 1
"""End of the decode step before the running one."""
LAST_GAP = 2
"""From there to the end of the running one."""
NUM_STATE_FLOATS = 3


class Sglang(NamedTuple):
    """SGLang's parameters and what only its driver keeps.

    ``max_new``, shape (num_requests,), is what a request may produce. Between ``init_ratio`` and ``least_ratio`` lies
    the share of it that is set aside for running requests; all of it with ``ignore_eos``. ``waiting`` is a ring with
    room for every request, ``scores`` scratch for sorting it: scores, and what requests begin with.
    """

    max_new: NDArray[np.int32]
    init_ratio: float
    least_ratio: float
    ignore_eos: int
    max_prefill_tokens: int
    mixed: int
    longest_prefix_first: int
    ints: NDArray[np.int64]
    floats: NDArray[np.float64]
    waiting: NDArray[np.int32]
    scores: NDArray[np.int32]
    tree: Radix


def new_sglang(
    *,
    max_new: NDArray[np.int32],
    conservativeness: float,
    ignore_eos: bool,
    max_prefill_tokens: int,
    mixed: bool,
    longest_prefix_first: bool,
    num_replicas: int,
    tree: Radix,
) -> Sglang:
    """State of replicas with nothing running, the replica as the first axis of what they do not share."""
    init = min(0.7 * conservativeness, 1.0)
    floats = np.zeros((num_replicas, NUM_STATE_FLOATS))
    floats[:, RATIO_START] = init
    return Sglang(
        max_new=max_new,
        init_ratio=init,
        least_ratio=0.14 * init,
        ignore_eos=int(ignore_eos),
        max_prefill_tokens=max_prefill_tokens,
        mixed=int(mixed),
        longest_prefix_first=int(longest_prefix_first),
        ints=np.zeros((num_replicas, NUM_STATE_INTS), np.int64),
        floats=floats,
        waiting=np.zeros((num_replicas, max(len(max_new), 1)), np.int32),
        scores=np.zeros((num_replicas, 2 * LOOKED_UP), np.int32),
        tree=tree,
    )


@compiled
def sglang_at(state: Sglang, i: int) -> Sglang:
    """State of replica ``i``."""
    tree = state.tree
    return Sglang(
        state.max_new,
        state.init_ratio,
        state.least_ratio,
        state.ignore_eos,
        state.max_prefill_tokens,
        state.mixed,
        state.longest_prefix_first,
        state.ints[i],
        state.floats[i],
        state.waiting[i],
        state.scores[i],
        Radix(tree.segments[i], tree.nodes[i], tree.counters[i], tree.users),
    )


@compiled
def _pages(tokens: int, shift: int) -> int:
    return (tokens + (1 << shift) - 1) >> shift


@compiled
def _ratio(state: Sglang) -> float:
    """Share of what running requests may still produce that is set aside."""
    if state.ignore_eos != 0:
        return 1.0
    decay = (state.init_ratio - state.least_ratio) / DECAY_STEPS
    return float(max(state.floats[RATIO_START] - state.ints[RATIO_STEPS] * decay, state.least_ratio))


@compiled
def _has_joined(rep: Replica, state: Sglang, r: int) -> bool:
    """Whether the running step completes the prompt of a running request."""
    place = rep.position[r] - state.ints[FIRST_JOINED]
    return bool(0 <= place < state.ints[NUM_JOINED])


@compiled
def _out(rep: Replica, req: Requests, state: Sglang, r: int) -> int:
    """Output tokens of a running request that have been processed."""
    emitted = req.output_tokens[r] - (rep.finish_step[r] - rep.ints[lo.STEP])
    in_flight = state.ints[DECODED] != 0 or _has_joined(rep, state, r)
    return int(emitted - 1 if in_flight else emitted)


@compiled
def _still_wanted(rep: Replica, req: Requests, state: Sglang) -> int:
    """Tokens that running requests may still produce, each counted up to a limit."""
    mine = state.ints
    if mine[NUM_CLIPPED] == 0:
        return int(mine[WANTED] + mine[NUM_EMITTING] + mine[NUM_JOINED])
    total = 0
    for i in range(rep.ints[lo.RUN_TOP]):
        r = rep.running[i]
        if r >= 0:
            total += min(state.max_new[r] - _out(rep, req, state, r), CLIP_TOKENS)
    return total


@compiled
def _waiting_at(state: Sglang, i: int) -> int:
    """Place in the ring of the ``i``-th waiting request."""
    place = state.ints[WAITING_HEAD] + i
    return int(place if place < len(state.waiting) else place - len(state.waiting))


@compiled
def _wait(rep: Replica, state: Sglang, r: int) -> None:
    """Put a request at the end of the waiting list."""
    state.waiting[_waiting_at(state, rep.ints[lo.NUM_PREEMPTED_WAITING])] = r
    rep.ints[lo.NUM_PREEMPTED_WAITING] += 1


@compiled
def see_arrivals(rep: Replica, req: Requests, state: Sglang, visible: float) -> None:
    ints = rep.ints
    while ints[lo.QUEUE_HEAD] < ints[lo.QUEUE_END] and req.arrival[rep.queue[ints[lo.QUEUE_HEAD]]] <= visible:
        _wait(rep, state, rep.queue[ints[lo.QUEUE_HEAD]])
        ints[lo.QUEUE_HEAD] += 1


@compiled
def _is_among(values: Any, start: int, num: int, value: int) -> bool:
    """Whether ``num`` values from ``start`` on contain one."""
    i = start
    while i < start + num and values[i] != value:
        i += 1
    return i < start + num


@compiled
def _order_waiting(rep: Replica, req: Requests, eng: Engine, state: Sglang, px: Prefix) -> None:
    """Look waiting requests up, and sort them under ``lpm``."""
    num = rep.ints[lo.NUM_PREEMPTED_WAITING]
    shift = eng.block_shift
    if state.longest_prefix_first == 0:
        state.ints[NUM_TRIED] += 1
        if state.ints[NUM_TRIED] % REFRESH_EVERY == 1:
            for i in range(min(num, LOOKED_UP) - 1, -1, -1):
                r = state.waiting[_waiting_at(state, i)]
                look_up(px, state.tree, r, (req.input_tokens[r] + rep.generated[r]) >> shift)
        return
    if num > LOOKED_UP:
        return
    scores = state.scores
    pages = _pages(DEFER_TOKENS, shift)
    num_begins = 0
    for i in range(num):
        r = state.waiting[_waiting_at(state, i)]
        known = req.input_tokens[r] + rep.generated[r]
        found = look_up(px, state.tree, r, known >> shift)[0] << shift
        score = min(found, known - 1)
        if found <= DEFER_TOKENS and known >> shift >= pages:
            begin = node_of(px, r, pages - 1)[0]
            if _is_among(scores, LOOKED_UP, num_begins, begin):
                score = -1
            else:
                scores[LOOKED_UP + num_begins] = begin
                num_begins += 1
        j = i - 1
        while j >= 0 and scores[j] < score:
            scores[j + 1] = scores[j]
            state.waiting[_waiting_at(state, j + 1)] = state.waiting[_waiting_at(state, j)]
            j -= 1
        scores[j + 1] = score
        state.waiting[_waiting_at(state, j + 1)] = r


@compiled
def end_rows(rep: Replica, req: Requests, state: Sglang, shift: int) -> int:
    """Find the rows whose last token is in flight; returns how many of them end by length."""
    ints = rep.ints
    step = ints[lo.STEP]
    if ints[lo.NEXT_FINISH] != step:
        return 0
    ring_mask = len(rep.ring) - 1
    by_length = 0
    r = rep.ring[step & ring_mask]
    rep.ring[step & ring_mask] = -1
    while r >= 0:
        rep.pending[ints[lo.NUM_PENDING]] = r
        ints[lo.NUM_PENDING] += 1
        if req.output_tokens[r] < state.max_new[r]:
            rep.state[r] = lo.ENDED_BY_STOP
            ints[lo.NUM_WASTED] += 1
        else:
            rep.state[r] = lo.ENDED_BY_LENGTH
            by_length += 1
            _take_row_out(rep, req.input_tokens[r] + req.output_tokens[r] - 1, shift)
        r = rep.next_same[r]
    _find_next_finish(rep)
    return by_length


@compiled
def _take_row_out(rep: Replica, length: int, shift: int) -> None:
    """A row with ``length`` tokens in their place decodes no more."""
    rep.ints[lo.ROWS] -= 1
    rep.ints[lo.CONTEXT] -= length + 1
    rep.phase[(rep.ints[lo.STEP] - length) & ((1 << shift) - 1)] -= 1


@compiled
def _find_next_finish(rep: Replica) -> None:
    ints = rep.ints
    next_finish = FAR
    if ints[lo.ROWS] > ints[lo.NUM_WASTED]:
        next_finish = ints[lo.STEP] + 1
        while rep.ring[next_finish & (len(rep.ring) - 1)] < 0:
            next_finish += 1
    ints[lo.NEXT_FINISH] = next_finish


@compiled
def plan_prompts(
    rep: Replica, req: Requests, out: Outputs, eng: Engine, state: Sglang, px: Prefix
) -> tuple[int, float, int]:
    """Make a batch of prompts: its tokens (0: there is none), attention pairs and requests that it completes.

    The latter are in ``rep.prefilled``.
    """
    ints, mine = rep.ints, state.ints
    shift = eng.block_shift
    page = 1 << shift
    caching = eng.caching != 0
    chunked = ints[lo.PARTIAL]
    if chunked < 0:
        if ints[lo.NUM_PREEMPTED_WAITING] == 0 or mine[LATCH] != 0:
            return 0, 0.0, 0
        if ints[lo.NUM_RUNNING] >= eng.max_num_seqs:
            mine[LATCH] = 1
            ints[lo.SLOTS_BOUND] = 1
            return 0, 0.0, 0
    if caching and ints[lo.NUM_PREEMPTED_WAITING] > 0:
        _order_waiting(rep, req, eng, state, px)
    in_batch = 1 if chunked >= 0 else 0
    num_before = ints[lo.NUM_RUNNING] - in_batch
    taken = num_before if state.mixed != 0 else 0
    chunk = eng.max_num_batched_tokens - taken
    most = state.max_prefill_tokens - taken
    weighted = _ratio(state) * _still_wanted(rep, req, state)
    tokens = 0
    pairs = 0.0
    fresh = 0
    completed = 0

    if chunked >= 0:
        done = ints[lo.PARTIAL_DONE]
        left = req.input_tokens[chunked] + rep.generated[chunked] - done
        limit = min(chunk, math.floor(page * ints[lo.FREE] - (weighted + taken)))
        tokens = min(left, limit if limit > 0 else chunk)
        fresh = _pages(done + tokens, shift) - _pages(done, shift)
        if fresh > ints[lo.FREE]:
            ints[lo.MEMORY_BOUND] = 1
            return 0, 0.0, 0
        pairs = tokens * (done + 0.5 * (tokens + 1))
        ints[lo.PARTIAL_DONE] = done + tokens
        charged = _pages(tokens, shift) << shift
        chunk -= charged
        most -= charged
        taken += charged + page
        if tokens == left:
            taken += min(state.max_new[chunked], CLIP_TOKENS)
            rep.prefilled[0] = chunked
            completed = 1
            ints[lo.PARTIAL] = -1
        else:
            mine[CHUNK_RAN] = 1
            ints[lo.BUDGET_BOUND] = 1

    while ints[lo.NUM_PREEMPTED_WAITING] > 0:
        if (chunk <= 0 or most <= 0) and page * ints[lo.FREE] - (weighted + taken) > 0:
            ints[lo.BUDGET_BOUND] = 1
            break
        if ints[lo.NUM_RUNNING] >= eng.max_num_seqs:
            mine[LATCH] = 1
            ints[lo.SLOTS_BOUND] = 1
            break
        r = state.waiting[mine[WAITING_HEAD]]
        known = req.input_tokens[r] + rep.generated[r]
        hit, unheld, last = 0, 0, 0
        if caching:
            hit, unheld, last = look_up(px, state.tree, r, (known - 1) >> shift)
        ext = known - (hit << shift)
        more = min(max(state.max_new[r] - rep.generated[r], 0), CLIP_TOKENS)
        rest = page * (ints[lo.FREE] - unheld) - (weighted + taken)
        if not ext + more + page < rest:
            mine[LATCH] = 1 if num_before + in_batch > 0 else 0
            ints[lo.MEMORY_BOUND] = 1
            break
        ints[lo.PEAK_GATE] = max(
            ints[lo.PEAK_GATE], math.floor((page * eng.num_blocks - rest + ext + more + page) / page) + 1
        )
        length = ext
        if _pages(ext, shift) << shift > chunk:
            ints[lo.BUDGET_BOUND] = 1
            length = chunk >> shift << shift
            if length == 0:
                break
        mine[WAITING_HEAD] = _waiting_at(state, 1)
        ints[lo.NUM_PREEMPTED_WAITING] -= 1
        ints[lo.NUM_RUNNING] += 1
        in_batch += 1
        if caching:
            hold(state.tree, r, last, hit)
            ints[lo.FREE] -= unheld
        if out.preemptions[r] == 0:
            out.cached[r] = hit << shift
        rep.state[r] = lo.PREFILLING
        done = hit << shift
        tokens += length
        pairs += length * (done + 0.5 * (length + 1))
        fresh += _pages(done + length, shift) - hit
        charged = _pages(length, shift) << shift
        chunk -= charged
        most -= charged
        taken += charged + page
        if length == ext:
            taken += min(state.max_new[r], CLIP_TOKENS)
            rep.prefilled[completed] = r
            completed += 1
        else:
            ints[lo.PARTIAL] = r
            ints[lo.PARTIAL_DONE] = done + length
            mine[CHUNK_RAN] = 1
        if page * ints[lo.FREE] - (weighted + taken) <= 0:
            mine[LATCH] = 1
            ints[lo.MEMORY_BOUND] = 1
            break

    ints[lo.FREE] -= fresh
    if caching and tokens > 0:
        evict(px, state.tree, _pages(tokens, shift) + (in_batch if shift > 0 else 0))
        state.tree.counters[AVAILABLE] -= fresh
    return tokens, pairs, completed


@compiled
def take_pages(rep: Replica, eng: Engine, state: Sglang, px: Prefix) -> bool:
    """Take the pages that decode rows need for their next token; False, with nothing taken, if there are too few."""
    ints = rep.ints
    shift = eng.block_shift
    demand = rep.phase[ints[lo.STEP] & ((1 << shift) - 1)]
    if eng.caching != 0:
        evict(px, state.tree, demand)
    if demand > ints[lo.FREE]:
        ints[lo.MEMORY_BOUND] = 1
        return False
    ints[lo.FREE] -= demand
    if eng.caching != 0:
        if shift > 0:
            evict(px, state.tree, ints[lo.ROWS])
        state.tree.counters[AVAILABLE] -= demand
    return True


@compiled
def _note_lost_token(rep: Replica, state: Sglang, r: int) -> None:
    """Keep the time of the last token that a request has delivered before it is retracted."""
    mine = state.ints
    in_flight = mine[DECODED] != 0 and not _has_joined(rep, state, r)
    if in_flight:
        mine[NUM_EMITTING] -= 1
    for i in range(mine[NUM_FRESH]):
        if rep.preempted[i] == r:
            mine[NUM_FRESH] -= 1
            rep.preempted[i] = rep.preempted[mine[NUM_FRESH]]
            return
    if in_flight:
        rep.last_emit[r] = state.floats[PREVIOUS_EMISSION]
    elif not _has_joined(rep, state, r):
        rep.last_emit[r] = rep.floats[lo.LAST_EMISSION]


@compiled
def _retract_one(
    rep: Replica, req: Requests, out: Outputs, eng: Engine, state: Sglang, px: Prefix, victim: int
) -> None:
    ints, mine = rep.ints, state.ints
    shift = eng.block_shift
    processed = _out(rep, req, state, victim)
    emitted = req.output_tokens[victim] - (rep.finish_step[victim] - ints[lo.STEP])
    _note_lost_token(rep, state, victim)
    rep.running[rep.position[victim]] = -1
    ints[lo.NUM_RUNNING] -= 1
    mine[WANTED] -= state.max_new[victim] - emitted
    if state.max_new[victim] > CLIP_TOKENS:
        mine[NUM_CLIPPED] -= 1
    length = req.input_tokens[victim] + emitted - 1
    _take_row_out(rep, length, shift)
    if rep.state[victim] == lo.ENDED_BY_STOP:
        ints[lo.NUM_WASTED] -= 1
    else:
        unlink(rep, victim, rep.finish_step[victim] & (len(rep.ring) - 1))
    if eng.caching != 0:
        ints[lo.FREE] += drop(state.tree, victim, _pages(length, shift))
        evict(px, state.tree, _pages(RETRACT_STEPS * ints[lo.ROWS], shift))
        evict(px, state.tree, rep.phase[ints[lo.STEP] & ((1 << shift) - 1)])
    else:
        ints[lo.FREE] += _pages(length, shift)
    rep.generated[victim] = processed
    rep.state[victim] = lo.WAITING
    out.preemptions[victim] += 1
    ints[lo.NUM_PREEMPTIONS] += 1
    mine[LATCH_OFF] = 1
    _wait(rep, state, victim)


@compiled
def retract(rep: Replica, req: Requests, out: Outputs, eng: Engine, state: Sglang, px: Prefix, keeps_one: bool) -> bool:
    """Retract requests, at least one, until the next decode step fits; False if ``keeps_one`` and one does not."""
    ints = rep.ints
    place = ints[lo.STEP] & ((1 << eng.block_shift) - 1)
    first = True
    while first or rep.phase[place] > ints[lo.FREE]:
        if keeps_one and ints[lo.ROWS] <= 1:
            return False
        first = False
        victim = -1
        fewest = 0
        for i in range(ints[lo.RUN_TOP]):
            r = rep.running[i]
            if r < 0 or rep.state[r] == lo.ENDED_BY_LENGTH:
                continue
            processed = _out(rep, req, state, r)
            if (
                victim < 0
                or processed < fewest
                or (processed == fewest and req.input_tokens[r] >= req.input_tokens[victim])
            ):
                victim = r
                fewest = processed
        _retract_one(rep, req, out, eng, state, px, victim)
    produced = 0
    allowed = 0
    for i in range(ints[lo.RUN_TOP]):
        r = rep.running[i]
        if r >= 0 and rep.state[r] != lo.ENDED_BY_LENGTH:
            produced += _out(rep, req, state, r)
            allowed += state.max_new[r]
    state.floats[RATIO_START] = min((produced + RETRACT_STEPS * ints[lo.ROWS]) / (allowed + 1), 1.0)
    state.ints[RATIO_STEPS] = 0
    _find_next_finish(rep)
    return True


@compiled
def _finish(
    rep: Replica,
    req: Requests,
    out: Outputs,
    eng: Engine,
    lim: Limits,
    state: Sglang,
    px: Prefix,
    r: int,
    decoding: bool,
) -> None:
    """The last token of a request has been processed; it leaves, but for a wasted row in a step with decode rows."""
    ints, mine = rep.ints, state.ints
    shift = eng.block_shift
    now = rep.floats[lo.NOW]
    ints[lo.QUEUE_END] = record_finish(rep, req, out, lim, r, now, ints[lo.QUEUE_END])
    length = req.input_tokens[r] + req.output_tokens[r] - 1
    if rep.state[r] == lo.ENDED_BY_STOP and not decoding:
        _take_row_out(rep, length, shift)
        ints[lo.NUM_WASTED] -= 1
        rep.state[r] = lo.GONE
    elif rep.state[r] == lo.ENDED_BY_STOP:
        length += 1
    else:
        rep.state[r] = lo.GONE
    if eng.caching != 0:
        ints[lo.FREE] += release(
            px, state.tree, r, _pages(length, shift), length >> shift, req.input_tokens[r] >> shift
        )
    else:
        ints[lo.FREE] += _pages(length, shift)
    rep.running[rep.position[r]] = -1
    ints[lo.NUM_RUNNING] -= 1
    mine[WANTED] -= state.max_new[r] - req.output_tokens[r]
    if state.max_new[r] > CLIP_TOKENS:
        mine[NUM_CLIPPED] -= 1
    mine[LATCH_OFF] = 1


@compiled
def _record_fresh(rep: Replica, rec: Recorder, state: Sglang, now: float) -> bool:
    """Record the gaps of those whose first decode step ends now; False without room."""
    for i in range(state.ints[NUM_FRESH]):
        if not record_gap(rec, now - rep.last_emit[rep.preempted[i]], 0.0, 1, 1):
            return False
    state.ints[NUM_FRESH] = 0
    return True


@compiled
def process_outputs(
    rep: Replica,
    req: Requests,
    out: Outputs,
    eng: Engine,
    lim: Limits,
    state: Sglang,
    px: Prefix,
    rec: Recorder,
    decoding: bool,
) -> bool:
    """Deliver the tokens of the step that ends now; ``decoding``: the next one has decode rows. False without room."""
    ints, mine, now = rep.ints, state.ints, rep.floats[lo.NOW]
    shift = eng.block_shift
    record_gaps = len(rec.gaps) > 0
    if mine[DECODED] != 0:
        if record_gaps:
            older = mine[NUM_EMITTING] - mine[NUM_FRESH]
            if not _record_fresh(rep, rec, state, now):
                return False
            if older > 0 and not record_gap(rec, state.floats[LAST_GAP], 0.0, 1, older):
                return False
        rep.floats[lo.LAST_EMISSION] = now
    for i in range(mine[FIRST_JOINED], mine[FIRST_JOINED] + mine[NUM_JOINED]):
        r = rep.running[i]
        if r < 0:
            continue
        if rep.generated[r] == 0:
            out.first[r] = now + req.extra[r]
        elif record_gaps and not record_gap(rec, now - rep.last_emit[r], 0.0, 1, 1):
            return False
        if rep.state[r] != lo.PREFILLING:
            _finish(rep, req, out, eng, lim, state, px, r, decoding)
            continue
        rep.state[r] = lo.DECODING
        if eng.caching != 0:
            known = req.input_tokens[r] + rep.generated[r]
            ints[lo.FREE] += keep(px, state.tree, r, known >> shift, req.input_tokens[r] >> shift)
        if record_gaps and mine[DECODED] == 0:
            rep.last_emit[r] = now
            rep.preempted[mine[NUM_FRESH]] = r
            mine[NUM_FRESH] += 1
    if eng.caching != 0 and ints[lo.NUM_PENDING] > 1:
        sort_by_position(rep, ints[lo.NUM_PENDING])
    for i in range(ints[lo.NUM_PENDING]):
        r = rep.pending[i]
        if rep.state[r] != lo.WAITING and math.isnan(out.last[r]):
            _finish(rep, req, out, eng, lim, state, px, r, decoding)
    mine[DECODED] = 0
    mine[NUM_EMITTING] = 0
    mine[NUM_JOINED] = 0
    return True


@compiled
def join(rep: Replica, req: Requests, state: Sglang, shift: int, completed: int, in_front: bool) -> None:
    """Let the requests in ``rep.prefilled`` run: behind the others, or before them."""
    ints, mine = rep.ints, state.ints
    top = ints[lo.RUN_TOP]
    if ints[lo.NUM_RUNNING] == completed + (1 if ints[lo.PARTIAL] >= 0 else 0):
        top = 0
    elif in_front or top + completed > len(rep.running):
        top = compact(rep, top)
    mine[FIRST_JOINED] = top
    if in_front:
        for i in range(top - 1, -1, -1):
            rep.running[i + completed] = rep.running[i]
            rep.position[rep.running[i]] = i + completed
        mine[FIRST_JOINED] = 0
    mine[NUM_JOINED] = completed
    ints[lo.RUN_TOP] = top + completed
    step = ints[lo.STEP]
    for i in range(completed):
        r = rep.prefilled[i]
        rep.running[mine[FIRST_JOINED] + i] = r
        rep.position[r] = mine[FIRST_JOINED] + i
        length = req.input_tokens[r] + rep.generated[r]
        finish = step + req.output_tokens[r] - rep.generated[r] - 1
        bucket = finish & (len(rep.ring) - 1)
        rep.finish_step[r] = finish
        rep.next_same[r] = rep.ring[bucket]
        rep.ring[bucket] = r
        ints[lo.NEXT_FINISH] = min(ints[lo.NEXT_FINISH], finish)
        ints[lo.ROWS] += 1
        ints[lo.CONTEXT] += length + 1
        rep.phase[(step - length) & ((1 << shift) - 1)] += 1
        mine[WANTED] += state.max_new[r] - rep.generated[r] - 1
        if state.max_new[r] > CLIP_TOKENS:
            mine[NUM_CLIPPED] += 1


@compiled
def _equal_steps(
    rep: Replica, req: Requests, state: Sglang, times: Times, first: float, growth: float, horizon: float
) -> int:
    """How many decode steps from now on are like the planned one, itself included."""
    ints, floats = rep.ints, rep.floats
    rows = ints[lo.ROWS]
    knot = ints[lo.KNOT]
    count = ints[lo.NEXT_FINISH] - ints[lo.STEP]
    count = min(count, steps_to_knot(times, rows, ints[lo.CONTEXT], knot))
    if count > 1:
        count = 1 + steps_before_shortage(rep.phase, ints[lo.STEP] + 1, ints[lo.FREE], rows, count - 1)
    if count > 1 and (state.ints[LATCH] == 0 or state.ints[LATCH_OFF] != 0):
        if ints[lo.NUM_PREEMPTED_WAITING] > 0:
            return 1
        arrival = horizon
        if ints[lo.QUEUE_HEAD] < ints[lo.QUEUE_END]:
            arrival = min(arrival, req.arrival[rep.queue[ints[lo.QUEUE_HEAD]]])
        delay = arrival - floats[lo.NOW]
        if delay <= 0.0:
            return 1
        if (count - 1) * (first + 0.5 * growth * (count - 2)) >= delay:
            count = min(count, 2 + steps_starting_before(delay, first, growth))
    return int(count)


@compiled
def _grow(rep: Replica, eng: Engine, state: Sglang, px: Prefix, count: int) -> None:
    """Take the pages that the rows need in the ``count`` steps after the planned one."""
    ints = rep.ints
    rows = ints[lo.ROWS]
    mask = (1 << eng.block_shift) - 1
    demand = (count >> eng.block_shift) * rows
    for i in range(count & ~mask, count):
        demand += rep.phase[(ints[lo.STEP] + 1 + i) & mask]
    ints[lo.FREE] -= demand
    if eng.caching != 0:
        last = rep.phase[(ints[lo.STEP] + count) & mask]
        evict(px, state.tree, demand - last + rows if mask > 0 else demand)
        state.tree.counters[AVAILABLE] -= demand
    ints[lo.PEAK_BLOCKS] = max(ints[lo.PEAK_BLOCKS], eng.num_blocks - ints[lo.FREE])


@compiled
def rest(state: Sglang) -> None:
    """An idle engine sets aside as much as at first."""
    state.floats[RATIO_START] = state.init_ratio
    state.ints[RATIO_STEPS] = 0


@compiled
def advance(
    rep: Replica,
    req: Requests,
    out: Outputs,
    times: Times,
    eng: Engine,
    lim: Limits,
    state: Sglang,
    px: Prefix,
    rec: Recorder,
    turn: Turn | None,
    horizon: float,
) -> int:
    """Simulate every step that is planned before ``horizon``; returns a status of ``layout``.

    Mutates everything but ``req``, ``times``, ``eng`` and ``lim``, and ``req.arrival`` in a closed loop. ``horizon``
    must be infinite or not exceed the arrival of any request that is not yet in the replica's queue.

    A rank in lock step with others takes ``turn``s, as in ``vllm.advance``: it plans a step, processes the outputs of
    the one that ends, and returns; with the next call it runs the step as ``turn`` says by then.
    """
    ints, floats, mine = rep.ints, rep.floats, state.ints
    shift = eng.block_shift
    planned = 0
    rows = 0
    tokens = 0
    completed = 0
    count = 1
    first = 0.0
    growth = 0.0
    if turn is not None:
        planned = turn.ints[lo.PLANNED]
        turn.ints[lo.PLANNED] = 0
        rows = turn.ints[lo.NUM_ROWS]
        tokens = turn.ints[lo.PREFILL_TOKENS]
        completed = turn.ints[lo.NUM_PREFILLED]
        count = turn.ints[lo.COUNT]
        first = turn.floats[lo.FIRST]
        growth = turn.floats[lo.GROWTH]
    while True:
        if planned == 0:
            busy = ints[lo.BUSY]
            visible = floats[lo.LAST_START] if busy == 1 else floats[lo.NOW]
            if visible >= horizon:
                return lo.DONE

            # --- plan: a batch of prompts, or else decode rows. What the running step emits is known to end, or not.
            see_arrivals(rep, req, state, visible)
            by_length = end_rows(rep, req, state, shift) if busy == 1 else 0
            chunked = ints[lo.PARTIAL]
            if mine[CHUNK_RAN] != 0:
                mine[CHUNK_RAN] = 0
                mine[LATCH_OFF] = 1
                if eng.caching != 0:
                    ints[lo.FREE] += keep(
                        px, state.tree, chunked, ints[lo.PARTIAL_DONE] >> shift, req.input_tokens[chunked] >> shift
                    )
            num_before = ints[lo.NUM_RUNNING] - (1 if chunked >= 0 else 0)
            if mine[LATCH_OFF] != 0 or num_before == 0:
                mine[LATCH] = 0
            mine[LATCH_OFF] = 0
            tokens, pairs, completed = plan_prompts(rep, req, out, eng, state, px)
            decoding = False
            retracted = False
            if ints[lo.ROWS] > 0 and (tokens == 0 or state.mixed != 0):
                decoding = take_pages(rep, eng, state, px)
                if tokens == 0 and decoding:
                    mine[RATIO_STEPS] += 1
                elif tokens == 0 and by_length == 0:
                    if eng.stop_at_preemption != 0:
                        return lo.PREEMPTED
                    if not retract(rep, req, out, eng, state, px, True):
                        return lo.STUCK
                    decoding = take_pages(rep, eng, state, px)
                    retracted = True
            ints[lo.PEAK_BLOCKS] = max(ints[lo.PEAK_BLOCKS], eng.num_blocks - ints[lo.FREE])
            ints[lo.PEAK_RUNNING] = max(ints[lo.PEAK_RUNNING], ints[lo.NUM_RUNNING])

            # --- the running step has ended.
            if busy == 1 and not process_outputs(rep, req, out, eng, lim, state, px, rec, decoding):
                return lo.OVERFLOW
            if ints[lo.NUM_BAD] > lim.max_bad:
                return lo.BROKEN
            if not decoding and tokens == 0:
                ints[lo.NUM_PENDING] = 0
                if turn is not None:
                    return lo.DONE
                ints[lo.BUSY] = 0
                if busy == 1:
                    continue
                if ints[lo.NUM_PREEMPTED_WAITING] > 0 or ints[lo.NUM_RUNNING] > 0:
                    return lo.STUCK
                rest(state)
                if ints[lo.QUEUE_HEAD] == ints[lo.QUEUE_END]:
                    return lo.DONE
                arrival = req.arrival[rep.queue[ints[lo.QUEUE_HEAD]]]
                if arrival >= horizon:
                    return lo.DONE
                floats[lo.NOW] = arrival
                continue
            now = floats[lo.NOW]
            if len(rec.samples) > 0 and now >= floats[lo.NEXT_SAMPLE]:
                floats[lo.NEXT_SAMPLE] = now + rec.sample_every
                used = eng.num_blocks - ints[lo.FREE]
                waiting = ints[lo.NUM_PREEMPTED_WAITING]
                head, end = ints[lo.QUEUE_HEAD], ints[lo.QUEUE_END]
                if not record_sample(rec, rep, req, head, end, now, ints[lo.NUM_RUNNING], waiting, used):
                    return lo.OVERFLOW

            # --- how long it takes, and how many alike follow.
            rows = ints[lo.ROWS] if decoding else 0
            context = ints[lo.CONTEXT]
            attention = 0.0
            slope = 0.0
            if rows > 0:
                knot = knot_at(times, rows, context, ints[lo.KNOT])
                ints[lo.KNOT] = knot
                slope = times.attention_slope[rows, knot]
                attention = times.attention_base[rows, knot] + slope * context
            growth = slope * rows
            count = 1
            if tokens > 0:
                first = mixed_step_s(times, rows, context, attention, rows + tokens, rows + completed, tokens, pairs)
                ints[lo.PEAK_TOKENS] = max(ints[lo.PEAK_TOKENS], rows + tokens)
            else:
                first = times.decode_fixed[rows] + attention
                if eng.single_step == 0 and ints[lo.NUM_WASTED] == 0 and not retracted:
                    count = _equal_steps(rep, req, state, times, first, growth, horizon)
            if turn is not None:
                turn.ints[lo.PLANNED] = 1
                turn.ints[lo.NUM_ROWS] = rows
                turn.ints[lo.PREFILL_TOKENS] = tokens
                turn.ints[lo.NUM_PREFILLED] = completed
                turn.ints[lo.COUNT] = count
                turn.floats[lo.FIRST] = first
                turn.floats[lo.GROWTH] = growth
                return lo.DONE

        # --- run: one step, or a window of decode steps.
        now = floats[lo.NOW]
        elapsed = count * first + 0.5 * growth * count * (count - 1)
        last_start = now + (count - 1) * first + 0.5 * growth * (count - 1) * (count - 2)
        if count > 1:
            _grow(rep, eng, state, px, count - 1)
            mine[RATIO_STEPS] += count - 1
        if rows > 0:
            since = floats[lo.LAST_EMISSION]
            gap = first if since == now else now + first - since
            if count > 1 and len(rec.gaps) > 0:  # tokens of the last step may still be lost
                older = rows - mine[NUM_FRESH]
                recorded = _record_fresh(rep, rec, state, now + first)
                recorded = recorded and (older == 0 or record_gap(rec, gap, 0.0, 1, older))
                if count > 2:
                    recorded = recorded and record_gap(rec, first + growth, growth, count - 2, rows)
                if not recorded:
                    return lo.OVERFLOW
            state.floats[PREVIOUS_EMISSION] = since if count == 1 else last_start
            state.floats[LAST_GAP] = gap if count == 1 else first + growth * (count - 1)
            ints[lo.STEP] += count
            ints[lo.CONTEXT] += rows * count
            mine[DECODED] = 1
            mine[NUM_EMITTING] = rows - ints[lo.NUM_WASTED]
            mine[WANTED] -= mine[NUM_EMITTING] * count
        floats[lo.LAST_START] = last_start
        floats[lo.NOW] = now + elapsed
        floats[lo.MIXED_TIME if tokens > 0 else lo.DECODE_TIME] += elapsed
        floats[lo.ROW_TIME] += rows * elapsed
        ints[lo.BUSY] = 1
        ints[lo.NUM_STEPS] += count
        ints[lo.NUM_WINDOWS] += 1

        # --- rows that ran in vain leave, and those join whose prompts are complete.
        for i in range(ints[lo.NUM_PENDING]):
            r = rep.pending[i]
            if rep.state[r] == lo.ENDED_BY_STOP:
                _take_row_out(rep, req.input_tokens[r] + req.output_tokens[r], shift)
                rep.state[r] = lo.GONE
        ints[lo.NUM_PENDING] = 0
        ints[lo.NUM_WASTED] = 0
        if tokens > 0:
            num_others = ints[lo.NUM_RUNNING] - completed - (1 if ints[lo.PARTIAL] >= 0 else 0)
            if rows > 0 or (completed > 0 and num_others == 0):
                mine[LATCH_OFF] = 1
            join(rep, req, state, shift, completed, rows > 0)
        if turn is not None:
            return lo.DONE
