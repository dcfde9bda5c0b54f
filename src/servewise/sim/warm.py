"""Compile drivers before they are needed, in processes of their own: numba compiles one function at a time in each.

``python -m servewise.sim.warm DRIVER ...`` simulates a few requests with each driver; compiled code is kept on disk.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from servewise.catalog import get_gpu, get_model
from servewise.engines import ollama, sglang, tgi, trtllm, vllm
from servewise.kernel import is_compiled
from servewise.perf import kv_link, memory, step_model
from servewise.sim.disaggregated import simulate_disaggregated
from servewise.sim.run import simulate
from servewise.sim.task import num_ranks
from servewise.types import (
    ROLES,
    Deployment,
    Disaggregation,
    EngineName,
    EngineParams,
    InstancePool,
    Parallelism,
    Precision,
    Provenance,
    Speculation,
    Workload,
)

__all__ = ["compile_drivers", "driver_name", "not_compiled"]

DRIVERS: Mapping[str, EngineName] = {
    "sglang_ranks": "sglang",
    "sglang_pipeline": "sglang",
    "disaggregated": "vllm",
    "sglang": "sglang",
    "staged_ranks": "vllm",
    "ranks": "vllm",
    "pipeline": "vllm",
    "vllm": "vllm",
    "trtllm_ranks": "tensorrt-llm",
    "trtllm_pipeline": "tensorrt-llm",
    "trtllm": "tensorrt-llm",
    "speculative": "vllm",
    "llamacpp": "ollama",
    "tgi": "tgi",
}
"""Modules of ``kernel`` and an engine that each is for, those that take longest to compile first."""
PLAIN: Mapping[EngineName, str] = {
    "vllm": "vllm",
    "sglang": "sglang",
    "tensorrt-llm": "trtllm",
    "ollama": "llamacpp",
    "tgi": "tgi",
}
"""Driver of an engine's replicas without ranks in lock step and without stages."""
NUM_REQUESTS = 3


def driver_name(deployment: Deployment) -> str:
    """Module of ``kernel`` that simulates a deployment; not that of a textbook baseline."""
    if deployment.disaggregation is not None:
        return "disaggregated"
    if deployment.speculation is not None:
        return "speculative"
    staged, in_step = deployment.parallelism.pipeline_parallel_size > 1, num_ranks(deployment) > 1
    how = "staged_ranks" if staged and in_step else "pipeline" if staged else "ranks" if in_step else ""
    plain = PLAIN[deployment.engine]
    if not how:
        return plain
    return how if plain == "vllm" else f"{plain}_{how}"


def not_compiled(names: Iterable[str]) -> tuple[str, ...]:
    """Which of some drivers are not compiled yet."""
    wanted = set(names)
    return tuple(name for name in DRIVERS if name in wanted and not is_compiled(name))


def compile_drivers(names: Sequence[str]) -> None:
    """Compile some drivers, in as many processes as there are cores.

    Whatever goes wrong is not reported: what is not compiled then is compiled, or fails, when it is needed.
    """
    num_processes = min(len(names), os.cpu_count() or 1)
    ordered = [name for name in DRIVERS if name in names]
    # the longest goes to the first process, the next one to the second, and so on there and back
    turns = [*range(num_processes), *reversed(range(num_processes))]
    shares = [[name for i, name in enumerate(ordered) if turns[i % len(turns)] == k] for k in range(num_processes)]
    running = [
        subprocess.Popen(  # noqa: S603 (the interpreter that runs this, with names of drivers)
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


def sample(name: str) -> Deployment:
    """A deployment that a driver simulates."""
    engine = DRIVERS[name]
    staged, in_step = name.endswith("pipeline") or name == "staged_ranks", name.endswith("ranks")
    spread = Parallelism(
        pipeline_parallel_size=1 + staged, data_parallel_size=1 + in_step, expert_parallel_size=1 + in_step
    )
    model = get_model("Qwen/Qwen3-30B-A3B" if in_step else "meta-llama/Llama-3.1-8B-Instruct")
    gpu = get_gpu("H100-SXM-80GB")
    found: dict[str, Callable[[], tuple[str, EngineParams]]] = {
        "vllm": lambda: (v := vllm.default_version(), vllm.default_params(v, gpu, model)),
        "sglang": lambda: (v := sglang.default_version(), sglang.default_params(v, gpu, model, spread)),
        "tensorrt-llm": lambda: (v := trtllm.default_version(), trtllm.default_params(v, gpu, model, spread)),
        "tgi": lambda: (v := tgi.default_version(), tgi.default_params(v, gpu, model)),
        "ollama": lambda: (v := ollama.default_version(), ollama.default_params(v, gpu, model)),
    }
    version, params = found[engine]()
    deployment = Deployment(
        model=model,
        gpu=gpu,
        engine=engine,
        engine_version=version,
        precision=Precision(weights="q4_k_m" if engine == "ollama" else "bf16"),
        parallelism=spread,
        params=params,
    )
    if name == "speculative":
        return replace(
            deployment, speculation=Speculation(method="ngram", num_speculative_tokens=2, acceptance=(0.5, 0.5))
        )
    if name == "disaggregated":
        pool = InstancePool(gpu=gpu, parallelism=spread, params=params, num_instances=1)
        group = Disaggregation(prefill=pool, decode=pool, link=kv_link(deployment, deployment, 1, 1))
        return replace(deployment, disaggregation=group)
    return deployment


def _simulate_with(name: str) -> None:
    """Run a few requests through a driver."""
    deployment = sample(name)
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
    if deployment.disaggregation is None:
        simulate(workload, deployment, step_model(deployment), memory(deployment))
        return
    pools = {role: deployment.pool(role) for role in ROLES}
    simulate_disaggregated(
        workload,
        deployment,
        {role: step_model(pool) for role, pool in pools.items()},
        {role: memory(pool) for role, pool in pools.items()},
    )


if __name__ == "__main__":
    for chosen in sys.argv[1:]:
        _simulate_with(chosen)
