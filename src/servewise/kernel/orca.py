"""Orca's iteration-level scheduling with contiguous slots, one replica (specification: docs/baseline-schedulers.md).

Slots of equal size make memory a number of seats, so the scheduler is vLLM's with that many seats, blocks that never
run out and a budget that never binds. What is left to do here is to count what the slots hold.
"""

from __future__ import annotations

from typing import NamedTuple

from servewise.kernel import layout as lo
from servewise.kernel import vllm
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

__all__ = ["Slots", "advance"]


class Slots(NamedTuple):
    """``blocks`` KV blocks of a slot; ``by_memory`` is 1 when memory, not ``max_batch_size``, decides their number."""

    blocks: int
    by_memory: int


@compiled
def advance(
    rep: Replica,
    req: Requests,
    out: Outputs,
    times: Times,
    eng: Engine,
    lim: Limits,
    slots: Slots,
    px: Prefix,
    rec: Recorder,
    horizon: float,
) -> int:
    """Simulate every step that is planned before ``horizon``; returns a status of ``layout``, see ``vllm.advance``.

    ``eng`` has a seat a slot, no lag and no cache.
    """
    num_sampled = rec.counts[1]
    status = vllm.advance(rep, req, out, times, eng, lim, px, rec, None, None, horizon)
    ints = rep.ints
    ints[lo.PEAK_BLOCKS] = ints[lo.PEAK_RUNNING] * slots.blocks
    if slots.by_memory != 0 and ints[lo.SLOTS_BOUND] != 0:
        ints[lo.SLOTS_BOUND] = 0
        ints[lo.MEMORY_BOUND] = 1
    for i in range(num_sampled, rec.counts[1]):
        rec.samples[i, 3] = rec.samples[i, 1] * slots.blocks
    return int(status)
