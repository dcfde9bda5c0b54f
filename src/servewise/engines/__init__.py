"""Serving engines: their defaults by version, their flags and what they take of a GPU's memory."""

from servewise.engines import baselines, llamacpp, ollama, sglang, tgi, trtllm, vllm
from servewise.engines.checkpoints import needs_other_checkpoint
from servewise.engines.graphs import capture_sizes, pads_to_captured_sizes, replays_graphs_with_prompts
from servewise.engines.launch import Launch, checked_name

__all__ = [
    "Launch",
    "baselines",
    "capture_sizes",
    "checked_name",
    "llamacpp",
    "needs_other_checkpoint",
    "ollama",
    "pads_to_captured_sizes",
    "replays_graphs_with_prompts",
    "sglang",
    "tgi",
    "trtllm",
    "vllm",
]
