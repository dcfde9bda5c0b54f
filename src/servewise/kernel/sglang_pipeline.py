"""SGLang's scheduler with pipeline stages (specification: docs/pipeline-parallelism.md, "SGLang").

There are as many *micro-batches* as stages. Each is an SGLang engine without the overlap loop: its step is processed
before it plans again. They take turns, and share pages, tree, waiting list, chunked request and ratio.

What the micro-batches share lies in ``Replica.ints`` and ``floats`` of the replica and in the state of whose turn it
is; what each has for itself is loaded there for its turn, and stored when the next one's turn comes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from servewise.kernel import layout as lo
from servewise.kernel import sglang
from servewise.kernel.clock import record_sample
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
    new_fleet,
)
from servewise.kernel.pipeline import pass_through
from servewise.kernel.radix import Radix, keep
from servewise.kernel.sglang import Sglang
from servewise.kernel.steps import knot_at, mixed_step_s

__all__ = ["SglangPipeline", "advance", "new_sglang_pipeline"]

OWN_INTS = (
    lo.STEP,
    lo.ROWS,
    lo.CONTEXT,
    lo.NUM_RUNNING,
    lo.RUN_TOP,
    lo.NEXT_FINISH,
    lo.NUM_PENDING,
    lo.NUM_WASTED,
    lo.BUSY,
    lo.KNOT,
)
"""What of ``Replica.ints`` each micro-batch has for itself; of its floats ``LAST_EMISSION``.

``NUM_RUNNING`` does not count the chunked request, which belongs to none, but while a plan is made.
"""
SHARED_STATE_INTS = (sglang.WAITING_HEAD, sglang.RATIO_STEPS, sglang.NUM_TRIED, sglang.CHUNK_RAN)
"""What of ``Sglang.ints`` they share; of its floats ``RATIO_START``."""


class SglangPipeline(NamedTuple):
    """Stages and micro-batches of every replica.

    ``shares``, shape (num_stages,), are the parts of the layers on each stage. ``batches`` and ``states`` have the
    micro-batches of all replicas one after the other, but for the waiting lists and trees, which replicas have.
    ``left``, shape (num_replicas, num_stages), is when the last batch left each stage, ``ends``, of the same shape,
    when the step of each micro-batch is processed. ``turn``, shape (num_replicas,), is whose turn it is.
    """

    shares: NDArray[np.float64]
    batches: Replica
    states: Sglang
    left: NDArray[np.float64]
    ends: NDArray[np.float64]
    turn: NDArray[np.int64]


def new_sglang_pipeline(
    engine: Engine, requests: Requests, num_replicas: int, shares: NDArray[np.float64], states: Sglang
) -> SglangPipeline:
    """Pipelines with nothing in flight; see ``layout.new_fleet`` and ``sglang.new_sglang``."""
    n, p = num_replicas, len(shares)
    return SglangPipeline(
        shares=shares,
        batches=new_fleet(engine, requests, n * p, 0, False),
        states=states,
        left=np.zeros((n, p)),
        ends=np.zeros((n, p)),
        turn=np.zeros(n, np.int64),
    )


@compiled
def _load(rep: Replica, pipe: SglangPipeline, k: int) -> None:
    for field in OWN_INTS:
        rep.ints[field] = pipe.batches.ints[k, field]
    rep.floats[lo.LAST_EMISSION] = pipe.batches.floats[k, lo.LAST_EMISSION]


@compiled
def _store(rep: Replica, pipe: SglangPipeline, k: int) -> None:
    for field in OWN_INTS:
        pipe.batches.ints[k, field] = rep.ints[field]
    pipe.batches.floats[k, lo.LAST_EMISSION] = rep.floats[lo.LAST_EMISSION]


@compiled
def _next_turn(rep: Replica, pipe: SglangPipeline, i: int, turn: int) -> None:
    """It is the turn of another micro-batch of replica ``i``, which takes over what is shared."""
    p = len(pipe.shares)
    old, new = i * p + pipe.turn[i], i * p + turn
    _store(rep, pipe, old)
    _load(rep, pipe, new)
    for field in SHARED_STATE_INTS:
        pipe.states.ints[new, field] = pipe.states.ints[old, field]
    pipe.states.floats[new, sglang.RATIO_START] = pipe.states.floats[old, sglang.RATIO_START]
    pipe.turn[i] = turn


@compiled
def _batch(rep: Replica, batches: Replica, k: int) -> Replica:
    """The replica as micro-batch ``k`` sees it."""
    return Replica(
        rep.ints,
        rep.floats,
        rep.queue,
        batches.ring[k],
        batches.phase[k],
        batches.running[k],
        batches.preempted[k],
        batches.pending[k],
        batches.prefilled[k],
        rep.finish_times,
        rep.next_same,
        rep.finish_step,
        rep.generated,
        rep.state,
        rep.position,
        rep.last_emit,
    )


@compiled
def _state(states: Sglang, i: int, k: int) -> Sglang:
    """State of micro-batch ``k`` of replica ``i``."""
    tree = states.tree
    return Sglang(
        states.max_new,
        states.init_ratio,
        states.least_ratio,
        states.ignore_eos,
        states.max_prefill_tokens,
        states.mixed,
        states.longest_prefix_first,
        states.ints[k],
        states.floats[k],
        states.waiting[i],
        states.scores[k],
        Radix(tree.segments[i], tree.nodes[i], tree.counters[i], tree.users),
    )


@compiled
def _running_elsewhere(pipe: SglangPipeline, i: int) -> tuple[int, int]:
    """Requests of a replica's other micro-batches, and how many of these are in flight."""
    p = len(pipe.shares)
    requests = 0
    in_flight = 0
    for turn in range(p):
        if turn != pipe.turn[i]:
            requests += pipe.batches.ints[i * p + turn, lo.NUM_RUNNING]
            in_flight += pipe.batches.ints[i * p + turn, lo.BUSY]
    return requests, in_flight


@compiled
def _process(
    rep: Replica,
    req: Requests,
    out: Outputs,
    eng: Engine,
    lim: Limits,
    state: Sglang,
    px: Prefix,
    rec: Recorder,
) -> bool:
    """Deliver the tokens of the micro-batch's step, which ends now; False without room to record."""
    state.floats[sglang.LAST_GAP] = rep.floats[lo.NOW] - rep.floats[lo.LAST_EMISSION]
    sglang.end_rows(rep, req, state, eng.block_shift)
    if not sglang.process_outputs(rep, req, out, eng, lim, state, px, rec, False):
        return False
    rep.ints[lo.NUM_PENDING] = 0
    rep.ints[lo.BUSY] = 0
    return True


@compiled
def _plan(
    rep: Replica, req: Requests, out: Outputs, eng: Engine, state: Sglang, px: Prefix, seats: int
) -> tuple[int, int, float, int, int]:
    """Plan the micro-batch's next step, which has ``seats``: status, prompt tokens, pairs, completed prompts, rows."""
    ints, mine = rep.ints, state.ints
    sglang.see_arrivals(rep, req, state, rep.floats[lo.NOW])
    chunked = ints[lo.PARTIAL]
    if mine[sglang.CHUNK_RAN] != 0:
        mine[sglang.CHUNK_RAN] = 0
        if eng.caching != 0:
            shift = eng.block_shift
            done, prompt = ints[lo.PARTIAL_DONE] >> shift, req.input_tokens[chunked] >> shift
            ints[lo.FREE] += keep(px, state.tree, chunked, done, prompt)
    if mine[sglang.LATCH_OFF] != 0 or ints[lo.NUM_RUNNING] == 0:
        mine[sglang.LATCH] = 0
    mine[sglang.LATCH_OFF] = 0
    if chunked >= 0:
        ints[lo.NUM_RUNNING] += 1
    own = Engine(
        seats,
        eng.max_num_batched_tokens,
        eng.num_blocks,
        eng.block_shift,
        eng.lag,
        eng.reserve_full,
        eng.caching,
        eng.stop_at_preemption,
        eng.single_step,
    )
    tokens, pairs, completed = sglang.plan_prompts(rep, req, out, own, state, px)
    rows = 0
    if tokens == 0 and ints[lo.ROWS] > 0:
        if sglang.take_pages(rep, eng, state, px):
            mine[sglang.RATIO_STEPS] += 1
        else:
            if eng.stop_at_preemption != 0:
                return lo.PREEMPTED, 0, 0.0, 0, 0
            sglang.retract(rep, req, out, eng, state, px, False)
            sglang.take_pages(rep, eng, state, px)
        rows = ints[lo.ROWS]
    return lo.DONE, tokens, pairs, completed, rows


@compiled
def advance(
    rep: Replica,
    pipe: SglangPipeline,
    i: int,
    req: Requests,
    out: Outputs,
    times: Times,
    eng: Engine,
    lim: Limits,
    px: Prefix,
    rec: Recorder,
    horizon: float,
) -> int:
    """Simulate every step of replica ``i`` that is planned before ``horizon``; returns a status of ``layout``.

    Mutates everything but ``req``, ``times``, ``eng`` and ``lim``, and ``req.arrival`` in a closed loop. ``px`` and
    ``rec`` are the replica's own. ``horizon`` as in ``sglang.advance``.
    """
    ints, floats = rep.ints, rep.floats
    p = len(pipe.shares)
    most = max(eng.max_num_seqs // p, 1)
    status = lo.DONE
    num_empty = 0
    _load(rep, pipe, i * p + pipe.turn[i])
    while True:
        turn = pipe.turn[i]
        k = i * p + turn
        batch, state = _batch(rep, pipe.batches, k), _state(pipe.states, i, k)
        mine = state.ints
        # --- the micro-batch's step has left the last stage.
        if ints[lo.BUSY] == 1:
            if pipe.ends[i, turn] > horizon:
                break
            floats[lo.NOW] = pipe.ends[i, turn]
            if not _process(batch, req, out, eng, lim, state, px, rec):
                status = lo.OVERFLOW
                break
            if ints[lo.NUM_BAD] > lim.max_bad:
                status = lo.BROKEN
                break
        now = floats[lo.NOW]
        if now >= horizon:
            break
        # --- plan its next one.
        others, in_flight = _running_elsewhere(pipe, i)
        status, tokens, pairs, completed, rows = _plan(
            batch, req, out, eng, state, px, min(most, eng.max_num_seqs - others)
        )
        if status != lo.DONE:
            break
        num_running = others + ints[lo.NUM_RUNNING]
        ints[lo.PEAK_BLOCKS] = max(ints[lo.PEAK_BLOCKS], eng.num_blocks - ints[lo.FREE])
        ints[lo.PEAK_RUNNING] = max(ints[lo.PEAK_RUNNING], num_running)
        in_none = 1 if ints[lo.PARTIAL] >= 0 else 0
        if tokens == 0 and rows == 0:
            ints[lo.NUM_RUNNING] -= in_none
            num_empty += 1
            if in_flight == 0 and num_running == 0 and ints[lo.NUM_PREEMPTED_WAITING] == 0:
                sglang.rest(state)
                _next_turn(rep, pipe, i, 0)
                if ints[lo.QUEUE_HEAD] == ints[lo.QUEUE_END]:
                    break
                arrival = req.arrival[rep.queue[ints[lo.QUEUE_HEAD]]]
                if arrival >= horizon:
                    break
                floats[lo.NOW] = arrival
                continue
            if in_flight == 0 and num_empty > p:
                status = lo.STUCK
                break
            _next_turn(rep, pipe, i, turn + 1 if turn + 1 < p else 0)
            continue
        num_empty = 0
        if len(rec.samples) > 0 and now >= floats[lo.NEXT_SAMPLE]:
            floats[lo.NEXT_SAMPLE] = now + rec.sample_every
            waiting, used = ints[lo.NUM_PREEMPTED_WAITING], eng.num_blocks - ints[lo.FREE]
            if not record_sample(
                rec, rep, req, ints[lo.QUEUE_HEAD], ints[lo.QUEUE_END], now, num_running, waiting, used
            ):
                status = lo.OVERFLOW
                break

        # --- send it through the stages.
        context = ints[lo.CONTEXT]
        attention = 0.0
        if rows > 0:
            knot = knot_at(times, rows, context, ints[lo.KNOT])
            ints[lo.KNOT] = knot
            attention = times.attention_base[rows, knot] + times.attention_slope[rows, knot] * context
            whole = times.decode_fixed[rows] + attention
        else:
            whole = mixed_step_s(times, 0, 0, 0.0, tokens, completed, tokens, pairs)
            ints[lo.PEAK_TOKENS] = max(ints[lo.PEAK_TOKENS], tokens)
        sampled = times.sample[rows + completed]
        pipe.ends[i, turn] = pass_through(pipe.left[i], pipe.shares, now, whole - sampled, sampled)
        floats[lo.MIXED_TIME if tokens > 0 else lo.DECODE_TIME] += whole / p
        floats[lo.ROW_TIME] += rows * whole / p
        ints[lo.BUSY] = 1
        ints[lo.NUM_STEPS] += 1
        ints[lo.NUM_WINDOWS] += 1
        if rows > 0:
            ints[lo.STEP] += 1
            ints[lo.CONTEXT] += rows
            mine[sglang.DECODED] = 1
            mine[sglang.NUM_EMITTING] = rows
            mine[sglang.WANTED] -= rows
        else:
            if in_none == 1 or (completed > 0 and ints[lo.NUM_RUNNING] == completed):
                mine[sglang.LATCH_OFF] = 1
            sglang.join(batch, req, state, eng.block_shift, completed, False)
        ints[lo.NUM_RUNNING] -= in_none
        _next_turn(rep, pipe, i, turn + 1 if turn + 1 < p else 0)

    _store(rep, pipe, i * p + pipe.turn[i])
    # whether something may finish, and that it may do so at once: see ``fleet``
    others, _ = _running_elsewhere(pipe, i)
    ints[lo.ROWS] = others + ints[lo.NUM_RUNNING]
    ints[lo.NEXT_FINISH] = ints[lo.STEP]
    return status
