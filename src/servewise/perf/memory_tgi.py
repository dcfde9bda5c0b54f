"""How Text Generation Inference cuts up a GPU's memory."""

from __future__ import annotations

from servewise.engines import tgi
from servewise.perf.memory_kv import kv_bytes_per_token_and_layer
from servewise.perf.memory_parts import MemoryParts
from servewise.perf.memory_vllm import forward_bytes
from servewise.perf.memory_weights import weights_bytes
from servewise.types import Deployment, Provenance, TgiParams
from servewise.units import GIB

__all__ = ["tgi_bytes_per_token", "tgi_parts"]


def tgi_parts(deployment: Deployment, params: TgiParams) -> MemoryParts:
    """Share out a GPU's memory as TGI does: KV = free after a warm-up - (1 - wiggle room x fraction) x memory.

    The warm-up computes ``max_batch_prefill_tokens`` prompt tokens, and what is free is read while its activations
    are still held. CUDA graphs are captured afterwards, in the share that is kept back.

    Parameters
    ----------
    deployment : Deployment
    params : TgiParams

    Sources
    -------
    ``FlashCausalLM.warmup`` in ``server/text_generation_server/models/flash_causal_lm.py`` (db931fcf, restated in the
    development material). Activations: the form fitted to vLLM's profiling runs, which compute the same layers.
    """
    libraries, source = tgi.library_gib(deployment.gpu, deployment.parallelism.tensor_parallel_size)
    hidden, inner, workspace = forward_bytes(deployment.model, deployment, params.max_batch_prefill_tokens)
    derived = Provenance(kind="derived", source="a forward of max_batch_prefill_tokens, as fitted for vLLM")
    return MemoryParts(
        budget_bytes=int(deployment.gpu.mem_bytes * params.cuda_memory_fraction * params.wiggle_room),
        weights_bytes=weights_bytes(deployment.model, deployment.precision.weights, deployment.parallelism),
        activation_bytes=int(hidden + inner + workspace),
        non_torch_bytes=int(libraries * GIB),
        graph_bytes=0,
        provenance={
            "activation": derived,
            "non_torch": source,
            "graph": Provenance(kind="derived", source="captured in the share of memory that TGI keeps back"),
        },
    )


def tgi_bytes_per_token(deployment: Deployment) -> float:
    """KV cache of a token [bytes]: every layer keeps every token, sliding windows too."""
    return deployment.model.num_layers * kv_bytes_per_token_and_layer(deployment)
