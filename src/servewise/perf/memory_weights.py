"""Bytes of a model's weights on one GPU."""

from __future__ import annotations

import math

from servewise.perf.layout import Experts, bytes_per_weight, expert_layer, layer_matrices, local_heads
from servewise.types import ModelSpec, Parallelism, WeightPrecision

__all__ = ["layers_bytes", "stage_layers", "weights_bytes"]

VOCAB_PADDING = 64
"""Engines pad each shard of the vocabulary to a multiple of this."""


def stage_layers(model: ModelSpec, parallelism: Parallelism) -> int:
    """Layers of the pipeline stage that has most of them."""
    return math.ceil(model.num_layers / parallelism.pipeline_parallel_size)


def expert_weights(experts: Experts) -> float:
    """Routed experts of all layers on one GPU [weights]."""
    local = -(-experts.intermediate_size // experts.tensor_parallel_size)
    num_experts = -(-experts.num_experts // experts.expert_parallel_size)
    return float(experts.num_layers * num_experts * experts.num_matrices * experts.hidden_size * local)


def small_parameters(model: ModelSpec) -> float:
    """Norms and biases of the layers of one GPU [parameters]; biases are counted whole, a negligible excess."""
    per_layer = float(model.norms_per_layer * model.hidden_size)
    if model.attention_bias:
        per_layer += (model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    if model.moe and model.moe.has_expert_bias:
        per_layer += model.moe.num_experts * (2 * model.moe.intermediate_size + model.hidden_size)
    return model.num_layers * per_layer


def layers_bytes(model: ModelSpec, weights: WeightPrecision, parallelism: Parallelism, dense_ranks: int) -> float:
    """All layers on one GPU, were there one pipeline stage [bytes]."""
    tp = parallelism.tensor_parallel_size
    total = 2.0 * small_parameters(model)
    for m in layer_matrices(model, weights, tp):
        share = 1.0 / dense_ranks if m.module in ("dense_mlp", "shared_experts") else 1.0
        total += share * m.num_layers * m.num_outputs * m.num_inputs * bytes_per_weight(m.precision)
    experts = expert_layer(model, weights, parallelism)
    if experts is not None:
        total += expert_weights(experts) * bytes_per_weight(experts.precision)
    if model.attention == "mla":
        heads, _ = local_heads(model, tp)
        nope = model.head_dim - model.qk_rope_head_dim
        total += 2.0 * model.num_layers * heads * (nope + model.v_head_dim) * model.kv_lora_rank
    return total


def weights_bytes(model: ModelSpec, weights: WeightPrecision, parallelism: Parallelism, *, dense_ranks: int = 1) -> int:
    """Weights of the fullest GPU of a replica [bytes].

    Linear layers are stored in the given precision with their scales; embedding, head, norms, biases and
    router stay in bf16, as do the modules a natively quantized checkpoint leaves out. MLA keeps a second,
    bf16 copy of its up-projections for decoding. Multi-token-prediction heads are not loaded.

    Data parallel ranks hold attention and dense layers in whole (divided by tensor parallelism only) and share
    the experts. Of the pipeline stages, the one with most layers counts, together with embedding or head.

    Parameters
    ----------
    model : ModelSpec
    weights : WeightPrecision
    parallelism : Parallelism
    dense_ranks : int
        Data parallel ranks that share dense MLPs, shared experts and the head among them, as SGLang's do; 1 when
        each rank holds its own, as vLLM's do.

    Returns
    -------
    int [bytes]
    """
    tp, stages = parallelism.tensor_parallel_size, parallelism.pipeline_parallel_size
    rows = math.ceil(model.vocab_size / (tp * VOCAB_PADDING)) * VOCAB_PADDING
    table = 2.0 * rows * model.hidden_size
    num_tables = 1.0 if model.tie_word_embeddings or stages > 1 else 1.0 + 1.0 / dense_ranks
    layers = (
        layers_bytes(model, weights, parallelism, dense_ranks) * stage_layers(model, parallelism) / model.num_layers
    )
    return int(layers + num_tables * table + 2.0 * model.hidden_size + 2.0 * model.vision_num_params / tp)
