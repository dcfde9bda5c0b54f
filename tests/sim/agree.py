"""Run one case through the kernel (as ``sim`` packs it) and through the independent plain scheduler."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from oracle import vllm_plain
from oracle.client_plain import run_closed_loop
from oracle.router_plain import FleetResult, simulate_fleet
from oracle.strategies import Case
from oracle.vllm_plain import Request
from servewise import catalog
from servewise.kernel import layout
from servewise.sim import Outcome, simulate, simulate_closed_loop
from servewise.types import (
    Deployment,
    MemoryReport,
    Parallelism,
    Precision,
    PrefixBlocks,
    Promise,
    Provenance,
    Router,
    StepModel,
    VllmParams,
    Workload,
)

ASSUMED = Provenance(kind="assumed", source="assumed: a made-up model for tests")

# the kernel sees neither; a deployment needs one of each
MODEL = catalog.get_model("meta-llama/Llama-3.1-8B-Instruct")
GPU = catalog.get_gpu("H100-SXM-80GB")


def normalized(case: Case) -> Case:
    """The case as ``sim`` accepts it.

    Requests that fill the whole context end by length, as an engine's context limit makes them; there are not
    more seats than tokens in a step, and a cap does not go beyond the context.
    """
    capacity = case.params.num_kv_blocks * case.params.block_size_tokens
    requests = tuple(
        replace(r, max_tokens=r.output_tokens) if r.input_tokens + r.output_tokens == capacity else r
        for r in case.requests
    )
    seats = min(case.params.max_num_seqs, case.params.max_num_batched_tokens)
    cap = min(case.params.long_prefill_token_threshold, capacity)
    params = replace(case.params, max_num_seqs=seats, long_prefill_token_threshold=cap)
    return replace(case, requests=requests, params=params)


def workload_of(case: Case, block_size_tokens: int = 0) -> Workload:
    """The case's requests as a workload, whose prefix blocks have another size than the engine's if given."""
    requests = case.requests
    rows = [r.block_ids for r in requests]
    names = {name: i for i, name in enumerate(sorted({b for row in rows for b in row}))}
    return Workload(
        name="case",
        arrival_s=np.array([r.arrival_s for r in requests]),
        input_tokens=np.array([r.input_tokens for r in requests]),
        output_tokens=np.array([r.output_tokens for r in requests]),
        max_tokens=np.array([r.max_tokens for r in requests]),
        max_tokens_kind="declared",
        prefix=PrefixBlocks(
            offsets=np.concatenate(([0], np.cumsum([len(row) for row in rows]))).astype(np.int64),
            ids=np.array([names[b] for row in rows for b in row], np.int64),
            num_ids=len(names),
            block_size_tokens=block_size_tokens or case.params.block_size_tokens,
        ),
        session=None,
        provenance=ASSUMED,
        priority=np.array([r.priority for r in requests]),
    )


def deployment_of(
    case: Case, num_replicas: int = 1, router: Router = "round_robin", num_ranks: int = 1, version: str = "0.33.0"
) -> Deployment:
    """A deployment with the case's settings; its context limit is out of the way."""
    params = case.params
    return Deployment(
        model=MODEL,
        gpu=GPU,
        engine="vllm",
        engine_version=version,
        precision=Precision(),
        parallelism=Parallelism(data_parallel_size=num_ranks),
        params=VllmParams(
            max_num_seqs=params.max_num_seqs,
            max_num_batched_tokens=params.max_num_batched_tokens,
            max_model_len=params.num_kv_blocks * params.block_size_tokens,
            gpu_memory_utilization=0.9,
            block_size_tokens=params.block_size_tokens,
            enable_prefix_caching=params.enable_prefix_caching,
            enable_chunked_prefill=True,
            async_scheduling=params.async_scheduling,
            scheduler_reserve_full_isl=params.scheduler_reserve_full_isl,
            scheduling_policy=params.scheduling_policy,
            watermark=params.watermark,
            long_prefill_token_threshold=params.long_prefill_token_threshold,
        ),
        num_replicas=num_replicas,
        router=router,
    )


def model_of(case: Case) -> StepModel:
    """The case's step table as a step model."""
    return StepModel(table=case.times, provenance={}, max_context_tokens=1 << 20)


def memory_of(case: Case) -> MemoryReport:
    """A memory report with the case's blocks."""
    return MemoryReport(
        mem_bytes=1 << 36,
        budget_bytes=1 << 35,
        weights_bytes=1 << 30,
        activation_bytes=0,
        non_torch_bytes=0,
        graph_bytes=0,
        kv_bytes=1 << 34,
        kv_bytes_per_token=1.0,
        block_size_tokens=case.params.block_size_tokens,
        num_kv_blocks=case.params.num_kv_blocks,
        fits=True,
        reason="",
        provenance={},
    )


def run_kernel(
    case: Case,
    *,
    num_replicas: int = 1,
    router: Router = "round_robin",
    fast_forward: bool = True,
    workload: Workload | None = None,
    promise: Promise | None = None,
    max_bad: int | None = None,
    record_itl: bool = False,
    num_samples: int = 0,
) -> Outcome:
    """The kernel's view of a case."""
    return simulate(
        workload or workload_of(case),
        deployment_of(case, num_replicas, router),
        model_of(case),
        memory_of(case),
        promise=promise,
        max_bad=max_bad,
        record_itl=record_itl,
        num_samples=num_samples,
        fast_forward=fast_forward,
    )


def assert_same(kernel: Outcome, plain: FleetResult) -> None:
    """Times within 1e-9 relative, everything countable equal."""
    expected = plain.requests
    assert tuple(kernel.replica_of) == plain.replica
    np.testing.assert_array_equal(kernel.outputs.preemptions, [r.num_preemptions for r in expected])
    np.testing.assert_array_equal(kernel.outputs.cached, [r.cached_tokens for r in expected])
    extra = kernel.packed.requests.extra
    np.testing.assert_allclose(kernel.outputs.first - extra, [r.first_token_s for r in expected], rtol=1e-9)
    np.testing.assert_allclose(kernel.outputs.last - extra, [r.last_token_s for r in expected], rtol=1e-9)
    assert kernel.num_simulated == len(expected)
    assert kernel.num_preemptions == sum(run.num_preemptions for run in plain.replicas)
    assert kernel.peak_running == max(run.peak_running for run in plain.replicas)
    assert kernel.peak_kv_blocks == max(run.peak_blocks for run in plain.replicas)
    steps = [len(run.steps) for run in plain.replicas]
    np.testing.assert_array_equal(kernel.counters[:, layout.NUM_STEPS], steps)


def assert_agrees(
    case: Case, *, num_replicas: int = 1, router: Router = "round_robin", fast_forward: bool = True
) -> Outcome:
    """Compare one case in both implementations; return the kernel's outcome."""
    case = normalized(case)
    plain = simulate_fleet(case.requests, case.params, case.times, num_replicas=num_replicas, router=router)
    kernel = run_kernel(case, num_replicas=num_replicas, router=router, fast_forward=fast_forward)
    assert_same(kernel, plain)
    return kernel


def assert_closed_loop_agrees(
    case: Case, *, concurrency: int, think_s: float = 0.0, fast_forward: bool = True
) -> Outcome:
    """Compare one case, its arrivals left to the client, in both implementations."""
    case = normalized(case)

    def extra_s(request: Request) -> float:
        return case.times.request_fixed_s + case.times.request_s_per_input_token * request.input_tokens

    plain = vllm_plain.Engine(case.params, case.times)
    sent = run_closed_loop(plain, case.requests, concurrency=concurrency, think_s=think_s, extra_s=extra_s)
    kernel = simulate_closed_loop(
        workload_of(case),
        deployment_of(case),
        model_of(case),
        memory_of(case),
        concurrency=concurrency,
        think_s=think_s,
        fast_forward=fast_forward,
    )
    result = plain.result()
    np.testing.assert_allclose(kernel.packed.requests.arrival, [r.arrival_s for r in sent], rtol=1e-9)
    assert_same(kernel, FleetResult(replica=(0,) * len(sent), requests=result.requests, replicas=(result,)))
    return kernel
