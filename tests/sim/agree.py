"""Run one case through the kernel (as ``sim`` packs it) and through an independent plain engine, and compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from oracle import vllm_plain
from oracle.client_plain import run_closed_loop
from oracle.plain_engine import PlainEngine, Request
from oracle.router_plain import FleetResult, simulate_fleet
from oracle.strategies import Case
from servewise import catalog
from servewise.kernel import layout
from servewise.sim import Outcome, simulate, simulate_closed_loop
from servewise.types import (
    Deployment,
    EngineParams,
    MemoryReport,
    ModelSpec,
    Parallelism,
    Precision,
    PrefixBlocks,
    Provenance,
    Router,
    StepModel,
    StepTable,
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


class AnyParams(Protocol):
    """Of an engine's settings, those of its KV cache."""

    @property
    def num_kv_blocks(self) -> int: ...
    @property
    def block_size_tokens(self) -> int: ...


class AnyCase(Protocol):
    """Requests in order of arrival and an engine, whichever it is."""

    @property
    def requests(self) -> tuple[Request, ...]: ...
    @property
    def params(self) -> AnyParams: ...
    @property
    def times(self) -> StepTable: ...


def workload_of(case: AnyCase, block_size_tokens: int = 0) -> Workload:
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


def deployment(
    engine: str,
    version: str,
    params: EngineParams,
    num_replicas: int = 1,
    router: Router = "round_robin",
    *,
    num_ranks: int = 1,
    model: ModelSpec = MODEL,
) -> Deployment:
    """Replicas of an engine."""
    return Deployment(
        model=model,
        gpu=GPU,
        engine=engine,
        engine_version=version,
        precision=Precision(),
        parallelism=Parallelism(data_parallel_size=num_ranks),
        params=params,
        num_replicas=num_replicas,
        router=router,
    )


def deployment_of(
    case: Case, num_replicas: int = 1, router: Router = "round_robin", num_ranks: int = 1, version: str = "0.33.0"
) -> Deployment:
    """A deployment with the case's settings; its context limit is out of the way."""
    params = case.params
    knobs = VllmParams(
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
    )
    return deployment("vllm", version, knobs, num_replicas, router, num_ranks=num_ranks)


def model(times: StepTable) -> StepModel:
    """A step table as a step model."""
    return StepModel(table=times, provenance={}, max_context_tokens=1 << 20)


def model_of(case: AnyCase) -> StepModel:
    """The case's step model."""
    return model(case.times)


def memory_of(case: AnyCase) -> MemoryReport:
    """A memory report with the case's blocks."""
    return memory(case.params.num_kv_blocks, case.params.block_size_tokens)


def memory(num_kv_blocks: int, block_size_tokens: int) -> MemoryReport:
    """A memory report with so many blocks."""
    return MemoryReport(
        mem_bytes=1 << 36,
        budget_bytes=1 << 35,
        weights_bytes=1 << 30,
        activation_bytes=0,
        non_torch_bytes=0,
        graph_bytes=0,
        kv_bytes=1 << 34,
        kv_bytes_per_token=1.0,
        block_size_tokens=block_size_tokens,
        num_kv_blocks=num_kv_blocks,
        fits=True,
        reason="",
        provenance={},
    )


# ------------------------------------------------------------------ the comparison


def assert_requests(
    kernel: Outcome, first_s: Sequence[float], last_s: Sequence[float], preemptions: Sequence[int], atol: float = 0.0
) -> None:
    """Each request's times within 1e-9 relative (NaN: it was turned away), and how often it was preempted."""
    extra = kernel.packed.requests.extra
    np.testing.assert_allclose(kernel.outputs.first - extra, first_s, rtol=1e-9, atol=atol)
    np.testing.assert_allclose(kernel.outputs.last - extra, last_s, rtol=1e-9, atol=atol)
    np.testing.assert_array_equal(kernel.outputs.rejected, np.isnan(last_s))
    np.testing.assert_array_equal(kernel.outputs.preemptions, preemptions)
    assert kernel.num_simulated == len(last_s)


def assert_counted(
    kernel: Outcome, num_steps: Sequence[int], peak_running: Sequence[int], peak_blocks: Sequence[int]
) -> None:
    """What is counted on each replica is equal."""
    np.testing.assert_array_equal(kernel.counters[:, layout.NUM_STEPS], num_steps)
    np.testing.assert_array_equal(kernel.counters[:, layout.PEAK_RUNNING], peak_running)
    np.testing.assert_array_equal(kernel.counters[:, layout.PEAK_BLOCKS], peak_blocks)
    assert kernel.peak_running == max(peak_running)
    assert kernel.peak_kv_blocks == max(peak_blocks)


def assert_same(kernel: Outcome, plain: FleetResult) -> None:
    """Times within 1e-9 relative, everything countable equal."""
    expected, runs = plain.requests, plain.replicas
    assert tuple(kernel.replica_of) == plain.replica
    assert_requests(
        kernel,
        [r.first_token_s for r in expected],
        [r.last_token_s for r in expected],
        [r.num_preemptions for r in expected],
    )
    np.testing.assert_array_equal(kernel.outputs.cached, [r.cached_tokens for r in expected])
    assert_counted(
        kernel,
        [len(run.steps) for run in runs],
        [run.peak_running for run in runs],
        [run.peak_blocks for run in runs],
    )
    assert kernel.num_preemptions == sum(run.num_preemptions for run in runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How the cases of one engine become what ``sim`` takes, and the plain engine that serves them.

    ``deployment_of`` takes a case, a number of replicas and a router; the others a case.
    """

    deployment_of: Callable[..., Deployment]
    engine_of: Callable[[Any], PlainEngine]
    workload_of: Callable[[Any], Workload] = workload_of
    memory_of: Callable[[Any], MemoryReport] = memory_of
    normalized: Callable[[Any], Any] = lambda case: case

    def arguments(
        self, case: Any, num_replicas: int = 1, router: Router = "round_robin", workload: Workload | None = None
    ) -> tuple[Workload, Deployment, StepModel, MemoryReport]:
        """What ``sim`` takes."""
        deployment = self.deployment_of(case, num_replicas, router)
        return workload or self.workload_of(case), deployment, model_of(case), self.memory_of(case)

    def run_open(
        self,
        case: Any,
        *,
        num_replicas: int = 1,
        router: Router = "round_robin",
        workload: Workload | None = None,
        **asked: Any,
    ) -> Outcome:
        """The kernel's view of a case with its own arrivals."""
        return simulate(*self.arguments(self.normalized(case), num_replicas, router, workload), **asked)

    def run_closed(self, case: Any, *, concurrency: int, **asked: Any) -> Outcome:
        """The kernel's view of a case whose arrivals are left to the client."""
        return simulate_closed_loop(*self.arguments(self.normalized(case)), concurrency=concurrency, **asked)

    def run_plain(self, case: Any) -> Any:
        """The plain engine, which has served a case."""
        case = self.normalized(case)
        engine = self.engine_of(case)
        engine.serve(case.requests)
        return engine

    def assert_open_agrees(
        self,
        case: Any,
        *,
        num_replicas: int = 1,
        router: Router = "round_robin",
        fast_forward: bool = True,
        workload: Workload | None = None,
    ) -> Outcome:
        """Compare one case with given arrivals in both implementations; returns the kernel's outcome."""
        case = self.normalized(case)
        plain = simulate_fleet(
            case.requests,
            case.params,
            case.times,
            num_replicas=num_replicas,
            router=router,
            engine=lambda: self.engine_of(case),
        )
        kernel = self.run_open(
            case, num_replicas=num_replicas, router=router, workload=workload, fast_forward=fast_forward
        )
        assert_same(kernel, plain)
        return kernel

    def assert_closed_loop_agrees(
        self, case: Any, *, concurrency: int, think_s: float = 0.0, fast_forward: bool = True
    ) -> Outcome:
        """Compare one case, its arrivals left to the client, in both implementations."""
        case = self.normalized(case)

        def extra_s(request: Request) -> float:
            return case.times.request_fixed_s + case.times.request_s_per_input_token * request.input_tokens

        engine = self.engine_of(case)
        sent = run_closed_loop(engine, case.requests, concurrency=concurrency, think_s=think_s, extra_s=extra_s)
        kernel = self.run_closed(case, concurrency=concurrency, think_s=think_s, fast_forward=fast_forward)
        plain = engine.result()
        np.testing.assert_allclose(kernel.packed.requests.arrival, [r.arrival_s for r in sent], rtol=1e-9)
        assert_same(kernel, FleetResult(replica=(0,) * len(sent), requests=plain.requests, replicas=(plain,)))
        return kernel


# ------------------------------------------------------------------ vLLM

VLLM = Comparison(deployment_of=deployment_of, engine_of=lambda case: vllm_plain.Engine(case.params, case.times))
run_kernel = VLLM.run_open


def assert_agrees(case: Case, **asked: Any) -> Outcome:
    """Compare one case in both implementations; return the kernel's outcome."""
    return VLLM.assert_open_agrees(normalized(case), **asked)


def assert_closed_loop_agrees(case: Case, **asked: Any) -> Outcome:
    """Compare one case, its arrivals left to the client, in both implementations."""
    return VLLM.assert_closed_loop_agrees(normalized(case), **asked)
