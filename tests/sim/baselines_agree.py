"""Run one case through the baselines' kernels (as ``sim`` packs it) and through the plain engine, and compare."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from oracle import vllm_plain
from oracle.baseline_cases import BaselineCase
from oracle.baselines_plain import Engine
from oracle.client_plain import run_closed_loop
from oracle.router_plain import simulate_fleet
from oracle.strategies import Case
from oracle.vllm_plain import Request, RequestResult
from servewise.kernel import layout
from servewise.sim import Outcome, simulate, simulate_closed_loop
from servewise.types import (
    BaselineParams,
    Deployment,
    MemoryReport,
    Parallelism,
    Precision,
    Router,
    StepModel,
    Workload,
)
from sim import agree


def deployment_of(case: BaselineCase, num_replicas: int = 1, router: Router = "round_robin") -> Deployment:
    """A deployment with the case's settings."""
    params = case.params
    return Deployment(
        model=agree.MODEL,
        gpu=agree.GPU,
        engine=params.engine,
        engine_version="textbook",
        precision=Precision(),
        parallelism=Parallelism(),
        params=BaselineParams(
            max_batch_size=params.max_batch_size,
            max_seq_len=params.max_seq_len,
            memory_utilization=0.9,
            block_size_tokens=params.block_size_tokens,
            chunk_size=params.chunk_size,
            max_wait_s=params.max_wait_s,
        ),
        num_replicas=num_replicas,
        router=router,
    )


def _as_vllm(case: BaselineCase) -> Case:
    """Requests, table and pool where ``agree`` looks for them."""
    params = vllm_plain.Params(
        max_num_seqs=case.params.max_batch_size,
        max_num_batched_tokens=1,
        num_kv_blocks=case.params.num_kv_blocks,
        block_size_tokens=case.params.block_size_tokens,
    )
    return Case(requests=case.requests, params=params, times=case.times)


def workload_of(case: BaselineCase) -> Workload:
    """The case's requests; nothing is known about prefixes."""
    return replace(agree.workload_of(_as_vllm(case)), prefix=None)


def memory_of(case: BaselineCase) -> MemoryReport:
    return agree.memory_of(_as_vllm(case))


def model_of(case: BaselineCase) -> StepModel:
    return agree.model_of(_as_vllm(case))


def run_open(case: BaselineCase, *, num_replicas: int = 1, router: Router = "round_robin", **asked: object) -> Outcome:
    """The kernel's view of a case with its own arrivals."""
    deployment = deployment_of(case, num_replicas, router)
    return simulate(workload_of(case), deployment, model_of(case), memory_of(case), **asked)  # type: ignore[arg-type]


def assert_times(kernel: Outcome, expected: tuple[RequestResult, ...]) -> None:
    extra = kernel.packed.requests.extra
    np.testing.assert_allclose(kernel.outputs.first - extra, [r.first_token_s for r in expected], rtol=1e-9)
    np.testing.assert_allclose(kernel.outputs.last - extra, [r.last_token_s for r in expected], rtol=1e-9)
    np.testing.assert_array_equal(kernel.outputs.preemptions, [r.num_preemptions for r in expected])
    assert kernel.num_simulated == len(expected)
    assert (kernel.outputs.cached == 0).all()


def assert_open_agrees(
    case: BaselineCase, *, num_replicas: int = 1, router: Router = "round_robin", fast_forward: bool = True
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
    assert kernel.num_preemptions == sum(run.num_preemptions for run in plain.replicas)
    return kernel


def assert_closed_loop_agrees(
    case: BaselineCase, *, concurrency: int, think_s: float = 0.0, fast_forward: bool = True
) -> Outcome:
    """Compare one case, its arrivals left to the client, in both implementations."""

    def extra_s(request: Request) -> float:
        return case.times.request_fixed_s + case.times.request_s_per_input_token * request.input_tokens

    engine = Engine(case.params, case.times)
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
    assert_times(kernel, plain.requests)
    assert kernel.counters[0, layout.NUM_STEPS] == len(plain.steps)
    assert kernel.peak_running == plain.peak_running
    assert kernel.peak_kv_blocks == plain.peak_blocks
    return kernel
