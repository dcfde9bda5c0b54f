"""A deployment of every engine and topology that a plan can contain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from servewise.catalog import get_gpu, get_model
from servewise.engines import ollama, sglang, tgi, trtllm, vllm
from servewise.types import (
    Deployment,
    Disaggregation,
    EngineName,
    GpuSpec,
    InstancePool,
    KvLink,
    Parallelism,
    Precision,
    Speculation,
)

DENSE = get_model("meta-llama/Llama-3.1-8B-Instruct")
EXPERTS = get_model("Qwen/Qwen3-30B-A3B")
H100 = get_gpu("H100-SXM-80GB")
L40S = get_gpu("L40S-48GB")
LINK = KvLink(kind="nvlink", bytes_per_s=1e11, latency_s=1e-3, provenance={})
VERSIONS: Mapping[EngineName, str] = {
    "vllm": "0.33.0",
    "sglang": "0.5.23",
    "tensorrt-llm": "1.2.1",
    "tgi": "3.3.5",
    "ollama": "0.33.0",
}


def one(
    engine: EngineName, *, spread: Parallelism | None = None, experts: bool = False, gpu: GpuSpec = H100
) -> Deployment:
    """One replica."""
    spread, model, version = spread or Parallelism(), EXPERTS if experts else DENSE, VERSIONS[engine]
    precision = Precision(weights="q4_k_m") if engine == "ollama" else Precision()
    params: object
    match engine:
        case "vllm":
            params = replace(vllm.default_params(version, gpu, model), max_model_len=8192)
        case "sglang":
            params = replace(sglang.default_params(version, gpu, model, spread), context_length=8192)
        case "tensorrt-llm":
            params = replace(trtllm.default_params(version, gpu, model), max_seq_len=8192)
        case "tgi":
            params = replace(tgi.default_params(version, gpu, model), max_total_tokens=8192)
        case _:
            params = ollama.default_params(version, gpu, model)
    return Deployment(
        model=model,
        gpu=gpu,
        engine=engine,
        engine_version=version,
        precision=precision,
        parallelism=spread,
        params=params,  # type: ignore[arg-type]
        router="least_requests",
    )


def grouped(engine: EngineName, *, groups: int = 1, prefill: int = 2, decode: int = 1) -> Deployment:
    """Groups of prefill and decode instances of two GPUs."""
    alone = one(engine, spread=Parallelism(tensor_parallel_size=2))
    pools = [
        InstancePool(gpu=H100, parallelism=alone.parallelism, params=alone.params, num_instances=number)
        for number in (prefill, decode)
    ]
    group = Disaggregation(prefill=pools[0], decode=pools[1], link=LINK, router="least_requests")
    return replace(alone, disaggregation=group, num_replicas=groups)


def _pipeline(engine: EngineName) -> Deployment:
    return one(engine, spread=Parallelism(tensor_parallel_size=2, pipeline_parallel_size=2))


def _experts(engine: EngineName) -> Deployment:
    size = 1 if engine == "tensorrt-llm" else 2
    spread = Parallelism(tensor_parallel_size=size, data_parallel_size=4, expert_parallel_size=4 * size)
    return one(engine, spread=spread, experts=True)


def _speculating(engine: EngineName) -> Deployment:
    drafter = Speculation(method="eagle", num_speculative_tokens=2, acceptance=(0.7, 0.5), head_name="org/eagle3-head")
    return replace(one(engine), speculation=drafter)


def _nodes(engine: EngineName) -> Deployment:
    return one(engine, spread=Parallelism(tensor_parallel_size=8, pipeline_parallel_size=2))


def _expert_nodes(engine: EngineName) -> Deployment:
    spread = Parallelism(tensor_parallel_size=2, data_parallel_size=8, expert_parallel_size=16)
    return one(engine, spread=spread, experts=True)


TOPOLOGIES: Mapping[str, tuple[tuple[EngineName, ...], Callable[[EngineName], Deployment]]] = {
    "one GPU": (tuple(VERSIONS), one),
    "TP": (
        ("vllm", "sglang", "tensorrt-llm", "tgi"),
        lambda engine: one(engine, spread=Parallelism(tensor_parallel_size=2)),
    ),
    "PP": (("vllm", "sglang", "tensorrt-llm"), _pipeline),
    "DP and EP": (("vllm", "sglang", "tensorrt-llm"), _experts),
    "speculation": (("vllm",), _speculating),
    "several replicas": (tuple(VERSIONS), lambda engine: replace(one(engine), num_replicas=3)),
    "several nodes": (("vllm", "sglang"), _nodes),
    "DP and EP on several nodes": (("vllm",), _expert_nodes),
    "a group": (("vllm", "sglang", "tensorrt-llm"), grouped),
    "several groups": (("vllm", "sglang", "tensorrt-llm"), lambda engine: grouped(engine, groups=2, prefill=1)),
}
"""Engines that may be planned so (search/spreads.py, search/group_deployments.py), and how."""

CASES: Mapping[str, Deployment] = {
    f"{engine}, {name}": make(engine) for name, (engines, make) in TOPOLOGIES.items() for engine in engines
} | {"llama.cpp, one GPU": ollama.as_llama_server(one("ollama"))}
