"""Arrays and codes that the kernel's functions share.

A *replica* is simulated by integers and arrays only, so that numba can cache the compiled code. Scalars live
in two small vectors between calls (:func:`new_fleet`), named by the indices below.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = [
    "BROKEN",
    "DONE",
    "OVERFLOW",
    "PREEMPTED",
    "STUCK",
    "Engine",
    "Limits",
    "Outputs",
    "Prefix",
    "Ranks",
    "Recorder",
    "Replica",
    "Requests",
    "Times",
    "Turn",
    "compiled",
    "new_fleet",
    "new_outputs",
    "new_prefix",
    "new_ranks",
    "new_recorder",
]

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Decorator of the kernel's functions, which make no arrays but views of their caller's.

    Without ``_nrt`` numba would count the references to every array that they touch, which takes longer than
    the simulation itself.
    """
    return cast(Function, njit(cache=True, nogil=True, _nrt=False)(function))  # type: ignore[call-overload]


# Status of a call.
DONE = 0
"""Everything up to the horizon was simulated."""
BROKEN = 1
"""More requests than allowed missed the limits; the run was stopped."""
STUCK = 2
"""The head of the queue can never be admitted."""
OVERFLOW = 3
"""A recording or prefix buffer is too small; run again with a larger one."""
PREEMPTED = 4
"""A plan was about to preempt, which ``Engine.stop_at_preemption`` forbids; the run was stopped."""

# Where a request is (``Replica.state``).
WAITING = 0
DECODING = 1
PREFILLING = 2
ENDED_BY_LENGTH = 3
"""Last token out, still holds its slot and blocks until the next plan is made."""
ENDED_BY_STOP = 4
"""The same, and has one wasted row in the next step."""
GONE = 5

# Integers of ``Replica.ints``.
STEP = 0
ROWS = 1
CONTEXT = 2
NUM_RUNNING = 3
RUN_TOP = 4
FREE = 5
PARTIAL = 6
PARTIAL_DONE = 7
NUM_PREEMPTED_WAITING = 8
QUEUE_HEAD = 9
QUEUE_END = 10
NEXT_FINISH = 11
NUM_PENDING = 12
NUM_WASTED = 13
BUSY = 14
KNOT = 15
NUM_FINISHED = 16
NUM_BAD = 17
NUM_STEPS = 18
NUM_WINDOWS = 19
NUM_PREEMPTIONS = 20
PEAK_RUNNING = 21
PEAK_BLOCKS = 22
PEAK_TOKENS = 23
BUDGET_BOUND = 24
SLOTS_BOUND = 25
MEMORY_BOUND = 26
PEAK_GATE = 27
NUM_COUNTED = 28
WAITED = 29
NUM_INTS = 30

# Floats of ``Replica.floats``.
NOW = 0
LAST_START = 1
MIXED_TIME = 2
DECODE_TIME = 3
ROW_TIME = 4
NEXT_SAMPLE = 5
LAST_EMISSION = 6
NUM_FLOATS = 7


# Integers and floats of ``Turn``.
PLANNED = 0
PREFILL_TOKENS = 1
NUM_PREFILLED = 2
COUNT = 3
BLOCKED = 4
NUM_ROWS = 5
NUM_TURN_INTS = 6
FIRST = 0
GROWTH = 1
NUM_TURN_FLOATS = 2


class Times(NamedTuple):
    """A step table (see ``types.StepTable``), flattened for the kernel."""

    knots: NDArray[np.float64]
    attention_base: NDArray[np.float64]
    attention_slope: NDArray[np.float64]
    decode_fixed: NDArray[np.float64]
    mixed_tokens: NDArray[np.float64]
    sample: NDArray[np.float64]
    prefill_fixed: float
    prefill_per_token: float
    prefill_per_pair: float
    mixed_row_fixed: float
    mixed_row_per_token: float
    experts: NDArray[np.float64]
    padded_decode_tokens: int
    padded_mixed_tokens: int


class Engine(NamedTuple):
    """Scheduling parameters, spelt as vLLM spells them. ``lag`` is 1 with asynchronous scheduling, else 0.

    ``reserve_full`` is 1 when a prompt is admitted only if all of it fits, 2 when it also takes all its blocks then
    (Sarathi, without a prefix cache), 0 when its first chunk has to fit.

    ``stop_at_preemption`` ends the run before the first preemption, ``single_step`` turns fast-forward off
    (the reference for tests).
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    num_blocks: int
    block_shift: int
    lag: int
    reserve_full: int
    caching: int
    stop_at_preemption: int
    single_step: int


class Requests(NamedTuple):
    """Requests in order of arrival, shape (num_requests,); ``by_length`` is 1 when the output ends by length.

    ``arrival`` is the time at which the engine has the request, ``extra`` the time outside the engine, added to
    first and last token. ``think`` is negative when the arrivals are given. Otherwise the client works in a
    closed loop: it sends a request ``think`` seconds after it has seen the last token of another one, and the
    drivers write ``arrival`` from the first request on that is not in the queue at the start.
    """

    arrival: NDArray[np.float64]
    input_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    by_length: NDArray[np.int8]
    extra: NDArray[np.float64]
    think: float


class Outputs(NamedTuple):
    """What happened to each request, shape (num_requests,); NaN until it happened.

    ``rejected`` is 1 for a request that the engine turned away when it came; such a one has no times and is bad.
    """

    first: NDArray[np.float64]
    last: NDArray[np.float64]
    cached: NDArray[np.int32]
    preemptions: NDArray[np.int32]
    rejected: NDArray[np.int8]


class Limits(NamedTuple):
    """Joint limits [s], and how many requests may miss them before the run is stopped."""

    ttft: float
    tpot: float
    e2e: float
    max_bad: int


class Recorder(NamedTuple):
    """Gaps between tokens and samples of the replica's state; arrays of length 0 record nothing.

    ``gaps`` rows are (first gap, increment, steps, weight), ``samples`` rows (time, running, waiting, used
    blocks); ``counts`` holds the rows written to each.
    """

    gaps: NDArray[np.float64]
    samples: NDArray[np.float64]
    counts: NDArray[np.int64]
    sample_every: float


class Replica(NamedTuple):
    """State of one replica.

    ``ring`` holds the heads of lists of requests by the step that emits their last token (``next_same`` links
    them), ``phase`` counts decode rows by the step, modulo the block size, before which they need a block.
    ``running`` is vLLM's running list in order, with -1 where a request has left; other drivers keep
    other lists there.
    """

    ints: NDArray[np.int64]
    floats: NDArray[np.float64]
    queue: NDArray[np.int32]
    ring: NDArray[np.int32]
    phase: NDArray[np.int64]
    running: NDArray[np.int32]
    preempted: NDArray[np.int32]
    pending: NDArray[np.int32]
    prefilled: NDArray[np.int32]
    finish_times: NDArray[np.float64]
    # by request, shared between the replicas of a fleet
    next_same: NDArray[np.int32]
    finish_step: NDArray[np.int64]
    generated: NDArray[np.int32]
    state: NDArray[np.int8]
    position: NDArray[np.int32]
    last_emit: NDArray[np.float64]


class Turn(NamedTuple):
    """A step that a rank has planned and not run: its prompt tokens, finished prompts, number of equal decode steps,
    whether the queue's head did not fit, decode rows; duration of the first step and what each next one takes
    longer."""

    ints: NDArray[np.int64]
    floats: NDArray[np.float64]


class Ranks(NamedTuple):
    """Data parallel ranks of every replica, see ``ranks.py``: ``size`` of each, one after the other in ``replicas``
    and ``turns``.

    ``last``, shape (num_replicas,), is the rank that was chosen last, ``kv_aware`` the form of the router's score.
    ``rank_of`` is written: the rank that served each request. ``policy`` is None or the ranks' ``policy.Policy``.
    """

    size: int
    kv_aware: int
    replicas: Replica
    turns: Turn
    last: NDArray[np.int64]
    rank_of: NDArray[np.int32]
    policy: Any


class Prefix(NamedTuple):
    """Prefix cache of one replica, see ``prefix.py``, which also names the columns of its tables.

    Few tables with many columns: numba passes (and counts references of) every array of every call.
    """

    offsets: NDArray[np.int64]
    nodes: NDArray[np.int32]
    span_shift: int
    num_shared: int
    names_output: int
    node_ends: NDArray[np.int32]
    extents: NDArray[np.int32]
    entries: NDArray[np.int32]
    counters: NDArray[np.int64]
    # by request, shared between the replicas of a fleet
    users: NDArray[np.int32]


def new_outputs(num_requests: int) -> Outputs:
    """Outputs of a run in which nothing has happened yet."""
    return Outputs(
        first=np.full(num_requests, np.nan),
        last=np.full(num_requests, np.nan),
        cached=np.zeros(num_requests, np.int32),
        preemptions=np.zeros(num_requests, np.int32),
        rejected=np.zeros(num_requests, np.int8),
    )


def new_recorder(num_replicas: int, num_gaps: int, num_samples: int, sample_every_s: float) -> Recorder:
    """A recorder with room for so many rows a replica; 0 records nothing of the kind."""
    return Recorder(
        gaps=np.empty((num_replicas, num_gaps, 4)),
        samples=np.empty((num_replicas, num_samples, 4)),
        counts=np.zeros((num_replicas, 2), np.int64),
        sample_every=sample_every_s,
    )


def new_fleet(engine: Engine, requests: Requests, num_replicas: int, queue_size: int, log_finishes: bool) -> Replica:
    """Replicas with nothing running: a :class:`Replica` whose own arrays have the replica as first axis.

    Parameters
    ----------
    engine : Engine
    requests : Requests
        Of the whole fleet.
    num_replicas : int
    queue_size : int
        Room for the requests routed to one replica.
    log_finishes : bool
        Whether a router needs to know when requests finish.
    """
    n = num_replicas
    num_requests = len(requests.arrival)
    longest = int(requests.output_tokens.max(initial=0))
    ints = np.zeros((n, NUM_INTS), np.int64)
    ints[:, FREE] = engine.num_blocks
    ints[:, PARTIAL] = -1
    ints[:, NEXT_FINISH] = 1 << 60
    slots = engine.max_num_seqs
    return Replica(
        ints=ints,
        floats=np.zeros((n, NUM_FLOATS)),
        queue=np.empty((n, queue_size), np.int32),
        ring=np.full((n, 1 << (longest + 2).bit_length()), -1, np.int32),
        phase=np.zeros((n, 1 << engine.block_shift), np.int64),
        running=np.empty((n, 2 * slots + 16), np.int32),
        preempted=np.empty((n, slots + 1), np.int32),
        pending=np.empty((n, slots + 1), np.int32),
        prefilled=np.empty((n, slots + 1), np.int32),
        finish_times=np.empty((n, queue_size if log_finishes else 0)),
        next_same=np.empty(num_requests, np.int32),
        finish_step=np.zeros(num_requests, np.int64),
        generated=np.zeros(num_requests, np.int32),
        state=np.zeros(num_requests, np.int8),
        position=np.zeros(num_requests, np.int32),
        last_emit=np.zeros(num_requests),
    )


def new_ranks(
    engine: Engine, requests: Requests, num_replicas: int, size: int, queue_size: int, kv_aware: bool, policy: Any
) -> Ranks:
    """Ranks with nothing running, ``size`` of each of ``num_replicas`` replicas; see :func:`new_fleet`."""
    n = num_replicas * size
    return Ranks(
        size=size,
        kv_aware=int(kv_aware),
        replicas=new_fleet(engine, requests, n, queue_size, False),
        turns=Turn(ints=np.zeros((n, NUM_TURN_INTS), np.int64), floats=np.zeros((n, NUM_TURN_FLOATS))),
        last=np.full(num_replicas, size - 1, np.int64),
        rank_of=np.zeros(len(requests.arrival), np.int32),
        policy=policy,
    )


def new_prefix(
    engine: Engine,
    num_replicas: int,
    offsets: NDArray[np.int64],
    nodes: NDArray[np.int32],
    span_shift: int,
    num_shared: int,
    names_output: bool,
    num_entries: int,
) -> Prefix:
    """Empty prefix caches, the replica as the first axis; with ``engine.caching`` 0 a placeholder.

    Parameters
    ----------
    engine : Engine
    num_replicas : int
    offsets : int64 array, shape (num_requests + 1,)
    nodes : int32 array, shape (offsets[-1],)
        Nodes of each request (CSR), see ``types.PrefixBlocks``.
    span_shift : int
        Base-2 logarithm of the engine blocks in a node.
    num_shared : int
        Number of different nodes.
    names_output : bool
        Whether some row goes past its prompt.
    num_entries : int
        Room for extents in use, counted once a request.
    """
    num_requests = len(offsets) - 1
    num_extents = engine.num_blocks + 1 if engine.caching else 1
    num_nodes = num_shared + num_requests if engine.caching else 1
    if not engine.caching:
        num_entries = 1

    def table(rows: int, columns: int, chain: int) -> NDArray[np.int32]:
        """A table of -1 for every replica, its rows linked through the column ``chain``."""
        full = np.full((num_replicas, rows, columns), -1, np.int32)
        full[:, :-1, chain] = np.arange(1, rows)
        return full

    users = np.zeros((num_requests if engine.caching else 1, 2), np.int32)
    users[:, 0] = -1
    return Prefix(
        offsets=offsets,
        nodes=nodes,
        span_shift=span_shift,
        num_shared=num_shared,
        names_output=int(names_output),
        node_ends=np.full((num_replicas, num_nodes, 2), -1, np.int32),
        extents=table(num_extents, 8, 7),
        entries=table(num_entries, 3, 2),
        counters=np.tile(np.array([0, engine.num_blocks, -1, -1, 0, 0], np.int64), (num_replicas, 1)),
        users=users,
    )
