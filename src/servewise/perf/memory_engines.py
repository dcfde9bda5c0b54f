"""How SGLang, TensorRT-LLM and llama.cpp cut up a GPU's memory."""

from __future__ import annotations

import math

from servewise.engines import llamacpp, sglang, trtllm
from servewise.errors import InputError
from servewise.perf.layout import expert_layer
from servewise.perf.memory_kv import kv_bytes_per_token_and_layer, kv_layout
from servewise.perf.memory_parts import MemoryParts
from servewise.perf.memory_vllm import forward_bytes, ranks_of_layer
from servewise.perf.memory_weights import expert_weights, stage_layers, weights_bytes
from servewise.types import (
    CONTEXT_PADDING,
    Deployment,
    LlamacppParams,
    Provenance,
    SglangParams,
    TrtllmParams,
    WeightPrecision,
)
from servewise.units import GIB

__all__ = ["llamacpp_parts", "sglang_parts", "trtllm_parts"]

SWA_FULL_TOKENS_RATIO = 0.8
"""Tokens of SGLang's sliding-window pool for each token of the full one."""
GGUF_BITS: dict[WeightPrecision, float] = {"bf16": 16.0, "q8_0": 8.5, "q4_0": 4.635, "q4_k_m": 4.8944}
"""Bits of a weight, embedding and head included, as F16, Q8_0, Q4_0 and Q4_K_M store Llama-3.1-8B (ggml-org/llama.cpp,
``tools/quantize/README.md``; Q4_0 by its blocks, with the head in Q6_K)."""
MXFP4_BITS, MXFP4_REST_BITS = 4.25, 8.5
"""Bits of a weight in gpt-oss files: experts in MXFP4, the rest in Q8_0 (ggml-org's files)."""


def sglang_parts(deployment: Deployment, params: SglangParams) -> MemoryParts:
    """Share out a GPU's memory as SGLang does: KV = free after loading - (1 - fraction) x free before loading.

    Activations and CUDA graphs live in the share that is kept back and are not charged.

    Sources
    -------
    SGLang 0.5.23, ``model_executor/pool_configurator.py`` (read 2026-11-29). On AMD GPUs, ordinary attention takes
    its workspace from the KV cache: https://github.com/sgl-project/sglang/pull/18263.
    """
    libraries, source = sglang.library_gib(deployment.gpu, ranks_of_layer(deployment))
    non_torch = int(libraries * GIB)
    free = deployment.gpu.mem_bytes - non_torch
    spread = deployment.parallelism
    weights = weights_bytes(
        deployment.model, deployment.precision.weights, spread, dense_ranks=spread.data_parallel_size
    )
    budget = non_torch + math.floor(free * params.mem_fraction_static)
    left = budget - non_torch - weights
    workspace = 0
    if deployment.gpu.vendor == "amd" and deployment.model.attention == "gqa" and left > 0:
        workspace = attention_workspace_bytes(deployment, params, left)
    none = Provenance(kind="derived", source="held in the share of memory that SGLang keeps back")
    return MemoryParts(
        budget_bytes=budget,
        weights_bytes=weights,
        activation_bytes=workspace,
        non_torch_bytes=non_torch,
        graph_bytes=0,
        provenance={"activation": none, "non_torch": source, "graph": none},
    )


def attention_workspace_bytes(deployment: Deployment, params: SglangParams, left_bytes: int) -> int:
    """Workspace of AITER's paged attention [bytes]: partial results of each request, head and 256 tokens of context.

    Left to itself, SGLang serves 512 requests for each whole context of KV cache, 2,048 to 4,096; the KV cache
    and the workspace then depend on each other.
    """
    model = deployment.model
    heads = -(-model.num_heads // deployment.parallelism.tensor_parallel_size)
    per_request = heads * math.ceil(params.context_length / 256) * (4 * model.head_dim + 8)
    usual = sglang.default_params(deployment.engine_version, deployment.gpu, model, deployment.parallelism)
    if params.max_running_requests != usual.max_running_requests:
        return params.max_running_requests * per_request
    per_token = kv_layout(deployment).bytes_of_request(1)
    tokens = left_bytes / (per_token + per_request * 512 / params.context_length)
    requests = min(max(tokens * 512 / params.context_length, 2048.0), 4096.0)
    return int(requests * per_request)


def sglang_cell_bytes(deployment: Deployment) -> float:
    """KV cache of a token of the full-attention pool, with its part of the sliding-window pool [bytes]."""
    model = deployment.model
    share = stage_layers(model, deployment.parallelism) / model.num_layers
    sliding = model.num_sliding_layers * (SWA_FULL_TOKENS_RATIO if model.num_sliding_layers < model.num_layers else 1)
    layers = (model.num_layers - model.num_sliding_layers + sliding) * share
    return layers * kv_bytes_per_token_and_layer(deployment)


def trtllm_parts(deployment: Deployment, params: TrtllmParams) -> MemoryParts:
    """Share out a GPU's memory as TensorRT-LLM does: KV = fraction x what is free after a profiling run.

    Sources
    -------
    ``tensorrt_llm/_torch/pyexecutor/_util.py`` (read 2026-11-29).
    """
    libraries, source = trtllm.library_gib(deployment.gpu, ranks_of_layer(deployment))
    hidden, inner, workspace = forward_bytes(deployment.model, deployment, params.max_num_tokens)
    weights = weights_bytes(deployment.model, deployment.precision.weights, deployment.parallelism)
    activation, non_torch = int(hidden + inner + workspace), int(libraries * GIB)
    free = deployment.gpu.mem_bytes - weights - activation - non_torch
    kept_back = math.ceil(max(0, free) * (1.0 - params.free_gpu_memory_fraction))
    derived = Provenance(kind="derived", source="a forward pass of max_num_tokens, as fitted for vLLM")
    return MemoryParts(
        budget_bytes=deployment.gpu.mem_bytes - kept_back,
        weights_bytes=weights,
        activation_bytes=activation,
        non_torch_bytes=non_torch,
        graph_bytes=0,
        provenance={"activation": derived, "non_torch": source, "graph": source},
    )


def gguf_bytes(deployment: Deployment) -> int:
    """Weights of a GGUF file on the fullest GPU, a vision tower in F16 [bytes]."""
    model, precision = deployment.model, deployment.precision.weights
    halves = weights_bytes(model, "bf16", deployment.parallelism) - 2 * model.vision_num_params
    if precision != "mxfp4":
        return int(halves * GGUF_BITS[precision] / 16) + 2 * model.vision_num_params
    experts = expert_layer(model, precision, deployment.parallelism)
    share = stage_layers(model, deployment.parallelism) / model.num_layers
    num_expert_weights = expert_weights(experts) * share if experts is not None else 0.0
    rest = halves / 2 - num_expert_weights
    return int(num_expert_weights * MXFP4_BITS / 8 + rest * MXFP4_REST_BITS / 8) + 2 * model.vision_num_params


def llamacpp_cell_layers(deployment: Deployment, params: LlamacppParams) -> float:
    """Cells of the KV cache times layers that hold them, on the fullest GPU.

    Sources
    -------
    llama.cpp as vendored in llama-cpp-python 0.3.36, ``src/llama-kv-cache-iswa.cpp``: layers with a window have cells
    for it, of each slot, and for a pass.
    """
    model = deployment.model
    streams = params.parallel if params.is_split else 1
    cells = params.slot_context_tokens
    windows = model.sliding_window_tokens * (1 if params.is_split else params.parallel) + params.ubatch_size
    windowed = min(cells, -(-windows // CONTEXT_PADDING) * CONTEXT_PADDING)
    layers = stage_layers(model, deployment.parallelism)
    num_sliding = round(model.num_sliding_layers * layers / model.num_layers)
    return float(streams * (cells * (layers - num_sliding) + windowed * num_sliding))


def llamacpp_parts(deployment: Deployment, params: LlamacppParams) -> MemoryParts:
    """What llama-server takes of a GPU: all cells of the KV cache are allocated at start.

    The compute buffer holds the logits and one hidden state of ``ubatch_size`` tokens in f32. Layers that stay on the
    host have their cells there; whether the host has room is not checked.

    Raises
    ------
    InputError
        For splitting by tensors.

    Sources
    -------
    llama.cpp as vendored in llama-cpp-python 0.3.36, ``src/llama-kv-cache.cpp`` (read 2026-11-29).
    """
    model = deployment.model
    if ranks_of_layer(deployment) > 1:
        raise InputError("llama.cpp is planned with layers split over GPUs; use pipeline_parallel_size")
    weights = gguf_bytes(deployment)
    on_host, output_too = llamacpp.host_layers(params.n_gpu_layers, model)
    on_gpu = 1.0 - on_host / model.num_layers
    tables = weights * 2 * model.vocab_size * model.hidden_size * (2 - model.tie_word_embeddings)
    tables //= max(weights_bytes(model, "bf16", deployment.parallelism), 1)
    weights = int(on_gpu * (weights - tables)) + (0 if output_too else tables)
    libraries, source = llamacpp.library_gib(deployment.gpu, 1)
    compute = 4 * params.ubatch_size * (model.vocab_size + model.hidden_size)
    kv_bytes = int(on_gpu * llamacpp_cell_layers(deployment, params) * kv_bytes_per_token_and_layer(deployment))
    derived = Provenance(kind="derived", source="shapes of the compute graph with flash attention")
    non_torch = int(libraries * GIB)
    return MemoryParts(
        budget_bytes=weights + compute + non_torch + kv_bytes,
        weights_bytes=weights,
        activation_bytes=compute,
        non_torch_bytes=non_torch,
        graph_bytes=0,
        provenance={"activation": derived, "non_torch": source, "graph": source},
    )
