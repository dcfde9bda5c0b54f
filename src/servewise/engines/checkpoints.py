"""Which precisions an engine makes at start, and which need another checkpoint than the model's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from servewise.engines import ollama, sglang, tgi, trtllm, vllm
from servewise.types import EngineName, ModelSpec, WeightPrecision

__all__ = ["needs_other_checkpoint"]

OWN_RULES: Mapping[EngineName, Callable[[ModelSpec, WeightPrecision], bool]] = {
    "vllm": vllm.needs_quantized_checkpoint,
    "sglang": sglang.needs_quantized_checkpoint,
    "tensorrt-llm": trtllm.needs_quantized_checkpoint,
    "tgi": tgi.needs_quantized_checkpoint,
    "ollama": ollama.needs_quantized_checkpoint,
    "llama.cpp": ollama.needs_quantized_checkpoint,
}


def needs_other_checkpoint(engine: EngineName, model: ModelSpec, weights: WeightPrecision) -> bool:
    """Whether an engine serves a precision from another checkpoint only; the textbook baselines convert nothing."""
    rule = OWN_RULES.get(engine)
    return weights != model.native_precision if rule is None else rule(model, weights)
