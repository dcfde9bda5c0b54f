"""Layout of the KV cache on one GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass

from servewise.engines import sglang
from servewise.perf.drafter import drafter_of
from servewise.perf.layout import kv_element_bytes, local_heads
from servewise.perf.memory_weights import stage_layers
from servewise.types import Deployment, ModelSpec

__all__ = ["KvLayout", "kv_bytes_per_token_and_layer", "kv_layout", "longest_request"]

SPARSE_INDEX_BYTES = {"DeepseekV32ForCausalLM": 128 + 4}
"""Cache of the index that picks which tokens to attend to, per token and layer [bytes]: an fp8 key and its scale."""
SPARSE_FP8_BYTES = 656
"""Latent of a token and layer in fp8 for sparse attention [bytes]: 512 values, 16 bytes of scales, 64 in bf16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayout:
    """KV cache of one GPU: layer groups that draw from one pool of equal blocks.

    vLLM buckets layers by kind and cuts each bucket into groups of equal size, padding the last one, so that
    a block of any group has the same size. Sliding-window groups give blocks back once they leave the window.

    Parameters
    ----------
    bytes_per_token_and_group : float [bytes]
    num_full_groups, num_sliding_groups : int
    window_tokens : int [tokens]
        0 without sliding-window layers.
    """

    bytes_per_token_and_group: float
    num_full_groups: int
    num_sliding_groups: int
    window_tokens: int

    def bytes_of_request(self, context_tokens: float, in_flight_tokens: float = 0.0) -> float:
        """KV cache of a request [bytes] with this context, of which the last ``in_flight_tokens`` are being
        computed (those stay in sliding-window groups too)."""
        sliding = min(context_tokens, self.window_tokens + in_flight_tokens)
        tokens = self.num_full_groups * context_tokens + self.num_sliding_groups * sliding
        return self.bytes_per_token_and_group * tokens


def kv_bytes_per_token_and_layer(deployment: Deployment) -> float:
    """KV cache of a token in one layer on one GPU [bytes].

    Sources
    -------
    vLLM 0.33.0, ``v1/kv_cache_interface.py`` (read 2026-11-29): GQA stores ``max(1, kv_heads / TP)`` heads on each
    GPU, MLA one full copy of the latent. DeepSeek-V3.2: https://github.com/sgl-project/sglang/pull/11309.
    """
    model: ModelSpec = deployment.model
    key, value = kv_element_bytes(deployment)
    if model.attention == "mla":
        index = SPARSE_INDEX_BYTES.get(model.architecture, 0)
        latent = (model.kv_lora_rank + model.qk_rope_head_dim) * key
        if index and deployment.precision.kv == "fp8":
            latent = SPARSE_FP8_BYTES
        if deployment.engine == "sglang" and not sglang.counts_sparse_index(deployment.engine_version):
            index = 0
        return float(latent + index)
    _, kv_heads = local_heads(model, deployment.parallelism.tensor_parallel_size)
    return float(kv_heads * (model.head_dim * key + model.v_head_dim * value))


def kv_layout(deployment: Deployment) -> KvLayout:
    """KV cache layout of the fullest GPU.

    Engines that keep one pool a kind of layer (SGLang, TensorRT-LLM, llama.cpp) pad nothing; each kind is a
    group of its own then, and stands for the share of its layers. A drafter's layers are shared out evenly to the
    groups of full attention.

    Parameters
    ----------
    deployment : Deployment

    Returns
    -------
    KvLayout

    Sources
    -------
    vLLM 0.33.0, ``v1/core/kv_cache_planning.py`` (read 2026-11-29): groups have the size of the smallest bucket,
    or of the largest when that is less than 1.5 times the smallest.
    """
    model, per_layer = deployment.model, kv_bytes_per_token_and_layer(deployment)
    layers = stage_layers(model, deployment.parallelism)
    num_sliding = round(model.num_sliding_layers * layers / model.num_layers)
    num_full = layers - num_sliding
    buckets = [n for n in (num_full, num_sliding) if n]
    if deployment.engine != "vllm":
        size = math.gcd(*buckets)
    else:
        size = max(buckets) if max(buckets) < 1.5 * min(buckets) else min(buckets)
    drafter = drafter_of(deployment)
    beside = 0.0 if drafter is None else kv_bytes_per_token_and_layer(drafter) * drafter.model.num_layers
    num_full_groups = math.ceil(num_full / size)
    return KvLayout(
        bytes_per_token_and_group=per_layer * size + beside / max(num_full_groups, 1),
        num_full_groups=num_full_groups,
        num_sliding_groups=math.ceil(num_sliding / size),
        window_tokens=model.sliding_window_tokens,
    )


def longest_request(deployment: Deployment, kv_bytes: int) -> int:
    """Longest context [tokens] a KV cache of ``kv_bytes`` holds, in whole blocks of every layer group."""
    layout, block = kv_layout(deployment), deployment.kv_block_tokens
    blocks = int(kv_bytes // (layout.bytes_per_token_and_group * block)) - 1
    if layout.num_sliding_groups == 0 or layout.num_full_groups == 0:
        groups = layout.num_full_groups or layout.num_sliding_groups
        longest = blocks // groups * block
        if layout.num_full_groups or longest < layout.window_tokens:
            return max(0, longest)
        return deployment.model.max_context_tokens
    window_blocks = math.ceil((layout.window_tokens + deployment.max_step_tokens) / block) + 1
    in_window = blocks // (layout.num_full_groups + layout.num_sliding_groups)
    if in_window <= window_blocks:
        return max(0, in_window * block)
    return (blocks - layout.num_sliding_groups * window_blocks) // layout.num_full_groups * block
