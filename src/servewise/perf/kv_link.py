"""What moving a prompt's KV cache from one instance to another takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from servewise.catalog.facts import Fact, read_facts
from servewise.perf.memory_kv import kv_bytes_per_token_and_layer
from servewise.types import Deployment, KvLink, Parallelism, Provenance
from servewise.units import GB

__all__ = ["kv_link", "kv_transfer_bytes", "kv_transfer_bytes_per_token"]

LINKS = "perf/kv_links.csv"
NETWORK, NODE = "network", "node"


def _number(entity: str, field: str, unit: str, factor: float) -> tuple[float, Provenance]:
    fact: Fact = read_facts(LINKS)[entity][field]
    return fact.number({unit: factor}, f"{LINKS}: {entity} {field}"), fact.provenance


def kv_transfer_bytes_per_token(deployment: Deployment) -> float:
    """KV cache of a token over all layers, one copy [bytes]; shorter than a sliding window, that is.

    Parameters
    ----------
    deployment : Deployment
        Of the instance that sends.
    """
    return deployment.model.num_layers * _bytes_per_token_and_layer(deployment)


def kv_transfer_bytes(deployment: Deployment, input_tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """KV cache that prompts send, in whole blocks, one copy [bytes].

    Parameters
    ----------
    deployment : Deployment
        Of the instance that sends.
    input_tokens : int64 array, shape (num_requests,) [tokens]

    Returns
    -------
    float64 array, shape (num_requests,) [bytes]
    """
    model, block = deployment.model, deployment.kv_block_tokens
    tokens = -(-input_tokens // block) * block
    window = -(-model.sliding_window_tokens // block) * block
    full = model.num_layers - model.num_sliding_layers
    held = full * tokens + model.num_sliding_layers * np.minimum(tokens, window)
    return np.asarray(_bytes_per_token_and_layer(deployment) * held, np.float64)


def _bytes_per_token_and_layer(deployment: Deployment) -> float:
    """With all of its key-value heads, which one GPU would hold without tensor parallelism."""
    return kv_bytes_per_token_and_layer(replace(deployment, parallelism=Parallelism()))


def kv_link(prefill: Deployment, decode: Deployment, num_prefill: int, num_decode: int) -> KvLink:
    """The link of a group of ``num_prefill`` and ``num_decode`` instances.

    GPUs of one kind whose group fits into a node use the node's own link, all others the network. As many GPUs of
    an instance send side by side as hold different parts of the KV cache on both sides.

    Parameters
    ----------
    prefill, decode : Deployment
        Of one instance each.
    num_prefill, num_decode : int
        Instances in a group.

    Returns
    -------
    KvLink

    Sources
    -------
    ``servewise/data/catalog/gpus.csv`` (``link``, ``nic``), ``servewise/data/perf/kv_links.csv``.
    """
    sender, receiver = prefill.gpu, decode.gpu
    num_gpus = num_prefill * prefill.parallelism.num_gpus + num_decode * decode.parallelism.num_gpus
    within = sender.name == receiver.name and num_gpus <= sender.gpus_per_node
    where = NODE if within else NETWORK
    efficiency, origin = _number(where, "efficiency", "-", 1.0)
    if within:
        cap, origin = _number(NODE, "cap", "GB/s", GB)
        per_gpu = min(efficiency * sender.link_bytes_per_s, cap)
    else:
        per_gpu = efficiency * min(sender.nic_bytes_per_s, receiver.nic_bytes_per_s)
    latency_s, latency_origin = _number(where, "latency", "ms", 1e-3)
    return KvLink(
        kind=sender.link_kind if within else NETWORK,
        bytes_per_s=per_gpu * _lanes(prefill, decode),
        latency_s=latency_s,
        provenance={"bytes_per_s": origin, "latency_s": latency_origin},
    )


def _lanes(prefill: Deployment, decode: Deployment) -> int:
    """GPUs of an instance that hold different parts of the KV cache, on both sides."""
    ways = (prefill.parallelism, decode.parallelism)
    heads = 1 if prefill.model.attention == "mla" else prefill.model.num_kv_heads
    split = min(heads, *(way.tensor_parallel_size for way in ways))
    return split * min(way.pipeline_parallel_size for way in ways)
