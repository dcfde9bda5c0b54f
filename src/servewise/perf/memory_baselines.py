"""Memory and step times of the textbook baselines, taken from vLLM's."""

from __future__ import annotations

from dataclasses import replace

from servewise.engines import baselines
from servewise.perf.memory_kv import kv_layout
from servewise.perf.memory_parts import MemoryParts
from servewise.perf.memory_vllm import vllm_parts
from servewise.types import BaselineParams, Deployment

__all__ = ["baseline_parts", "timed_as"]


def baseline_parts(deployment: Deployment) -> MemoryParts:
    """Share out a GPU's memory for a baseline as vLLM does, with the same share of it.

    A step's activations are charged for ``chunk_size`` tokens, or for one prompt of ``max_seq_len`` where prompts are
    whole; assumed: a longer step is computed in pieces of that length, layer by layer, and needs no more.
    """
    params = deployment.params
    assert isinstance(params, BaselineParams)  # noqa: S101 (the caller matched it)
    parts = vllm_parts(baselines.as_vllm(deployment, params.chunk_size or params.max_seq_len))
    origin = baselines.provenance()
    return replace(parts, provenance=dict.fromkeys(parts.provenance, origin))


def timed_as(deployment: Deployment) -> Deployment:
    """The vLLM deployment whose step times a baseline is given, any other deployment as it is.

    Where prompts are whole, a step has as many tokens as the KV cache has room for slots of ``max_seq_len``.
    """
    params = deployment.params
    if not isinstance(params, BaselineParams):
        return deployment
    tokens = params.chunk_size
    if tokens == 0:
        per_token = kv_layout(deployment).bytes_of_request(params.max_seq_len) / params.max_seq_len
        blocks = int(max(0, baseline_parts(deployment).kv_bytes) // (per_token * params.block_size_tokens))
        tokens = max(baselines.num_slots(params, blocks), 1) * params.max_seq_len
    return baselines.as_vllm(deployment, tokens)
