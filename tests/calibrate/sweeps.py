"""Measured sweeps whose truth is known: simulated with a correction, then disturbed as real runs are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from servewise.calibrate import MeasuredRun
from servewise.catalog import get_gpu, get_model
from servewise.engines import vllm
from servewise.perf import corrected, memory, step_model
from servewise.sim import simulate, simulate_closed_loop, to_log
from servewise.types import (
    Deployment,
    GpuSpec,
    Parallelism,
    Precision,
    Provenance,
    RequestLog,
    StepCorrection,
    Workload,
)

DESCRIBED = GpuSpec(
    name="small-server",
    vendor="described",
    architecture="described",
    compute_capability=0.0,
    mem_bytes=64 << 30,
    mem_bw_bytes_per_s=50e9,
    peak_flops_per_s={"bf16": 1e12},
    link_bytes_per_s=16e9,
    link_kind="pcie",
    link_gpus=1,
    nic_bytes_per_s=1e9,
    nic_latency_s=3e-5,
    gpus_per_node=1,
    tdp_w=100.0,
    provenance={},
)


def deployed(gpu: GpuSpec | None = None, model: str = "meta-llama/Llama-3.1-8B-Instruct") -> Deployment:
    """One replica of vLLM."""
    gpu, known = gpu or get_gpu("H100-SXM-80GB"), get_model(model)
    params = vllm.default_params("0.19.0", gpu, known)
    return Deployment(
        model=known,
        gpu=gpu,
        engine="vllm",
        engine_version="0.19.0",
        precision=Precision(),
        parallelism=Parallelism(),
        params=replace(params, max_num_seqs=256, max_model_len=8192),
    )


def traffic(num: int, seed: int, *, inputs: tuple[int, int], outputs: tuple[int, int], rps: float = 1.0) -> Workload:
    """Uniform lengths, Poisson arrivals."""
    random = np.random.default_rng(seed)
    output = random.integers(*outputs, num)
    return Workload(
        name="sweep",
        arrival_s=np.cumsum(random.exponential(1 / rps, num)),
        input_tokens=random.integers(*inputs, num),
        output_tokens=output,
        max_tokens=output,
        max_tokens_kind="declared",
        prefix=None,
        session=None,
        provenance=Provenance(kind="assumed", source="a test"),
    )


def disturbed(log: RequestLog, seed: int, *, drift: float, jitter: float) -> RequestLog:
    """All times of a run a little longer or shorter, and those of each request, too."""
    random = np.random.default_rng(seed)
    whole = np.exp(random.normal(0.0, drift))
    own = np.exp(random.normal(0.0, jitter, (2, log.num_requests)))
    start = log.intended_s * whole
    ttft = (log.first_token_s - log.intended_s) * whole * own[0]
    rest = (log.last_token_s - log.first_token_s) * whole * own[1]
    return replace(log, intended_s=start, sent_s=start, first_token_s=start + ttft, last_token_s=start + ttft + rest)


def sweep(
    deployment: Deployment,
    truth: StepCorrection,
    *,
    concurrencies: Sequence[int] = (1, 4, 16, 64),
    rates_rps: Sequence[float] = (),
    num: int = 120,
    inputs: tuple[int, int] = (100, 1500),
    outputs: tuple[int, int] = (20, 200),
    seed: int = 0,
    drift: float = 0.01,
    jitter: float = 0.05,
) -> list[MeasuredRun]:
    """Runs of closed loops and rates."""
    model, known = step_model(deployment), memory(deployment)
    model = replace(model, table=corrected(model.table, truth))
    runs = []
    for i, load in enumerate((*concurrencies, *rates_rps)):
        closed = i < len(concurrencies)
        count = max(num, 2 * int(load)) if closed else num
        asked = traffic(count, 100 * seed + i, inputs=inputs, outputs=outputs, rps=1.0 if closed else load)
        if closed:
            outcome = simulate_closed_loop(asked, deployment, model, known, concurrency=int(load))
        else:
            outcome = simulate(asked, deployment, model, known)
        log = disturbed(to_log(asked, outcome), 1000 * seed + i, drift=drift, jitter=jitter)
        runs.append(
            MeasuredRun(
                name=f"run {i}",
                load=f"{load} at once" if closed else f"{load} requests/s",
                log=log,
                concurrency=int(load) if closed else None,
                engine=deployment.engine,
            )
        )
    return runs
