"""How vLLM cuts up a GPU's memory."""

from __future__ import annotations

import math
from dataclasses import replace

from servewise.engines import vllm
from servewise.perf.drafter import drafter_weights_bytes
from servewise.perf.layout import local_heads
from servewise.perf.memory_parts import MemoryParts
from servewise.perf.memory_weights import weights_bytes
from servewise.types import Deployment, ModelSpec, Provenance

__all__ = ["forward_bytes", "vllm_parts"]

VISION_PROFILE_BYTES = {"MllamaForConditionalGeneration": 18 * 4 * 1608 * 1280 * 2}
"""Peak of a vision tower for one image in the profiling run [bytes], where it outgrows the language model.

Llama 3.2 Vision encodes 4 tiles of 1,608 padded patches of width 1,280 in bf16 and holds 18 copies when it joins
its outputs: 6 in the encoder's result, 5 as stacked and cut, the last state, and 6 in the joint tensor (vLLM,
``model_executor/models/mllama.py``)."""


def forward_bytes(model: ModelSpec, deployment: Deployment, tokens: int) -> tuple[float, float, float]:
    """Memory of a forward pass of ``tokens`` tokens on one GPU: what stays through it, the widest layer's inner
    activations, the experts' workspace [bytes]."""
    tp = deployment.parallelism.tensor_parallel_size
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
    return 6.0 * tokens * model.hidden_size, float(tokens * inner), workspace


def activation_bytes(deployment: Deployment) -> int:
    """Peak activation of vLLM's profiling run on one GPU [bytes].

    A forward pass over ``max_num_batched_tokens`` tokens holds three hidden states a token and the widest
    layer's inner activations; afterwards the logits of ``max_num_seqs`` rows over the whole vocabulary are
    sampled from. The larger of the two counts; experts' workspaces stay allocated beside it. The first engine
    profiled vision towers with one image for each sequence.

    Sources
    -------
    Form fitted to the start-up logs named in ``data/engines/vllm.toml`` (Llama-3.1-8B at 20,000 and 29,000
    tokens on an RTX 3090; Llama-3.1-8B, Qwen2.5-7B, Qwen3-14B, Granite-3.1-8B at 8,192 on H100).
    """
    model, params = deployment.model, deployment.vllm_params
    profile = vllm.memory_profile(deployment.engine_version)
    hidden, inner, workspace = forward_bytes(model, deployment, params.max_num_batched_tokens)
    logits = 0.0
    if profile.samples_chunks or not params.enable_chunked_prefill:
        logits = profile.logits_bytes_per_entry * params.max_num_seqs * model.vocab_size
    vision = 0.0
    if not profile.samples_chunks:  # the second engine profiles a few images, whatever max_num_seqs is
        vision = VISION_PROFILE_BYTES.get(model.architecture, 0) * float(params.max_num_seqs)
    return int(max(hidden + max(inner, logits) + workspace, vision))


def vllm_parts(deployment: Deployment) -> MemoryParts:
    """Share out a GPU's memory as vLLM does.

    Sources
    -------
    vLLM 0.33.0, ``v1/worker/gpu_worker.py`` (read 2026-11-29): budget = ceil(memory x utilization), less
    weights, activation peak, memory outside PyTorch and, since 0.21, CUDA graphs.
    """
    params, gpu = deployment.vllm_params, deployment.gpu
    profile = vllm.memory_profile(deployment.engine_version)
    graph = 0
    if profile.counts_graph_memory and params.cudagraph_mode != "NONE":
        sizes = len(vllm.capture_sizes(params, gpu, deployment.queries_per_row))
        graph = int(profile.graph_fixed_bytes + profile.graph_bytes_per_size * sizes)
    fitted: Provenance = replace(profile.provenance, kind="derived", note="form fitted to start-up logs")
    return MemoryParts(
        budget_bytes=math.ceil(gpu.mem_bytes * params.gpu_memory_utilization),
        weights_bytes=weights_bytes(deployment.model, deployment.precision.weights, deployment.parallelism)
        + drafter_weights_bytes(deployment),
        activation_bytes=activation_bytes(deployment),
        non_torch_bytes=int(profile.non_torch_bytes(gpu, ranks_of_layer(deployment))),
        graph_bytes=graph,
        provenance={"activation": fitted, "non_torch": profile.provenance, "graph": profile.provenance},
    )


def ranks_of_layer(deployment: Deployment) -> int:
    """GPUs that exchange data within a layer."""
    return deployment.parallelism.tensor_parallel_size * deployment.parallelism.data_parallel_size
