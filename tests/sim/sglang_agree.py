"""Run one case through SGLang's kernel (as ``sim`` packs it) and through the plain engine, and compare."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from oracle import sglang_plain, vllm_plain
from oracle.client_plain import run_closed_loop
from oracle.router_plain import simulate_fleet
from oracle.sglang_cases import SglangCase
from oracle.strategies import Case
from oracle.vllm_plain import Request, Result
from servewise.kernel import layout
from servewise.sim import Outcome, simulate, simulate_closed_loop
from servewise.types import (
    Deployment,
    MemoryReport,
    Parallelism,
    Precision,
    Router,
    SglangParams,
    StepModel,
    Workload,
)
from sim import agree


def deployment_of(case: SglangCase, num_replicas: int = 1, router: Router = "round_robin") -> Deployment:
    """A deployment with the case's settings; its context limit is out of the way."""
    params = case.params
    return Deployment(
        model=agree.MODEL,
        gpu=agree.GPU,
        engine="sglang",
        engine_version="0.5.23",
        precision=Precision(),
        parallelism=Parallelism(),
        params=SglangParams(
            max_running_requests=params.max_running_requests,
            chunked_prefill_size=params.chunked_prefill_size,
            max_prefill_tokens=params.max_prefill_tokens,
            context_length=1 << 20,
            mem_fraction_static=0.9,
            page_size=params.page_size,
            cuda_graph_max_bs=8,
            schedule_policy=params.schedule_policy,
            schedule_conservativeness=params.schedule_conservativeness,
            enable_mixed_chunk=params.enable_mixed_chunk,
            disable_radix_cache=params.disable_radix_cache,
            ignore_eos=params.ignore_eos,
        ),
        num_replicas=num_replicas,
        router=router,
    )


def _as_vllm(case: SglangCase) -> Case:
    """Requests with the workload's blocks, table and pool where ``agree`` looks for them."""
    params = vllm_plain.Params(
        max_num_seqs=case.params.max_running_requests,
        max_num_batched_tokens=case.params.chunked_prefill_size,
        num_kv_blocks=case.params.num_pages,
        block_size_tokens=case.params.page_size,
    )
    requests = tuple(
        replace(r, block_ids=tuple(name // case.span for name in r.block_ids[:: case.span])) for r in case.requests
    )
    return Case(requests=requests, params=params, times=case.times)


def workload_of(case: SglangCase) -> Workload:
    """The case's requests; what is known about prefixes are blocks of ``span`` pages."""
    return agree.workload_of(_as_vllm(case), case.span * case.params.page_size)


def memory_of(case: SglangCase) -> MemoryReport:
    return agree.memory_of(_as_vllm(case))


def model_of(case: SglangCase) -> StepModel:
    return agree.model_of(_as_vllm(case))


def without_names(case: SglangCase) -> SglangCase:
    """The case with nothing known about prefixes."""
    return replace(case, requests=tuple(replace(r, block_ids=()) for r in case.requests))


def run_open(
    case: SglangCase,
    *,
    num_replicas: int = 1,
    router: Router = "round_robin",
    workload: Workload | None = None,
    **asked: object,
) -> Outcome:
    """The kernel's view of a case with its own arrivals."""
    deployment = deployment_of(case, num_replicas, router)
    return simulate(workload or workload_of(case), deployment, model_of(case), memory_of(case), **asked)  # type: ignore[arg-type]


def assert_same(kernel: Outcome, runs: tuple[Result, ...], requests: tuple[vllm_plain.RequestResult, ...]) -> None:
    """Times within 1e-9, everything that is counted exactly."""
    extra = kernel.packed.requests.extra
    np.testing.assert_allclose(kernel.outputs.first - extra, [r.first_token_s for r in requests], rtol=1e-9)
    np.testing.assert_allclose(kernel.outputs.last - extra, [r.last_token_s for r in requests], rtol=1e-9)
    np.testing.assert_array_equal(kernel.outputs.cached, [r.cached_tokens for r in requests])
    np.testing.assert_array_equal(kernel.outputs.preemptions, [r.num_preemptions for r in requests])
    np.testing.assert_array_equal(kernel.counters[:, layout.NUM_STEPS], [len(run.steps) for run in runs])
    np.testing.assert_array_equal(kernel.counters[:, layout.PEAK_RUNNING], [run.peak_running for run in runs])
    np.testing.assert_array_equal(kernel.counters[:, layout.PEAK_BLOCKS], [run.peak_blocks for run in runs])
    assert kernel.num_preemptions == sum(run.num_preemptions for run in runs)
    assert kernel.num_simulated == len(requests)


def assert_open_agrees(
    case: SglangCase,
    *,
    num_replicas: int = 1,
    router: Router = "round_robin",
    fast_forward: bool = True,
    workload: Workload | None = None,
) -> Outcome:
    """Compare one case with given arrivals in both implementations; returns the kernel's outcome."""
    plain = simulate_fleet(case.requests, case.params, case.times, num_replicas=num_replicas, router=router)
    kernel = run_open(case, num_replicas=num_replicas, router=router, fast_forward=fast_forward, workload=workload)
    assert tuple(kernel.replica_of) == plain.replica
    assert_same(kernel, plain.replicas, plain.requests)
    return kernel


def assert_closed_loop_agrees(
    case: SglangCase, *, concurrency: int, think_s: float = 0.0, fast_forward: bool = True
) -> Outcome:
    """Compare one case, its arrivals left to the client, in both implementations."""
    engine = sglang_plain.Engine(case.params, case.times)

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
    np.testing.assert_allclose(kernel.packed.requests.arrival, [r.arrival_s for r in sent], rtol=1e-9)
    result = engine.result()
    assert_same(kernel, (result,), result.requests)
    return kernel
