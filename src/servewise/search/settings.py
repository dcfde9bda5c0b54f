"""Settings of each engine that the search tries, and what of them decides the schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from servewise.engines import ollama, sglang, tgi, trtllm, vllm
from servewise.types import (
    EngineName,
    EngineParams,
    GpuSpec,
    ModelSpec,
    Parallelism,
    Role,
    SglangParams,
    TgiParams,
    TrtllmParams,
    VllmParams,
)

__all__ = ["NUM_SEQS", "STEP_TOKENS", "default_version", "pool_params", "schedule_key", "settings"]

NUM_SEQS = (1024, 256, 64)
"""Most requests at once that are tried, the largest first: among settings that behave alike the first is kept."""

STEP_TOKENS = (16384, 8192, 2048)
"""Most tokens of a step that are tried."""

GRID = tuple((rows, tokens) for rows in NUM_SEQS for tokens in STEP_TOKENS if tokens >= rows)

RANK_GRID = ((512, 8192), (128, 2048))
"""The same for one of several data parallel ranks, which share the requests and wait for each other's prompts, and for
SGLang's stages, whose micro-batches divide the rows among them."""

TGI_GRID = tuple((rows, tokens) for rows in (512, 128) for tokens in STEP_TOKENS)
"""TGI turns away what is beyond its limit, 128 by default, instead of letting it wait."""

OLLAMA_SLOTS = (16, 4, 1)
"""``OLLAMA_NUM_PARALLEL``, each slot with a whole context of its own. A service keeps its model loaded."""

POOL_LIMITS: Mapping[Role, tuple[int, int]] = {"prefill": (64, 8192), "decode": (1024, 8192)}
"""Requests at once and tokens of a step of instances that have one role in a group."""

LIMIT_NAMES: Mapping[type, tuple[str, str]] = {
    VllmParams: ("max_num_seqs", "max_num_batched_tokens"),
    SglangParams: ("max_running_requests", "chunked_prefill_size"),
    TrtllmParams: ("max_batch_size", "max_num_tokens"),
}

VERSIONS: Mapping[EngineName, Callable[[], str]] = {
    "vllm": vllm.default_version,
    "sglang": sglang.default_version,
    "tensorrt-llm": trtllm.default_version,
    "tgi": tgi.default_version,
    "ollama": ollama.default_version,
}


def default_version(engine: EngineName) -> str:
    """Version of an engine that is planned for."""
    return VERSIONS[engine]()


def settings(
    engine: EngineName, version: str, gpu: GpuSpec, model: ModelSpec, parallelism: Parallelism, context_tokens: int
) -> tuple[EngineParams, ...]:
    """Parameters to try, largest first; the rest as the engine's version has them.

    TensorRT-LLM is given what its guides tune first: CUDA graphs with padding for every batch size it may run, and
    chunked prefill where a whole context would not fit a step.

    Parameters
    ----------
    engine : EngineName
    version : str
    gpu : GpuSpec
    model : ModelSpec
    parallelism : Parallelism
        Of one replica.
    context_tokens : int
        Longest request to serve [tokens].

    Sources
    -------
    https://nvidia.github.io/TensorRT-LLM/performance/performance-tuning-guide/ (CUDA graphs, read 2026-11-29).
    """
    in_micro_batches = engine == "sglang" and parallelism.pipeline_parallel_size > 1
    grid = RANK_GRID if parallelism.data_parallel_size > 1 or in_micro_batches else GRID
    match engine:
        case "vllm":
            usual = vllm.default_params(version, gpu, model)
            return tuple(
                replace(usual, max_num_seqs=rows, max_num_batched_tokens=tokens, max_model_len=context_tokens)
                for rows, tokens in grid
            )
        case "sglang":
            tried = (_sglang(version, gpu, model, parallelism, context_tokens, rows, tokens) for rows, tokens in grid)
            # what SGLang keeps back for a large chunk may be more than a small GPU has
            return tuple(params for params in tried if params.mem_fraction_static > 0.0)
        case "tensorrt-llm":
            usual_trt = trtllm.default_params(version, gpu, model)
            return tuple(
                replace(
                    usual_trt,
                    max_batch_size=rows,
                    max_num_tokens=tokens,
                    max_seq_len=context_tokens,
                    enable_chunked_prefill=tokens < context_tokens,
                    cuda_graph_padding=True,
                    cuda_graph_max_batch_size=rows,
                )
                for rows, tokens in grid
            )
        case "tgi":
            usual_tgi = tgi.default_params(version, gpu, model, parallelism)
            return tuple(
                replace(
                    usual_tgi,
                    max_concurrent_requests=rows,
                    max_batch_prefill_tokens=tokens,
                    max_total_tokens=context_tokens,
                )
                for rows, tokens in TGI_GRID
            )
        case "ollama":
            usual_ollama = ollama.default_params(version, gpu, model)
            return tuple(
                replace(usual_ollama, num_parallel=slots, context_length=context_tokens, keep_alive_s=None)
                for slots in OLLAMA_SLOTS
            )
        case _:
            raise AssertionError(f"engine {engine} is not searched")  # config accepts no other


def pool_params(
    engine: EngineName,
    version: str,
    gpu: GpuSpec,
    model: ModelSpec,
    parallelism: Parallelism,
    context_tokens: int,
    role: Role,
) -> EngineParams:
    """Parameters of an instance that only computes prompts, in large steps, or only outputs, of many requests."""
    tried = settings(engine, version, gpu, model, parallelism, context_tokens)
    rows, tokens = LIMIT_NAMES[type(tried[0])]
    wanted = (params for params in tried if (getattr(params, rows), getattr(params, tokens)) == POOL_LIMITS[role])
    return next(wanted, tried[-1])


def _sglang(
    version: str,
    gpu: GpuSpec,
    model: ModelSpec,
    parallelism: Parallelism,
    context_tokens: int,
    rows: int,
    tokens: int,
) -> SglangParams:
    """Parameters of one rank. SGLang sizes its memory by the chunk of all ranks together."""
    usual = sglang.default_params(version, gpu, model, parallelism)
    tried = replace(
        usual,
        max_running_requests=rows,
        chunked_prefill_size=tokens * parallelism.data_parallel_size,
        max_prefill_tokens=max(tokens, usual.max_prefill_tokens),
        context_length=context_tokens,
        cuda_graph_max_bs=min(rows, usual.cuda_graph_max_bs),
    )
    fraction = sglang.mem_fraction_static(version, gpu, model, parallelism, tried)
    return replace(
        tried,
        mem_fraction_static=fraction,
        chunked_prefill_size=tokens,
    )


# What of the parameters cannot change a schedule in which no limit ever held anything back, set alike. The share of
# memory acts through the number of blocks, captured sizes through the step times: both are compared on their own.
_UNBOUND: Mapping[type, Mapping[str, Any]] = {
    VllmParams: {"max_num_seqs": 0, "max_num_batched_tokens": 0, "gpu_memory_utilization": 0.0},
    SglangParams: {
        "max_running_requests": 0,
        "chunked_prefill_size": 0,
        "max_prefill_tokens": 0,
        "mem_fraction_static": 0.0,
        "cuda_graph_max_bs": 0,
    },
    TgiParams: {"max_concurrent_requests": 0, "max_batch_prefill_tokens": 0, "cuda_memory_fraction": 0.0},
    TrtllmParams: {
        "max_batch_size": 0,
        "max_num_tokens": 0,
        "free_gpu_memory_fraction": 0.0,
        "cuda_graph_max_batch_size": 0,
    },
}


def schedule_key(params: EngineParams) -> EngineParams:
    """The parameters without the limits on rows, tokens and memory.

    Two deployments of a family with equal keys run alike where neither's limits ever hold anything back.
    """
    return replace(params, **_UNBOUND.get(type(params), {}))
