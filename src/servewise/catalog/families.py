"""The supported architectures: which config field means what in each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from servewise.catalog.fields import MISSING, ConfigFields
from servewise.types import ModelSpec, MoeSpec, Provenance

__all__ = ["FAMILIES", "Family", "build_spec"]

MAX_LAYERS, MAX_HEADS, MAX_EXPERTS = 1000, 4096, 65536
MAX_CONTEXT_TOKENS = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What the code of an architecture fixes, so that its config need not say it.

    Parameters
    ----------
    read_moe : callable or None
        Reads the experts; None for a dense model.
    rename : callable or None
        Reads fields that the architecture calls otherwise.
    qkv_bias, out_bias : bool or None
        None: the config's ``attention_bias`` decides.
    mla, qk_norm, sinks : bool
        ``qk_norm`` holds unless the config has ``use_qk_norm``.
    gated : bool
        Whether MLPs have a gate.
    norms_per_layer : int
    tied : bool or object
        Default of ``tie_word_embeddings``; MISSING when the config must say it.
    window : str
        Which layers slide when ``sliding_window`` is set: ``none`` (the field has no effect), ``all``,
        ``alternate``, ``pattern`` (one full layer in ``sliding_window_pattern``), ``from_layer``
        (``use_sliding_window`` and ``max_window_layers``), ``chunk`` (``no_rope_layers`` that are 1 see their chunk
        of ``attention_chunk_size`` tokens only). ``layer_types`` overrides it.
    defaults : mapping of str to int
        Fields that published configs leave out, with the value the architecture's config class has.
    """

    read_moe: Callable[[ConfigFields, int], MoeSpec] | None = None
    rename: Callable[[ConfigFields], dict[str, int]] | None = None
    qkv_bias: bool | None = None
    out_bias: bool | None = None
    mla: bool = False
    qk_norm: bool = False
    sinks: bool = False
    gated: bool = True
    norms_per_layer: int = 2
    tied: bool | object = False
    window: str = "none"
    defaults: Mapping[str, int] = field(default_factory=dict)


def read_mixtral_moe(config: ConfigFields, num_layers: int) -> MoeSpec:
    """Every layer has experts as wide as ``intermediate_size``."""
    return MoeSpec(
        num_experts=config.integer("num_local_experts", high=MAX_EXPERTS),
        top_k=config.integer("num_experts_per_tok", high=MAX_EXPERTS),
        intermediate_size=config.integer("intermediate_size"),
        num_moe_layers=num_layers,
    )


def read_gpt_oss_moe(config: ConfigFields, num_layers: int) -> MoeSpec:
    """As Mixtral, with biases."""
    return replace(read_mixtral_moe(config, num_layers), has_expert_bias=True, router_bias=True)


def read_qwen_moe(config: ConfigFields, num_layers: int) -> MoeSpec:
    """Experts every ``decoder_sparse_step`` layers but in ``mlp_only_layers``; Qwen 2 adds a shared one."""
    step = config.integer("decoder_sparse_step", 1, high=MAX_LAYERS)
    dense = set(config.integers("mlp_only_layers", ()))
    shared = config.integer("shared_expert_intermediate_size", 0, low=0)
    return MoeSpec(
        num_experts=config.integer("num_experts", high=MAX_EXPERTS),
        top_k=config.integer("num_experts_per_tok", high=MAX_EXPERTS),
        intermediate_size=config.integer("moe_intermediate_size"),
        num_moe_layers=sum(1 for i in range(num_layers) if i not in dense and (i + 1) % step == 0),
        shared_intermediate_size=shared,
        has_shared_gate=shared > 0,
    )


def read_deepseek_moe(config: ConfigFields, num_layers: int) -> MoeSpec:
    """The first layers are dense; shared experts have no gate; V3 corrects the router's scores."""
    first = config.integer("first_k_dense_replace", low=0, high=num_layers)
    every = config.integer("moe_layer_freq", high=MAX_LAYERS)
    width = config.integer("moe_intermediate_size")
    return MoeSpec(
        num_experts=config.integer("n_routed_experts", high=MAX_EXPERTS),
        top_k=config.integer("num_experts_per_tok", high=MAX_EXPERTS),
        intermediate_size=width,
        num_moe_layers=sum(1 for i in range(first, num_layers) if i % every == 0),
        shared_intermediate_size=width * config.integer("n_shared_experts", 0, low=0, high=MAX_EXPERTS),
        router_bias=config.text("topk_method", "greedy") == "noaux_tc",
    )


def read_glm_moe(config: ConfigFields, num_layers: int) -> MoeSpec:
    """As DeepSeek V3, in every layer after the first ones."""
    first = config.integer("first_k_dense_replace", low=0, high=num_layers)
    width = config.integer("moe_intermediate_size")
    return MoeSpec(
        num_experts=config.integer("n_routed_experts", high=MAX_EXPERTS),
        top_k=config.integer("num_experts_per_tok", high=MAX_EXPERTS),
        intermediate_size=width,
        num_moe_layers=num_layers - first,
        shared_intermediate_size=width * config.integer("n_shared_experts", 0, low=0, high=MAX_EXPERTS),
        router_bias=True,
    )


def rename_gptj(config: ConfigFields) -> dict[str, int]:
    """GPT-J's names; its MLP is four times as wide as the model unless ``n_inner`` says otherwise."""
    hidden_size = config.integer("n_embd")
    return {
        "hidden_size": hidden_size,
        "num_hidden_layers": config.integer("n_layer", high=MAX_LAYERS),
        "num_attention_heads": config.integer("n_head", high=MAX_HEADS),
        "intermediate_size": config.integer("n_inner", 4 * hidden_size),
        "max_position_embeddings": config.integer("n_positions", high=MAX_CONTEXT_TOKENS),
    }


def rename_falcon(config: ConfigFields) -> dict[str, int]:
    """Falcon's key-value heads: one in the first models (``multi_query``), some in the larger ones."""
    heads = 1
    if config.boolean("new_decoder_architecture", False):
        heads = config.integer("num_kv_heads", high=MAX_HEADS)
    elif not config.boolean("multi_query", True):
        heads = config.integer("num_attention_heads", high=MAX_HEADS)
    hidden_size = config.integer("hidden_size")
    return {"num_key_value_heads": heads, "intermediate_size": config.integer("ffn_hidden_size", 4 * hidden_size)}


def read_llama4_moe(config: ConfigFields, num_layers: int) -> MoeSpec:
    """Experts every ``interleave_moe_layer_step`` layers, with one shared expert of their width."""
    width = config.integer("intermediate_size")
    return MoeSpec(
        num_experts=config.integer("num_local_experts", high=MAX_EXPERTS),
        top_k=config.integer("num_experts_per_tok", high=MAX_EXPERTS),
        intermediate_size=width,
        num_moe_layers=num_layers // config.integer("interleave_moe_layer_step", 1, high=MAX_LAYERS),
        shared_intermediate_size=width,
    )


# Sources: huggingface/transformers, models/*/configuration_*.py (defaults) and modeling_*.py (biases, norms),
# read as of release 4.57.
FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": Family(),
    "MistralForCausalLM": Family(qkv_bias=False, out_bias=False, window="all"),
    "MixtralForCausalLM": Family(read_moe=read_mixtral_moe, qkv_bias=False, out_bias=False, window="all"),
    "Qwen2ForCausalLM": Family(qkv_bias=True, out_bias=False, window="from_layer"),
    "Qwen2MoeForCausalLM": Family(read_moe=read_qwen_moe, qkv_bias=True, out_bias=False, window="from_layer"),
    "Qwen3ForCausalLM": Family(qk_norm=True, window="from_layer"),
    "Qwen3MoeForCausalLM": Family(read_moe=read_qwen_moe, qk_norm=True, window="from_layer"),
    "Gemma2ForCausalLM": Family(norms_per_layer=4, tied=True, window="alternate"),
    "Gemma3ForCausalLM": Family(
        norms_per_layer=4,
        qk_norm=True,
        tied=True,
        window="pattern",
        defaults={
            "vocab_size": 262208,
            "max_position_embeddings": 131072,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "sliding_window": 4096,
            "sliding_window_pattern": 6,
        },
    ),
    "CohereForCausalLM": Family(qkv_bias=False, out_bias=False, norms_per_layer=1, tied=True),
    "DeepseekV2ForCausalLM": Family(read_moe=read_deepseek_moe, mla=True),
    "DeepseekV32ForCausalLM": Family(read_moe=read_deepseek_moe, mla=True),
    "DeepseekV3ForCausalLM": Family(read_moe=read_deepseek_moe, mla=True),
    "FalconForCausalLM": Family(
        rename=rename_falcon, gated=False, tied=True, defaults={"max_position_embeddings": 2048}
    ),
    "GPTJForCausalLM": Family(rename=rename_gptj, qkv_bias=False, out_bias=False, gated=False, norms_per_layer=1),
    "GemmaForCausalLM": Family(tied=True),
    "Glm4MoeForCausalLM": Family(read_moe=read_glm_moe, out_bias=False, qk_norm=True),
    "GptOssForCausalLM": Family(
        read_moe=read_gpt_oss_moe, qkv_bias=True, out_bias=True, sinks=True, window="alternate"
    ),
    "Glm4MoeLiteForCausalLM": Family(read_moe=read_glm_moe, mla=True),
    "GraniteForCausalLM": Family(tied=True),
    "Llama4ForCausalLM": Family(read_moe=read_llama4_moe, window="chunk"),
    "Phi3ForCausalLM": Family(qkv_bias=False, out_bias=False, window="all"),
    "PhiForCausalLM": Family(qkv_bias=True, out_bias=True, gated=False, norms_per_layer=1),
}


def count_sliding(config: ConfigFields, family: Family, num_layers: int) -> int:
    """Number of layers that attend only within the window."""
    if "layer_types" in config:
        types = config.texts("layer_types")
        if len(types) != num_layers:
            raise config.error("layer_types", f"has {len(types)} entries for {num_layers} layers")
        unknown = set(types) - {"full_attention", "sliding_attention"}
        if unknown:
            raise config.error(
                "layer_types",
                f"{sorted(unknown)} not supported; supported: full_attention, sliding_attention",
            )
        return types.count("sliding_attention")
    if family.window == "all":
        return num_layers
    if family.window == "chunk":
        return sum(config.integers("no_rope_layers"))
    if family.window == "alternate":
        return (num_layers + 1) // 2
    if family.window == "pattern":
        every = config.integer("sliding_window_pattern", family.defaults["sliding_window_pattern"], high=MAX_LAYERS)
        return num_layers - num_layers // every
    if family.window == "from_layer" and config.boolean("use_sliding_window", False):
        return max(0, num_layers - config.integer("max_window_layers", low=0, high=MAX_LAYERS))
    return 0


def read_window(config: ConfigFields, family: Family, num_layers: int, max_context: int) -> tuple[int, int]:
    """Window [tokens] and the number of layers it binds; (0, 0) when it never binds."""
    name = "attention_chunk_size" if family.window == "chunk" else "sliding_window"
    if name not in config and name not in family.defaults:
        return 0, 0
    window = config.integer(name, family.defaults.get(name, MISSING), high=MAX_CONTEXT_TOKENS)
    num_sliding = count_sliding(config, family, num_layers)
    return (window, num_sliding) if num_sliding and window < max_context else (0, 0)


def read_heads(config: ConfigFields, family: Family, hidden_size: int) -> tuple[int, int, int]:
    """Query heads, key/value heads and head size of ordinary attention."""
    defaults = family.defaults
    num_heads = config.integer("num_attention_heads", defaults.get("num_attention_heads", MISSING), high=MAX_HEADS)
    num_kv_heads = config.integer("num_key_value_heads", defaults.get("num_key_value_heads", num_heads), high=MAX_HEADS)
    if num_heads % num_kv_heads:
        raise config.error(
            "num_key_value_heads",
            f"got {num_kv_heads}, which does not divide num_attention_heads {num_heads}",
        )
    if "head_dim" not in config and "head_dim" not in defaults and hidden_size % num_heads:
        raise config.error("head_dim", f"missing, and hidden_size {hidden_size} does not divide by {num_heads} heads")
    head_dim = config.integer("head_dim", defaults.get("head_dim", hidden_size // num_heads), high=65536)
    return num_heads, num_kv_heads, head_dim


def check_moe(config: ConfigFields, moe: MoeSpec) -> None:
    """Refuse a router that picks more experts than there are, or a model whose every layer is dense."""
    if moe.top_k > moe.num_experts:
        raise config.error("num_experts_per_tok", f"got {moe.top_k}, more than the {moe.num_experts} experts there are")
    if not moe.num_moe_layers:
        raise config.error("architectures", "a mixture-of-experts architecture without a layer of experts")


def build_spec(config: ConfigFields, architecture: str, name: str, provenance: Provenance) -> ModelSpec:
    """Build the spec of a text model from the object that holds its fields.

    Quantization, multi-token prediction and vision are the caller's business.

    Raises
    ------
    InputError
        Naming the field that is missing, of the wrong type or out of range.
    """
    family = FAMILIES[architecture]
    if family.rename:
        config = config.named(family.rename(config))
    num_layers = config.integer("num_hidden_layers", high=MAX_LAYERS)
    hidden_size = config.integer("hidden_size")
    max_context = config.integer(
        "max_position_embeddings",
        family.defaults.get("max_position_embeddings", MISSING),
        high=MAX_CONTEXT_TOKENS,
    )
    window, num_sliding = read_window(config, family, num_layers, max_context)
    moe = family.read_moe(config, num_layers) if family.read_moe else None
    if moe:
        check_moe(config, moe)
    all_experts = moe is not None and moe.num_moe_layers == num_layers
    bias = config.boolean("attention_bias", False)
    spec = ModelSpec(
        name=name,
        architecture=architecture,
        num_layers=num_layers,
        hidden_size=hidden_size,
        vocab_size=config.integer("vocab_size", family.defaults.get("vocab_size", MISSING)),
        intermediate_size=0 if all_experts else config.integer("intermediate_size"),
        attention="gqa",
        num_heads=1,
        num_kv_heads=1,
        head_dim=1,
        v_head_dim=1,
        tie_word_embeddings=config.boolean("tie_word_embeddings", family.tied),
        max_context_tokens=max_context,
        native_precision="bf16",
        provenance=provenance,
        attention_bias=bias if family.qkv_bias is None else family.qkv_bias,
        attention_out_bias=bias if family.out_bias is None else family.out_bias,
        mlp_bias=config.boolean("mlp_bias", False),
        gated_mlp=family.gated,
        qk_norm=config.boolean("use_qk_norm", family.qk_norm),
        attention_sinks=family.sinks,
        norms_per_layer=family.norms_per_layer,
        sliding_window_tokens=window,
        num_sliding_layers=num_sliding,
        moe=moe,
    )
    return with_mla(spec, config) if family.mla else with_gqa(spec, config, family)


def with_gqa(spec: ModelSpec, config: ConfigFields, family: Family) -> ModelSpec:
    """Fill in ordinary attention."""
    num_heads, num_kv_heads, head_dim = read_heads(config, family, spec.hidden_size)
    return replace(spec, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, v_head_dim=head_dim)


def with_mla(spec: ModelSpec, config: ConfigFields) -> ModelSpec:
    """Fill in multi-head latent attention."""
    num_heads = config.integer("num_attention_heads", high=MAX_HEADS)
    rope_dim = config.integer("qk_rope_head_dim", high=65536)
    return replace(
        spec,
        attention="mla",
        num_heads=num_heads,
        num_kv_heads=config.integer("num_key_value_heads", num_heads, high=MAX_HEADS),
        head_dim=config.integer("qk_nope_head_dim", high=65536) + rope_dim,
        v_head_dim=config.integer("v_head_dim", high=65536),
        q_lora_rank=config.integer("q_lora_rank", 0, low=0),
        kv_lora_rank=config.integer("kv_lora_rank"),
        qk_rope_head_dim=rope_dim,
    )
