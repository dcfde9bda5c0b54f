"""Serving engines: their defaults by version, their flags and what they take of a GPU's memory."""

from servewise.engines import llamacpp, ollama, sglang, trtllm, vllm
from servewise.engines.graphs import capture_sizes, pads_to_captured_sizes, replays_graphs_with_prompts

__all__ = [
    "capture_sizes",
    "llamacpp",
    "ollama",
    "pads_to_captured_sizes",
    "replays_graphs_with_prompts",
    "sglang",
    "trtllm",
    "vllm",
]
