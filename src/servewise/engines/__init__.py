"""Serving engines: their defaults by version, their flags and what they take of a GPU's memory."""

from servewise.engines import baselines, llamacpp, sglang, tgi, trtllm, vllm
from servewise.engines.graphs import capture_sizes, pads_to_captured_sizes, replays_graphs_with_prompts
from servewise.engines.launch import Launch

__all__ = [
    "Launch",
    "baselines",
    "capture_sizes",
    "llamacpp",
    "pads_to_captured_sizes",
    "replays_graphs_with_prompts",
    "sglang",
    "tgi",
    "trtllm",
    "vllm",
]
