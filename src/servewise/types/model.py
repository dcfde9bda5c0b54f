"""What servewise knows about a language model: shapes only, never weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from servewise.types.provenance import Provenance

__all__ = ["AttentionKind", "ModelSpec", "MoeSpec", "WeightPrecision"]

AttentionKind = Literal["gqa", "mla"]
"""``gqa`` covers multi-head (kv heads = heads), grouped-query and multi-query attention; ``mla`` is DeepSeek's."""

WeightPrecision = Literal["bf16", "fp8", "fp8_block", "int8", "int4", "nvfp4", "mxfp4", "q8_0", "q4_0", "q4_k_m"]
"""How linear layers are stored: ``fp8`` per tensor or channel, ``fp8_block`` 128x128 blocks, ``int8`` W8A8,
``int4`` weight-only AWQ/GPTQ with groups of 128, ``nvfp4``/``mxfp4`` 4-bit floats with block scales; ``q8_0``,
``q4_0`` and ``q4_k_m`` are GGUF files of llama.cpp, where ``bf16`` also stands for F16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSpec:
    """Mixture-of-experts layers.

    Parameters
    ----------
    num_experts, top_k : int
        Routed experts of a layer and how many a token visits.
    intermediate_size : int
        Width of one routed expert.
    num_moe_layers : int
        Layers that have experts; the others have a dense MLP.
    shared_intermediate_size : int
        Summed width of the experts every token visits; 0 without.
    has_expert_bias : bool
        Whether expert projections carry bias vectors (gpt-oss).
    router_bias : bool
        Whether the router has a bias or score-correction vector, one value an expert.
    """

    num_experts: int
    top_k: int
    intermediate_size: int
    num_moe_layers: int
    shared_intermediate_size: int = 0
    has_shared_gate: bool = False
    has_expert_bias: bool = False
    router_bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Architecture of a decoder-only model, enough to count parameters, bytes, FLOPs and KV cache.

    Parameters
    ----------
    name : str
        Catalog name (the hub id) or the path the config was read from.
    architecture : str
        ``architectures[0]`` of the config.
    num_layers, hidden_size, vocab_size : int
    intermediate_size : int
        Width of the dense MLP; 0 when every layer has experts.
    gated_mlp : bool
        True for SwiGLU-like MLPs (three matrices), False for two.
    attention : AttentionKind
    num_heads, num_kv_heads : int
    head_dim, v_head_dim : int
        Size of a query/key head and of a value head. For MLA ``head_dim`` = qk_nope + qk_rope.
    q_lora_rank, kv_lora_rank, qk_rope_head_dim : int
        MLA ranks; 0 for GQA (``q_lora_rank`` 0 in MLA: no query compression).
    attention_bias, attention_out_bias, mlp_bias, qk_norm, attention_sinks : bool
        Small parameter vectors of some families.
    norms_per_layer : int
        RMS norms of width ``hidden_size`` per layer (2; 4 for Gemma 2/3).
    tie_word_embeddings : bool
    sliding_window_tokens : int
        0 without sliding-window layers.
    num_sliding_layers : int
        Layers that attend only within the window; the rest attend to everything.
    moe : MoeSpec or None
    max_context_tokens : int
    native_precision : WeightPrecision
        Precision the published checkpoint is stored in.
    unquantized_modules : tuple of str
        Modules a quantized native checkpoint keeps in bf16 (subset of ``attention``, ``dense_mlp``,
        ``shared_experts``, ``router``); embeddings, norms and lm_head always stay in bf16.
    mtp_num_params : int
        Parameters of multi-token-prediction heads in the checkpoint that serving leaves out.
    vision_num_params : int
        Parameters of a vision tower and projector that the engine loads (bf16).
    provenance : Provenance
    """

    name: str
    architecture: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    intermediate_size: int
    attention: AttentionKind
    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    tie_word_embeddings: bool
    max_context_tokens: int
    native_precision: WeightPrecision
    provenance: Provenance
    gated_mlp: bool = True
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    attention_bias: bool = False
    attention_out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    attention_sinks: bool = False
    norms_per_layer: int = 2
    sliding_window_tokens: int = 0
    num_sliding_layers: int = 0
    moe: MoeSpec | None = None
    unquantized_modules: tuple[str, ...] = ()
    mtp_num_params: int = 0
    vision_num_params: int = 0
