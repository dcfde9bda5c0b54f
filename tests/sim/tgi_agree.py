"""Run one case through TGI's kernel driver (as ``sim`` packs it) and through the plain engine, and compare."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from oracle import tgi_plain, vllm_plain
from oracle.client_plain import run_closed_loop
from oracle.router_plain import FleetResult, simulate_fleet
from oracle.strategies import Case
from oracle.tgi_cases import TgiCase
from oracle.vllm_plain import Request, RequestResult
from servewise.kernel import layout
from servewise.sim import Outcome, simulate, simulate_closed_loop
from servewise.types import (
    Deployment,
    MemoryReport,
    Parallelism,
    Precision,
    Router,
    StepModel,
    TgiParams,
    Workload,
)
from sim import agree


def deployment_of(case: TgiCase, num_replicas: int = 1, router: Router = "round_robin") -> Deployment:
    """A deployment with the case's settings; its limit of a request is that of the pool."""
    params = case.params
    return Deployment(
        model=agree.MODEL,
        gpu=agree.GPU,
        engine="tgi",
        engine_version="3.3.5",
        precision=Precision(),
        parallelism=Parallelism(),
        params=TgiParams(
            max_concurrent_requests=params.max_concurrent_requests,
            max_batch_prefill_tokens=params.max_batch_prefill_tokens,
            max_total_tokens=params.num_kv_blocks * params.block_size_tokens + 1,
            cuda_memory_fraction=1.0,
            wiggle_room=0.9,
            block_size_tokens=params.block_size_tokens,
            prefix_caching=params.prefix_caching,
            prefill_chunking=params.prefill_chunking,
            cuda_graphs=(),
            waiting_served_ratio=params.waiting_served_ratio,
            max_waiting_tokens=params.max_waiting_tokens,
        ),
        num_replicas=num_replicas,
        router=router,
    )


def as_vllm(case: TgiCase) -> Case:
    """Requests, table and pool where ``agree`` looks for them."""
    params = vllm_plain.Params(
        max_num_seqs=case.params.max_concurrent_requests,
        max_num_batched_tokens=case.params.max_batch_prefill_tokens,
        num_kv_blocks=case.params.num_kv_blocks,
        block_size_tokens=case.params.block_size_tokens,
    )
    return Case(requests=case.requests, params=params, times=case.times)


def workload_of(case: TgiCase) -> Workload:
    """The case's requests with their prefixes."""
    workload = agree.workload_of(as_vllm(case))
    return workload if case.params.prefix_caching else replace(workload, prefix=None)


def memory_of(case: TgiCase) -> MemoryReport:
    return agree.memory_of(as_vllm(case))


def model_of(case: TgiCase) -> StepModel:
    return agree.model_of(as_vllm(case))


def run_open(case: TgiCase, *, num_replicas: int = 1, router: Router = "round_robin", **asked: object) -> Outcome:
    """The kernel's view of a case with its own arrivals."""
    deployment = deployment_of(case, num_replicas, router)
    return simulate(workload_of(case), deployment, model_of(case), memory_of(case), **asked)  # type: ignore[arg-type]


def run_plain(case: TgiCase) -> tgi_plain.Engine:
    """The plain engine after a case with its own arrivals."""
    engine = tgi_plain.Engine(case.params, case.times)
    for request in case.requests:
        engine.run_until(request.arrival_s)
        engine.submit(request)
    engine.run_until(np.inf)
    return engine


def assert_requests(kernel: Outcome, expected: tuple[RequestResult, ...]) -> None:
    extra = kernel.packed.requests.extra
    np.testing.assert_allclose(kernel.outputs.first - extra, [r.first_token_s for r in expected], rtol=1e-9)
    np.testing.assert_allclose(kernel.outputs.last - extra, [r.last_token_s for r in expected], rtol=1e-9)
    np.testing.assert_array_equal(kernel.outputs.rejected, np.isnan([r.last_token_s for r in expected]))
    assert kernel.outputs.cached.tolist() == [r.cached_tokens for r in expected]
    assert kernel.num_simulated == len(expected)


def assert_open_agrees(
    case: TgiCase, *, num_replicas: int = 1, router: Router = "round_robin", fast_forward: bool = True
) -> tuple[Outcome, FleetResult]:
    """Compare one case with given arrivals in both implementations; returns both results."""
    plain = simulate_fleet(case.requests, case.params, case.times, num_replicas=num_replicas, router=router)
    kernel = run_open(case, num_replicas=num_replicas, router=router, fast_forward=fast_forward)
    assert tuple(kernel.replica_of) == plain.replica
    assert_requests(kernel, plain.requests)
    steps = [len(run.steps) for run in plain.replicas]
    np.testing.assert_array_equal(kernel.counters[:, layout.NUM_STEPS], steps)
    assert kernel.peak_running == max(run.peak_running for run in plain.replicas)
    assert kernel.peak_kv_blocks == max(run.peak_blocks for run in plain.replicas)
    return kernel, plain


def assert_closed_loop_agrees(
    case: TgiCase, *, concurrency: int, think_s: float = 0.0, fast_forward: bool = True
) -> Outcome:
    """Compare one case, its arrivals left to the client, in both implementations."""
    engine = tgi_plain.Engine(case.params, case.times)

    def extra_s(request: Request) -> float:
        return case.times.request_fixed_s + case.times.request_s_per_input_token * request.input_tokens

    sent = run_closed_loop(engine, case.requests, concurrency=concurrency, think_s=think_s, extra_s=extra_s)
    kernel = simulate_closed_loop(
        workload_of(case),
        deployment_of(case),
        model_of(case),
        memory_of(case),
        concurrency=concurrency,
        think_s=think_s,
        fast_forward=fast_forward,
    )
    plain = engine.result()
    np.testing.assert_allclose(kernel.packed.requests.arrival, [r.arrival_s for r in sent], rtol=1e-9)
    assert_requests(kernel, plain.requests)
    assert kernel.counters[0, layout.NUM_STEPS] == len(plain.steps)
    assert kernel.peak_running == plain.peak_running
    assert kernel.peak_kv_blocks == plain.peak_blocks
    return kernel
