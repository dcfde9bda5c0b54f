"""Run one case through the reserving kernel (as ``sim`` packs it) and through the plain engines, and compare."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from oracle import reserving_plain, vllm_plain
from oracle.client_plain import run_closed_loop
from oracle.reserving_cases import ReservingCase
from oracle.router_plain import simulate_fleet
from oracle.strategies import Case
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
    TrtllmParams,
    Workload,
)
from sim import agree


def deployment_of(case: ReservingCase, num_replicas: int = 1, router: Router = "round_robin") -> Deployment:
    """A deployment with the case's settings; its context limit is out of the way."""
    params = case.params
    knobs = TrtllmParams(
        max_batch_size=params.max_rows,
        max_num_tokens=params.max_num_tokens,
        max_seq_len=1 << 20,
        free_gpu_memory_fraction=0.9,
        tokens_per_block=params.block_size_tokens,
        enable_chunked_prefill=params.enable_chunked_prefill,
        cuda_graph_padding=True,
        cuda_graph_max_batch_size=8,
        batch_wait_timeout_iters=params.batch_wait_timeout_iters,
        batch_wait_max_tokens_ratio=params.batch_wait_max_tokens_ratio,
    )
    return Deployment(
        model=agree.MODEL,
        gpu=agree.GPU,
        engine=params.engine,
        engine_version="1.0",
        precision=Precision(),
        parallelism=Parallelism(),
        params=knobs,
        num_replicas=num_replicas,
        router=router,
    )


def workload_of(case: ReservingCase) -> Workload:
    """The case's requests; nothing is known about prefixes."""
    return replace(agree.workload_of(_as_vllm(case)), prefix=None)


def _as_vllm(case: ReservingCase) -> Case:
    """Requests, table and pool where ``agree`` looks for them."""
    params = vllm_plain.Params(
        max_num_seqs=case.params.max_rows,
        max_num_batched_tokens=case.params.max_num_tokens,
        num_kv_blocks=case.params.num_kv_blocks,
        block_size_tokens=case.params.block_size_tokens,
    )
    return Case(requests=case.requests, params=params, times=case.times)


def memory_of(case: ReservingCase) -> MemoryReport:
    return agree.memory_of(_as_vllm(case))


def model_of(case: ReservingCase) -> StepModel:
    return agree.model_of(_as_vllm(case))


def run_open(case: ReservingCase, *, num_replicas: int = 1, router: Router = "round_robin", **asked: object) -> Outcome:
    """The kernel's view of a case with its own arrivals."""
    deployment = deployment_of(case, num_replicas, router)
    return simulate(workload_of(case), deployment, model_of(case), memory_of(case), **asked)  # type: ignore[arg-type]


def assert_times(kernel: Outcome, expected: tuple[RequestResult, ...]) -> None:
    extra = kernel.packed.requests.extra
    np.testing.assert_allclose(kernel.outputs.first - extra, [r.first_token_s for r in expected], rtol=1e-9)
    np.testing.assert_allclose(kernel.outputs.last - extra, [r.last_token_s for r in expected], rtol=1e-9)
    assert kernel.num_simulated == len(expected)


def assert_open_agrees(
    case: ReservingCase, *, num_replicas: int = 1, router: Router = "round_robin", fast_forward: bool = True
) -> Outcome:
    """Compare one case with given arrivals in both implementations; returns the kernel's outcome."""
    plain = simulate_fleet(case.requests, case.params, case.times, num_replicas=num_replicas, router=router)
    kernel = run_open(case, num_replicas=num_replicas, router=router, fast_forward=fast_forward)
    assert tuple(kernel.replica_of) == plain.replica
    assert_times(kernel, plain.requests)
    steps = [len(run.steps) for run in plain.replicas]
    np.testing.assert_array_equal(kernel.counters[:, layout.NUM_STEPS], steps)
    assert kernel.peak_running == max(run.peak_running for run in plain.replicas)
    assert kernel.peak_kv_blocks == max(run.peak_blocks for run in plain.replicas)
    return kernel


def assert_closed_loop_agrees(
    case: Case | ReservingCase, *, concurrency: int, think_s: float = 0.0, fast_forward: bool = True
) -> Outcome:
    """Compare one case, its arrivals left to the client, in both implementations."""
    if isinstance(case, ReservingCase):
        deployment, workload, plain_case = deployment_of(case), workload_of(case), _as_vllm(case)
        engine: vllm_plain.Engine | reserving_plain.Engine = reserving_plain.Engine(case.params, case.times)
    else:
        case = plain_case = agree.normalized(case)
        deployment, workload = agree.deployment_of(case), agree.workload_of(case)
        engine = vllm_plain.Engine(case.params, case.times)

    def extra_s(request: Request) -> float:
        return case.times.request_fixed_s + case.times.request_s_per_input_token * request.input_tokens

    sent = run_closed_loop(engine, case.requests, concurrency=concurrency, think_s=think_s, extra_s=extra_s)
    kernel = simulate_closed_loop(
        workload,
        deployment,
        agree.model_of(plain_case),
        agree.memory_of(plain_case),
        concurrency=concurrency,
        think_s=think_s,
        fast_forward=fast_forward,
    )
    plain = engine.result()
    np.testing.assert_allclose(kernel.packed.requests.arrival, [r.arrival_s for r in sent], rtol=1e-9)
    assert_times(kernel, plain.requests)
    assert kernel.counters[0, layout.NUM_STEPS] == len(plain.steps)
    assert kernel.peak_running == plain.peak_running
    assert kernel.peak_kv_blocks == plain.peak_blocks
    assert kernel.num_preemptions == plain.num_preemptions
    return kernel
