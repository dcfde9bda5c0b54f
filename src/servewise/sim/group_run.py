"""One run of the kernel on groups of prefill and decode instances: what it is given, its arrays, what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from servewise.errors import SimulationError
from servewise.kernel import fleet, group, layout
from servewise.sim.outcome import Handover, Outcome
from servewise.sim.pack import Packed
from servewise.sim.task import ROUTERS, Arrays
from servewise.types import Deployment

__all__ = ["GroupTask", "completed_groups", "outcome_of", "whole_run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTask:
    """The kernel's input; ``concurrency`` is 0 in an open loop. With ``starts_and_ends`` groups come and go."""

    packed: Packed
    deployment: Deployment
    prefill: group.Pool
    decode: group.Pool
    protocol: group.Protocol
    prefill_blocks: NDArray[np.int32]
    decode_blocks: NDArray[np.int32]
    wire_s: NDArray[np.float64]
    limits: layout.Limits
    record_itl: bool
    num_samples: int
    sample_every_s: float
    concurrency: int
    starts_and_ends: bool = False

    @property
    def times(self) -> layout.Times:
        """Step times by which the router foresees the earliest end of a request: those of a decode instance."""
        return self.decode.times

    @property
    def engine(self) -> layout.Engine:
        """Settings of a decode instance."""
        return self.decode.engine


def completed_groups(task: GroupTask, attempt: Callable[[GroupTask, Arrays], int]) -> Arrays:
    """Run a task to its end: again with larger buffers as long as they overflow.

    Parameters
    ----------
    task : GroupTask
    attempt : callable
        Runs the kernel on fresh arrays and returns its status.

    Raises
    ------
    SimulationError
        When the kernel reports a state that must not exist.
    """
    num_requests = len(task.packed.requests.arrival)
    num_gaps = 8 * (num_requests // task.deployment.num_replicas + 64) if task.record_itl else 0
    num_rows = 3 * task.num_samples
    while True:
        state = _arrays(task, num_gaps, num_rows)
        status = attempt(task, state)
        if status == layout.STUCK:
            raise SimulationError("a request waits for KV blocks that nobody will ever free")
        if status != layout.OVERFLOW:
            return state
        num_gaps *= 2
        num_rows *= 2


def _arrays(task: GroupTask, num_gaps: int, num_rows: int) -> Arrays:
    """The kernel's arrays before anything has happened; ``fleet`` has the queue and clock of each group."""
    packed, num_groups, engine = task.packed, task.deployment.num_replicas, task.engine
    requests, num_requests = packed.requests, len(packed.requests.arrival)
    by_turns = task.deployment.router == "round_robin" and not task.starts_and_ends
    if task.concurrency:  # the kernel writes the arrivals, of every run anew
        at_once = np.arange(num_requests) < task.concurrency
        requests = requests._replace(arrival=np.where(at_once, 0.0, np.nan))
    room = -(-num_requests // num_groups) if by_turns else num_requests
    fronts = layout.new_fleet(engine, requests, num_groups, room, not by_turns)
    fronts.ints[:, layout.QUEUE_END] = min(task.concurrency, num_requests)
    outputs = layout.new_outputs(num_requests)
    outputs.cached[:] = -1  # unknown
    return Arrays(
        fleet=fronts,
        requests=requests,
        outputs=outputs,
        prefix=layout.new_prefix(
            engine, num_groups, packed.node_offsets, packed.nodes, packed.span_shift, packed.num_shared, False, 1
        ),
        recorder=layout.new_recorder(num_groups, num_gaps, num_rows, task.sample_every_s),
        driver=group.new_group(
            num_groups,
            task.prefill,
            task.decode,
            task.protocol,
            requests,
            task.prefill_blocks,
            task.decode_blocks,
            task.wire_s,
        ),
        routing=fleet.Routing(  # which knows neither prefixes nor conversations
            router=ROUTERS[task.deployment.router],
            replica_of=np.zeros(num_requests, np.int32),
            in_flight=np.zeros(num_groups, np.int64),
            serving=np.full(num_groups, fleet.GONE if task.starts_and_ends else fleet.UP, np.int8),
            seen=np.zeros(0, np.int64),
            prompt_nodes=packed.prompt_nodes,
            session=np.zeros(0, np.int64),
            home=np.zeros(0, np.int32),
            pointer=np.zeros(1, np.int64),
        ),
    )


def whole_run(task: GroupTask, state: Arrays) -> int:
    """Let the kernel run groups that are there from the start to the end."""
    return fleet.run_fleet(
        state.fleet,
        state.requests,
        state.outputs,
        task.times,
        task.engine,
        task.limits,
        state.prefix,
        state.recorder,
        state.driver,
        state.routing,
    )


def outcome_of(task: GroupTask, end: Arrays) -> Outcome:
    """Unpack the end of a run."""
    replica_of, state = end.routing.replica_of, end.driver
    num_bad = int(end.fleet.ints[:, layout.NUM_BAD].sum())
    return Outcome(
        broken=num_bad > task.limits.max_bad,
        num_bad=num_bad + task.packed.num_rejected,
        packed=replace(task.packed, requests=end.requests),
        outputs=end.outputs,
        replica_of=replica_of,
        scheduler_of=replica_of,
        counters=state.ints[:, : layout.NUM_INTS],
        times=state.floats[:, : layout.NUM_FLOATS],
        recorder=end.recorder,
        num_kv_blocks=task.prefill.num * task.prefill.engine.num_blocks + task.decode.num * task.engine.num_blocks,
        handover=_handover(state),
    )


def _handover(state: group.Group) -> Handover:
    """When the KV cache of each request went where."""
    decode_of = state.live[:, group.DECODE_OF]

    def moments(column: int) -> NDArray[np.float64]:
        return np.where(decode_of >= 0, state.clocks[:, column], np.nan)

    return Handover(
        prefill_of=state.live[:, group.PREFILL_OF],
        decode_of=decode_of,
        prefill_end_s=state.clocks[:, group.PREFILL_END],
        asked_s=moments(group.TRANSFER_ASKED),
        start_s=moments(group.TRANSFER_START),
        end_s=moments(group.TRANSFER_END),
    )
