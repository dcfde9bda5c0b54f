"""Run one case through the kernel's llama.cpp (as ``sim`` packs it) and through the plain server, and compare."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from oracle import llamacpp_plain, vllm_plain
from oracle.client_plain import run_closed_loop
from oracle.llamacpp_cases import SlotCase
from oracle.router_plain import simulate_fleet
from oracle.strategies import Case
from oracle.vllm_plain import Request, RequestResult
from servewise.engines import ollama
from servewise.kernel import layout
from servewise.sim import Outcome, simulate, simulate_closed_loop
from servewise.types import (
    Deployment,
    LlamacppParams,
    MemoryReport,
    OllamaParams,
    Parallelism,
    Precision,
    Router,
    StepModel,
    Workload,
)
from sim import agree

WINDOWED = replace(agree.MODEL, num_sliding_layers=16, sliding_window_tokens=1024)
"""The kernel sees only that there are windows."""


def deployment_of(case: SlotCase, num_replicas: int = 1, router: Router = "round_robin") -> Deployment:
    """A deployment with the case's settings.

    A slot whose context is shorter than its stream is one of a model with a short context. Only Ollama has all its own
    settings; what a case combines with them that Ollama does not (shared cells, a larger batch) is not compared.
    """
    params = case.params
    model = replace(WINDOWED if params.has_windows else agree.MODEL, max_context_tokens=params.context)
    knobs: LlamacppParams | OllamaParams
    if params.is_ollama:
        knobs = OllamaParams(
            num_parallel=params.num_slots,
            context_length=params.cells,
            num_batch=params.n_ubatch,
            keep_alive_s=None if math.isinf(params.keep_alive_s) else params.keep_alive_s,
            context_shift=params.context_shift,
            starts_loaded=params.starts_loaded,
        )
    else:
        knobs = LlamacppParams(
            ctx_size=params.cells * (params.num_slots if params.is_split else 1),
            parallel=params.num_slots,
            batch_size=params.n_batch,
            ubatch_size=params.n_ubatch,
            kv_unified=params.is_unified,
            context_shift=params.context_shift,
        )
    return Deployment(
        model=model,
        gpu=agree.GPU,
        engine="ollama" if params.is_ollama else "llama.cpp",
        engine_version=ollama.default_version() if params.is_ollama else "b10488",
        precision=Precision(),
        parallelism=Parallelism(),
        params=knobs,
        num_replicas=num_replicas,
        router=router,
    )


def normalized(case: SlotCase) -> SlotCase:
    """The case as Ollama can be set up: slots with a KV cache each. Its prompts fit, so that none is cut."""
    params = case.params
    if not params.is_ollama:
        return case
    load_s = ollama.load_s(_weights_bytes(params.load_s))
    params = replace(params, is_unified=params.num_slots == 1, n_batch=params.n_ubatch, load_s=load_s)
    return replace(case, params=params)


def _weights_bytes(load_s: float) -> int:
    """Weights that take this long to load."""
    return round(load_s / ollama.load_s(1 << 40) * (1 << 40))


def workload_of(case: SlotCase) -> Workload:
    return agree.workload_of(_as_vllm(case), case.params.block_size_tokens)


def _as_vllm(case: SlotCase) -> Case:
    """Requests, table and pool where ``agree`` looks for them."""
    params = vllm_plain.Params(
        max_num_seqs=case.params.num_slots,
        max_num_batched_tokens=case.params.n_batch,
        num_kv_blocks=case.params.cells * (case.params.num_slots if case.params.is_split else 1),
        block_size_tokens=1,
    )
    return Case(requests=case.requests, params=params, times=case.times)


def memory_of(case: SlotCase) -> MemoryReport:
    """A report with the case's cells, and weights that load in the case's time."""
    return replace(agree.memory_of(_as_vllm(case)), weights_bytes=_weights_bytes(case.params.load_s))


def model_of(case: SlotCase) -> StepModel:
    return agree.model_of(_as_vllm(case))


def run_open(case: SlotCase, *, num_replicas: int = 1, router: Router = "round_robin", **asked: object) -> Outcome:
    """The kernel's view of a case with its own arrivals."""
    case = normalized(case)
    deployment = deployment_of(case, num_replicas, router)
    return simulate(workload_of(case), deployment, model_of(case), memory_of(case), **asked)  # type: ignore[arg-type]


def plain_of(case: SlotCase) -> llamacpp_plain.Engine:
    """The plain server, which has served the case."""
    case = normalized(case)
    engine = llamacpp_plain.Engine(case.params, case.times)
    for request in case.requests:
        engine.submit(request)
    engine.run_until(math.inf)
    return engine


def assert_requests(kernel: Outcome, expected: tuple[RequestResult, ...]) -> None:
    extra = kernel.packed.requests.extra
    np.testing.assert_allclose(kernel.outputs.first - extra, [r.first_token_s for r in expected], rtol=1e-9)
    np.testing.assert_allclose(kernel.outputs.last - extra, [r.last_token_s for r in expected], rtol=1e-9)
    np.testing.assert_array_equal(kernel.outputs.cached, [r.cached_tokens for r in expected])
    np.testing.assert_array_equal(kernel.outputs.rejected, [math.isnan(r.last_token_s) for r in expected])
    assert kernel.num_simulated == len(expected)


def assert_open_agrees(
    case: SlotCase, *, num_replicas: int = 1, router: Router = "round_robin", fast_forward: bool = True
) -> Outcome:
    """Compare one case with given arrivals in both implementations; returns the kernel's outcome."""
    case = normalized(case)
    plain = simulate_fleet(case.requests, case.params, case.times, num_replicas=num_replicas, router=router)
    kernel = run_open(case, num_replicas=num_replicas, router=router, fast_forward=fast_forward)
    assert tuple(kernel.replica_of) == plain.replica
    assert_requests(kernel, plain.requests)
    steps = [len(run.steps) for run in plain.replicas]
    np.testing.assert_array_equal(kernel.counters[:, layout.NUM_STEPS], steps)
    assert kernel.peak_running == max(run.peak_running for run in plain.replicas)
    assert kernel.peak_kv_blocks == max(run.peak_blocks for run in plain.replicas)
    return kernel


def assert_closed_loop_agrees(
    case: SlotCase, *, concurrency: int, think_s: float = 0.0, fast_forward: bool = True
) -> Outcome:
    """Compare one case, its arrivals left to the client, in both implementations."""
    case = normalized(case)
    engine = llamacpp_plain.Engine(case.params, case.times)

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
