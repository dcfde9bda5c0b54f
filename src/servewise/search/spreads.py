"""How one replica may be spread over GPUs."""

from __future__ import annotations

from dataclasses import replace

from servewise.engines import tgi, vllm
from servewise.types import EngineName, GpuSpec, ModelSpec, Parallelism, WeightPrecision

__all__ = ["spreads"]

ATTENTION_RANKS: tuple[EngineName, ...] = ("vllm", "sglang", "tensorrt-llm")
"""Engines whose ranks may attend to their own requests and share the experts."""

STAGED: tuple[EngineName, ...] = ("vllm", "sglang", "tensorrt-llm")
"""Engines whose pipeline stages are simulated."""

STAGES_OF_NODES: tuple[EngineName, ...] = ("vllm", "sglang")
"""Those that try whole nodes as stages."""

STAGES = (2, 4)
"""Pipeline stages that are tried."""

RANKS = (2, 4, 8, 16)
"""Data parallel ranks that are tried."""


def spreads(engine: EngineName, model: ModelSpec, gpu: GpuSpec, weights: WeightPrecision) -> tuple[Parallelism, ...]:
    """Spreads that are tried, in a fixed order.

    Tensor parallelism; for models with experts also data parallel ranks for attention, with the experts divided among
    all GPUs of the replica; for vLLM, SGLang and TensorRT-LLM pipeline stages within a node, for the first two also
    whole nodes as stages of two or four; for vLLM also ranks that fill two nodes, alone or with two stages each.

    Parameters
    ----------
    engine : EngineName
    model : ModelSpec
    gpu : GpuSpec
    weights : WeightPrecision
    """
    if engine == "ollama":  # several GPUs take a model's layers in turn, which is not simulated
        return (Parallelism(),)
    node = gpu.gpus_per_node
    tensor = (
        tgi.supported_tensor_parallel_sizes(model, gpu)
        if engine == "tgi"
        else vllm.supported_tensor_parallel_sizes(model, gpu, weights)
    )
    found = [Parallelism(tensor_parallel_size=size) for size in tensor]
    if model.moe is not None and engine in ATTENTION_RANKS:
        found += [
            Parallelism(tensor_parallel_size=size, data_parallel_size=ranks, expert_parallel_size=size * ranks)
            for size in tensor
            for ranks in RANKS
            if (size * ranks <= node or (engine == "vllm" and size * ranks == 2 * node))
            and (size == 1 or engine != "tensorrt-llm")  # whose ranks are single GPUs
            and model.moe.num_experts % (size * ranks) == 0
        ]
    if engine in STAGED:
        found += [
            Parallelism(tensor_parallel_size=size, pipeline_parallel_size=stages)
            for stages in STAGES
            for size in tensor
            if (size * stages <= node or (engine in STAGES_OF_NODES and size == node)) and stages <= model.num_layers
        ]
    if engine == "vllm" and model.moe is not None and model.num_layers > 1:
        found += [
            replace(spread, pipeline_parallel_size=2)
            for spread in found
            if spread.data_parallel_size > 1 and spread.num_gpus == node and 2 * spread.tensor_parallel_size <= node
        ]
    return tuple(found)
