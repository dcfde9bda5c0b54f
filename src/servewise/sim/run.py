"""Run the simulator: pack the input, call the kernel, turn its status into errors, unpack the outcome."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from servewise.errors import InputError, SimulationError
from servewise.kernel import fleet, layout
from servewise.sim.pack import Packed, pack_engine, pack_requests, pack_times
from servewise.types import (
    Deployment,
    ItlSegments,
    MemoryReport,
    Promise,
    RequestLog,
    RequestStatus,
    StepModel,
    Timeline,
    Workload,
)

__all__ = ["Outcome", "run", "simulate"]

ROUTERS = {
    "round_robin": fleet.ROUND_ROBIN,
    "least_requests": fleet.LEAST_REQUESTS,
    "prefix_aware": fleet.PREFIX_AWARE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one simulation saw, before it is made into a log.

    Parameters
    ----------
    broken : bool
        The run was stopped because more requests than allowed had missed the limits.
    num_bad : int
        Accepted requests that missed them (so far, when broken) plus the rejected ones.
    packed : Packed
    outputs : layout.Outputs
    replica_of : int32 array, shape (num_accepted,)
    counters : int64 array, shape (num_replicas, layout.NUM_INTS)
    times : float64 array, shape (num_replicas, layout.NUM_FLOATS)
    recorder : layout.Recorder
    num_kv_blocks : int
    """

    broken: bool
    num_bad: int
    packed: Packed
    outputs: layout.Outputs
    replica_of: NDArray[np.int32]
    counters: NDArray[np.int64]
    times: NDArray[np.float64]
    recorder: layout.Recorder
    num_kv_blocks: int

    @property
    def num_simulated(self) -> int:
        """Requests that finished in the simulation."""
        return int(self.counters[:, layout.NUM_FINISHED].sum())

    @property
    def num_preemptions(self) -> int:
        """Preemptions over all replicas."""
        return int(self.counters[:, layout.NUM_PREEMPTIONS].sum())

    @property
    def peak_running(self) -> int:
        """Most requests a replica ran at once."""
        return int(self.counters[:, layout.PEAK_RUNNING].max())

    @property
    def peak_kv_blocks(self) -> int:
        """Most blocks a replica's running requests held."""
        return int(self.counters[:, layout.PEAK_BLOCKS].max())

    @property
    def peak_batched_tokens(self) -> int:
        """Most tokens of a step with prefill."""
        return int(self.counters[:, layout.PEAK_TOKENS].max())

    @property
    def budget_bound(self) -> bool:
        """Whether the token budget ever held anything back."""
        return bool(self.counters[:, layout.BUDGET_BOUND].any())

    @property
    def slots_bound(self) -> bool:
        """Whether ``max_num_seqs`` ever held anything back."""
        return bool(self.counters[:, layout.SLOTS_BOUND].any())

    @property
    def needed_kv_blocks(self) -> int:
        """Fewest blocks with which a replica would have run the same, if memory never held anything back."""
        return max(self.peak_kv_blocks, int(self.counters[:, layout.PEAK_GATE].max()))

    @property
    def memory_bound(self) -> bool:
        """Whether the number of KV blocks ever held anything back."""
        return bool(self.counters[:, layout.MEMORY_BOUND].any())


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
    """Simulate a fleet on a workload.

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
    _check(deployment, step_model, memory)
    if packed is None:
        packed = pack_requests(workload, deployment, step_model.table)
    joint = promise or Promise()
    task = _Task(
        packed=packed,
        engine=pack_engine(deployment, memory.num_kv_blocks, fast_forward=fast_forward),
        times=pack_times(step_model.table),
        # a missing limit is one that nothing exceeds
        limits=layout.Limits(
            ttft=np.inf if joint.ttft_s is None else joint.ttft_s,
            tpot=np.inf if joint.tpot_s is None else joint.tpot_s,
            e2e=np.inf if joint.e2e_s is None else joint.e2e_s,
            max_bad=(1 << 60) if max_bad is None else max_bad - packed.num_rejected,
        ),
        num_replicas=deployment.num_replicas,
        router=ROUTERS[deployment.router],
        record_itl=record_itl,
        num_samples=num_samples,
        sample_every_s=max(workload.span_s, 1.0) / max(num_samples, 1),
    )
    status = layout.PREEMPTED
    if task.engine.caching and workload.prefix is None:
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
        num_bad=num_bad + packed.num_rejected,
        packed=packed,
        outputs=end.outputs,
        replica_of=end.replica_of,
        counters=end.fleet.ints,
        times=end.fleet.floats,
        recorder=end.recorder,
        num_kv_blocks=memory.num_kv_blocks,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """The kernel's input."""

    packed: Packed
    engine: layout.Engine
    times: layout.Times
    limits: layout.Limits
    num_replicas: int
    router: int
    record_itl: bool
    num_samples: int
    sample_every_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """What the kernel leaves behind."""

    fleet: layout.Replica
    outputs: layout.Outputs
    replica_of: NDArray[np.int32]
    recorder: layout.Recorder


def _run_until_it_fits(task: _Task) -> tuple[int, _End]:
    """Run with buffers of a likely size, and again with larger ones as long as they overflow."""
    packed = task.packed
    busiest = np.sort(np.diff(packed.node_offsets))[-task.engine.max_num_seqs :]
    num_entries = 2 * int(busiest.sum()) + 16 * task.engine.max_num_seqs
    num_gaps = 8 * (len(packed.requests.arrival) // task.num_replicas + 64) if task.record_itl else 0
    num_rows = 3 * task.num_samples  # of the timeline, which goes on after the last arrival
    while True:
        status, end = _run_once(task, num_entries, num_gaps, num_rows)
        if status != layout.OVERFLOW:
            return status, end
        num_entries *= 2
        num_gaps *= 2
        num_rows *= 2


def _run_once(task: _Task, num_entries: int, num_gaps: int, num_rows: int) -> tuple[int, _End]:
    packed, engine, num_replicas = task.packed, task.engine, task.num_replicas
    num_requests = len(packed.requests.arrival)
    by_turns = task.router == fleet.ROUND_ROBIN
    room = -(-num_requests // num_replicas) if by_turns else num_requests
    end = _End(
        fleet=layout.new_fleet(engine, packed.requests, num_replicas, room, not by_turns),
        outputs=layout.new_outputs(num_requests),
        replica_of=np.zeros(num_requests, np.int32),
        recorder=layout.new_recorder(num_replicas, num_gaps, num_rows, task.sample_every_s),
    )
    prefix = layout.new_prefix(
        engine,
        num_replicas,
        packed.node_offsets,
        packed.nodes,
        packed.span_shift,
        packed.num_shared,
        packed.names_output,
        num_entries,
    )
    status = fleet.run_fleet(
        end.fleet,
        packed.requests,
        end.outputs,
        task.times,
        engine,
        task.limits,
        prefix,
        end.recorder,
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


def to_log(workload: Workload, outcome: Outcome) -> RequestLog:
    """Make a log of a finished simulation; rejected requests are rows without times."""
    n = workload.num_requests
    where = outcome.packed.accepted if outcome.packed.accepted is not None else np.arange(n)

    def times(values: NDArray[np.float64]) -> NDArray[np.float64]:
        full = np.full(n, np.nan)
        full[where] = values
        return full

    def counts(values: NDArray[np.int32], missing: int = 0) -> NDArray[np.int64]:
        full = np.full(n, missing, np.int64)
        full[where] = values
        return full

    status = np.full(n, RequestStatus.REJECTED, np.int8)
    status[where] = np.where(np.isnan(outcome.outputs.last), RequestStatus.UNFINISHED, RequestStatus.OK)
    knows_prefix = workload.prefix is not None
    return RequestLog(
        intended_s=workload.arrival_s,
        sent_s=workload.arrival_s,
        first_token_s=times(outcome.outputs.first),
        last_token_s=times(outcome.outputs.last),
        input_tokens=workload.input_tokens,
        output_tokens=counts(outcome.packed.requests.output_tokens),
        cached_tokens=counts(outcome.outputs.cached) if knows_prefix else np.full(n, -1, np.int64),
        num_preemptions=counts(outcome.outputs.preemptions),
        replica=counts(outcome.replica_of, -1),
        status=status,
        itl=_gaps(outcome.recorder),
        timeline=_timeline(outcome),
    )


def _gaps(recorder: layout.Recorder) -> ItlSegments | None:
    if recorder.gaps.shape[1] == 0:
        return None
    rows = np.concatenate([recorder.gaps[i, : recorder.counts[i, 0]] for i in range(len(recorder.gaps))])
    return ItlSegments(
        first_s=rows[:, 0],
        increment_s=rows[:, 1],
        steps=rows[:, 2].astype(np.int64),
        weight=rows[:, 3].astype(np.int64),
    )


def _timeline(outcome: Outcome) -> Timeline | None:
    """Sum the replicas' samples on one grid of times; each replica holds its last sampled state."""
    recorder = outcome.recorder
    if recorder.samples.shape[1] == 0:
        return None
    rows = [recorder.samples[i, : recorder.counts[i, 1]] for i in range(len(recorder.samples))]
    end = max((float(r[-1, 0]) for r in rows if len(r)), default=0.0)
    grid = np.arange(0.0, end + recorder.sample_every, recorder.sample_every)
    total = np.zeros((3, len(grid)))
    for samples in rows:
        places = np.searchsorted(samples[:, 0], grid, side="right") - 1
        seen = places >= 0
        total[:, seen] += samples[places[seen], 1:].T
    return Timeline(
        time_s=grid,
        running=total[0],
        waiting=total[1],
        kv_used_frac=total[2] / (outcome.num_kv_blocks * len(rows)),
    )


def _check(deployment: Deployment, step_model: StepModel, memory: MemoryReport) -> None:
    params, table = deployment.vllm_params, step_model.table
    if deployment.router == "prefix_aware" and deployment.num_replicas > fleet.MAX_PREFIX_AWARE_REPLICAS:
        raise InputError(
            f"the prefix_aware router is simulated for at most {fleet.MAX_PREFIX_AWARE_REPLICAS} replicas, "
            f"got {deployment.num_replicas}; use least_requests"
        )
    if not memory.fits:
        raise InputError(f"the deployment does not fit: {memory.reason}")
    if memory.kv_capacity_tokens < params.max_model_len:
        raise InputError(
            f"max_model_len {params.max_model_len} exceeds the KV capacity of {memory.kv_capacity_tokens} "
            "tokens; lower it, or use more or larger GPUs"
        )
    if not params.enable_chunked_prefill:
        raise InputError("only chunked prefill is simulated; set enable_chunked_prefill")
    if params.block_size_tokens & (params.block_size_tokens - 1):
        raise InputError(f"block_size_tokens must be a power of two, got {params.block_size_tokens}")
    if params.max_num_batched_tokens < params.max_num_seqs:
        raise InputError(
            f"max_num_batched_tokens {params.max_num_batched_tokens} is below max_num_seqs "
            f"{params.max_num_seqs}; raise it, or lower max_num_seqs"
        )
    if table.max_rows < params.max_num_seqs or table.max_batched_tokens < params.max_num_batched_tokens:
        raise InputError(
            f"the step table covers {table.max_rows} rows and {table.max_batched_tokens} tokens, the engine "
            f"is set to {params.max_num_seqs} and {params.max_num_batched_tokens}"
        )
