"""State of groups of prefill and decode instances, see ``disaggregated.py``."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from servewise.kernel import layout as lo
from servewise.kernel.layout import Engine, Requests, Times

__all__ = ["HANDOFF", "LEAST_REQUESTS", "PULL", "PUSH", "Group", "Pool", "Protocol", "new_group"]

PULL = 0
"""vLLM: D fetches a finished prompt, and computes its first token."""
PUSH = 1
"""SGLang: D sets blocks aside, P sends each chunk that it has finished."""
HANDOFF = 2
"""TensorRT-LLM: D fetches a finished prompt, of which P has sampled the first token."""

ROUND_ROBIN = 0
LEAST_REQUESTS = 1

# Integers of an instance, after those of ``layout``.
QUEUE_FIRST = lo.NUM_INTS
QUEUE_LAST = lo.NUM_INTS + 1
READY_FIRST = lo.NUM_INTS + 2
READY_LAST = lo.NUM_INTS + 3
RETURNED_FIRST = lo.NUM_INTS + 4
RETURNED_LAST = lo.NUM_INTS + 5
TRANSFER_FIRST = lo.NUM_INTS + 6
TRANSFER_LAST = lo.NUM_INTS + 7
ROUTED = lo.NUM_INTS + 8
"""Requests sent there: to P, whose prompt is not finished; to D, whose last token is not out."""
NEWS = lo.NUM_INTS + 9
"""Something came from outside that the last plan has not seen."""
PLANNED = lo.NUM_INTS + 10
"""The plan of the step after the running one was made."""
HAS_STEP = lo.NUM_INTS + 11
"""That plan is not empty."""
HAS_ENDED = lo.NUM_INTS + 12
"""A step ended at this instant."""
BLOCKED = lo.NUM_INTS + 13
RELEASED = lo.NUM_INTS + 14
PREEMPTED = lo.NUM_INTS + 15
COUNT = lo.NUM_INTS + 16
NUM_JOINED = lo.NUM_INTS + 17
PREFILL_TOKENS = lo.NUM_INTS + 18
NUM_PREFILLED = lo.NUM_INTS + 19
NUM_HELD = lo.NUM_INTS + 20
"""Of D's requests with a seat those that are no rows yet; of P's those whose prompt is finished."""
PARITY = lo.NUM_INTS + 21
"""Which half of ``Group.batch`` the running step has."""
BATCH_SIZE = lo.NUM_INTS + 22  # and the next: of each half
BATCH_CUT = lo.NUM_INTS + 24  # and the next: the prompt that each half cuts, or -1
BATCH_CUT_DONE = lo.NUM_INTS + 26  # and the next: how much of it is computed then
NUM_INSTANCE_INTS = lo.NUM_INTS + 28

# Floats of an instance, after those of ``layout``.
START = lo.NUM_FLOATS
FIRST = lo.NUM_FLOATS + 1
GROWTH = lo.NUM_FLOATS + 2
PLAN_AT = lo.NUM_FLOATS + 3
END_AT = lo.NUM_FLOATS + 4
NEXT_AT = lo.NUM_FLOATS + 5
"""The next of the two that something has to be done at; infinite for an idle instance."""
PAIRS = lo.NUM_FLOATS + 6
LINK_FREE = lo.NUM_FLOATS + 7
ARRIVES_AT = lo.NUM_FLOATS + 8
"""When the next transfer of P's has arrived."""
NUM_INSTANCE_FLOATS = lo.NUM_FLOATS + 9

# Integers of a group.
NEXT_P = 0
NEXT_D = 1
NUM_GROUP_INTS = 2


# Integers of a request: the blocks that it takes when it is admitted; the next one in whatever queue it stands in; the
# rows of its instances; blocks that were sent; and what ``layout.Replica`` has.
PREFILL_BLOCKS = 0
DECODE_BLOCKS = 1
LINK = 2
PREFILL_OF = 3
DECODE_OF = 4
SENT = 5
STATE = 6
GENERATED = 7
FINISH_STEP = 8
NEXT_SAME = 9
POSITION = 10
NUM_LIVE_INTS = 11

# Floats of a request: time of its KV cache on the wire [s], when that has arrived, when its last token was emitted,
# when its prompt was finished, when the (last) transfer of its KV cache was asked for, and when that started.
WIRE = 0
TRANSFER_END = 1
LAST_EMIT = 2
PREFILL_END = 3
TRANSFER_ASKED = 4
TRANSFER_START = 5
NUM_LIVE_FLOATS = 6


class Pool(NamedTuple):
    """``num`` equal instances in each group, their settings and step times."""

    num: int
    engine: Engine
    times: Times


class Protocol(NamedTuple):
    """How the two pools work together; ``kind`` is one of the codes above.

    P cuts prompts at multiples of ``cut`` tokens (not at all without ``chunking``), charges them in multiples of
    ``charge`` tokens, and needs ``margin`` blocks more than a prompt takes. D keeps ``reserved`` tokens for every
    request that it has. A transfer arrives ``latency`` after its last byte was sent [s].
    """

    kind: int
    router: int
    chunking: int
    cut: int
    charge: int
    margin: int
    reserved: int
    latency: float


class Group(NamedTuple):
    """Groups of ``prefill.num + decode.num`` instances, one group after the other in ``ints`` and ``floats``.

    Arrays of P's alone (``batch``) and of D's alone (``ring`` to ``prefilled``) have those as first axis, ``live`` and
    ``clocks`` the requests: one row each, because numba passes every array of every call.
    """

    prefill: Pool
    decode: Pool
    protocol: Protocol
    ints: NDArray[np.int64]
    floats: NDArray[np.float64]
    routers: NDArray[np.int64]
    batch: NDArray[np.int32]
    ring: NDArray[np.int32]
    phase: NDArray[np.int64]
    running: NDArray[np.int32]
    pending: NDArray[np.int32]
    joined: NDArray[np.int32]
    prefilled: NDArray[np.int32]
    live: NDArray[np.int32]
    clocks: NDArray[np.float64]


def new_group(
    num_groups: int,
    prefill: Pool,
    decode: Pool,
    protocol: Protocol,
    requests: Requests,
    prefill_blocks: NDArray[np.int32],
    decode_blocks: NDArray[np.int32],
    wire_s: NDArray[np.float64],
) -> Group:
    """Groups with nothing running; see :class:`Group`."""
    num_requests = len(requests.arrival)
    size = prefill.num + decode.num
    ints = np.zeros((num_groups * size, NUM_INSTANCE_INTS), np.int64)
    is_prefill = np.arange(num_groups * size) % size < prefill.num
    ints[:, lo.FREE] = np.where(is_prefill, prefill.engine.num_blocks, decode.engine.num_blocks)
    ints[:, lo.PARTIAL] = -1
    ints[:, lo.NEXT_FINISH] = 1 << 60
    for first in (QUEUE_FIRST, READY_FIRST, RETURNED_FIRST, TRANSFER_FIRST):
        ints[:, first : first + 2] = -1
    ints[:, BATCH_CUT : BATCH_CUT + 2] = -1
    floats = np.zeros((num_groups * size, NUM_INSTANCE_FLOATS))
    floats[:, NEXT_AT] = np.inf
    floats[:, ARRIVES_AT] = np.inf
    live = np.zeros((num_requests, NUM_LIVE_INTS), np.int32)
    live[:, [LINK, PREFILL_OF, DECODE_OF]] = -1
    live[:, PREFILL_BLOCKS] = prefill_blocks
    live[:, DECODE_BLOCKS] = decode_blocks
    clocks = np.zeros((num_requests, NUM_LIVE_FLOATS))
    clocks[:, WIRE] = wire_s
    longest = int(requests.output_tokens.max(initial=0))
    num_decodes, slots = num_groups * decode.num, decode.engine.max_num_seqs
    return Group(
        prefill=prefill,
        decode=decode,
        protocol=protocol,
        ints=ints,
        floats=floats,
        routers=np.zeros((num_groups, NUM_GROUP_INTS), np.int64),
        batch=np.empty((num_groups * prefill.num, 2, prefill.engine.max_num_seqs + 1), np.int32),
        ring=np.full((num_decodes, 1 << (longest + 2).bit_length()), -1, np.int32),
        phase=np.zeros((num_decodes, 1 << decode.engine.block_shift), np.int64),
        running=np.empty((num_decodes, 2 * slots + 16), np.int32),
        pending=np.empty((num_decodes, slots + 1), np.int32),
        joined=np.empty((num_decodes, slots + 1), np.int32),
        prefilled=np.empty((num_decodes, slots + 1), np.int32),
        live=live,
        clocks=clocks,
    )
