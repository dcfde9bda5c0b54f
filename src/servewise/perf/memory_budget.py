"""What a replica's fullest GPU holds, and what is left for the KV cache, for any engine."""

from __future__ import annotations

from dataclasses import replace

from servewise.engines import baselines, llamacpp, ollama, sglang, tgi, trtllm, vllm
from servewise.perf.layout import require_supported
from servewise.perf.memory_baselines import baseline_parts
from servewise.perf.memory_engines import (
    llamacpp_parts,
    sglang_cell_bytes,
    sglang_parts,
    trtllm_parts,
)
from servewise.perf.memory_kv import kv_layout, longest_request
from servewise.perf.memory_parts import MemoryParts
from servewise.perf.memory_tgi import tgi_bytes_per_token, tgi_parts
from servewise.perf.memory_vllm import vllm_parts
from servewise.types import (
    CONTEXT_PADDING,
    BaselineParams,
    Deployment,
    EngineParams,
    LlamacppParams,
    MemoryReport,
    OllamaParams,
    Provenance,
    SglangParams,
    TgiParams,
    TrtllmParams,
    VllmParams,
)
from servewise.units import format_bytes

__all__ = ["largest_model_len", "memory"]

REFERENCE_CONTEXT_TOKENS = 4096
"""Context at which sliding-window models' bytes per token are stated when the caller names none."""
LENGTH_NAMES = {
    "vllm": "max_model_len",
    "sglang": "context_length",
    "tgi": "max_total_tokens",
    "llama.cpp": "ctx_size",
    "ollama": "context_length",
}
"""The parameter that bounds a request, by engine; ``max_seq_len`` in all others."""


def parts_of(deployment: Deployment) -> MemoryParts:
    """Share out a GPU's memory as the deployment's engine does."""
    match deployment.params:
        case VllmParams():
            return vllm_parts(deployment)
        case SglangParams() as params:
            return sglang_parts(deployment, params)
        case TrtllmParams() as params:
            return trtllm_parts(deployment, params)
        case LlamacppParams() as params:
            return llamacpp_parts(deployment, params)
        case BaselineParams():
            return baseline_parts(deployment)
        case TgiParams() as params:
            return tgi_parts(deployment, params)
        case OllamaParams():
            return parts_of(ollama.as_llama_server(deployment))


def validate(deployment: Deployment) -> None:
    """Refuse parameters that the engine would refuse, and parallelism that makes no sense."""
    require_supported(ollama.as_llama_server(deployment))
    match deployment.params:
        case VllmParams() as params:
            vllm.validate(params, deployment.model)
        case SglangParams() as params:
            sglang.validate(params, deployment.model)
        case TrtllmParams() as params:
            trtllm.validate(params, deployment.model)
        case LlamacppParams() as params:
            llamacpp.validate(params, deployment.model)
        case BaselineParams():
            baselines.validate(deployment)
        case TgiParams() as params:
            tgi.validate(params, deployment.model)
            tgi.require_supported(deployment)
        case OllamaParams() as params:
            ollama.validate(params, deployment.model)


def defaults_provenance(deployment: Deployment) -> Provenance:
    """Origin of an engine's share of the memory."""
    match deployment.engine:
        case "vllm":
            return vllm.memory_profile(deployment.engine_version).provenance
        case "sglang":
            return sglang.provenance(deployment.engine_version)
        case "tensorrt-llm":
            return trtllm.provenance(deployment.engine_version)
        case "llama.cpp":
            return llamacpp.provenance(deployment.engine_version)
        case "static" | "orca" | "sarathi":
            return baselines.provenance()
        case "tgi":
            return tgi.provenance(deployment.engine_version)
        case "ollama":
            return ollama.provenance(deployment.engine_version)


def provenance_of(deployment: Deployment, parts: MemoryParts) -> dict[str, Provenance]:
    """Origin of each part of the report."""
    derived = Provenance(kind="derived", source="shapes of the model's config, see docs/step-model.md")
    return {
        "mem": deployment.gpu.provenance.get("mem_bytes", derived),
        "budget": defaults_provenance(deployment),
        "weights": replace(derived, note=f"model shapes: {deployment.model.provenance.source}"),
        **parts.provenance,
        "kv": derived,
    }


def bytes_per_token(deployment: Deployment, context_tokens: int | None) -> float:
    """KV cache of a token [bytes], in a request of this context where that matters."""
    if deployment.engine == "sglang":
        return sglang_cell_bytes(deployment)
    if deployment.engine == "tgi":
        return tgi_bytes_per_token(deployment)
    context = min(context_tokens or REFERENCE_CONTEXT_TOKENS, deployment.max_request_tokens)
    return kv_layout(ollama.as_llama_server(deployment)).bytes_of_request(context) / context


def usable_blocks(deployment: Deployment, kv_bytes: int, per_token: float) -> int:
    """Blocks that requests can use: vLLM and TGI withhold one, llama.cpp allocates the cells it was told to."""
    match deployment.params:
        case LlamacppParams() as params:
            return params.slot_context_tokens * (params.parallel if params.is_split else 1)
        case OllamaParams():
            return usable_blocks(ollama.as_llama_server(deployment), kv_bytes, per_token)
        case VllmParams() | TgiParams():
            return max(0, int(kv_bytes // (per_token * deployment.kv_block_tokens)) - 1)
        case _:
            return max(0, int(kv_bytes // (per_token * deployment.kv_block_tokens)))


def memory(deployment: Deployment, context_tokens: int | None = None) -> MemoryReport:
    """Memory of the fullest GPU of a replica [bytes], and its KV capacity.

    With data parallel ranks the capacity is one rank's: each holds its own requests. With pipeline stages it is
    that of the stage with most layers.

    Parameters
    ----------
    deployment : Deployment
    context_tokens : int or None [tokens]
        Context of a typical request: matters for sliding-window models only, whose bytes per token fall
        with the context. Default: 4,096 or the longest request, whichever is smaller. SGLang, which keeps a
        pool for each kind of layer, ignores it.

    Returns
    -------
    MemoryReport
        ``fits`` is False, with the reason, when the weights or the rest leave no room, or when one request of
        the longest allowed length would not fit (vLLM refuses to start then).

    Raises
    ------
    InputError
        When the engine would refuse the parameters, or the parallelism makes no sense.

    Sources
    -------
    See :mod:`servewise.perf.memory_vllm` and :mod:`servewise.perf.memory_engines`.
    """
    validate(deployment)
    parts = parts_of(deployment)
    per_token = bytes_per_token(deployment, context_tokens)
    report = MemoryReport(
        mem_bytes=deployment.gpu.mem_bytes,
        budget_bytes=parts.budget_bytes,
        weights_bytes=parts.weights_bytes,
        activation_bytes=parts.activation_bytes,
        non_torch_bytes=parts.non_torch_bytes,
        graph_bytes=parts.graph_bytes,
        kv_bytes=parts.kv_bytes,
        kv_bytes_per_token=per_token,
        block_size_tokens=deployment.kv_block_tokens,
        num_kv_blocks=usable_blocks(deployment, parts.kv_bytes, per_token),
        fits=True,
        reason="",
        provenance=provenance_of(deployment, parts),
    )
    reason = refusal(deployment, report)
    return replace(report, fits=False, reason=reason, num_kv_blocks=0) if reason else report


def refusal(deployment: Deployment, report: MemoryReport) -> str:
    """Why the engine would not start or could not serve, or an empty text."""
    where = f"on {deployment.gpu.name} at TP{deployment.parallelism.tensor_parallel_size}"
    usable = min(report.budget_bytes, report.mem_bytes)
    if report.weights_bytes > usable:
        return f"weights {format_bytes(report.weights_bytes)} > {format_bytes(usable)} usable {where}"
    if report.budget_bytes > report.mem_bytes:
        return (
            f"weights, buffers and {deployment.max_request_tokens} tokens of context take "
            f"{format_bytes(report.budget_bytes)} > {format_bytes(report.mem_bytes)} {where}; "
            f"lower {LENGTH_NAMES[deployment.engine]}"
        )
    if report.num_kv_blocks < 1:
        taken = report.budget_bytes - report.kv_bytes
        rest = taken - report.weights_bytes
        return (
            f"weights {format_bytes(report.weights_bytes)} + activations, CUDA graphs and buffers "
            f"{format_bytes(rest)} leave no KV cache of {format_bytes(report.budget_bytes)} usable {where}"
        )
    if deployment.engine in ("llama.cpp", "ollama"):
        return ""
    longest = longest_of(deployment, report)
    if longest < deployment.max_request_tokens:
        name = LENGTH_NAMES.get(deployment.engine, "max_seq_len")
        return (
            f"one request of {name} {deployment.max_request_tokens} tokens > {longest} tokens of KV "
            f"cache {where}; lower {name}"
        )
    return ""


def longest_of(deployment: Deployment, report: MemoryReport) -> int:
    """Longest request [tokens] that the KV cache of a report holds."""
    if deployment.engine == "sglang":
        page = report.block_size_tokens
        return max(0, int(report.kv_bytes // (report.kv_bytes_per_token * page)) * page)
    if deployment.engine == "tgi":
        return report.kv_capacity_tokens
    return longest_request(deployment, report.kv_bytes)


def with_longest(params: EngineParams, tokens: int) -> EngineParams:
    """The same parameters with another bound on a request."""
    match params:
        case VllmParams():
            return replace(params, max_model_len=tokens)
        case SglangParams():
            return replace(params, context_length=tokens)
        case TrtllmParams() | BaselineParams():
            return replace(params, max_seq_len=tokens)
        case TgiParams():
            return replace(params, max_total_tokens=tokens)
        case LlamacppParams():
            return replace(params, ctx_size=tokens * (1 if params.kv_unified else params.parallel))
        case OllamaParams():
            return replace(params, context_length=tokens)


def largest_model_len(deployment: Deployment) -> int:
    """Longest request [tokens] the deployment could be started for; 0 when nothing fits.

    Parameters
    ----------
    deployment : Deployment
        Its own bound on a request is ignored.

    Raises
    ------
    InputError
        As :func:`memory`.
    """
    limit = deployment.model.max_context_tokens
    if isinstance(deployment.params, SglangParams):  # its workspace may grow with the context: the whole one counts
        longest = replace(deployment, params=with_longest(deployment.params, limit))
        return min(longest_of(longest, memory(longest)), limit)
    shortest = replace(deployment, params=with_longest(deployment.params, 1))
    report = memory(shortest)
    if not report.fits:
        return 0
    params = ollama.as_llama_server(deployment).params
    if isinstance(params, LlamacppParams):
        spare = report.mem_bytes - report.budget_bytes
        cells = spare // (report.kv_bytes_per_token * (params.parallel if params.is_split else 1))
        return int(min(limit, (1 + cells // CONTEXT_PADDING) * CONTEXT_PADDING))
    return min(longest_of(shortest, report), limit)
