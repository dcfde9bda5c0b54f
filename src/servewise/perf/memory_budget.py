"""What a replica's fullest GPU holds, and what is left for the KV cache."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from servewise.engines import vllm
from servewise.perf.layout import (
    Experts,
    bytes_per_weight,
    expert_layer,
    layer_matrices,
    local_heads,
    require_supported,
)
from servewise.types import Deployment, MemoryReport, ModelSpec, Parallelism, Provenance, WeightPrecision
from servewise.units import format_bytes

__all__ = ["KvLayout", "kv_layout", "largest_model_len", "memory", "weights_bytes"]

REFERENCE_CONTEXT_TOKENS = 4096
"""Context at which sliding-window models' bytes per token are stated when the caller names none."""
VOCAB_PADDING = 64
"""vLLM pads each shard of the vocabulary to a multiple of this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayout:
    """KV cache of one GPU: layer groups that draw from one pool of equal blocks.

    vLLM buckets layers by kind and cuts each bucket into groups of equal size, padding the last one, so that
    a block of any group has the same size. Sliding-window groups give blocks back once they leave the window.

    Parameters
    ----------
    bytes_per_token_and_group : float [bytes]
    num_full_groups, num_sliding_groups : int
    window_tokens : int [tokens]
        0 without sliding-window layers.
    """

    bytes_per_token_and_group: float
    num_full_groups: int
    num_sliding_groups: int
    window_tokens: int

    def bytes_of_request(self, context_tokens: float, in_flight_tokens: float = 0.0) -> float:
        """KV cache of a request [bytes] with this context, of which the last ``in_flight_tokens`` are being
        computed (those stay in sliding-window groups too)."""
        sliding = min(context_tokens, self.window_tokens + in_flight_tokens)
        tokens = self.num_full_groups * context_tokens + self.num_sliding_groups * sliding
        return self.bytes_per_token_and_group * tokens


def kv_layout(deployment: Deployment) -> KvLayout:
    """KV cache layout of one GPU.

    Parameters
    ----------
    deployment : Deployment

    Returns
    -------
    KvLayout

    Sources
    -------
    vLLM 0.33.0, ``v1/core/kv_cache_planning.py`` and ``kv_cache_interface.py`` (read 2026-11-29): GQA stores
    ``max(1, kv_heads / TP)`` heads on each GPU, MLA one full copy of the latent; groups have the size of the
    smallest bucket, or of the largest when that is less than 1.5 times the smallest.
    """
    model, width = deployment.model, {"bf16": 2, "fp8": 1}[deployment.precision.kv]
    if model.attention == "mla":
        per_layer = (model.kv_lora_rank + model.qk_rope_head_dim) * width
    else:
        _, kv_heads = local_heads(model, deployment.parallelism.tensor_parallel_size)
        per_layer = kv_heads * (model.head_dim + model.v_head_dim) * width
    num_sliding = model.num_sliding_layers
    num_full = model.num_layers - num_sliding
    buckets = [n for n in (num_full, num_sliding) if n]
    size = max(buckets) if max(buckets) < 1.5 * min(buckets) else min(buckets)
    return KvLayout(
        bytes_per_token_and_group=float(per_layer * size),
        num_full_groups=math.ceil(num_full / size),
        num_sliding_groups=math.ceil(num_sliding / size),
        window_tokens=model.sliding_window_tokens,
    )


def expert_weights(experts: Experts) -> float:
    """Routed experts of all layers on one GPU [weights]."""
    local = -(-experts.intermediate_size // experts.tensor_parallel_size)
    count = experts.num_layers * experts.num_experts * experts.num_matrices
    return float(count * experts.hidden_size * local)


def small_parameters(model: ModelSpec) -> float:
    """Norms and biases of one GPU [parameters]; biases are counted whole, a negligible excess."""
    per_layer = float(model.norms_per_layer * model.hidden_size)
    if model.attention_bias:
        per_layer += (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    if model.moe and model.moe.has_expert_bias:
        per_layer += model.moe.num_experts * (2 * model.moe.intermediate_size + model.hidden_size)
    return model.num_layers * per_layer + model.hidden_size


def weights_bytes(model: ModelSpec, weights: WeightPrecision, tensor_parallel_size: int) -> int:
    """Weights of one GPU [bytes].

    Linear layers are stored in the given precision with their scales; embedding, head, norms, biases and
    router stay in bf16, as do the modules a natively quantized checkpoint leaves out. MLA keeps a second,
    bf16 copy of its up-projections for decoding.

    Parameters
    ----------
    model : ModelSpec
    weights : WeightPrecision
    tensor_parallel_size : int

    Returns
    -------
    int [bytes]
    """
    tp = tensor_parallel_size
    rows = math.ceil(model.vocab_size / (tp * VOCAB_PADDING)) * VOCAB_PADDING
    total = 2.0 * rows * model.hidden_size * (1 if model.tie_word_embeddings else 2)
    for m in layer_matrices(model, weights, tp):
        total += m.num_layers * m.num_outputs * m.num_inputs * bytes_per_weight(m.precision)
    experts = expert_layer(model, weights, Parallelism(tensor_parallel_size=tp))
    if experts is not None:
        total += expert_weights(experts) * bytes_per_weight(experts.precision)
    if model.attention == "mla":
        heads, _ = local_heads(model, tp)
        nope = model.head_dim - model.qk_rope_head_dim
        total += 2.0 * model.num_layers * heads * (nope + model.v_head_dim) * model.kv_lora_rank
    return int(total + 2.0 * small_parameters(model) + 2.0 * model.vision_num_params / tp)


def activation_bytes(deployment: Deployment) -> int:
    """Peak activation of vLLM's profiling run on one GPU [bytes].

    A forward pass over ``max_num_batched_tokens`` tokens holds three hidden states a token and the widest
    layer's inner activations; afterwards the logits of ``max_num_seqs`` rows over the whole vocabulary are
    sampled from. The larger of the two counts; experts' workspaces stay allocated beside it.

    Sources
    -------
    Form fitted to the start-up logs named in ``data/engines/vllm.toml`` (Llama-3.1-8B at 20,000 and 29,000
    tokens on an RTX 3090; Llama-3.1-8B, Qwen2.5-7B, Qwen3-14B, Granite-3.1-8B at 8,192 on H100).
    """
    model, params = deployment.model, deployment.vllm_params
    tp = deployment.parallelism.tensor_parallel_size
    tokens = params.max_num_batched_tokens
    heads, kv_heads = local_heads(model, tp)
    inner = 2 * (2 * heads * model.head_dim + 2 * kv_heads * model.head_dim)
    widths = [model.intermediate_size] if model.intermediate_size else []
    workspace = 0.0
    if model.moe is not None:
        widths.append(model.moe.shared_intermediate_size)
        local = model.moe.intermediate_size / tp
        workspace = 2.0 * tokens * model.moe.top_k * (max(2 * local, model.hidden_size) + local)
    for width in widths:
        inner = max(inner, (6 if model.gated_mlp else 4) * width // tp)
    known = vllm.defaults(deployment.engine_version)
    logits = known.logits_bytes_per_entry * params.max_num_seqs * model.vocab_size
    return int(6.0 * tokens * model.hidden_size + max(tokens * inner, logits) + workspace)


def provenance_of(deployment: Deployment) -> dict[str, Provenance]:
    """Origin of each part of the report."""
    version = vllm.defaults(deployment.engine_version)
    constants = vllm.memory_constants().provenance
    derived = Provenance(kind="derived", source="shapes of the model's config, see docs/step-model.md")
    return {
        "mem": deployment.gpu.provenance.get("mem_bytes", derived),
        "budget": version.provenance,
        "weights": replace(derived, note=f"model shapes: {deployment.model.provenance.source}"),
        "activation": replace(constants, kind="derived", note="form fitted to start-up logs"),
        "non_torch": constants,
        "graph": constants,
        "kv": derived,
    }


def memory(deployment: Deployment, context_tokens: int | None = None) -> MemoryReport:
    """Memory of the fullest GPU of a replica [bytes], and its KV capacity.

    Parameters
    ----------
    deployment : Deployment
    context_tokens : int or None [tokens]
        Context of a typical request: matters for sliding-window models only, whose bytes per token fall
        with the context. Default: 4,096 or ``max_model_len``, whichever is smaller.

    Returns
    -------
    MemoryReport
        ``fits`` is False, with the reason, when the weights or the rest leave no room, or when one request of
        ``max_model_len`` tokens would not fit (vLLM refuses to start then).

    Raises
    ------
    InputError
        When vLLM would refuse the parameters, or pipeline, data or expert parallelism is asked for.

    Sources
    -------
    vLLM 0.33.0, ``v1/worker/gpu_worker.py`` (read 2026-11-29): budget = ceil(memory x utilization), less
    weights, activation peak, memory outside PyTorch and, since 0.21, CUDA graphs; one block is withheld.
    """
    require_supported(deployment)
    vllm.validate(deployment.vllm_params, deployment.model)
    params, gpu, tp = deployment.vllm_params, deployment.gpu, deployment.parallelism.tensor_parallel_size
    constants = vllm.memory_constants()
    budget = math.ceil(gpu.mem_bytes * params.gpu_memory_utilization)
    weights = weights_bytes(deployment.model, deployment.precision.weights, tp)
    activation = activation_bytes(deployment)
    non_torch = int(constants.non_torch_tp1_bytes if tp == 1 else constants.non_torch_tp_bytes)
    graph = 0
    if vllm.defaults(deployment.engine_version).counts_graph_memory:
        sizes = len(vllm.capture_sizes(params, gpu))
        graph = int(constants.graph_fixed_bytes + constants.graph_bytes_per_size * sizes)
    kv_bytes = budget - weights - activation - non_torch - graph
    layout = kv_layout(deployment)
    context = min(context_tokens or REFERENCE_CONTEXT_TOKENS, params.max_model_len)
    per_token = layout.bytes_of_request(context) / context
    report = MemoryReport(
        mem_bytes=gpu.mem_bytes,
        budget_bytes=budget,
        weights_bytes=weights,
        activation_bytes=activation,
        non_torch_bytes=non_torch,
        graph_bytes=graph,
        kv_bytes=kv_bytes,
        kv_bytes_per_token=per_token,
        block_size_tokens=params.block_size_tokens,
        num_kv_blocks=max(0, int(kv_bytes // (per_token * params.block_size_tokens)) - 1),
        fits=True,
        reason="",
        provenance=provenance_of(deployment),
    )
    reason = refusal(deployment, report)
    return replace(report, fits=False, reason=reason, num_kv_blocks=0) if reason else report


def refusal(deployment: Deployment, report: MemoryReport) -> str:
    """Why vLLM would not start, or an empty text."""
    where = f"on {deployment.gpu.name} at TP{deployment.parallelism.tensor_parallel_size}"
    if report.weights_bytes > report.budget_bytes:
        weights, usable = format_bytes(report.weights_bytes), format_bytes(report.budget_bytes)
        return f"weights {weights} > {usable} usable {where}"
    if report.num_kv_blocks < 1:
        taken = report.budget_bytes - report.kv_bytes
        rest = taken - report.weights_bytes
        return (
            f"weights {format_bytes(report.weights_bytes)} + activations, CUDA graphs and buffers "
            f"{format_bytes(rest)} leave no KV cache of {format_bytes(report.budget_bytes)} usable {where}"
        )
    longest = longest_request(deployment, report.kv_bytes)
    if longest < deployment.max_request_tokens:
        return (
            f"one request of max_model_len {deployment.max_request_tokens} tokens > {longest} tokens of KV "
            f"cache {where}; lower max_model_len"
        )
    return ""


def longest_request(deployment: Deployment, kv_bytes: int) -> int:
    """Longest context [tokens] a KV cache of ``kv_bytes`` holds, in whole blocks of every layer group."""
    layout, block = kv_layout(deployment), deployment.kv_block_tokens
    blocks = int(kv_bytes // (layout.bytes_per_token_and_group * block)) - 1
    if layout.num_sliding_groups == 0 or layout.num_full_groups == 0:
        groups = layout.num_full_groups or layout.num_sliding_groups
        longest = blocks // groups * block
        if layout.num_full_groups or longest < layout.window_tokens:
            return max(0, longest)
        return deployment.model.max_context_tokens
    window_blocks = math.ceil((layout.window_tokens + deployment.max_step_tokens) / block) + 1
    in_window = blocks // (layout.num_full_groups + layout.num_sliding_groups)
    if in_window <= window_blocks:
        return max(0, in_window * block)
    return (blocks - layout.num_sliding_groups * window_blocks) // layout.num_full_groups * block


def largest_model_len(deployment: Deployment) -> int:
    """Largest ``max_model_len`` [tokens] that vLLM would start with; 0 when nothing fits.

    Parameters
    ----------
    deployment : Deployment
        Its own ``max_model_len`` is ignored.

    Raises
    ------
    InputError
        As :func:`memory`.
    """
    shortest = replace(deployment, params=replace(deployment.vllm_params, max_model_len=1))
    report = memory(shortest)
    if not report.fits:
        return 0
    return min(longest_request(deployment, report.kv_bytes), deployment.model.max_context_tokens)
