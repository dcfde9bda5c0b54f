"""vLLM: defaults by version and GPU, validity of settings, flags of ``vllm serve``, memory constants.

The figures live in ``servewise/data/engines/vllm.toml`` with their sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from servewise.engines import facts
from servewise.engines.launch import Launch, checked_name
from servewise.engines.vllm_speculation import speculative_config
from servewise.errors import InputError
from servewise.types import Deployment, GpuSpec, ModelSpec, Provenance, VllmParams, WeightPrecision
from servewise.units import GIB

__all__ = [
    "Defaults",
    "MemoryProfile",
    "SizeClass",
    "capture_sizes",
    "default_params",
    "default_version",
    "defaults",
    "launch",
    "memory_profile",
    "needs_quantized_checkpoint",
    "supported_tensor_parallel_sizes",
    "validate",
    "validate_policy",
]

ENGINE = "vllm"
BLOCK_SIZE_TOKENS = 16
"""Tokens of a KV block unless an attention backend forces another."""
MLA_BLOCK_SIZE_TOKENS = 64
"""Tokens of a KV block of multi-head latent attention (FlashMLA)."""
RUNTIME_QUANTIZATION: dict[WeightPrecision, str] = {"fp8": "fp8", "fp8_block": "fp8_per_block"}
"""Precisions vLLM makes from a bf16 checkpoint while loading it, and its names for them."""
GROUPED_PRECISIONS: dict[WeightPrecision, int] = {"fp8_block": 128, "int4": 128, "nvfp4": 16}
"""Quantization group along a matrix's input: a shard has to hold whole groups (MXFP4 experts are padded)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeClass:
    """Batch limits of GPUs with at least ``min_mem_gib`` of memory [GiB]."""

    min_mem_gib: float
    max_num_batched_tokens: int
    max_num_seqs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What one range of versions does when a flag is left out.

    Parameters
    ----------
    since : str
        First version of the range.
    gpu_memory_utilization : float
        Share of the GPU's memory.
    async_scheduling, scheduler_reserve_full_isl : bool
    size_classes : tuple of SizeClass
        From the largest GPUs to the smallest.
    provenance : Provenance
    """

    since: str
    gpu_memory_utilization: float
    async_scheduling: bool
    scheduler_reserve_full_isl: bool
    size_classes: tuple[SizeClass, ...]
    provenance: Provenance


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProfile:
    """What the profiling run of a version takes off the KV cache beside weights and hidden states.

    Parameters
    ----------
    logits_bytes_per_entry : float [bytes]
        For each logit of ``max_num_seqs`` rows.
    samples_chunks : bool
        Whether logits are sampled in the run when prompts are cut into chunks.
    counts_graph_memory : bool
        Whether CUDA graphs are taken off the KV cache's share.
    non_torch_tp1_bytes, non_torch_nvlink_bytes, non_torch_pcie_bytes : float [bytes]
        CUDA context, NCCL and all-reduce buffers at one GPU, and at more over NVLink and over PCIe.
    graph_fixed_bytes, graph_bytes_per_size : float [bytes]
        CUDA graphs: a constant and a part for each captured size.
    provenance : Provenance
    """

    logits_bytes_per_entry: float
    samples_chunks: bool
    counts_graph_memory: bool
    non_torch_tp1_bytes: float
    non_torch_nvlink_bytes: float
    non_torch_pcie_bytes: float
    graph_fixed_bytes: float
    graph_bytes_per_size: float
    provenance: Provenance

    def non_torch_bytes(self, gpu: GpuSpec, num_gpus: int) -> float:
        """Memory beside PyTorch's allocator [bytes] with ``num_gpus`` sharing each layer."""
        if num_gpus == 1:
            return self.non_torch_tp1_bytes
        return self.non_torch_pcie_bytes if gpu.link_kind == "pcie" else self.non_torch_nvlink_bytes


def version_key(version: str) -> tuple[int, ...]:
    """Sort key of a version such as ``0.19.0`` or ``0.19.1rc2``.

    Raises
    ------
    InputError
        When the text does not start with numbers.
    """
    return facts.version_key(ENGINE, version)


def default_version() -> str:
    """vLLM version that is planned for when none is named."""
    return facts.default_version(ENGINE)


@cache
def defaults(version: str) -> Defaults:
    """Defaults of a vLLM version.

    Raises
    ------
    InputError
        When the version is older than the first one described.
    """
    table = facts.range_of(ENGINE, version)
    return Defaults(
        since=table["from"],
        gpu_memory_utilization=table["gpu_memory_utilization"],
        async_scheduling=table["async_scheduling"],
        scheduler_reserve_full_isl=table["scheduler_reserve_full_isl"],
        size_classes=tuple(SizeClass(**c) for c in table["size_classes"]),
        provenance=facts.cited(ENGINE, table["source"]),
    )


@cache
def memory_profile(version: str) -> MemoryProfile:
    """Memory vLLM takes beside weights, hidden states and KV cache.

    Versions older than those of :func:`defaults` are described, too: a start-up log can be explained although
    the scheduler of its version is not simulated.

    Raises
    ------
    InputError
        When the version is older than the first one described.
    """
    table, graph = facts.range_of(ENGINE, version, "profile"), facts.document(ENGINE)["graph"]
    return MemoryProfile(
        logits_bytes_per_entry=table["logits_bytes_per_entry"],
        samples_chunks=table["samples_chunks"],
        counts_graph_memory=table["counts_graph_memory"],
        non_torch_tp1_bytes=table["non_torch_tp1_gib"] * GIB,
        non_torch_nvlink_bytes=table["non_torch_nvlink_gib"] * GIB,
        non_torch_pcie_bytes=table["non_torch_pcie_gib"] * GIB,
        graph_fixed_bytes=graph["fixed_gib"] * GIB,
        graph_bytes_per_size=graph["gib_per_size"] * GIB,
        provenance=facts.cited(ENGINE, table["source"] + graph["source"]),
    )


def size_class(known: Defaults, gpu: GpuSpec) -> SizeClass:
    """Size class of a GPU; A100 and GPUs that are not from NVIDIA's data-centre line fall in the smallest."""
    if gpu.name.upper().startswith("A100"):
        return known.size_classes[-1]
    return next(c for c in known.size_classes if gpu.mem_bytes >= c.min_mem_gib * GIB)


def default_params(version: str, gpu: GpuSpec, model: ModelSpec) -> VllmParams:
    """Parameters of ``vllm serve`` when no flag is given.

    Parameters
    ----------
    version : str
        vLLM version, such as ``0.33.0``.
    gpu : GpuSpec
    model : ModelSpec

    Returns
    -------
    VllmParams

    Raises
    ------
    InputError
        When the version is unknown.

    Sources
    -------
    ``servewise/data/engines/vllm.toml``.
    """
    known = defaults(version)
    limits = size_class(known, gpu)
    return VllmParams(
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_model_len=model.max_context_tokens,
        gpu_memory_utilization=known.gpu_memory_utilization,
        block_size_tokens=MLA_BLOCK_SIZE_TOKENS if model.attention == "mla" else BLOCK_SIZE_TOKENS,
        enable_prefix_caching=True,
        enable_chunked_prefill=True,
        async_scheduling=known.async_scheduling,
        scheduler_reserve_full_isl=known.scheduler_reserve_full_isl,
    )


def validate(params: VllmParams, model: ModelSpec) -> None:
    """Check that vLLM would accept the parameters.

    Raises
    ------
    InputError
        Naming the parameter, its value and what is allowed.
    """
    for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len"):
        if getattr(params, name) < 1:
            raise InputError(f"{name} is {getattr(params, name)}; it must be at least 1")
    if params.max_num_batched_tokens < params.max_num_seqs:
        raise InputError(
            f"max_num_batched_tokens {params.max_num_batched_tokens} is below max_num_seqs "
            f"{params.max_num_seqs}; raise the first or lower the second"
        )
    if not params.enable_chunked_prefill and params.max_num_batched_tokens < params.max_model_len:
        raise InputError(
            f"without chunked prefill max_num_batched_tokens {params.max_num_batched_tokens} must reach "
            f"max_model_len {params.max_model_len}; raise it or enable chunked prefill"
        )
    if params.max_model_len > model.max_context_tokens:
        raise InputError(
            f"max_model_len {params.max_model_len} exceeds the {model.max_context_tokens} tokens of context "
            f"{model.name} supports; lower it"
        )
    if not 0.0 < params.gpu_memory_utilization <= 1.0:
        raise InputError(f"gpu_memory_utilization is {params.gpu_memory_utilization}; it must be in (0, 1]")
    validate_policy(params)
    if params.block_size_tokens < 1 or params.block_size_tokens & (params.block_size_tokens - 1):
        raise InputError(f"block_size_tokens is {params.block_size_tokens}; it must be a power of two")


def validate_policy(params: VllmParams) -> None:
    """Check the scheduler's settings that are off by default.

    Raises
    ------
    InputError
        Naming the parameter, its value and what is allowed.
    """
    if params.scheduling_policy not in ("fcfs", "priority"):
        raise InputError(f"scheduling_policy is {params.scheduling_policy!r}; it must be fcfs or priority")
    if not 0.0 <= params.watermark < 1.0:
        raise InputError(f"watermark is {params.watermark}; it must be in [0, 1)")
    if not 0 <= params.long_prefill_token_threshold <= params.max_model_len:
        raise InputError(
            f"long_prefill_token_threshold is {params.long_prefill_token_threshold}; it must be 0 (no cap) or up to "
            f"max_model_len {params.max_model_len}"
        )


def capture_sizes(params: VllmParams, gpu: GpuSpec, queries: int = 1) -> tuple[int, ...]:
    """Batch sizes [tokens] that vLLM captures as CUDA graphs; smaller batches are padded to the next one.

    A decoding request has ``queries`` tokens in a step, more than one with speculative decoding.

    Sources
    -------
    vLLM 0.33.0 wheel, ``vllm/config/vllm.py`` (read 2026-11-29).
    """
    usual = 1024 if 10.0 <= gpu.compute_capability < 11.0 else 512
    limit, most = min(2 * params.max_num_seqs * queries, usual), min(params.max_num_seqs, usual)
    sizes = {1, 2, 4, *range(8, 256, 8), *range(256, limit + 1, 16)}
    if queries > 1:
        requests = {1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16), most}
        sizes |= {n * queries for n in requests if n <= most}
    elif params.max_num_seqs <= limit:
        sizes.add(params.max_num_seqs)
    return tuple(sorted(s for s in sizes if s <= limit))


def needs_quantized_checkpoint(model: ModelSpec, weights: WeightPrecision) -> bool:
    """Whether serving at this precision needs another checkpoint than the model's own."""
    return weights != model.native_precision and not (
        model.native_precision == "bf16" and weights in RUNTIME_QUANTIZATION
    )


def launch(deployment: Deployment) -> Launch:
    """What starts one replica.

    Limits whose defaults drift between versions are always written out. Where
    :func:`needs_quantized_checkpoint` holds, the model argument has to be such a checkpoint.

    Raises
    ------
    InputError
        When vLLM would refuse the parameters, or the model's name would be read as an option.
    """
    model, params, precision = deployment.model, deployment.vllm_params, deployment.precision
    validate(params, model)
    args = ["vllm", "serve", checked_name(model.name, "vllm serve")]
    if deployment.parallelism.tensor_parallel_size > 1:
        args += ["--tensor-parallel-size", str(deployment.parallelism.tensor_parallel_size)]
    spread = deployment.parallelism
    if spread.pipeline_parallel_size > 1:
        args += ["--pipeline-parallel-size", str(spread.pipeline_parallel_size)]
    if spread.data_parallel_size > 1:
        args += ["--data-parallel-size", str(spread.data_parallel_size)]
    if spread.expert_parallel_size > 1:
        args.append("--enable-expert-parallel")
    args += ["--max-num-seqs", str(params.max_num_seqs)]
    args += ["--max-num-batched-tokens", str(params.max_num_batched_tokens)]
    args += ["--max-model-len", str(params.max_model_len)]
    args += ["--gpu-memory-utilization", f"{params.gpu_memory_utilization:g}"]
    if precision.weights != model.native_precision and not needs_quantized_checkpoint(model, precision.weights):
        args += ["--quantization", RUNTIME_QUANTIZATION[precision.weights]]
    if precision.kv == "fp8":
        args += ["--kv-cache-dtype", "fp8"]
    if deployment.speculation is not None:
        args += ["--speculative-config", speculative_config(deployment.speculation)]
    return Launch(args=args + changed_flags(deployment))


def changed_flags(deployment: Deployment) -> list[str]:
    """Switches that differ from what this version does on its own."""
    params = deployment.vllm_params
    usual = default_params(deployment.engine_version, deployment.gpu, deployment.model)
    args = []
    if params.block_size_tokens != usual.block_size_tokens:
        args += ["--block-size", str(params.block_size_tokens)]
    for name in (
        "enable_prefix_caching",
        "enable_chunked_prefill",
        "async_scheduling",
        "scheduler_reserve_full_isl",
    ):
        value = getattr(params, name)
        if value != getattr(usual, name):
            args.append(f"--{'' if value else 'no-'}{name.replace('_', '-')}")
    for name in ("scheduling_policy", "watermark", "long_prefill_token_threshold"):
        value = getattr(params, name)
        if value != getattr(usual, name):
            args += [f"--{name.replace('_', '-')}", str(value)]
    return args


def supported_tensor_parallel_sizes(
    model: ModelSpec, gpu: GpuSpec, weights: WeightPrecision = "bf16"
) -> tuple[int, ...]:
    """Tensor parallel sizes within one node that shard this model evenly.

    Heads and MLP widths must divide, key-value heads must divide or be replicated evenly, and a shard must
    hold whole quantization groups. The vocabulary is padded by vLLM and never an obstacle.

    Parameters
    ----------
    model : ModelSpec
    gpu : GpuSpec
    weights : WeightPrecision

    Returns
    -------
    tuple of int
        Ascending, powers of two.
    """
    widths = [model.intermediate_size] if model.intermediate_size else []
    if model.moe is not None:
        widths += [w for w in (model.moe.intermediate_size, model.moe.shared_intermediate_size) if w]
    group = GROUPED_PRECISIONS.get(weights, 1)

    def fits(size: int) -> bool:
        heads = model.num_heads % size == 0
        kv = model.attention == "mla" or model.num_kv_heads % size == 0 or size % model.num_kv_heads == 0
        return heads and kv and all(w % size == 0 and (size == 1 or (w // size) % group == 0) for w in widths)

    return tuple(s for s in (1, 2, 4, 8, 16) if s <= gpu.gpus_per_node and fits(s))
