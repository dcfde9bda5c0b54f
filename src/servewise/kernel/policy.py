"""vLLM's settings that are off by default: priorities, a watermark, and a cap on the chunks of prompts.

(Specification: docs/vllm-scheduler.md, "Settings that are off by default".) A replica that has one of them is given a
:class:`Policy`; numba compiles ``vllm.advance`` for it anew. With a cap several prompts may be unfinished at once, and
with priorities a victim may stand anywhere in the running list. So a plan in which a prompt is unfinished or blocks are
short visits the running list row by row (:func:`plan_running`); all others are as fast as without.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from servewise.kernel import layout as lo
from servewise.kernel.layout import Engine, Outputs, Prefix, Replica, Requests, compiled
from servewise.kernel.prefix import hash_blocks, take_blocks
from servewise.kernel.rows import blocks_of, release, unlink

__all__ = [
    "BUDGET",
    "NUM_PARTIAL",
    "NUM_PREFILLED",
    "PREEMPTED",
    "PREFILL_TOKENS",
    "Policy",
    "needs_every_row",
    "new_policy",
    "plan_running",
    "policy_at",
    "pop_first",
    "push",
]

# Integers of ``Policy.ints``; the last four are what ``plan_running`` returns.
NUM_PARTIAL = 0
"""Requests of the running list whose prompt is not all computed."""
BUDGET = 1
NUM_PREFILLED = 2
PREFILL_TOKENS = 3
PREEMPTED = 4
NUM_INTS = 5


class Policy(NamedTuple):
    """The settings, and the state that only they need; the replica (or rank) as the first axis.

    Parameters
    ----------
    by_priority : int
        1 when requests are ordered by ``priority`` and then by arrival.
    watermark_blocks : int
        Blocks that an admission leaves free while something runs.
    most_tokens : int
        Of one request in one step when it is not alone; 0 for no cap.
    priority : int64 array, shape (num_requests,)
        Lower is served first; of length 1 without ``by_priority``.
    ints : int64 array, shape (num_replicas, NUM_INTS)
    waiting : int32 array, shape (num_replicas, requests of one replica)
        A heap: all that wait and were seen by a plan. Of length 1 without ``by_priority``.
    planned : int32 array, shape (num_replicas, places of the running list)
        Tokens that the plan in the making gives to each place.
    done : int32 array, shape (num_requests,)
        Computed tokens of requests whose prompt is not all computed.
    """

    by_priority: int
    watermark_blocks: int
    most_tokens: int
    priority: NDArray[np.int64]
    ints: NDArray[np.int64]
    waiting: NDArray[np.int32]
    planned: NDArray[np.int32]
    done: NDArray[np.int32]


def new_policy(
    engine: Engine,
    num_replicas: int,
    *,
    num_requests: int,
    queue_size: int,
    priority: NDArray[np.int64] | None,
    watermark_blocks: int,
    most_tokens: int,
) -> Policy:
    """A policy with nothing running; ``priority`` None orders by arrival alone, as vLLM does by default."""
    by_priority = priority is not None
    return Policy(
        by_priority=int(by_priority),
        watermark_blocks=watermark_blocks,
        most_tokens=most_tokens,
        priority=np.zeros(1, np.int64) if priority is None else priority,
        ints=np.zeros((num_replicas, NUM_INTS), np.int64),
        waiting=np.empty((num_replicas, queue_size if by_priority else 1), np.int32),
        planned=np.empty((num_replicas, 2 * engine.max_num_seqs + 16), np.int32),
        done=np.zeros(num_requests, np.int32),
    )


@compiled
def policy_at(policy: Policy | None, i: int) -> Policy | None:
    """The policy of replica or rank ``i``."""
    if policy is None:
        return None
    return Policy(
        policy.by_priority,
        policy.watermark_blocks,
        policy.most_tokens,
        policy.priority,
        policy.ints[i],
        policy.waiting[i],
        policy.planned[i],
        policy.done,
    )


@compiled
def _precedes(policy: Policy, a: int, b: int) -> bool:
    """Whether request ``a`` is served before ``b``; numbers of requests are in order of arrival."""
    if policy.priority[a] != policy.priority[b]:
        return bool(policy.priority[a] < policy.priority[b])
    return a < b


@compiled
def push(policy: Policy, size: int, r: int) -> None:
    """Put a request into the heap of ``size`` waiting ones."""
    heap = policy.waiting
    i = size
    while i > 0 and _precedes(policy, r, heap[(i - 1) >> 1]):
        heap[i] = heap[(i - 1) >> 1]
        i = (i - 1) >> 1
    heap[i] = r


@compiled
def pop_first(policy: Policy, size: int) -> None:
    """Take the first request out of the heap of ``size`` waiting ones."""
    heap = policy.waiting
    size -= 1
    r = heap[size]
    i = 0
    while 2 * i + 1 < size:
        child = 2 * i + 1
        if child + 1 < size and _precedes(policy, heap[child + 1], heap[child]):
            child += 1
        if not _precedes(policy, heap[child], r):
            break
        heap[i] = heap[child]
        i = child
    heap[i] = r


@compiled
def needs_every_row(rep: Replica, policy: Policy, step: int, free: int) -> bool:
    """Whether the plan of step number ``step`` has to visit the running list row by row."""
    return bool(policy.ints[NUM_PARTIAL] > 0 or rep.phase[step & (len(rep.phase) - 1)] > free)


@compiled
def _victim(rep: Replica, policy: Policy) -> int:
    """Place of the request that has to give up its blocks: the last one, or the last in order of priority."""
    best = -1
    for i in range(rep.ints[lo.RUN_TOP] - 1, -1, -1):
        if rep.running[i] >= 0 and (best < 0 or _precedes(policy, rep.running[best], rep.running[i])):
            best = i
            if policy.by_priority == 0:
                break
    return best


@compiled
def _computed(rep: Replica, req: Requests, r: int, step: int) -> int:
    """Tokens of a decoding request that have their place in the cache before the plan of step number ``step``."""
    return int(req.input_tokens[r] + req.output_tokens[r] - (rep.finish_step[r] - step) - 1)


@compiled
def _preempt(
    rep: Replica,
    req: Requests,
    out: Outputs,
    eng: Engine,
    px: Prefix,
    policy: Policy,
    place: int,
    step: int,
    now: float,
) -> None:
    """Free the blocks of the request at a place of the running list, and let it wait unless it has ended."""
    ints = rep.ints
    shift, caching = eng.block_shift, eng.caching != 0
    r = rep.running[place]
    given = policy.planned[place]
    policy.planned[place] = 0
    policy.ints[BUDGET] += given
    policy.ints[PREEMPTED] += 1
    rep.running[place] = -1
    ints[lo.NUM_RUNNING] -= 1
    out.preemptions[r] += 1
    if rep.state[r] == lo.PREFILLING:
        tokens = policy.done[r] + given
        ints[lo.FREE] += release(px, caching, r, tokens, tokens, False, shift)
        policy.ints[NUM_PARTIAL] -= 1
    else:
        length = _computed(rep, req, r, step)
        emitted = length + 1 - req.input_tokens[r]
        # what its running step samples is not known yet, so neither is the block of that token's predecessor; but
        # blocks that a row of this plan fills have their identity already
        known = length + 1 - eng.lag if given > 0 else length
        if given == 0 and emitted > rep.generated[r] + 1:
            known -= eng.lag
        ints[lo.FREE] += release(px, caching, r, length + given, known, rep.state[r] != lo.DECODING, shift)
        if rep.state[r] != lo.ENDED_BY_LENGTH:
            ints[lo.ROWS] -= 1
            ints[lo.CONTEXT] -= length + 1
            rep.phase[(step - length) & ((1 << shift) - 1)] -= 1
            if rep.state[r] == lo.ENDED_BY_STOP:
                ints[lo.NUM_WASTED] -= 1
        if rep.state[r] != lo.DECODING:
            rep.state[r] = lo.GONE
            return
        rep.generated[r] = emitted
        rep.last_emit[r] = now
        unlink(rep, r, rep.finish_step[r] & (len(rep.ring) - 1))
    rep.state[r] = lo.WAITING
    if policy.by_priority != 0:
        push(policy, ints[lo.NUM_PREEMPTED_WAITING], r)
    else:
        rep.preempted[ints[lo.NUM_PREEMPTED_WAITING]] = r
    ints[lo.NUM_PREEMPTED_WAITING] += 1


@compiled
def _give_tokens(
    rep: Replica,
    req: Requests,
    out: Outputs,
    eng: Engine,
    px: Prefix,
    policy: Policy,
    most_tokens: int,
    step: int,
    now: float,
) -> bool:
    """Give tokens and blocks to the running list in order; False before a preemption that must not happen."""
    ints = rep.ints
    shift = eng.block_shift
    top = ints[lo.RUN_TOP]
    for i in range(top):
        policy.planned[i] = 0
    for i in range(top):
        r = rep.running[i]
        if r < 0 or rep.state[r] == lo.ENDED_BY_LENGTH:
            continue
        if rep.state[r] == lo.PREFILLING:
            before = policy.done[r]
            tokens = min(req.input_tokens[r] + rep.generated[r] - before, most_tokens, policy.ints[BUDGET])
            known = before + tokens
        else:
            before = _computed(rep, req, r, step)
            tokens = 1
            known = before + 1 - eng.lag
        short = blocks_of(before + tokens, shift) - blocks_of(before, shift)
        while rep.running[i] >= 0 and short > ints[lo.FREE]:
            if eng.stop_at_preemption != 0:
                return False
            _preempt(rep, req, out, eng, px, policy, _victim(rep, policy), step, now)
        if rep.running[i] < 0:
            continue
        ints[lo.FREE] -= short
        if eng.caching != 0:
            if short > 0:
                take_blocks(px, short)
            hash_blocks(px, r, known >> shift)
        policy.planned[i] = tokens
        policy.ints[BUDGET] -= tokens
    return True


@compiled
def plan_running(
    rep: Replica,
    req: Requests,
    out: Outputs,
    eng: Engine,
    px: Prefix,
    policy: Policy,
    most_tokens: int,
    step: int,
    now: float,
) -> tuple[bool, float]:
    """Plan the rows of the running list one by one, none with more than ``most_tokens``.

    Whoever is in the list when this returns has a row, unless its last token is out. Reads and writes ``ints`` of the
    replica (but not the next finish) and the policy; the finished prompts are in ``rep.prefilled``.

    Returns
    -------
    bool
        False if the plan was about to preempt and ``eng.stop_at_preemption`` forbids it; then nothing else holds.
    float
        Attention pairs of the chunks.
    """
    ints = rep.ints
    policy.ints[BUDGET] = eng.max_num_batched_tokens
    policy.ints[NUM_PREFILLED] = 0
    policy.ints[PREFILL_TOKENS] = 0
    policy.ints[PREEMPTED] = 0
    pairs = 0.0
    if not _give_tokens(rep, req, out, eng, px, policy, most_tokens, step, now):
        return False, pairs
    for i in range(ints[lo.RUN_TOP]):
        r = rep.running[i]
        if r < 0 or rep.state[r] != lo.PREFILLING:
            continue
        tokens = policy.planned[i]
        pairs += tokens * (policy.done[r] + 0.5 * (tokens + 1))
        policy.ints[PREFILL_TOKENS] += tokens
        policy.done[r] += tokens
        if policy.done[r] == req.input_tokens[r] + rep.generated[r]:
            rep.prefilled[policy.ints[NUM_PREFILLED]] = r
            policy.ints[NUM_PREFILLED] += 1
            policy.ints[NUM_PARTIAL] -= 1
    while ints[lo.RUN_TOP] > 0 and rep.running[ints[lo.RUN_TOP] - 1] < 0:
        ints[lo.RUN_TOP] -= 1
    return True, pairs
