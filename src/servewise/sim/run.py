"""Run the simulator: pack the input, call the kernel, turn its status into errors, unpack the outcome."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from servewise.errors import InputError
from servewise.kernel import fleet, layout
from servewise.kernel.sglang_ranks import SglangRanks
from servewise.kernel.staged_ranks import StagedRanks
from servewise.kernel.trtllm_ranks import TrtllmRanks
from servewise.sim.check import check
from servewise.sim.drivers import AdaptsRequests, driver_of, routes_by_kv_use
from servewise.sim.outcome import Outcome, to_log
from servewise.sim.pack import Packed, pack_accepted, pack_times
from servewise.sim.task import ROUTERS, Arrays, Task, completed, num_engines, num_ranks
from servewise.types import Deployment, MemoryReport, Promise, RequestLog, StepModel, StepTable, Workload

__all__ = ["pack_requests", "run", "simulate", "simulate_closed_loop"]


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
    """Simulate a fleet of vLLM, SGLang, TensorRT-LLM, TGI, llama.cpp or Ollama on a workload.

    Data parallel ranks of vLLM, SGLang and TensorRT-LLM run in lock step behind the engine's own router (see "Ranks" on
    the page of each scheduler).

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
    task = Task(
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
        num_slots=deployment.num_replicas * num_engines(deployment),
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
    # a request that ended where the engine could not know has a row in one more step, beside the one that follows it
    foreseen = packed.requests.by_length.all() and deployment.speculation is None
    in_flight = concurrency if foreseen else 2 * concurrency
    check(deployment, step_model, memory, num_rows=min(deployment.max_rows, in_flight))
    task = Task(
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


def pack_requests(workload: Workload, deployment: Deployment, table: StepTable) -> Packed:
    """Requests and prefix nodes as the deployment's engine sees them, see ``pack.pack_accepted``."""
    driver = driver_of(deployment)
    accepts = driver.accepts(workload, deployment)
    max_output = None
    if isinstance(driver, AdaptsRequests):
        workload, max_output = driver.adapt(workload, deployment)
    return pack_accepted(workload, deployment, table, accepts, max_output)


def _whole_run(task: Task, state: Arrays) -> int:
    """Let the kernel run a fleet that is there from the start to the end."""
    state.fleet.ints[:, layout.QUEUE_END] = min(task.concurrency, len(state.requests.arrival))
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


def _outcome(task: Task, *, knows_prefix: bool) -> Outcome:
    """Run a task and unpack its end."""
    end = completed(task, _whole_run, knows_prefix=knows_prefix)
    in_lock_step = layout.Ranks | SglangRanks | StagedRanks | TrtllmRanks
    group = end.driver if isinstance(end.driver, in_lock_step) else None
    replicas = end.fleet if group is None else group.replicas
    sent_to = end.routing.replica_of
    num_bad = int(replicas.ints[:, layout.NUM_BAD].sum())
    return Outcome(
        broken=num_bad > task.limits.max_bad,
        num_bad=num_bad + task.packed.num_rejected,
        packed=replace(task.packed, requests=end.requests),
        outputs=end.outputs,
        replica_of=np.asarray(sent_to // num_engines(task.deployment), np.int32),
        scheduler_of=sent_to * group.size + group.rank_of if group is not None else sent_to,
        counters=replicas.ints,
        times=replicas.floats,
        recorder=end.recorder,
        num_kv_blocks=task.memory.num_kv_blocks,
    )


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
