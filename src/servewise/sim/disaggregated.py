"""Run the simulator on groups of prefill and decode instances."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from servewise.errors import InputError
from servewise.kernel import group, layout
from servewise.perf import kv_transfer_bytes
from servewise.sim.check import check
from servewise.sim.drivers import driver_of
from servewise.sim.drivers.base import plain_engine
from servewise.sim.group_run import GroupTask, completed_groups, outcome_of, whole_run
from servewise.sim.outcome import Outcome
from servewise.sim.pack import Packed, pack_accepted, pack_times
from servewise.types import (
    ROLES,
    Deployment,
    EngineName,
    MemoryReport,
    Promise,
    Role,
    SglangParams,
    StepModel,
    TrtllmParams,
    VllmParams,
    Workload,
)

__all__ = ["group_task", "pack_disaggregated", "simulate_disaggregated"]

KINDS: Mapping[EngineName, int] = {"vllm": group.PULL, "sglang": group.PUSH, "tensorrt-llm": group.HANDOFF}
GROUP_ROUTERS = {"round_robin": group.ROUND_ROBIN, "least_requests": group.LEAST_REQUESTS}
SGLANG_RESERVED_TOKENS = 512
"""``num_reserved_decode_tokens``: kept on D for every request that it has."""
SGLANG_PAGES_MORE = 3
"""Pages that must be free on P beyond the prompt's: its one token, rounding, and one because the need must be less."""


def simulate_disaggregated(
    workload: Workload,
    deployment: Deployment,
    step_models: Mapping[Role, StepModel],
    memories: Mapping[Role, MemoryReport],
    *,
    packed: Packed | None = None,
    promise: Promise | None = None,
    max_bad: int | None = None,
    record_itl: bool = False,
    num_samples: int = 0,
    concurrency: int = 0,
    think_s: float = 0.0,
    fast_forward: bool = True,
) -> Outcome:
    """Simulate a fleet of groups of prefill and decode instances on a workload (docs/disaggregation.md).

    Parameters
    ----------
    workload : Workload
    deployment : Deployment
        With ``disaggregation``.
    step_models, memories : mapping of "prefill" and "decode"
        Of one instance of each pool: ``perf.step_model(deployment.pool("prefill"))`` and so on. What a request takes
        outside the engine is that of the prefill pool.
    packed : Packed, optional
        The result of :func:`pack_disaggregated` for the same workload, limits and step tables.
    promise, max_bad, record_itl, num_samples
        See ``sim.simulate``.
    concurrency : int
        Above 0 the arrivals are not used: a client keeps so many requests in flight, see
        ``sim.simulate_closed_loop``.
    think_s : float
        From the last token that such a client sees to its next request [s].
    fast_forward : bool
        False computes every single step, for comparison.

    Returns
    -------
    Outcome
        ``counters`` and ``times`` have a row for every instance: of each group the prefill ones, then the decode
        ones. ``num_kv_blocks`` are those of a whole group.

    Raises
    ------
    InputError
        When the engine has no such mode, a pool does not fit in memory, the pools do not go together, a request can
        never be admitted, or a setting contradicts a step table.
    SimulationError
        When the kernel reports a state that must not exist.
    """
    task = group_task(
        workload,
        deployment,
        step_models,
        memories,
        packed=packed,
        promise=promise,
        max_bad=max_bad,
        record_itl=record_itl,
        num_samples=num_samples,
        concurrency=concurrency,
        think_s=think_s,
        fast_forward=fast_forward,
    )
    return outcome_of(task, completed_groups(task, whole_run))


def group_task(
    workload: Workload,
    deployment: Deployment,
    step_models: Mapping[Role, StepModel],
    memories: Mapping[Role, MemoryReport],
    *,
    packed: Packed | None = None,
    promise: Promise | None = None,
    max_bad: int | None = None,
    record_itl: bool = False,
    num_samples: int = 0,
    concurrency: int = 0,
    think_s: float = 0.0,
    fast_forward: bool = True,
) -> GroupTask:
    """The kernel's input of a run; parameters and errors are those of :func:`simulate_disaggregated`."""
    _check(deployment, step_models, memories, concurrency, think_s)
    if packed is None:
        packed = pack_disaggregated(workload, deployment, step_models["prefill"])
    if concurrency:
        packed = replace(packed, requests=packed.requests._replace(think=think_s))
    joint = promise or Promise()
    pools = {role: _pool(deployment, role, step_models[role], memories[role], fast_forward) for role in ROLES}
    prefill_blocks, decode_blocks = _blocks(packed, deployment, pools)
    disaggregation = deployment.disaggregation
    assert disaggregation is not None  # noqa: S101 (checked)
    sender = deployment.pool("prefill")
    return GroupTask(
        packed=packed,
        deployment=deployment,
        prefill=pools["prefill"],
        decode=pools["decode"],
        protocol=_protocol(deployment),
        prefill_blocks=prefill_blocks,
        decode_blocks=decode_blocks,
        wire_s=kv_transfer_bytes(sender, packed.requests.input_tokens.astype(np.int64))
        / disaggregation.link.bytes_per_s,
        limits=layout.Limits(
            ttft=np.inf if joint.ttft_s is None else joint.ttft_s,
            tpot=np.inf if joint.tpot_s is None else joint.tpot_s,
            e2e=np.inf if joint.e2e_s is None else joint.e2e_s,
            max_bad=(1 << 60) if max_bad is None else max_bad - packed.num_rejected,
        ),
        record_itl=record_itl,
        num_samples=num_samples,
        sample_every_s=max(workload.span_s, 1.0) / max(num_samples, 1),
        concurrency=concurrency,
    )


def pack_disaggregated(workload: Workload, deployment: Deployment, step_model: StepModel) -> Packed:
    """Requests as a disaggregated deployment sees them; ``step_model`` is that of its prefill pool."""
    sender = deployment.pool("prefill")
    accepts = driver_of(sender).accepts(workload, sender)
    return pack_accepted(workload, sender, step_model.table, accepts=accepts)


def _check(
    deployment: Deployment,
    step_models: Mapping[Role, StepModel],
    memories: Mapping[Role, MemoryReport],
    concurrency: int,
    think_s: float,
) -> None:
    """What must hold before groups can be simulated."""
    found = deployment.disaggregation
    if found is None:
        raise InputError("the deployment is not disaggregated; use simulate")
    if deployment.engine not in KINDS:
        raise InputError(
            f"{deployment.engine!r} has no disaggregated prefill and decode; allowed: {', '.join(sorted(KINDS))}"
        )
    if deployment.router not in GROUP_ROUTERS:
        raise InputError(
            f"prefix caches of disaggregated deployments are not simulated, so the router {deployment.router} has no "
            f"use; allowed: {', '.join(GROUP_ROUTERS)}"
        )
    if min(found.prefill.num_instances, found.decode.num_instances) < 1:
        raise InputError(
            f"a group of {found.prefill.num_instances} prefill and {found.decode.num_instances} decode instances "
            "serves nobody; both must be 1 or more"
        )
    if not (found.link.bytes_per_s > 0.0 and 0.0 <= found.link.latency_s < np.inf):
        raise InputError(
            f"a link of {found.link.bytes_per_s:g} bytes/s and {found.link.latency_s:g} s moves nothing; its "
            "bandwidth must be above 0, its latency 0 or more and finite"
        )
    if concurrency and deployment.num_replicas != 1:
        raise InputError(f"a closed loop is simulated on one group, got {deployment.num_replicas}")
    if concurrency < 0 or not 0.0 <= think_s < np.inf:
        raise InputError(f"concurrency {concurrency} and think_s {think_s} must be 0 or more, think_s finite")
    for role in ROLES:
        pool = deployment.pool(role)
        spread = pool.parallelism
        if spread.pipeline_parallel_size > 1 or spread.data_parallel_size > 1:
            raise InputError(
                f"instances of {spread.pipeline_parallel_size} pipeline stages and {spread.data_parallel_size} data "
                "parallel ranks are not simulated apart; use tensor and expert parallelism"
            )
        check(pool, step_models[role], memories[role], num_rows=pool.max_rows)
        size = pool.kv_block_tokens
        if size & (size - 1):
            raise InputError(f"KV blocks of disaggregated deployments must be a power of two, got {size} tokens")
    sender, receiver = deployment.pool("prefill"), deployment.pool("decode")
    for name in ("kv_block_tokens", "max_request_tokens"):
        if getattr(sender, name) != getattr(receiver, name):
            raise InputError(
                f"{name} must be the same in both pools, got {getattr(sender, name)} and {getattr(receiver, name)}"
            )


def _pool(
    deployment: Deployment, role: Role, step_model: StepModel, memory: MemoryReport, fast_forward: bool
) -> group.Pool:
    """An instance's settings as the kernel knows them."""
    pool = deployment.pool(role)
    found = deployment.disaggregation
    assert found is not None  # noqa: S101 (checked)
    lag = 1
    tokens = pool.max_step_tokens
    reserve_full = 1
    match pool.params:
        case VllmParams() as params:
            lag = int(params.async_scheduling)
            reserve_full = int(params.scheduler_reserve_full_isl)
        case SglangParams(chunked_prefill_size=tokens):
            pass
        case TrtllmParams():
            lag = int(role == "decode")
    return group.Pool(
        num=found.prefill.num_instances if role == "prefill" else found.decode.num_instances,
        engine=plain_engine(pool, memory.num_kv_blocks)._replace(
            max_num_batched_tokens=tokens,
            block_shift=pool.kv_block_tokens.bit_length() - 1,
            lag=lag,
            reserve_full=reserve_full,
            single_step=int(not fast_forward),
        ),
        times=pack_times(step_model.table),
    )


def _protocol(deployment: Deployment) -> group.Protocol:
    """How the engine's pools work together."""
    found = deployment.disaggregation
    assert found is not None  # noqa: S101 (checked)
    size = deployment.kv_block_tokens
    is_sglang = deployment.engine == "sglang"
    is_vllm = deployment.engine == "vllm"
    params = found.prefill.params
    return group.Protocol(
        kind=KINDS[deployment.engine],
        router=GROUP_ROUTERS[found.router],
        chunking=int(not isinstance(params, TrtllmParams) or params.enable_chunked_prefill),
        cut=1 if is_vllm else size,
        charge=size if is_sglang else 1,
        margin=SGLANG_PAGES_MORE if is_sglang else 0,
        reserved=SGLANG_RESERVED_TOKENS if is_sglang else 0,
        latency=found.link.latency_s,
    )


def _blocks(
    packed: Packed, deployment: Deployment, pools: Mapping[Role, group.Pool]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Blocks that requests take on P, and on D where they are reserved; checks that an empty pool has so many."""
    size = deployment.kv_block_tokens
    prompts = packed.requests.input_tokens.astype(np.int64)
    outputs = packed.requests.output_tokens.astype(np.int64)
    held, most = -(-prompts // size), -(-(prompts + outputs) // size)
    needed = held
    match deployment.engine:
        case "sglang":
            needed = held + SGLANG_PAGES_MORE
            # at the latest without its last token, and the one before has no place in the KV cache
            most = -(-(prompts + np.maximum(outputs - 2, 0) + SGLANG_RESERVED_TOKENS) // size)
        case "tensorrt-llm":
            held = needed = -(-(prompts + 1) // size)
            most = -(-(prompts + packed.max_tokens) // size)
    for role, blocks in (("prefill", needed), ("decode", most)):
        have = pools[role].engine.num_blocks  # type: ignore[index]
        if int(blocks.max(initial=0)) > have:
            raise InputError(
                f"a request needs {int(blocks.max())} KV blocks of {size} tokens on a {role} instance, which has "
                f"{have}; lower max_tokens or the context, or use more or larger GPUs"
            )
    return held.astype(np.int32), most.astype(np.int32)
