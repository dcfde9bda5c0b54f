"""Run one case through the group kernel (as ``sim`` packs it) and through the plain group, and compare."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import numpy as np

from oracle.disaggregated_cases import DisaggregatedCase
from oracle.disaggregated_plain import Group, PoolParams
from oracle.plain_engine import Request
from servewise.perf import kv_transfer_bytes_per_token
from servewise.sim import Outcome, disaggregated, simulate_disaggregated, to_log
from servewise.types import (
    Deployment,
    Disaggregation,
    EngineParams,
    InstancePool,
    KvLink,
    MemoryReport,
    Parallelism,
    RequestLog,
    Role,
    Router,
    SglangParams,
    StepModel,
    TrtllmParams,
    VllmParams,
    Workload,
)
from sim import agree


def _knobs(case: DisaggregatedCase, pool: PoolParams) -> EngineParams:
    """The engine's own parameters for a pool."""
    match case.params.engine:
        case "vllm":
            return VllmParams(
                max_num_seqs=pool.max_rows,
                max_num_batched_tokens=pool.max_step_tokens,
                max_model_len=case.context_tokens,
                gpu_memory_utilization=0.9,
                block_size_tokens=pool.block_size_tokens,
                enable_prefix_caching=False,
                enable_chunked_prefill=True,
                async_scheduling=pool.lag,
                scheduler_reserve_full_isl=pool.reserve_full,
            )
        case "sglang":
            return SglangParams(
                max_running_requests=pool.max_rows,
                chunked_prefill_size=pool.max_step_tokens,
                max_prefill_tokens=pool.max_step_tokens,
                context_length=1 << 20,
                mem_fraction_static=0.9,
                page_size=pool.block_size_tokens,
                cuda_graph_max_bs=8,
            )
        case _:
            return TrtllmParams(
                max_batch_size=pool.max_rows,
                max_num_tokens=pool.max_step_tokens,
                max_seq_len=1 << 20,
                free_gpu_memory_fraction=0.9,
                tokens_per_block=pool.block_size_tokens,
                enable_chunked_prefill=case.params.prefill.cut > 0,
                cuda_graph_padding=True,
                cuda_graph_max_batch_size=8,
            )


def deployment_of(case: DisaggregatedCase, num_groups: int = 1, router: Router = "round_robin") -> Deployment:
    """A deployment with the case's settings."""
    pools = [
        InstancePool(
            gpu=agree.GPU, parallelism=Parallelism(), params=_knobs(case, pool), num_instances=pool.num_instances
        )
        for pool in (case.params.prefill, case.params.decode)
    ]
    alone = agree.deployment(case.params.engine, "1.0", pools[1].params, num_groups, router)
    block_bytes = kv_transfer_bytes_per_token(alone) * case.params.prefill.block_size_tokens
    link = KvLink(
        kind="network",
        bytes_per_s=block_bytes / case.params.s_per_block,
        latency_s=case.params.latency_s,
        provenance={},
    )
    return replace(
        alone, disaggregation=Disaggregation(prefill=pools[0], decode=pools[1], link=link, router=case.params.router)
    )


def workload_of(case: DisaggregatedCase) -> Workload:
    return agree.workload_of(case, case.params.prefill.block_size_tokens)


def models_of(case: DisaggregatedCase) -> dict[Role, StepModel]:
    return {"prefill": agree.model(case.prefill_times), "decode": agree.model(case.decode_times)}


def memories_of(case: DisaggregatedCase) -> dict[Role, MemoryReport]:
    pools: dict[Role, PoolParams] = {"prefill": case.params.prefill, "decode": case.params.decode}
    return {role: agree.memory(pool.num_kv_blocks, pool.block_size_tokens) for role, pool in pools.items()}


def run_group(
    case: DisaggregatedCase, *, num_groups: int = 1, router: Router = "round_robin", **asked: object
) -> Outcome:
    """The kernel's view of a case."""
    with mock.patch.object(disaggregated, "SGLANG_RESERVED_TOKENS", case.params.reserved_tokens):
        return simulate_disaggregated(
            workload_of(case),
            deployment_of(case, num_groups, router),
            models_of(case),
            memories_of(case),
            **asked,  # type: ignore[arg-type]
        )


def run_plain(case: DisaggregatedCase, *, concurrency: int = 0, think_s: float = 0.0) -> Group:
    """The plain group, run to the end."""
    group = Group(case.params, case.prefill_times, case.decode_times)
    if concurrency == 0:
        group.run(case.requests)
    else:
        group.run_closed(case.requests, concurrency, lambda request: extra_s(case, request) + think_s)
    return group


def extra_s(case: DisaggregatedCase, request: Request) -> float:
    """Time of a request outside the engine [s]."""
    times = case.prefill_times
    return times.request_fixed_s + times.request_s_per_input_token * request.input_tokens


def assert_agrees(
    case: DisaggregatedCase, *, concurrency: int = 0, think_s: float = 0.0, fast_forward: bool = True
) -> Outcome:
    """Compare one case in both implementations; returns the kernel's outcome."""
    plain = run_plain(case, concurrency=concurrency, think_s=think_s)
    kernel = run_group(case, concurrency=concurrency, think_s=think_s, fast_forward=fast_forward)
    lives = plain.lives
    np.testing.assert_allclose(kernel.packed.requests.arrival, [r.request.arrival_s for r in lives], rtol=1e-9)
    agree.assert_requests(
        kernel,
        [r.token_s[0] for r in lives],
        [r.token_s[-1] for r in lives],
        [r.num_preemptions for r in lives],
        atol=1e-12,
    )
    instances = [*plain.prefills, *plain.decodes]
    agree.assert_counted(
        kernel,
        [i.num_steps for i in instances],
        [i.peak_running for i in instances],
        [i.peak_blocks for i in instances],
    )
    assert kernel.num_simulated == len(case.requests)
    return kernel


def to_log_of(case: DisaggregatedCase, outcome: Outcome) -> RequestLog:
    """The log of a run."""
    return to_log(workload_of(case), outcome)
