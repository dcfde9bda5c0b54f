"""Models of published throughput tables that the catalog does not offer."""

from __future__ import annotations

from dataclasses import replace

from servewise.catalog import get_model
from servewise.types import ModelSpec, MoeSpec, Provenance

__all__ = ["tabled_models"]

ACCESSED = "2026-11-29"


def _source(name: str, note: str = "") -> Provenance:
    return Provenance(
        kind="spec", source=f"https://huggingface.co/{name}/blob/main/config.json", accessed=ACCESSED, note=note
    )


def gptj() -> ModelSpec:
    """GPT-J 6B; its attention and MLP run side by side, with one norm."""
    name = "EleutherAI/gpt-j-6b"
    return ModelSpec(
        name=name,
        architecture="GPTJForCausalLM",
        num_layers=28,
        hidden_size=4096,
        vocab_size=50400,
        intermediate_size=16384,
        gated_mlp=False,
        mlp_bias=True,
        attention="gqa",
        num_heads=16,
        num_kv_heads=16,
        head_dim=256,
        v_head_dim=256,
        norms_per_layer=1,
        tie_word_embeddings=False,
        max_context_tokens=2048,
        native_precision="bf16",
        provenance=_source(name),
    )


def falcon() -> ModelSpec:
    """Falcon 180B; its attention and MLP run side by side."""
    name = "tiiuae/falcon-180B"
    return ModelSpec(
        name=name,
        architecture="FalconForCausalLM",
        num_layers=80,
        hidden_size=14848,
        vocab_size=65024,
        intermediate_size=4 * 14848,
        gated_mlp=False,
        attention="gqa",
        num_heads=232,
        num_kv_heads=8,
        head_dim=64,
        v_head_dim=64,
        tie_word_embeddings=True,
        max_context_tokens=2048,
        native_precision="bf16",
        provenance=_source(name),
    )


def glm_flash() -> ModelSpec:
    """GLM-4.7-Flash: latent attention, 64 experts after one dense layer."""
    name = "zai-org/GLM-4.7-Flash"
    return ModelSpec(
        name=name,
        architecture="Glm4MoeLiteForCausalLM",
        num_layers=47,
        hidden_size=2048,
        vocab_size=154880,
        intermediate_size=10240,
        attention="mla",
        num_heads=20,
        num_kv_heads=20,
        head_dim=256,
        v_head_dim=256,
        q_lora_rank=768,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        moe=MoeSpec(
            num_experts=64,
            top_k=4,
            intermediate_size=1536,
            num_moe_layers=46,
            shared_intermediate_size=1536,
            router_bias=True,
        ),
        tie_word_embeddings=False,
        max_context_tokens=202752,
        native_precision="bf16",
        provenance=_source(name),
    )


def maverick() -> ModelSpec:
    """Llama 4 Maverick: Scout's shapes, with 128 experts in every other layer and a wider MLP between them."""
    name = "meta-llama/Llama-4-Maverick-17B-128E-Instruct"
    scout = get_model("meta-llama/Llama-4-Scout-17B-16E-Instruct")
    assert scout.moe is not None
    experts = replace(scout.moe, num_experts=128, num_moe_layers=24)
    return replace(scout, name=name, intermediate_size=16384, moe=experts, provenance=_source(name, "from Scout's"))


def tabled_models() -> dict[str, ModelSpec]:
    """Specifications by hub id.

    Sources
    -------
    Each model's ``config.json``. Blocks that run side by side have one all-reduce; the step-time formula takes two.
    """
    return {model.name: model for model in (gptj(), falcon(), glm_flash(), maverick())}
