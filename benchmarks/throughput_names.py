"""Models, GPUs and precisions as published throughput tables name them, and what the catalog calls them."""

from __future__ import annotations

import re
from functools import cache

from benchmarks.throughput_models import tabled_models
from benchmarks.throughput_rows import Unplaceable
from servewise.catalog import get_gpu, get_model
from servewise.errors import InputError, UnknownNameError
from servewise.types import GpuSpec, ModelSpec

__all__ = ["place_gpu", "place_model"]

HYBRIDS = ("nemotron", "mamba", "jamba", "granite-4", "qwen3-next")
MODEL_RULES: tuple[tuple[str, str], ...] = (
    (r"llama-?v?4-?scout", "meta-llama/Llama-4-Scout-17B-16E-Instruct"),
    (r"llama-?v?4-?maverick", "meta-llama/Llama-4-Maverick-17B-128E-Instruct"),
    (r"llama-?v?3\.([123])-?(\d+)b", r"meta-llama/Llama-3.\1-\2B-Instruct"),
    (r"llama-?v?3-?(\d+)b", r"meta-llama/Meta-Llama-3-\1B-Instruct"),
    (r"llama-?v?3-?(\d+)b", r"meta-llama/Llama-3.1-\1B-Instruct"),
    (r"llama-?8b", "meta-llama/Llama-3.1-8B-Instruct"),
    (r"llama-?v?2?-?(\d+)b", r"meta-llama/Llama-2-\1b-chat-hf"),
    (r"llama-?v?2?-?(\d+)b", r"meta-llama/Llama-2-\1b-hf"),
    (r"mixtral-?8x(\d+)b", r"mistralai/Mixtral-8x\1B-Instruct-v0.1"),
    (r"mistral-?7b", "mistralai/Mistral-7B-Instruct-v0.3"),
    (r"gpt-?j", "EleutherAI/gpt-j-6b"),
    (r"falcon-?(\d+)b", r"tiiuae/falcon-\1B"),
    (r"gpt-?oss-?(\d+)b", r"openai/gpt-oss-\1b"),
    (r"deepseek-?(r1|v3)", "deepseek-ai/DeepSeek-V3"),
    (r"deepseek2-30b\.a3b|glm-?4\.7-?flash", "zai-org/GLM-4.7-Flash"),
    (r"qwen3(?:-coder|moe)?-?(\d+)b[.-]a(\d+)b", r"Qwen/Qwen3-\1B-A\2B"),
    (r"qwen3-?(\d+)b", r"Qwen/Qwen3-\1B"),
    (r"qwen2(?:\.5)?(?:-coder)?-?(\d+)b", r"Qwen/Qwen2.5-\1B-Instruct"),
    (r"gemma-?3-?(\d+)b", r"google/gemma-3-\1b-it"),
    (r"gemma-?2-?(\d+)b", r"google/gemma-2-\1b-it"),
)
"""What a folded name contains, and the catalog's model of the same shapes, tried in order: Llama 3 and 3.1 differ in
context length only, coder and base checkpoints not at all; TensorRT-LLM 0.9's "LLaMA 7B" is Llama 2 (its page
benchmarks ``Llama2-7b``)."""
GPU_RULES: tuple[tuple[str, str], ...] = (
    (r"gb300", "GB300-279GB"),
    (r"gb200", "GB200-186GB"),
    (r"b300", "B300-SXM-270GB"),
    (r"b200", "B200-SXM-180GB"),
    (r"gh200.*144", "GH200-144GB"),
    (r"gh200.*96", "GH200-96GB"),
    (r"h200-nvl", "H200-NVL-141GB"),
    (r"h200", "H200-SXM-141GB"),
    (r"h100-nvl", "H100-NVL-94GB"),
    (r"h100-pcie", "H100-PCIe-80GB"),
    (r"h100", "H100-SXM-80GB"),
    (r"a100-pcie.*40", "A100-PCIe-40GB"),
    (r"a100-pcie", "A100-PCIe-80GB"),
    (r"a100.*40gb", "A100-SXM-40GB"),
    (r"a100", "A100-SXM-80GB"),
    (r"l40s", "L40S-48GB"),
    (r"rtx-pro-6000", "RTX-PRO-6000-96GB"),
    (r"rtx-?3090", "RTX-3090-24GB"),
    (r"rtx-?4090", "RTX-4090-24GB"),
    (r"rtx-?5090", "RTX-5090-32GB"),
    (r"mi300x", "MI300X-192GB"),
    (r"mi325x", "MI325X-256GB"),
    (r"gb10|dgx-spark", "GB10-128GB"),
    (r"arc.*b60", "ARC-PRO-B60-24GB"),
    (r"gaudi-?3|hl-325", "GAUDI3-128GB"),
    (r"gaudi-?2|hl-225", "GAUDI2-96GB"),
    (r"m2-ultra", "M2-ULTRA-192GB"),
    (r"m3-max", "M3-MAX-128GB"),
    (r"m4-max", "M4-MAX-128GB"),
    (r"a10g", "A10G-24GB"),
    (r"\bl4\b", "L4-24GB"),
    (r"orin", "Jetson-AGX-Orin-64GB"),
)
"""What a folded name contains, and the catalog's GPU; without a form factor the SXM board of 80 GB or more, which
TensorRT-LLM's and MLPerf's tables mean."""


def fold(name: str) -> str:
    """Lower case, every run of separators one hyphen."""
    return re.sub(r"[\s_/()-]+", "-", name.strip().lower())


@cache
def place_model(name: str) -> ModelSpec:
    """Catalog model that a published name means.

    Raises
    ------
    Unplaceable
        When the name means a model that was altered, is a hybrid, or is not in the catalog.
    """
    folded = fold(name)
    if not folded:
        raise Unplaceable("model not named")
    for word in HYBRIDS:
        if word in folded:
            raise Unplaceable(f"model is a hybrid with state-space layers, whose step time is not modelled: {name}")
    try:
        return get_model(name)
    except (UnknownNameError, InputError):
        pass
    for pattern, meaning in MODEL_RULES:
        found = re.search(pattern, folded)
        if found is None:
            continue
        try:
            return get_model(found.expand(meaning))
        except UnknownNameError:
            tabled = tabled_models().get(found.expand(meaning))
            if tabled is not None:
                return tabled
    raise Unplaceable(f"model not in the catalog: {name}")


@cache
def place_gpu(name: str) -> GpuSpec:
    """Catalog GPU that a published name means.

    Raises
    ------
    Unplaceable
        When no GPU is named or the catalog lacks it.
    """
    folded = fold(name)
    if not folded:
        raise Unplaceable("hardware unknown: no accelerator named")
    for pattern, meaning in GPU_RULES:
        if re.search(pattern, folded):
            try:
                return get_gpu(meaning)
            except InputError:
                raise Unplaceable(f"hardware not in the catalog: {name}") from None
    raise Unplaceable(f"hardware not in the catalog: {name}")
