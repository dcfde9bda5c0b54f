"""Parameter counts, computed from the shapes in a model's config."""

from __future__ import annotations

from dataclasses import dataclass

from servewise.types import ModelSpec, MoeSpec

__all__ = ["ParamCounts", "param_counts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamCounts:
    """Parameters by part, over all layers.

    Parameters
    ----------
    embedding : int
        Input embedding.
    lm_head : int
        Output head; 0 when it is the embedding (tied).
    attention : int
        Projections with their biases, query/key norms, MLA's inner norms, attention sinks.
    dense_mlp : int
        MLPs of the layers without experts.
    routed_experts, shared_experts : int
        All of them, whether or not a token visits them.
    router : int
        With its bias or score correction and the gate of shared experts.
    norms : int
        Layer norms and the final norm.
    other : int
        Vision tower and projector.
    total : int
        Sum of the above: what an engine loads. Multi-token-prediction heads are not in it.
    active : int
        Weights that take part in computing one token: ``total`` without the experts it does not visit, the
        vision tower and the input embedding, a lookup (a tied embedding counts, as the head).
    """

    embedding: int
    lm_head: int
    attention: int
    dense_mlp: int
    routed_experts: int
    shared_experts: int
    router: int
    norms: int
    other: int
    total: int
    active: int


def attention_params(spec: ModelSpec) -> int:
    """Parameters of one layer's attention."""
    if spec.attention == "mla":
        return mla_params(spec)
    width_q = spec.num_heads * spec.head_dim
    width_k, width_v = spec.num_kv_heads * spec.head_dim, spec.num_kv_heads * spec.v_head_dim
    width_out = spec.num_heads * spec.v_head_dim
    count = spec.hidden_size * (width_q + width_k + width_v + width_out)
    if spec.attention_bias:
        count += width_q + width_k + width_v
    if spec.attention_out_bias:
        count += spec.hidden_size
    if spec.qk_norm:
        count += 2 * spec.head_dim
    if spec.attention_sinks:
        count += spec.num_heads
    return count


def mla_params(spec: ModelSpec) -> int:
    """Parameters of one layer's multi-head latent attention."""
    width_q = spec.num_heads * spec.head_dim
    if spec.q_lora_rank:
        query = spec.hidden_size * spec.q_lora_rank + spec.q_lora_rank + spec.q_lora_rank * width_q
    else:
        query = spec.hidden_size * width_q
    nope_dim = spec.head_dim - spec.qk_rope_head_dim
    down = spec.hidden_size * (spec.kv_lora_rank + spec.qk_rope_head_dim) + spec.kv_lora_rank
    up = spec.kv_lora_rank * spec.num_heads * (nope_dim + spec.v_head_dim)
    out = spec.num_heads * spec.v_head_dim * spec.hidden_size
    biases = 0
    if spec.attention_bias:
        biases = spec.kv_lora_rank + spec.qk_rope_head_dim + spec.q_lora_rank
    if spec.attention_out_bias:
        biases += spec.hidden_size
    return query + down + up + out + biases


def mlp_params(hidden_size: int, width: int, *, gated: bool, bias: bool) -> int:
    """Parameters of one MLP or expert."""
    num_in = 2 if gated else 1
    count = (num_in + 1) * hidden_size * width
    if bias:
        count += num_in * width + hidden_size
    return count


def router_params(spec: ModelSpec, moe: MoeSpec) -> int:
    """Parameters of one layer's router."""
    count = spec.hidden_size * moe.num_experts
    if moe.router_bias:
        count += moe.num_experts
    if moe.has_shared_gate:
        count += spec.hidden_size
    return count


def param_counts(spec: ModelSpec) -> ParamCounts:
    """Count the parameters of a model, from its shapes alone.

    Parameters
    ----------
    spec : ModelSpec

    Returns
    -------
    ParamCounts
        In parameters, not bytes.

    Sources
    -------
    The layer definitions in huggingface/transformers, ``models/*/modeling_*.py``; totals are compared with
    published ones for every built-in model (``data/catalog/model_totals.csv``).
    """
    moe = spec.moe
    num_moe_layers = moe.num_moe_layers if moe else 0
    embedding = spec.vocab_size * spec.hidden_size
    lm_head = 0 if spec.tie_word_embeddings else embedding
    attention = spec.num_layers * attention_params(spec)
    dense_mlp = (spec.num_layers - num_moe_layers) * mlp_params(
        spec.hidden_size, spec.intermediate_size, gated=spec.gated_mlp, bias=spec.mlp_bias
    )
    routed = shared = router = idle = 0
    if moe:
        expert = mlp_params(spec.hidden_size, moe.intermediate_size, gated=spec.gated_mlp, bias=moe.has_expert_bias)
        routed = num_moe_layers * moe.num_experts * expert
        idle = num_moe_layers * (moe.num_experts - moe.top_k) * expert
        router = num_moe_layers * router_params(spec, moe)
        if moe.shared_intermediate_size:
            shared = num_moe_layers * mlp_params(
                spec.hidden_size, moe.shared_intermediate_size, gated=spec.gated_mlp, bias=spec.mlp_bias
            )
    norms = (spec.num_layers * spec.norms_per_layer + 1) * spec.hidden_size
    body = attention + dense_mlp + routed + shared + router + norms
    total = embedding + lm_head + body + spec.vision_num_params
    return ParamCounts(
        embedding=embedding,
        lm_head=lm_head,
        attention=attention,
        dense_mlp=dense_mlp,
        routed_experts=routed,
        shared_experts=shared,
        router=router,
        norms=norms,
        other=spec.vision_num_params,
        total=total,
        active=body - idle + (lm_head or embedding),
    )
