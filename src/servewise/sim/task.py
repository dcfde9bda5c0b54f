"""One run of the kernel: what it is given, and the arrays that it writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from servewise.errors import InputError, SimulationError
from servewise.kernel import layout
from servewise.kernel.fleet import (
    GONE,
    LEAST_REQUESTS,
    PREFIX_AWARE,
    ROUND_ROBIN,
    SESSION_STICKY,
    UP,
    Routing,
)
from servewise.kernel.pipeline import Pipeline
from servewise.kernel.sglang_ranks import new_sglang_ranks
from servewise.kernel.staged_ranks import new_staged_ranks
from servewise.kernel.trtllm import Trtllm
from servewise.kernel.trtllm_ranks import new_trtllm_ranks
from servewise.sim.drivers import driver_of
from servewise.sim.pack import Packed
from servewise.types import Deployment, MemoryReport, SglangParams, TrtllmParams, VllmParams

__all__ = ["ROUTERS", "Arrays", "Task", "arrays", "completed", "num_engines", "num_ranks"]

ROUTERS = {
    "round_robin": ROUND_ROBIN,
    "least_requests": LEAST_REQUESTS,
    "prefix_aware": PREFIX_AWARE,
    "session_sticky": SESSION_STICKY,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The kernel's input.

    ``num_slots`` schedulers are behind the router; ``concurrency`` is 0 in an open loop. With ``starts_and_ends``
    replicas come and go. ``ranks`` of every replica are in lock step; ``kv_aware`` is the form of the score by which a
    replica chooses one.
    """

    packed: Packed
    deployment: Deployment
    memory: MemoryReport
    engine: layout.Engine
    times: layout.Times
    limits: layout.Limits
    router: int
    record_itl: bool
    num_samples: int
    sample_every_s: float
    num_slots: int = 1
    concurrency: int = 0
    ranks: int = 1
    kv_aware: bool = False
    starts_and_ends: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrays:
    """What the kernel reads and writes in one run."""

    fleet: layout.Replica
    requests: layout.Requests
    outputs: layout.Outputs
    prefix: layout.Prefix
    recorder: layout.Recorder
    driver: Any
    routing: Routing


def num_ranks(deployment: Deployment) -> int:
    """Ranks of a replica that are simulated in lock step: data parallel ranks of engines that have them."""
    in_lock_step = isinstance(deployment.params, VllmParams | SglangParams | TrtllmParams)
    return deployment.parallelism.data_parallel_size if in_lock_step else 1


def num_engines(deployment: Deployment) -> int:
    """Schedulers of a replica that are simulated on their own: the data parallel ranks of other engines.

    The router sends to ranks then, and each runs as if the others had as much to do.
    """
    return deployment.parallelism.data_parallel_size // num_ranks(deployment)


def arrays(task: Task, num_entries: int, num_gaps: int, num_rows: int) -> Arrays:
    """The kernel's arrays before anything has happened, with buffers of the given sizes.

    Parameters
    ----------
    task : Task
    num_entries : int
        Of the prefix caches, see ``layout.new_prefix``.
    num_gaps, num_rows : int
        Gaps between tokens and samples of its state to record of each replica.
    """
    packed, engine, num_replicas = task.packed, task.engine, task.num_slots
    num_requests = len(packed.requests.arrival)
    by_turns = task.router == ROUND_ROBIN and not task.starts_and_ends
    room = -(-num_requests // num_replicas) if by_turns else num_requests
    requests = packed.requests
    if task.concurrency:  # the kernel writes the arrivals, of every run anew
        at_once = np.arange(num_requests) < task.concurrency
        requests = requests._replace(arrival=np.where(at_once, 0.0, np.nan))
    slots = replace(task.deployment, num_replicas=num_replicas)
    driver = driver_of(slots).driver(packed, slots, engine, task.memory)
    if task.ranks > 1 and isinstance(driver, Pipeline):
        shape = (num_replicas, task.ranks, room, task.kv_aware)
        driver = new_staged_ranks(engine, requests, *shape, driver.shares)
    elif task.ranks > 1 and isinstance(task.deployment.params, SglangParams):
        by_load = task.deployment.params.load_balance_method == "total_requests"
        driver = new_sglang_ranks(engine, requests, num_replicas, task.ranks, room, by_load, driver)
    elif task.ranks > 1 and isinstance(driver, Trtllm):
        driver = new_trtllm_ranks(engine, requests, num_replicas, task.ranks, room, driver)
    elif task.ranks > 1:
        driver = layout.new_ranks(engine, requests, num_replicas, task.ranks, room, task.kv_aware, driver)
    return Arrays(
        fleet=layout.new_fleet(engine, requests, num_replicas, room, not by_turns),
        requests=requests,
        outputs=layout.new_outputs(num_requests),
        prefix=layout.new_prefix(
            # SGLang's tree is its own
            engine._replace(caching=0) if isinstance(task.deployment.params, SglangParams) else engine,
            num_replicas * task.ranks,
            packed.node_offsets,
            packed.nodes,
            packed.span_shift,
            packed.num_shared,
            packed.names_output,
            num_entries,
        ),
        recorder=layout.new_recorder(num_replicas * task.ranks, num_gaps, num_rows, task.sample_every_s),
        driver=driver,
        routing=_routing(task, num_requests),
    )


def _routing(task: Task, num_requests: int) -> Routing:
    packed, num_replicas = task.packed, task.num_slots
    session = packed.session
    if task.router == SESSION_STICKY and session is None:
        raise InputError(
            "the session_sticky router needs traffic that names conversations (a session column); use least_requests"
        )
    sticky = task.router == SESSION_STICKY and session is not None
    return Routing(
        router=task.router,
        replica_of=np.zeros(num_requests, np.int32),
        in_flight=np.zeros(num_replicas, np.int64),
        serving=np.full(num_replicas, GONE if task.starts_and_ends else UP, np.int8),
        seen=np.zeros(packed.num_shared if task.router == PREFIX_AWARE else 0, np.int64),
        prompt_nodes=packed.prompt_nodes,
        session=session if sticky and session is not None else np.zeros(0, np.int64),
        home=np.full(int(session.max(initial=-1)) + 1 if sticky and session is not None else 0, -1, np.int32),
        pointer=np.zeros(1, np.int64),
    )


def completed(task: Task, attempt: Callable[[Task, Arrays], int], *, knows_prefix: bool) -> Arrays:
    """Run a task to its end: again with a prefix cache if it turns out to matter, or with larger buffers.

    Parameters
    ----------
    task : Task
    attempt : callable
        Runs the kernel on fresh arrays and returns its status.
    knows_prefix : bool
        Whether the workload says what its requests share.

    Raises
    ------
    SimulationError
        When the kernel reports a state that must not exist.
    """
    status = layout.PREEMPTED
    if task.engine.caching and not knows_prefix:
        # where nothing is known to be shared, the cache serves only requests that return from a preemption
        without = task.engine._replace(caching=0, stop_at_preemption=1)
        status, end = _until_it_fits(replace(task, engine=without), attempt)
    if status == layout.PREEMPTED:
        status, end = _until_it_fits(task, attempt)
    if status == layout.STUCK:
        memory = task.memory
        raise SimulationError(
            f"a request can never be admitted: {memory.num_kv_blocks} blocks of {memory.block_size_tokens} "
            f"tokens hold less than max_model_len {task.deployment.max_request_tokens} needs"
        )
    return end


def _until_it_fits(task: Task, attempt: Callable[[Task, Arrays], int]) -> tuple[int, Arrays]:
    """Run with buffers of a likely size, and again with larger ones as long as they overflow."""
    packed = task.packed
    busiest = np.sort(np.diff(packed.node_offsets))[-task.engine.max_num_seqs :]
    num_entries = 2 * int(busiest.sum()) + 16 * task.engine.max_num_seqs
    num_gaps = 8 * (len(packed.requests.arrival) // task.num_slots + 64) if task.record_itl else 0
    num_rows = 3 * task.num_samples  # of the timeline, which goes on after the last arrival
    while True:
        state = arrays(task, num_entries, num_gaps, num_rows)
        status = attempt(task, state)
        if status != layout.OVERFLOW:
            return status, state
        num_entries *= 2
        num_gaps *= 2
        num_rows *= 2
