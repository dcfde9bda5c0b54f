"""SGLang: defaults by version and GPU, captured batch sizes.

The figures live in ``servewise/data/engines/sglang.toml`` with their sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from servewise.engines import facts
from servewise.engines.launch import Launch, checked_name
from servewise.errors import InputError
from servewise.types import Deployment, GpuSpec, ModelSpec, Parallelism, Provenance, SglangParams, WeightPrecision
from servewise.units import MIB

__all__ = [
    "capture_sizes",
    "counts_sparse_index",
    "default_params",
    "default_version",
    "launch",
    "library_gib",
    "mem_fraction_static",
    "needs_quantized_checkpoint",
    "provenance",
    "validate",
]

ENGINE = "sglang"
VIT_L_BLOCK_WEIGHTS = 24 * 12 * 1024**2
"""Weights in the blocks of ViT-L/14 (24 layers of width 1,024), SGLang's yardstick for vision towers."""


def default_version() -> str:
    """SGLang version that is planned for when none is named."""
    return facts.default_version(ENGINE)


def provenance(version: str) -> Provenance:
    """Origin of a version's defaults."""
    return facts.cited(ENGINE, facts.range_of(ENGINE, version)["source"])


def size_class(known: Mapping[str, Any], gpu: GpuSpec) -> Mapping[str, Any]:
    """Size class of a GPU."""
    mem_mib = gpu.mem_bytes / MIB
    found: Mapping[str, Any] = next(c for c in known["size_classes"] if mem_mib < c["below_mem_mib"])
    return found


def counts_sparse_index(version: str) -> bool:
    """Whether the KV cache is sized with the index of sparse attention in it; first releases left it out.

    Sources
    -------
    https://github.com/sgl-project/sglang/pull/11309 (read 2026-11-29).
    """
    return facts.version_key(ENGINE, version) >= (0, 5, 4)


def library_gib(gpu: GpuSpec, num_gpus: int) -> tuple[float, Provenance]:
    """Driver context and communication buffers of one GPU [GiB] with ``num_gpus`` sharing each layer."""
    return facts.library_gib(ENGINE, gpu, num_gpus)


def default_params(
    version: str, gpu: GpuSpec, model: ModelSpec, parallelism: Parallelism | None = None
) -> SglangParams:
    """Parameters of ``sglang.launch_server`` when no flag is given.

    Parameters
    ----------
    version : str
        SGLang version, such as ``0.5.23``.
    gpu : GpuSpec
    model : ModelSpec
    parallelism : Parallelism or None
        Of one replica; one GPU by default. Data parallelism is attention data parallelism.

    Returns
    -------
    SglangParams
        ``max_running_requests`` is a rank's; SGLang lowers it to half the tokens of its KV cache.

    Raises
    ------
    InputError
        When the version is unknown.

    Sources
    -------
    ``servewise/data/engines/sglang.toml``.
    """
    spread = parallelism or Parallelism()
    known = facts.range_of(ENGINE, version)
    limits = size_class(known, gpu)
    params = SglangParams(
        max_running_requests=known["max_running_requests"],
        chunked_prefill_size=limits["chunked_prefill_size"],
        max_prefill_tokens=known["max_prefill_tokens"],
        context_length=model.max_context_tokens,
        mem_fraction_static=1.0,
        page_size=page_size(gpu),
        cuda_graph_max_bs=limits["graph_bs_tp4" if gpus_of_stage(spread) >= 4 else "graph_bs"],
    )
    return replace(
        params,
        mem_fraction_static=mem_fraction_static(version, gpu, model, spread, params),
        chunked_prefill_size=params.chunked_prefill_size // spread.data_parallel_size,
    )


def gpus_of_stage(parallelism: Parallelism) -> int:
    """GPUs of a pipeline stage, which SGLang calls ``tp_size`` with attention data parallelism, too."""
    return parallelism.tensor_parallel_size * parallelism.data_parallel_size


def page_size(gpu: GpuSpec) -> int:
    """Tokens of a page: the TensorRT-LLM kernels of data-centre Blackwell want 64, others take single tokens."""
    return 64 if 10.0 <= gpu.compute_capability < 11.0 else 1


def mem_fraction_static(
    version: str, gpu: GpuSpec, model: ModelSpec, parallelism: Parallelism, params: SglangParams
) -> float:
    """Default of ``--mem-fraction-static`` [share of a GPU's memory], weights and KV cache together.

    The rest is what SGLang reserves for activations, CUDA graphs and libraries. Vision towers lower it by a
    twentieth and by a tenth for each ViT-L they exceed one by.

    Parameters
    ----------
    version : str
    gpu : GpuSpec
    model : ModelSpec
    parallelism : Parallelism
    params : SglangParams
        Its own ``mem_fraction_static`` is ignored; ``chunked_prefill_size`` is the whole replica's, before
        SGLang divides it among data parallel ranks.

    Returns
    -------
    float

    Raises
    ------
    InputError
        When the version is unknown.

    Sources
    -------
    ``servewise/data/engines/sglang.toml``; ``adjust_mem_fraction_for_vlm`` of ``server_args.py``.
    """
    known = facts.range_of(ENGINE, version)
    if known["mem_fraction"] == "by_tp":
        tp = gpus_of_stage(parallelism)
        fraction = float(next(row["fraction"] for row in known["fractions"] if tp >= row["min_tp"]))
    else:
        mem_mib = gpu.mem_bytes / MIB
        fraction = round((mem_mib - reserved_mib(known, gpu, parallelism, params)) / mem_mib, 3)
    if model.vision_num_params:
        complexity = model.vision_num_params / VIT_L_BLOCK_WEIGHTS
        fraction *= 0.95 * max(0.8, min(1.05, 1.0 - 0.1 * (complexity - 1.0)))
    return fraction


def reserved_mib(known: Mapping[str, Any], gpu: GpuSpec, parallelism: Parallelism, params: SglangParams) -> float:
    """Memory kept beside weights and KV cache [MiB]."""
    num_gpus = gpus_of_stage(parallelism) * parallelism.pipeline_parallel_size
    ranks = parallelism.data_parallel_size
    if known["mem_fraction"] == "by_class":
        limits = size_class(known, gpu)
        reserved_gib = limits["reserved_gib"] + limits["reserved_gib_per_gpu"] * num_gpus
        return 1024.0 * float(reserved_gib + (known["dp_attention_reserved_gib"] if ranks > 1 else 0.0))
    tokens = params.chunked_prefill_size if params.chunked_prefill_size > 0 else params.max_prefill_tokens
    reserved = 512 + 1.5 * max(tokens, 2048) + num_gpus / 8 * 1024 + 2.0 * params.cuda_graph_max_bs
    if ranks > 1:
        reserved += params.cuda_graph_max_bs * ranks * (4.5 if params.cuda_graph_max_bs > 300 else 3.0)
    return max(reserved, 10240.0) if gpu.mem_bytes > 60 * 1024 * MIB else reserved


def capture_sizes(params: SglangParams) -> tuple[int, ...]:
    """Decode batch sizes captured as CUDA graphs; smaller batches are padded to the next one.

    Sources
    -------
    SGLang 0.5.23 wheel, ``sglang/srt/arg_groups/cuda_graph_hook.py`` (read 2026-11-29).
    """
    limit = params.cuda_graph_max_bs
    sizes = {1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 497, 16), *range(512, limit + 1, 32), limit}
    return tuple(sorted(s for s in sizes if 1 <= s <= limit))


def validate(params: SglangParams, model: ModelSpec) -> None:
    """Check that SGLang would accept the parameters.

    Raises
    ------
    InputError
        Naming the parameter, its value and what is allowed.
    """
    for name in ("max_running_requests", "max_prefill_tokens", "context_length", "page_size"):
        if getattr(params, name) < 1:
            raise InputError(f"{name} is {getattr(params, name)}; it must be at least 1")
    if params.cuda_graph_max_bs < 0:
        raise InputError(f"cuda_graph_max_bs is {params.cuda_graph_max_bs}; it must be 0 (no graphs) or more")
    if params.chunked_prefill_size > 0 and params.chunked_prefill_size % params.page_size:
        raise InputError(
            f"chunked_prefill_size {params.chunked_prefill_size} is no multiple of page_size {params.page_size}; "
            "change one of them"
        )
    if params.context_length > model.max_context_tokens:
        raise InputError(
            f"context_length {params.context_length} exceeds the {model.max_context_tokens} tokens of context "
            f"{model.name} supports; lower it"
        )
    if not 0.0 < params.mem_fraction_static < 1.0:
        raise InputError(f"mem_fraction_static is {params.mem_fraction_static}; it must be in (0, 1)")


def needs_quantized_checkpoint(model: ModelSpec, weights: WeightPrecision) -> bool:
    """Whether serving at this precision needs another checkpoint than the model's own; SGLang makes fp8 at start."""
    return weights != model.native_precision and not (model.native_precision == "bf16" and weights == "fp8")


def launch(deployment: Deployment) -> Launch:
    """What starts one replica of SGLang 0.5.23. Limits that depend on the GPU are written out.

    Raises
    ------
    InputError
        When SGLang would refuse the parameters, or the model's name would be read as an option.

    Sources
    -------
    ``python -m sglang.launch_server --help`` of SGLang 0.5.23.
    """
    params, spread, precision = deployment.params, deployment.parallelism, deployment.precision
    if not isinstance(params, SglangParams):
        raise InputError(f"these are not SGLang's parameters: {params}")
    validate(params, deployment.model)
    model = checked_name(deployment.model.name, "sglang.launch_server")
    args = ["python", "-m", "sglang.launch_server", "--model-path", model]
    if gpus_of_stage(spread) > 1:
        args += ["--tp-size", str(gpus_of_stage(spread))]
    if spread.pipeline_parallel_size > 1:
        args += ["--pp-size", str(spread.pipeline_parallel_size)]
    if spread.data_parallel_size > 1:
        args += ["--dp-size", str(spread.data_parallel_size), "--enable-dp-attention"]
        args += ["--load-balance-method", params.load_balance_method]
    if spread.expert_parallel_size > 1:
        args += ["--ep-size", str(spread.expert_parallel_size)]
    args += ["--max-running-requests", str(params.max_running_requests * spread.data_parallel_size)]
    args += ["--chunked-prefill-size", str(params.chunked_prefill_size * spread.data_parallel_size)]
    args += ["--max-prefill-tokens", str(params.max_prefill_tokens)]
    args += ["--context-length", str(params.context_length)]
    args += ["--mem-fraction-static", f"{params.mem_fraction_static:g}"]
    args += ["--cuda-graph-max-bs-decode", str(params.cuda_graph_max_bs)]
    args += ["--page-size", str(params.page_size)]
    if precision.weights != deployment.model.native_precision and not needs_quantized_checkpoint(
        deployment.model, precision.weights
    ):
        args += ["--quantization", precision.weights]
    if precision.kv == "fp8":
        args += ["--kv-cache-dtype", "fp8_e4m3"]
    return Launch(args=args)
