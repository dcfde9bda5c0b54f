"""TensorRT-LLM (PyTorch backend): defaults by version, captured batch sizes.

The figures live in ``servewise/data/engines/trtllm.toml`` with their sources.
"""

from __future__ import annotations

from typing import get_args

from servewise.engines import facts
from servewise.engines.launch import Launch, checked_name
from servewise.errors import InputError
from servewise.types import (
    CapacitySchedulerPolicy,
    Deployment,
    GpuSpec,
    ModelSpec,
    Parallelism,
    Provenance,
    TrtllmParams,
    WeightPrecision,
)

__all__ = [
    "capture_sizes",
    "counts_reuse",
    "default_params",
    "default_version",
    "launch",
    "library_gib",
    "needs_quantized_checkpoint",
    "provenance",
    "validate",
    "validate_parallelism",
]

ENGINE = "trtllm"
CONFIG_FILE = "trtllm.yaml"
EXACT_SIZES = (*range(1, 32), 32, 64, 128)
"""Batch sizes captured when batches are not padded; beyond, powers of two and the largest one asked for."""


def default_version() -> str:
    """TensorRT-LLM version that is planned for when none is named."""
    return facts.default_version(ENGINE)


def provenance(version: str) -> Provenance:
    """Origin of a version's defaults."""
    return facts.cited(ENGINE, facts.range_of(ENGINE, version)["source"])


def library_gib(gpu: GpuSpec, num_gpus: int) -> tuple[float, Provenance]:
    """Driver context and communication buffers of one GPU [GiB] with ``num_gpus`` sharing each layer."""
    return facts.library_gib(ENGINE, gpu, num_gpus)


def default_params(
    version: str, gpu: GpuSpec, model: ModelSpec, parallelism: Parallelism | None = None
) -> TrtllmParams:
    """Parameters of ``trtllm-serve`` when no option is given.

    Parameters
    ----------
    version : str
        TensorRT-LLM version, such as ``1.2.1``.
    gpu : GpuSpec
    model : ModelSpec
    parallelism : Parallelism or None
        The defaults depend neither on it nor on the GPU.

    Returns
    -------
    TrtllmParams

    Raises
    ------
    InputError
        When the version is unknown.

    Sources
    -------
    ``servewise/data/engines/trtllm.toml``.
    """
    del gpu, parallelism
    known = facts.range_of(ENGINE, version)
    return TrtllmParams(
        max_batch_size=known["max_batch_size"],
        max_num_tokens=known["max_num_tokens"],
        max_seq_len=model.max_context_tokens,
        free_gpu_memory_fraction=known["free_gpu_memory_fraction"],
        tokens_per_block=known["tokens_per_block"],
        enable_chunked_prefill=known["enable_chunked_prefill"],
        cuda_graph_padding=known["cuda_graph_padding"],
        cuda_graph_max_batch_size=known["cuda_graph_max_batch_size"],
        capacity_scheduler_policy=known["capacity_scheduler_policy"],
        enable_block_reuse=known["enable_block_reuse"],
    )


def counts_reuse(version: str) -> bool:
    """Whether the scheduler leaves what is cached out of a prompt's tokens and blocks before it starts it.

    Raises
    ------
    InputError
        When the version is unknown.

    Sources
    -------
    ``servewise/data/engines/trtllm.toml``.
    """
    return bool(facts.range_of(ENGINE, version, "scheduling")["counts_reuse"])


def capture_sizes(params: TrtllmParams) -> tuple[int, ...]:
    """Decode batch sizes captured as CUDA graphs. Without padding any other size runs eagerly.

    Sources
    -------
    NVIDIA/TensorRT-LLM, ``tensorrt_llm/llmapi/llm_args.py@00043967`` (read 2026-11-29):
    ``CudaGraphConfig._generate_cuda_graph_batch_sizes``.
    """
    largest = params.cuda_graph_max_batch_size
    limit = min(largest, params.max_batch_size)
    if not params.cuda_graph_padding:
        doubled = (2**i for i in range(8, largest.bit_length()))
        return tuple(sorted(s for s in {*EXACT_SIZES, *doubled, largest} if 1 <= s <= limit))
    sizes = {1, 2, 4, *range(8, 129, 8), *range(192, limit + 1, 64), limit}
    return tuple(sorted(s for s in sizes if 1 <= s <= limit))


def validate(params: TrtllmParams, model: ModelSpec) -> None:
    """Check that TensorRT-LLM would accept the parameters.

    Raises
    ------
    InputError
        Naming the parameter, its value and what is allowed.
    """
    for name in ("max_batch_size", "max_num_tokens", "max_seq_len"):
        if getattr(params, name) < 1:
            raise InputError(f"{name} is {getattr(params, name)}; it must be at least 1")
    if params.capacity_scheduler_policy not in get_args(CapacitySchedulerPolicy):
        raise InputError(
            f"capacity_scheduler_policy is {params.capacity_scheduler_policy!r}; allowed: "
            f"{', '.join(get_args(CapacitySchedulerPolicy))}"
        )
    if params.cuda_graph_max_batch_size < 0:
        raise InputError(
            f"cuda_graph_max_batch_size is {params.cuda_graph_max_batch_size}; it must be 0 (no graphs) or more"
        )
    if params.max_seq_len > model.max_context_tokens:
        raise InputError(
            f"max_seq_len {params.max_seq_len} exceeds the {model.max_context_tokens} tokens of context "
            f"{model.name} supports; lower it"
        )
    if not 0.0 < params.free_gpu_memory_fraction < 1.0:
        raise InputError(f"free_gpu_memory_fraction is {params.free_gpu_memory_fraction}; it must be in (0, 1)")
    if params.tokens_per_block < 1 or params.tokens_per_block & (params.tokens_per_block - 1):
        raise InputError(f"tokens_per_block is {params.tokens_per_block}; it must be a power of two")


def validate_parallelism(spread: Parallelism) -> None:
    """Check that TensorRT-LLM can be spread so: with attention data parallelism each GPU is a rank.

    Raises
    ------
    InputError
        Naming the sizes.

    Sources
    -------
    NVIDIA/TensorRT-LLM, ``tensorrt_llm/_torch/modules/attention.py``: ``tp_size = 1`` with ``enable_attention_dp``.
    """
    if spread.data_parallel_size > 1 and spread.tensor_parallel_size > 1:
        raise InputError(
            f"tensor_parallel_size {spread.tensor_parallel_size} with data_parallel_size {spread.data_parallel_size}: "
            "with enable_attention_dp TensorRT-LLM makes every GPU a rank of its own; use tensor_parallel_size 1"
        )


def needs_quantized_checkpoint(model: ModelSpec, weights: WeightPrecision) -> bool:
    """Whether serving at this precision needs another checkpoint: always, TensorRT-LLM quantizes nothing at start."""
    return weights != model.native_precision


def launch(deployment: Deployment) -> Launch:
    """What starts one replica: ``trtllm-serve`` and a YAML file for what has no option of its own.

    Raises
    ------
    InputError
        When TensorRT-LLM would refuse the parameters, or the model's name would be read as an option.

    Sources
    -------
    NVIDIA/TensorRT-LLM, ``tensorrt_llm/commands/serve.py@00209af1`` and ``llmapi/llm_args.py@00043967``.
    """
    params, spread = deployment.params, deployment.parallelism
    if not isinstance(params, TrtllmParams):
        raise InputError(f"these are not TensorRT-LLM's parameters: {params}")
    validate(params, deployment.model)
    validate_parallelism(spread)
    args = ["trtllm-serve", checked_name(deployment.model.name, "trtllm-serve"), "--backend", "pytorch"]
    num_gpus = spread.tensor_parallel_size * spread.data_parallel_size  # ranks are tensor parallel ranks to it
    if num_gpus > 1:
        args += ["--tp_size", str(num_gpus)]
    if spread.pipeline_parallel_size > 1:
        args += ["--pp_size", str(spread.pipeline_parallel_size)]
    if spread.expert_parallel_size > 1:
        args += ["--ep_size", str(spread.expert_parallel_size)]
    args += ["--max_batch_size", str(params.max_batch_size)]
    args += ["--max_num_tokens", str(params.max_num_tokens)]
    args += ["--max_seq_len", str(params.max_seq_len)]
    args += ["--kv_cache_free_gpu_memory_fraction", f"{params.free_gpu_memory_fraction:g}"]
    args += ["--extra_llm_api_options", CONFIG_FILE]
    lines = [
        "cuda_graph_config:",
        f"  enable_padding: {str(params.cuda_graph_padding).lower()}",
        f"  max_batch_size: {min(params.cuda_graph_max_batch_size, params.max_batch_size)}",
        f"enable_chunked_prefill: {str(params.enable_chunked_prefill).lower()}",
        "kv_cache_config:",
        f"  enable_block_reuse: {str(params.enable_block_reuse).lower()}",
        f"  tokens_per_block: {params.tokens_per_block}",
        f"  free_gpu_memory_fraction: {params.free_gpu_memory_fraction:g}",
    ]
    if deployment.precision.kv == "fp8":
        lines.append("  dtype: fp8")
    lines += ["scheduler_config:", f"  capacity_scheduler_policy: {params.capacity_scheduler_policy}"]
    if spread.data_parallel_size > 1:
        lines.append("enable_attention_dp: true")
    return Launch(args=args, files={CONFIG_FILE: "\n".join(lines) + "\n"})
