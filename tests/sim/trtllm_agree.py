"""Run one case through TensorRT-LLM's kernel (as ``sim`` packs it) and through the plain engine, and compare."""

from __future__ import annotations

import numpy as np

from oracle import vllm_plain
from oracle.client_plain import run_closed_loop
from oracle.router_plain import FleetResult, simulate_fleet
from oracle.strategies import Case
from oracle.trtllm_cases import TrtllmCase
from oracle.trtllm_plain import Engine
from oracle.vllm_plain import Request
from servewise.sim import Outcome, simulate, simulate_closed_loop
from servewise.types import Deployment, MemoryReport, Parallelism, Precision, Router, StepModel, TrtllmParams, Workload
from sim import agree


def deployment_of(case: TrtllmCase, num_replicas: int = 1, router: Router = "round_robin") -> Deployment:
    """A deployment with the case's settings; its context limit is out of the way."""
    params = case.params
    return Deployment(
        model=agree.MODEL,
        gpu=agree.GPU,
        engine="tensorrt-llm",
        engine_version="1.3.0" if params.counts_reuse else "1.2.1",
        precision=Precision(),
        parallelism=Parallelism(),
        params=TrtllmParams(
            max_batch_size=params.max_batch_size,
            max_num_tokens=params.max_num_tokens,
            max_seq_len=1 << 20,
            free_gpu_memory_fraction=0.9,
            tokens_per_block=params.block_size_tokens,
            enable_chunked_prefill=params.enable_chunked_prefill,
            cuda_graph_padding=True,
            cuda_graph_max_batch_size=8,
            batch_wait_timeout_iters=params.batch_wait_timeout_iters,
            batch_wait_max_tokens_ratio=params.batch_wait_max_tokens_ratio,
            capacity_scheduler_policy=params.policy,
            enable_block_reuse=params.enable_block_reuse,
        ),
        num_replicas=num_replicas,
        router=router,
    )


def _as_vllm(case: TrtllmCase) -> Case:
    """Requests, table and pool where ``agree`` looks for them."""
    params = vllm_plain.Params(
        max_num_seqs=case.params.max_batch_size,
        max_num_batched_tokens=case.params.max_num_tokens,
        num_kv_blocks=case.params.num_kv_blocks,
        block_size_tokens=case.params.block_size_tokens,
    )
    return Case(requests=case.requests, params=params, times=case.times)


def workload_of(case: TrtllmCase) -> Workload:
    return agree.workload_of(_as_vllm(case))


def memory_of(case: TrtllmCase) -> MemoryReport:
    return agree.memory_of(_as_vllm(case))


def model_of(case: TrtllmCase) -> StepModel:
    return agree.model_of(_as_vllm(case))


def run_open(case: TrtllmCase, *, num_replicas: int = 1, router: Router = "round_robin", **asked: object) -> Outcome:
    """The kernel's view of a case with its own arrivals."""
    deployment = deployment_of(case, num_replicas, router)
    return simulate(workload_of(case), deployment, model_of(case), memory_of(case), **asked)  # type: ignore[arg-type]


def run_plain(case: TrtllmCase) -> Engine:
    """The plain engine at the end of a case."""
    engine = Engine(case.params, case.times)
    for request in case.requests:
        engine.submit(request)
    engine.run_until(float("inf"))
    return engine


def assert_open_agrees(
    case: TrtllmCase, *, num_replicas: int = 1, router: Router = "round_robin", fast_forward: bool = True
) -> Outcome:
    """Compare one case with given arrivals in both implementations; returns the kernel's outcome."""
    plain = simulate_fleet(case.requests, case.params, case.times, num_replicas=num_replicas, router=router)
    kernel = run_open(case, num_replicas=num_replicas, router=router, fast_forward=fast_forward)
    agree.assert_same(kernel, plain)
    return kernel


def assert_closed_loop_agrees(
    case: TrtllmCase, *, concurrency: int, think_s: float = 0.0, fast_forward: bool = True
) -> Outcome:
    """Compare one case, its arrivals left to the client, in both implementations."""

    def extra_s(request: Request) -> float:
        return case.times.request_fixed_s + case.times.request_s_per_input_token * request.input_tokens

    plain = Engine(case.params, case.times)
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
    agree.assert_same(kernel, FleetResult(replica=(0,) * len(sent), requests=result.requests, replicas=(result,)))
    return kernel
