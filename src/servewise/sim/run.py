"""Run the simulator: pack the input, call the kernel, turn its status into errors, unpack the outcome."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from servewise.errors import InputError, SimulationError
from servewise.kernel import fleet, layout
from servewise.sim.check import check
from servewise.sim.drivers import driver_of, routes_by_kv_use
from servewise.sim.outcome import Outcome, to_log
from servewise.sim.pack import Packed, pack_accepted, pack_times
from servewise.types import Deployment, MemoryReport, Promise, RequestLog, StepModel, StepTable, VllmParams, Workload

__all__ = ["pack_requests", "run", "simulate", "simulate_closed_loop"]

ROUTERS = {
    "round_robin": fleet.ROUND_ROBIN,
    "least_requests": fleet.LEAST_REQUESTS,
    "prefix_aware": fleet.PREFIX_AWARE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """The kernel's input; ``concurrency`` is 0 in an open loop.

    ``ranks`` of every replica are in lock step; ``kv_aware`` is the form of the score by which a replica chooses one.
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
    concurrency: int = 0
    ranks: int = 1
    kv_aware: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """What the kernel leaves behind; ``fleet`` has a row for every rank of every replica."""

    fleet: layout.Replica
    requests: layout.Requests
    outputs: layout.Outputs
    replica_of: NDArray[np.int32]
    recorder: layout.Recorder


def simulate(
    workload: Workload,
    deployment: Deployment,
    step_model: StepModel,
    memory: MemoryReport,
    *,
    packed: Packed | None = None,
    promise: Promise | None = None,
    max_bad: int | None = None,
    record_itl: bool = False,
    num_samples: int = 0,
    fast_forward: bool = True,
) -> Outcome:
    """Simulate a fleet of vLLM, SGLang or TensorRT-LLM on a workload.

    Data parallel ranks of vLLM run in lock step behind the engine's own router (docs/vllm-scheduler.md). Of other
    engines' ranks one is simulated: give it its share of the workload.

    Parameters
    ----------
    workload, deployment, step_model, memory
        What arrives, what serves it, how long its steps take, and how many KV blocks it has.
    packed : Packed, optional
        The result of ``pack_requests`` for the same workload, ``max_model_len``, block size and step table.
    promise : Promise, optional
        Whose joint limits are counted.
    max_bad : int, optional
        Stop when more requests than this have missed the joint limits; None never stops.
    record_itl : bool
        Keep the gaps between tokens.
    num_samples : int
        How often to sample the state of each replica over the arrivals' span.
    fast_forward : bool
        False computes every single step, for comparison.

    Raises
    ------
    InputError
        When the deployment does not fit in memory, or a setting contradicts the step table.
    SimulationError
        When the kernel reports a state that must not exist.
    """
    ranks = num_ranks(deployment)
    check(deployment, step_model, memory, num_rows=deployment.max_rows, num_ranks=ranks)
    if packed is None:
        packed = pack_requests(workload, deployment, step_model.table)
    joint = promise or Promise()
    task = _Task(
        packed=packed,
        deployment=deployment,
        memory=memory,
        engine=driver_of(deployment)
        .engine(deployment, memory.num_kv_blocks)
        ._replace(single_step=int(not fast_forward)),
        times=pack_times(step_model.table),
        # a missing limit is one that nothing exceeds
        limits=layout.Limits(
            ttft=np.inf if joint.ttft_s is None else joint.ttft_s,
            tpot=np.inf if joint.tpot_s is None else joint.tpot_s,
            e2e=np.inf if joint.e2e_s is None else joint.e2e_s,
            max_bad=(1 << 60) if max_bad is None else max_bad - packed.num_rejected,
        ),
        router=ROUTERS[deployment.router],
        record_itl=record_itl,
        num_samples=num_samples,
        sample_every_s=max(workload.span_s, 1.0) / max(num_samples, 1),
        ranks=ranks,
        kv_aware=routes_by_kv_use(deployment),
    )
    return _outcome(task, knows_prefix=workload.prefix is not None)


def simulate_closed_loop(
    workload: Workload,
    deployment: Deployment,
    step_model: StepModel,
    memory: MemoryReport,
    *,
    concurrency: int,
    think_s: float = 0.0,
    fast_forward: bool = True,
) -> Outcome:
    """Simulate one replica and a client that keeps a fixed number of requests in flight.

    Of data parallel ranks one is simulated: give it its share of the concurrency.

    The workload's arrival times are not used. Its first ``concurrency`` requests reach the engine at 0. Whenever
    the client has seen the last token of a request, which is its last emission plus the request's time outside
    the engine (``request_fixed_s + request_s_per_input_token * input_tokens``), the next request of the workload,
    in order, reaches the engine ``think_s`` later. The time outside the engine is one round trip: the way back of
    the finished request and the way in of the next one, counted once, with the finished one's value; TTFT and E2E
    of a request count its own, from its arrival at the engine. Requests that the engine rejects take no time.

    Parameters
    ----------
    workload, deployment, step_model, memory
        What is sent, what serves it, how long its steps take, and how many KV blocks it has. The step table need
        not cover more rows than can be in flight.
    concurrency : int
        Requests in flight.
    think_s : float
        From the last token that the client sees to its next request [s].
    fast_forward : bool
        False computes every single step, for comparison.

    Returns
    -------
    Outcome
        ``packed.requests.arrival`` holds the times at which the engine had the requests.

    Raises
    ------
    InputError
        When there is more than one replica, ``concurrency`` or ``think_s`` is out of range, the deployment does
        not fit in memory, or a setting contradicts the step table.
    SimulationError
        When the kernel reports a state that must not exist.
    """
    if deployment.num_replicas != 1:
        raise InputError(
            f"a closed loop is simulated on one replica, got {deployment.num_replicas}; set num_replicas to 1 and "
            "give it its share of the concurrency"
        )
    if concurrency < 1:
        raise InputError(f"concurrency must be at least 1, got {concurrency}")
    if not 0.0 <= think_s < np.inf:
        raise InputError(f"think_s must be 0 or more and finite, got {think_s}")
    packed = pack_requests(workload, deployment, step_model.table)
    # a request that ended by a stop token has a row in one more step, beside the one that follows it
    in_flight = concurrency if packed.requests.by_length.all() else 2 * concurrency
    check(deployment, step_model, memory, num_rows=min(deployment.max_rows, in_flight))
    task = _Task(
        packed=replace(packed, requests=packed.requests._replace(think=think_s)),
        deployment=deployment,
        memory=memory,
        engine=driver_of(deployment)
        .engine(deployment, memory.num_kv_blocks)
        ._replace(single_step=int(not fast_forward)),
        times=pack_times(step_model.table),
        limits=layout.Limits(ttft=np.inf, tpot=np.inf, e2e=np.inf, max_bad=1 << 60),
        router=fleet.ROUND_ROBIN,
        record_itl=False,
        num_samples=0,
        sample_every_s=1.0,
        concurrency=concurrency,
    )
    return _outcome(task, knows_prefix=workload.prefix is not None)


def num_ranks(deployment: Deployment) -> int:
    """Ranks of a replica that are simulated in lock step: vLLM's data parallel ranks, one of any other engine."""
    return deployment.parallelism.data_parallel_size if isinstance(deployment.params, VllmParams) else 1


def pack_requests(workload: Workload, deployment: Deployment, table: StepTable) -> Packed:
    """Requests and prefix nodes as the deployment's engine sees them, see ``pack.pack_accepted``."""
    driver = driver_of(deployment)
    accepts = driver.accepts(workload, deployment)
    return pack_accepted(workload, deployment, table, accepts=accepts, knows_prefixes=driver.knows_prefixes)


def _outcome(task: _Task, *, knows_prefix: bool) -> Outcome:
    """Run a task and unpack its end."""
    deployment, memory = task.deployment, task.memory
    status = layout.PREEMPTED
    if task.engine.caching and not knows_prefix:
        # where nothing is known to be shared, the cache serves only requests that return from a preemption
        without = task.engine._replace(caching=0, stop_at_preemption=1)
        status, end = _run_until_it_fits(replace(task, engine=without))
    if status == layout.PREEMPTED:
        status, end = _run_until_it_fits(task)
    if status == layout.STUCK:
        raise SimulationError(
            f"a request can never be admitted: {memory.num_kv_blocks} blocks of {memory.block_size_tokens} "
            f"tokens hold less than max_model_len {deployment.max_request_tokens} needs"
        )
    num_bad = int(end.fleet.ints[:, layout.NUM_BAD].sum())
    return Outcome(
        broken=num_bad > task.limits.max_bad,
        num_bad=num_bad + task.packed.num_rejected,
        packed=replace(task.packed, requests=end.requests),
        outputs=end.outputs,
        replica_of=end.replica_of,
        counters=end.fleet.ints,
        times=end.fleet.floats,
        recorder=end.recorder,
        num_kv_blocks=memory.num_kv_blocks,
    )


def _run_until_it_fits(task: _Task) -> tuple[int, _End]:
    """Run with buffers of a likely size, and again with larger ones as long as they overflow."""
    packed = task.packed
    busiest = np.sort(np.diff(packed.node_offsets))[-task.engine.max_num_seqs :]
    num_entries = 2 * int(busiest.sum()) + 16 * task.engine.max_num_seqs
    num_gaps = 8 * (len(packed.requests.arrival) // task.deployment.num_replicas + 64) if task.record_itl else 0
    num_rows = 3 * task.num_samples  # of the timeline, which goes on after the last arrival
    while True:
        status, end = _run_once(task, num_entries, num_gaps, num_rows)
        if status != layout.OVERFLOW:
            return status, end
        num_entries *= 2
        num_gaps *= 2
        num_rows *= 2


def _run_once(task: _Task, num_entries: int, num_gaps: int, num_rows: int) -> tuple[int, _End]:
    packed, engine, num_replicas = task.packed, task.engine, task.deployment.num_replicas
    num_requests = len(packed.requests.arrival)
    by_turns = task.router == fleet.ROUND_ROBIN
    room = -(-num_requests // num_replicas) if by_turns else num_requests
    requests = packed.requests
    if task.concurrency:  # the kernel writes the arrivals, of every run anew
        at_once = np.arange(num_requests) < task.concurrency
        requests = requests._replace(arrival=np.where(at_once, 0.0, np.nan))
    replicas = layout.new_fleet(engine, requests, num_replicas, room, not by_turns)
    driver = driver_of(task.deployment).driver(packed, task.deployment, engine, task.memory)
    group = None
    if task.ranks > 1:
        group = layout.new_ranks(engine, requests, num_replicas, task.ranks, room, task.kv_aware, driver)
        driver = group
    end = _End(
        requests=requests,
        fleet=replicas if group is None else group.replicas,
        outputs=layout.new_outputs(num_requests),
        replica_of=np.zeros(num_requests, np.int32),
        recorder=layout.new_recorder(num_replicas * task.ranks, num_gaps, num_rows, task.sample_every_s),
    )
    if not driver_of(task.deployment).knows_prefixes:
        end.outputs.cached[:] = -1  # unknown
    replicas.ints[:, layout.QUEUE_END] = min(task.concurrency, num_requests)
    prefix = layout.new_prefix(
        engine,
        num_replicas * task.ranks,
        packed.node_offsets,
        packed.nodes,
        packed.span_shift,
        packed.num_shared,
        packed.names_output,
        num_entries,
    )
    status = fleet.run_fleet(
        replicas,
        requests,
        end.outputs,
        task.times,
        engine,
        task.limits,
        prefix,
        end.recorder,
        driver,
        task.router,
        end.replica_of,
        np.zeros(num_replicas, np.int64),
        np.zeros(packed.num_shared if task.router == fleet.PREFIX_AWARE else 0, np.int64),
        packed.prompt_nodes,
    )
    return status, end


def run(
    workload: Workload,
    deployment: Deployment,
    step_model: StepModel,
    memory: MemoryReport,
    *,
    record_itl: bool = True,
    num_samples: int = 600,
    fast_forward: bool = True,
) -> RequestLog:
    """Simulate a fleet on a workload and return what happened to each request.

    Parameters and errors are those of :func:`simulate`.
    """
    outcome = simulate(
        workload,
        deployment,
        step_model,
        memory,
        record_itl=record_itl,
        num_samples=num_samples,
        fast_forward=fast_forward,
    )
    return to_log(workload, outcome)
