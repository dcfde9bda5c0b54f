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
GRANITE_31_2B = dense("GraniteForCausalLM", 2048, 40, 32, 8, 8192, 49155) | {"tie_word_embeddings": True}
GEMMA_7B = dense("GemmaForCausalLM", 3072, 28, 16, 16, 24576, 256000) | {"head_dim": 256}
PHI_2 = dense("PhiForCausalLM", 2560, 32, 32, 32, 10240, 51200)
COMMAND_R = dense("CohereForCausalLM", 8192, 40, 64, 64, 22528, 256000)
GLM_45_AIR = dense("Glm4MoeForCausalLM", 4096, 46, 96, 8, 10944, 151552) | {
    "head_dim": 128,
    "attention_bias": True,
    "use_qk_norm": False,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1,
}
DEEPSEEK_V32 = KIMI_K2 | {
    "architectures": ["DeepseekV32ForCausalLM"],
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "vocab_size": 129280,
    "n_routed_experts": 256,
    "first_k_dense_replace": 3,
}
LLAMA_4_TEXT = dense("Llama4ForCausalLM", 5120, 48, 40, 8, 8192, 202048) | {
    "head_dim": 128,
    "num_local_experts": 16,
    "num_experts_per_tok": 1,
    "attention_chunk_size": 8192,
    "no_rope_layers": [1, 1, 1, 0] * 12,
}
LLAMA_4_SCOUT: Config = {
    "architectures": ["Llama4ForConditionalGeneration"],
    "text_config": LLAMA_4_TEXT,
    "vision_config": {
        "hidden_size": 1408,
        "image_size": 336,
        "intermediate_size": 5632,
        "num_hidden_layers": 34,
        "patch_size": 14,
        "projector_input_dim": 4096,
        "vision_output_dim": 4096,
    },
}
MISTRAL_SMALL_32: Config = {
    "architectures": ["Mistral3ForConditionalGeneration"],
    "text_config": dense("MistralForCausalLM", 5120, 40, 32, 8, 32768, 131072) | {"head_dim": 128},
    "vision_config": {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "patch_size": 14,
    },
}
LLAMA_32_11B_VISION: Config = {
    "architectures": ["MllamaForConditionalGeneration"],
    "text_config": dense("LlamaForCausalLM", 4096, 40, 32, 8, 14336, 128256),
    "vision_config": {
        "hidden_size": 1280,
        "image_size": 560,
        "intermediate_size": 5120,
        "max_num_tiles": 4,
        "num_global_layers": 8,
        "num_hidden_layers": 32,
        "patch_size": 14,
        "supported_aspect_ratios": [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]],
        "vision_output_dim": 7680,
    },
}
KIMI_K25: Config = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "text_config": KIMI_K2,
    "vision_config": {
        "patch_size": 14,
        "vt_hidden_size": 1152,
        "vt_intermediate_size": 4304,
        "vt_num_hidden_layers": 27,
    },
}
GPT_J: Config = {
    "architectures": ["GPTJForCausalLM"],
    "n_embd": 4096,
    "n_layer": 28,
    "n_head": 16,
    "n_positions": 2048,
    "n_inner": None,
    "vocab_size": 50400,
    "tie_word_embeddings": False,
}
FALCON_7B: Config = {
    "architectures": ["FalconForCausalLM"],
    "hidden_size": 4544,
    "num_hidden_layers": 32,
    "num_attention_heads": 71,
    "vocab_size": 65024,
    "multi_query": True,
}
FALCON_40B: Config = FALCON_7B | {
    "hidden_size": 8192,
    "num_hidden_layers": 60,
    "num_attention_heads": 128,
    "num_kv_heads": 8,
    "new_decoder_architecture": True,
}
GLM_47_FLASH = dense("Glm4MoeLiteForCausalLM", 2048, 47, 20, 20, 10240, 154880) | {
    "q_lora_rank": 768,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "moe_intermediate_size": 1536,
    "n_routed_experts": 64,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "first_k_dense_replace": 1,
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
    "granite-3.1-2b": (GRANITE_31_2B, 2_533_531_648),
    "gemma-7b": (GEMMA_7B, 8_537_680_896),
    "phi-2": (PHI_2, 2_779_683_840),
    "command-r": (COMMAND_R, 34_980_831_232),
    "GLM-4.5-Air": (GLM_45_AIR, 106_000_000_000),
    "DeepSeek-V3.2-Exp": (DEEPSEEK_V32, 671_000_000_000),
    "Llama-4-Scout, text": (LLAMA_4_TEXT, 107_770_000_000),
    "Llama-4-Scout": (LLAMA_4_SCOUT, 108_641_793_536),
    "Mistral-Small-3.2-24B": (MISTRAL_SMALL_32, 24_011_361_280),
    "Llama-3.2-11B-Vision": (LLAMA_32_11B_VISION, 10_670_220_835),
    "Kimi-K2.5": (KIMI_K25, 1_030_000_000_000),
    "gpt-j-6b": (GPT_J, 6_050_882_784),
    "falcon-7b": (FALCON_7B, 6_921_720_704),
    "falcon-40b": (FALCON_40B, 41_303_293_952),
    "GLM-4.7-Flash": (GLM_47_FLASH, 30_000_000_000),
}
"""Config and published total; Kimi-K2's counts 64 million fp8 scales too. Sources: the hub's safetensors
totals, most as listed in debaditc/kvfit@bd4ccab scripts/build_registry.py; round ones are the model cards'."""
