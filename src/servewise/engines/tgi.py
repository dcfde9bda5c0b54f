"""Text Generation Inference: defaults by version, model and GPU, what it refuses, captured batch sizes.

The figures live in ``servewise/data/engines/tgi.toml`` with their sources.
"""

from __future__ import annotations

from collections.abc import Mapping

from servewise.engines import facts
from servewise.errors import InputError
from servewise.types import (
    Deployment,
    GpuSpec,
    KvPrecision,
    ModelSpec,
    Parallelism,
    Provenance,
    TgiParams,
    WeightPrecision,
)

__all__ = [
    "BLOCK_SIZES",
    "attention",
    "capture_sizes",
    "default_params",
    "default_version",
    "host_time",
    "library_gib",
    "max_batch_prefill_tokens",
    "provenance",
    "require_supported",
    "supported_tensor_parallel_sizes",
    "validate",
]

ENGINE = "tgi"
BLOCK_SIZES: Mapping[str, int] = {"flashinfer": 1, "flashdecoding": 256, "paged": 16}
"""Tokens of a block of the KV cache, by ``ATTENTION``."""
FLASHINFER_HEAD_DIMS = (64, 128, 256)
FEWEST_TOKENS = 100
"""The launcher takes an estimate of no more tokens for an error."""
FALLBACK_PREFILL_TOKENS = 4096
ROOM_TOKENS = 50
"""By which ``max_batch_prefill_tokens`` exceeded the longest prompt before 3.0."""
WEIGHTS: tuple[WeightPrecision, ...] = ("bf16", "fp8", "fp8_block", "int8", "int4")
"""Precisions of ``--quantize`` and of checkpoints: fp8, compressed-tensors, eetq, awq, gptq, marlin."""
KV: tuple[KvPrecision, ...] = ("bf16", "fp8")


def default_version() -> str:
    """TGI version that is planned for when none is named."""
    return facts.default_version(ENGINE)


def provenance(version: str) -> Provenance:
    """Origin of a version's defaults."""
    return facts.cited(ENGINE, facts.range_of(ENGINE, version)["source"])


def library_gib(gpu: GpuSpec, num_gpus: int) -> tuple[float, Provenance]:
    """Driver context and communication buffers of one GPU [GiB] with ``num_gpus`` sharing each layer."""
    return facts.library_gib(ENGINE, gpu, num_gpus)


def host_time() -> tuple[float, float, Provenance]:
    """Time of the host that every forward waits for: a forward [ms], each of its rows [us], and why that is assumed."""
    table = facts.document(ENGINE)["host"]
    return float(table["step_ms"]), float(table["row_us"]), facts.cited(ENGINE, table["source"])


def attention(gpu: GpuSpec, model: ModelSpec) -> str:
    """``ATTENTION`` that the launcher chooses.

    Sources
    -------
    ``launcher/src/main.rs``, ``resolve_attention``; ``assumed_amd`` in the data file.
    """
    if gpu.vendor != "nvidia" or gpu.compute_capability < 8.0:
        return "paged"
    return "flashinfer" if model.attention == "gqa" and model.head_dim in FLASHINFER_HEAD_DIMS else "flashdecoding"


def flops_per_token(model: ModelSpec) -> float:
    """Matrix FLOPs of a prompt token as the launcher counts them [FLOP]: every expert, no head."""
    width = model.intermediate_size
    if model.moe is not None:
        width = model.moe.intermediate_size * model.moe.num_experts
    heads = (model.num_heads + model.num_kv_heads) * (model.head_dim + model.v_head_dim)
    return 2.0 * model.num_layers * model.hidden_size * (heads + (3 if model.gated_mlp else 2) * width)


def max_batch_prefill_tokens(gpu: GpuSpec, model: ModelSpec, parallelism: Parallelism) -> int:
    """Default of ``--max-batch-prefill-tokens`` since 3.0.1.

    What the GPUs compute in a second at their peak, but 4,096 where the launcher does not know it; at most the
    model's context, and what the memory beside the weights holds of their KV cache.

    Parameters
    ----------
    gpu : GpuSpec
    model : ModelSpec
    parallelism : Parallelism

    Sources
    -------
    ``auto_prefill``, ``main_2026`` and ``assumed_rates`` in the data file.
    """
    num_gpus = parallelism.tensor_parallel_size
    flops = flops_per_token(model)
    optimal = 0
    if gpu.vendor == "nvidia" and not model.vision_num_params:
        optimal = int(num_gpus * gpu.peak_flops_per_s["bf16"] / flops)
    tokens = optimal if optimal > FEWEST_TOKENS else FALLBACK_PREFILL_TOKENS
    kv_bytes = 2 * model.num_layers * model.num_kv_heads * (model.head_dim + model.v_head_dim)
    fits = int((num_gpus * gpu.mem_bytes - flops) / kv_bytes)  # two bytes a weight, two operations a weight
    return min(tokens, model.max_context_tokens, fits if fits > FEWEST_TOKENS else tokens)


def default_params(version: str, gpu: GpuSpec, model: ModelSpec, parallelism: Parallelism | None = None) -> TgiParams:
    """Parameters of ``text-generation-launcher`` when no option is given.

    Parameters
    ----------
    version : str
        TGI version, such as ``3.3.5``.
    gpu : GpuSpec
    model : ModelSpec
    parallelism : Parallelism or None
        Of one replica; one GPU by default.

    Returns
    -------
    TgiParams
        ``max_total_tokens`` is the model's whole context, which TGI lowers to its KV cache; 4,096 before 3.0.

    Raises
    ------
    InputError
        When the version is unknown.

    Sources
    -------
    ``servewise/data/engines/tgi.toml``.
    """
    known = facts.range_of(ENGINE, version)
    longest = min(model.max_context_tokens, known.get("max_total_tokens", model.max_context_tokens))
    prefill = longest - 1 + ROOM_TOKENS
    if known["prefill_tokens"] == "compute_optimal":
        prefill = max_batch_prefill_tokens(gpu, model, parallelism or Parallelism())
    kernels = attention(gpu, model)
    return TgiParams(
        max_concurrent_requests=known["max_concurrent_requests"],
        max_batch_prefill_tokens=prefill,
        max_total_tokens=longest,
        cuda_memory_fraction=known["cuda_memory_fraction"],
        wiggle_room=known["wiggle_room"],
        block_size_tokens=BLOCK_SIZES[kernels],
        prefix_caching=known["prefix_caching"] and kernels == "flashinfer" and not model.vision_num_params,
        prefill_chunking=known["prefill_chunking"],
        cuda_graphs=tuple(known["cuda_graphs"]),
        waiting_served_ratio=known["waiting_served_ratio"],
        max_waiting_tokens=known["max_waiting_tokens"],
    )


def capture_sizes(params: TgiParams) -> tuple[int, ...]:
    """Decode batch sizes captured as CUDA graphs, ascending; smaller batches are padded to the next one."""
    return tuple(sorted(params.cuda_graphs))


def supported_tensor_parallel_sizes(model: ModelSpec, gpu: GpuSpec) -> tuple[int, ...]:
    """``--num-shard`` within one node: heads and key-value heads must divide, MLP widths too.

    Returns
    -------
    tuple of int
        Ascending, powers of two.

    Sources
    -------
    ``FlashCausalLM.__init__`` (no shard without a key-value head) and ``get_partitioned`` in
    ``server/text_generation_server/utils/weights.py``.
    """
    widths = [model.num_heads]
    if model.attention == "gqa" and model.num_kv_heads > 1:
        widths.append(model.num_kv_heads)
    if model.intermediate_size:
        widths.append(model.intermediate_size)
    if model.moe is not None:
        widths.append(model.moe.intermediate_size)
    powers = (1 << i for i in range(gpu.gpus_per_node.bit_length()))
    return tuple(size for size in powers if size <= gpu.gpus_per_node and all(w % size == 0 for w in widths))


def require_supported(deployment: Deployment) -> None:
    """Refuse weights, caches and parallelism that TGI does not have.

    Raises
    ------
    InputError
        Naming the field, its value and what is allowed.
    """
    spread, precision = deployment.parallelism, deployment.precision
    for name in ("pipeline_parallel_size", "data_parallel_size", "expert_parallel_size"):
        if getattr(spread, name) != 1:
            raise InputError(f"{name} is {getattr(spread, name)}; TGI has only tensor parallelism (--num-shard)")
    sizes = supported_tensor_parallel_sizes(deployment.model, deployment.gpu)
    if spread.tensor_parallel_size not in sizes:
        raise InputError(
            f"tensor_parallel_size {spread.tensor_parallel_size} does not divide {deployment.model.name}; "
            f"allowed: {', '.join(map(str, sizes))}"
        )
    if precision.weights not in WEIGHTS:
        raise InputError(f"TGI has no weights in {precision.weights}; allowed: {', '.join(WEIGHTS)}")
    if precision.kv not in KV or (precision.kv == "fp8" and deployment.params.block_size_tokens != 1):  # type: ignore[union-attr]
        raise InputError("an fp8 KV cache needs flashinfer, whose blocks have 1 token; use bf16")


def validate(params: TgiParams, model: ModelSpec) -> None:
    """Check that TGI would accept the parameters.

    Raises
    ------
    InputError
        Naming the parameter, its value and what is allowed.
    """
    for name in ("max_concurrent_requests", "max_batch_prefill_tokens", "max_total_tokens"):
        if getattr(params, name) < 1:
            raise InputError(f"{name} is {getattr(params, name)}; it must be at least 1")
    if params.max_total_tokens > model.max_context_tokens:
        raise InputError(
            f"max_total_tokens {params.max_total_tokens} exceeds the {model.max_context_tokens} tokens of context "
            f"{model.name} supports; lower it"
        )
    if not 0.0 < params.cuda_memory_fraction <= 1.0:
        raise InputError(f"cuda_memory_fraction is {params.cuda_memory_fraction}; it must be in (0, 1]")
    if not 0.0 < params.wiggle_room < 1.0:
        raise InputError(f"wiggle_room is {params.wiggle_room}; it must be in (0, 1)")
    if params.block_size_tokens not in BLOCK_SIZES.values():
        allowed = ", ".join(f"{size} ({name})" for name, size in BLOCK_SIZES.items())
        raise InputError(f"block_size_tokens is {params.block_size_tokens}; allowed: {allowed}")
    if params.prefix_caching and params.block_size_tokens == BLOCK_SIZES["paged"]:
        raise InputError("paged attention has no prefix cache; switch prefix_caching off, or use flashinfer")
    if not params.prefill_chunking and params.max_total_tokens - 1 > params.max_batch_prefill_tokens:
        raise InputError(
            f"without prefill_chunking max_batch_prefill_tokens {params.max_batch_prefill_tokens} must reach the "
            f"longest prompt, {params.max_total_tokens - 1} tokens; raise it or lower max_total_tokens"
        )
    if any(size < 1 for size in params.cuda_graphs):
        raise InputError(f"cuda_graphs {params.cuda_graphs} must be batch sizes of at least 1; () captures none")
    if params.waiting_served_ratio < 0 or params.max_waiting_tokens < 0:
        raise InputError("waiting_served_ratio and max_waiting_tokens must be 0 or more")
