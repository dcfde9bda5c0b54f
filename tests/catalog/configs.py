"""Small config.json contents, one an architecture, of public models that the catalog does not hold."""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]


def dense(architecture: str, hidden: int, layers: int, heads: int, kv: int, width: int, vocab: int) -> Config:
    """Fields that every dense architecture has."""
    return {
        "architectures": [architecture],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": width,
        "vocab_size": vocab,
        "max_position_embeddings": 32768,
    }


LLAMA_2_7B = dense("LlamaForCausalLM", 4096, 32, 32, 32, 11008, 32000)
MISTRAL_7B_V01 = dense("MistralForCausalLM", 4096, 32, 32, 8, 14336, 32000) | {"sliding_window": 4096}
MISTRAL_NEMO = dense("MistralForCausalLM", 5120, 40, 32, 8, 14336, 131072) | {"head_dim": 128}
QWEN2_1_5B = dense("Qwen2ForCausalLM", 1536, 28, 12, 2, 8960, 151936) | {
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "sliding_window": 32768,
    "max_window_layers": 28,
}
QWEN3_4B = dense("Qwen3ForCausalLM", 2560, 36, 32, 8, 9728, 151936) | {
    "head_dim": 128,
    "tie_word_embeddings": True,
}
QWEN15_MOE = dense("Qwen2MoeForCausalLM", 2048, 24, 16, 16, 5632, 151936) | {
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "decoder_sparse_step": 1,
}
QWEN3_30B_A3B = dense("Qwen3MoeForCausalLM", 2048, 48, 32, 4, 6144, 151936) | {
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "mlp_only_layers": [],
}
MIXTRAL_8X7B = dense("MixtralForCausalLM", 4096, 32, 32, 8, 14336, 32000) | {
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": None,
}
GEMMA_2_9B = dense("Gemma2ForCausalLM", 3584, 42, 16, 8, 14336, 256000) | {
    "head_dim": 256,
    "sliding_window": 4096,
}
GEMMA_3_1B = dense("Gemma3ForCausalLM", 1152, 26, 4, 1, 6912, 262144) | {
    "head_dim": 256,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
}
GEMMA_3_4B: Config = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    },
    "vision_config": {
        "hidden_size": 1152,
        "image_size": 896,
        "intermediate_size": 4304,
        "num_attention_heads": 16,
        "num_hidden_layers": 27,
        "patch_size": 14,
    },
}
DEEPSEEK_V2_LITE = dense("DeepseekV2ForCausalLM", 2048, 27, 16, 16, 10944, 102400) | {
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "topk_method": "greedy",
}
KIMI_K2 = dense("DeepseekV3ForCausalLM", 7168, 61, 64, 64, 18432, 163840) | {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 384,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "topk_method": "noaux_tc",
    "num_nextn_predict_layers": 0,
}
GPT_OSS_20B = dense("GptOssForCausalLM", 2880, 24, 64, 8, 2880, 201088) | {
    "head_dim": 64,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
    },
}
PHI_3_MINI = dense("Phi3ForCausalLM", 3072, 32, 32, 32, 8192, 32064) | {
    "sliding_window": 2047,
    "max_position_embeddings": 4096,
}
PHI_4_MINI = dense("Phi3ForCausalLM", 3072, 32, 24, 8, 8192, 200064) | {
    "tie_word_embeddings": True,
    "sliding_window": 262144,
    "max_position_embeddings": 131072,
}

PUBLISHED = {
    "Llama-2-7B": (LLAMA_2_7B, 6_738_417_664),
    "Mistral-7B-v0.1": (MISTRAL_7B_V01, 7_241_732_096),
    "Mistral-Nemo": (MISTRAL_NEMO, 12_247_782_400),
    "Qwen2-1.5B": (QWEN2_1_5B, 1_543_714_304),
    "Qwen3-4B": (QWEN3_4B, 8_044_936_192 // 2),
    "Qwen1.5-MoE-A2.7B": (QWEN15_MOE, 14_315_784_192),
    "Qwen3-30B-A3B": (QWEN3_30B_A3B, 30_532_122_624),
    "Mixtral-8x7B": (MIXTRAL_8X7B, 46_702_792_704),
    "gemma-2-9b": (GEMMA_2_9B, 9_241_705_984),
    "gemma-3-1b": (GEMMA_3_1B, 999_885_952),
    "gemma-3-4b": (GEMMA_3_4B, 4_300_079_472),
    "DeepSeek-V2-Lite": (DEEPSEEK_V2_LITE, 15_706_484_224),
    "Kimi-K2": (KIMI_K2, 1_026_408_235_864),
    "gpt-oss-20b": (GPT_OSS_20B, 20_914_757_184),
    "Phi-3-mini-4k": (PHI_3_MINI, 3_821_079_552),
    "Phi-4-mini": (PHI_4_MINI, 3_836_021_760),
}
"""Config and published total; Kimi-K2's counts 64 million fp8 scales too. Sources: the hub's safetensors
totals, most as listed in debaditc/kvfit@bd4ccab scripts/build_registry.py."""
