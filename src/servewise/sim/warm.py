"""Compile drivers before they are needed, in processes of their own: numba compiles one function at a time in each.

``python -m servewise.sim.warm ENGINE ...`` simulates a few requests with each engine; compiled code is kept on disk.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from servewise.catalog import get_gpu, get_model
from servewise.engines import ollama, sglang, tgi, trtllm, vllm
from servewise.kernel import is_compiled
from servewise.perf import kv_link, memory, step_model
from servewise.sim.disaggregated import simulate_disaggregated
from servewise.sim.run import simulate
from servewise.types import (
    Deployment,
    Disaggregation,
    EngineName,
    EngineParams,
    InstancePool,
    Parallelism,
    Precision,
    Provenance,
    Workload,
)

__all__ = ["DISAGGREGATED", "compile_drivers", "not_compiled"]

DISAGGREGATED = "disaggregated"
"""Stands for groups of prefill and decode instances, whatever their engine."""
DRIVERS: Mapping[str, str] = {
    DISAGGREGATED: "disaggregated",
    "sglang": "sglang",
    "vllm": "vllm",
    "tensorrt-llm": "trtllm",
    "ollama": "llamacpp",
    "tgi": "tgi",
}
"""Module of ``kernel`` by engine, those that take longest to compile first."""
NUM_REQUESTS = 3


def not_compiled(names: Sequence[str]) -> tuple[str, ...]:
    """Which of some engines (or ``DISAGGREGATED``) have no compiled driver yet."""
    return tuple(name for name, driver in DRIVERS.items() if name in names and not is_compiled(driver))


def compile_drivers(names: Sequence[str]) -> None:
    """Compile the drivers of some engines, in as many processes as there are cores.

    Whatever goes wrong is not reported: what is not compiled then is compiled, or fails, when it is needed.
    """
    num_processes = min(len(names), os.cpu_count() or 1)
    ordered = [name for name in DRIVERS if name in names]
    # the longest goes to the first process, the next one to the second, and so on there and back
    turns = [*range(num_processes), *reversed(range(num_processes))]
    shares = [[name for i, name in enumerate(ordered) if turns[i % len(turns)] == k] for k in range(num_processes)]
    running = [
        subprocess.Popen(  # noqa: S603 (the interpreter that runs this, with names of engines)
            [sys.executable, "-m", "servewise.sim.warm", *share],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
        )
        for share in shares
    ]
    try:
        for process in running:
            process.wait()
    finally:
        for process in running:
            process.terminate()


def _simulate_with(name: str) -> None:
    """Run a few requests through an engine's driver."""
    model, gpu = get_model("meta-llama/Llama-3.1-8B-Instruct"), get_gpu("H100-SXM-80GB")
    params: dict[str, tuple[EngineName, str, EngineParams]] = {
        "vllm": ("vllm", v := vllm.default_version(), vllm.default_params(v, gpu, model)),
        "sglang": ("sglang", v := sglang.default_version(), sglang.default_params(v, gpu, model)),
        "tensorrt-llm": ("tensorrt-llm", v := trtllm.default_version(), trtllm.default_params(v, gpu, model)),
        "tgi": ("tgi", v := tgi.default_version(), tgi.default_params(v, gpu, model)),
        "ollama": ("ollama", v := ollama.default_version(), ollama.default_params(v, gpu, model)),
    }
    engine, version, knobs = params["vllm" if name == DISAGGREGATED else name]
    deployment = Deployment(
        model=model,
        gpu=gpu,
        engine=engine,
        engine_version=version,
        precision=Precision(weights="q4_k_m" if engine == "ollama" else "bf16"),
        parallelism=Parallelism(),
        params=knobs,
    )
    ones = np.ones(NUM_REQUESTS, np.int64)
    workload = Workload(
        name="warm-up",
        arrival_s=np.arange(NUM_REQUESTS, dtype=np.float64),
        input_tokens=64 * ones,
        output_tokens=8 * ones,
        max_tokens=16 * ones,
        max_tokens_kind="declared",
        prefix=None,
        session=None,
        provenance=Provenance(kind="assumed", source="assumed: made up to compile the simulator"),
    )
    times, report = step_model(deployment), memory(deployment)
    if name != DISAGGREGATED:
        simulate(workload, deployment, times, report)
        return
    pool = InstancePool(gpu=gpu, parallelism=Parallelism(), params=knobs, num_instances=1)
    group = Disaggregation(prefill=pool, decode=pool, link=kv_link(deployment, deployment, 1, 1))
    simulate_disaggregated(
        workload,
        replace(deployment, disaggregation=group),
        {"prefill": times, "decode": times},
        {"prefill": report, "decode": report},
    )


if __name__ == "__main__":
    for chosen in sys.argv[1:]:
        _simulate_with(chosen)
