"""Models whose attention servewise does not describe, for memory in GiB only.

Compressed, sparse and linear attention decide how many tokens a byte of KV cache holds, not how many bytes an engine
leaves for it: those follow from the weights and the widths of the layers. So a log of such a model can be compared
in GiB, and not in tokens.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from servewise.types import ModelSpec, MoeSpec, Parallelism, Provenance, WeightPrecision

__all__ = ["Hybrid", "find_hybrid"]

BYTES: dict[WeightPrecision, float] = {
    "bf16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0,
    "int8": 1.0,
    "int4": 0.5 + 2.5 / 128,
    "nvfp4": 0.5 + 1.0 / 16,
    "mxfp4": 0.5 + 1.0 / 32,
}
"""A stored weight with its scales [bytes]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hybrid:
    """A model by its parameter counts.

    Parameters
    ----------
    spec : ModelSpec
        Widths, for activations; its attention is a stand-in.
    total_params, unquantized_params : float
        All that an engine loads, and those that every checkpoint keeps in bf16: embedding, head, vision tower.
    expert_params : float
        Routed experts, where the published checkpoint stores them in mxfp4; 0 elsewhere.
    draft_bytes : float [bytes]
        Module for speculative decoding in the checkpoint.
    """

    spec: ModelSpec
    total_params: float
    unquantized_params: float
    expert_params: float = 0.0
    draft_bytes: float = 0.0

    def weights_bytes(self, precision: WeightPrecision, parallelism: Parallelism) -> float:
        """Weights of one GPU [bytes], were all of them divided evenly."""
        rest = self.total_params - self.unquantized_params - self.expert_params
        total = 2.0 * self.unquantized_params + BYTES[precision] * rest
        if self.expert_params:
            total += BYTES["mxfp4"] * self.expert_params
        return total / parallelism.num_gpus


def spec(name: str, source: str, **fields: object) -> ModelSpec:
    """Widths of a model with ordinary attention in the place of its own."""
    return ModelSpec(
        name=name,
        architecture="",
        attention="gqa",
        tie_word_embeddings=False,
        native_precision="bf16",
        provenance=Provenance(kind="spec", source=source, accessed="2026-11-29"),
        **fields,  # type: ignore[arg-type]
    )


KVFIT = "debaditc/kvfit@bd4ccab src/kvfit/data/models.json"
V4_FLASH = Hybrid(
    spec=spec(
        "deepseek-ai/DeepSeek-V4-Flash",
        "https://huggingface.co/deepseek-ai/DeepSeek-V4-Flash/blob/main/config.json, as quoted in public repositories; "
        "284B parameters by the safetensors of PrimeIntellect/DeepSeek-V4-Flash-Base-bf16",
        num_layers=43,
        hidden_size=4096,
        vocab_size=129280,
        intermediate_size=0,
        num_heads=64,
        num_kv_heads=1,
        head_dim=512,
        v_head_dim=512,
        max_context_tokens=1048576,
        moe=MoeSpec(num_experts=256, top_k=6, intermediate_size=2048, num_moe_layers=43, shared_intermediate_size=2048),
    ),
    total_params=284e9,
    unquantized_params=2 * 129280 * 4096,
    expert_params=43 * 256 * 3 * 4096 * 2048,
    draft_bytes=167e9 - 155.2e9,  # the checkpoint of 0731 is 167 GB large, 155.2 GB of them by the counts above
)
QWEN_27B = Hybrid(
    spec=spec(
        "Qwen/Qwen3.8-27B",
        KVFIT,
        num_layers=64,
        hidden_size=5120,
        vocab_size=248320,
        intermediate_size=17408,
        num_heads=24,
        num_kv_heads=4,
        head_dim=256,
        v_head_dim=256,
        max_context_tokens=262144,
    ),
    total_params=27781427952,
    unquantized_params=2 * 248320 * 5120 + 0.46e9,
)
QWEN_NEXT = Hybrid(
    spec=spec(
        "Qwen/Qwen3-Next-80B-A3B-Instruct",
        KVFIT,
        num_layers=48,
        hidden_size=2048,
        vocab_size=151936,
        intermediate_size=0,
        num_heads=16,
        num_kv_heads=2,
        head_dim=256,
        v_head_dim=256,
        max_context_tokens=262144,
        moe=MoeSpec(num_experts=512, top_k=10, intermediate_size=512, num_moe_layers=48, shared_intermediate_size=512),
    ),
    total_params=81324862720,
    unquantized_params=2 * 151936 * 2048,
)
QWEN_35B = Hybrid(
    spec=spec(
        "Qwen/Qwen3.5-35B-A3B",
        "https://huggingface.co/RESMP-DEV/Qwen3.5-35B-A3B-GPTQ-Hybrid (shapes), "
        "https://featherless.ai/models/minjaechoi/qwen36-35b-a3b-2p00bit-r5 (35.1B); expert width from memory",
        num_layers=40,
        hidden_size=2048,
        vocab_size=248320,
        intermediate_size=0,
        num_heads=16,
        num_kv_heads=2,
        head_dim=256,
        v_head_dim=256,
        max_context_tokens=262144,
        moe=MoeSpec(num_experts=256, top_k=8, intermediate_size=512, num_moe_layers=40, shared_intermediate_size=512),
    ),
    total_params=35.1e9,
    unquantized_params=2 * 248320 * 2048 + 0.46e9,
)
QWEN_122B = Hybrid(
    spec=spec(
        "Qwen/Qwen3.5-122B-A10B",
        "https://docs.vultr.com/models/alibaba-qwen-35/qwen3.5-122b-a10b/nvidia; expert width from memory",
        num_layers=48,
        hidden_size=3072,
        vocab_size=248320,
        intermediate_size=0,
        num_heads=32,
        num_kv_heads=2,
        head_dim=256,
        v_head_dim=256,
        max_context_tokens=262144,
        moe=MoeSpec(num_experts=256, top_k=8, intermediate_size=1024, num_moe_layers=48, shared_intermediate_size=1024),
    ),
    total_params=122e9,
    unquantized_params=2 * 248320 * 3072 + 0.46e9,
)
HYBRIDS = (
    (r"deepseek-v4-flash(-\d+)?(?!-\w*base|.*(vision|reap))", V4_FLASH),
    (r"qwen3\.[568]-27b", QWEN_27B),
    (r"qwen3\.[56]-35b-a3b", QWEN_35B),
    (r"qwen3\.5-122b-a10b", QWEN_122B),
    (r"qwen3-next-80b", QWEN_NEXT),
)
"""What a name contains, and the model; Qwen 3.5, 3.6 and 3.8 share the shapes of their 27B."""


def find_hybrid(name: str) -> Hybrid | None:
    """Model of a name, None when it is none of these."""
    return next((hybrid for pattern, hybrid in HYBRIDS if re.search(pattern, name.lower())), None)
