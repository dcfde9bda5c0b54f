"""What the GPUs of a replica exchange in one step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from servewise.perf.layout import compute_type
from servewise.perf.operators import Operators
from servewise.types import Deployment

__all__ = ["collectives_s", "exchange_s"]

Array = NDArray[np.float64]

FP8_VALUE_BYTES = 1.0 + 4.0 / 128
"""A value that is sent to its experts in fp8, with a 32-bit scale for 128 of them."""


def collectives_s(deployment: Deployment, operators: Operators, tokens: Array) -> Array:
    """All-reduces of every layer and of the embedding, exchange around experts, sends between pipeline stages [s].

    Data parallel ranks gather before the experts and scatter after them, in two collectives (vLLM's default
    ``allgather_reducescatter``; TensorRT-LLM's own kernels are taken to be as fast), unless tokens are sent to their
    experts alone (``expert_all_to_all``).

    Parameters
    ----------
    deployment : Deployment
    operators : Operators
    tokens : float64 array [tokens]
        Of a batch of one rank.
    """
    model, parallelism = deployment.model, deployment.parallelism
    tp, ranks = parallelism.tensor_parallel_size, parallelism.data_parallel_size
    message = 2.0 * tokens * model.hidden_size
    one = operators.all_reduce_s(message, tp)
    total = (model.num_layers + 1) * one
    if ranks == 1:
        total = total + model.num_layers * one
    elif parallelism.expert_all_to_all:
        total = total + _all_to_all_s(deployment, operators, tokens)
    else:  # tokens of all ranks are gathered before the experts and their sums scattered after them
        total = total + exchange_s(deployment, operators, ranks * tokens)
    return np.asarray(total + _sends_s(deployment, operators, message))


def exchange_s(deployment: Deployment, operators: Operators, tokens: Array) -> Array:
    """Gathering ``tokens`` of all data parallel ranks together and scattering their sums, over all layers [s]."""
    model, parallelism = deployment.model, deployment.parallelism
    message, gpus = 2.0 * tokens * model.hidden_size, parallelism.tensor_parallel_size * parallelism.data_parallel_size
    nodes = _nodes_of_ranks(deployment)
    gathered = operators.collective_s("all_gather", message, gpus, nodes)
    scattered = operators.collective_s("reduce_scatter", message, gpus, nodes)
    return np.asarray(model.num_layers * (gathered + scattered))


def _all_to_all_s(deployment: Deployment, operators: Operators, tokens: Array) -> Array:
    """Dispatch of tokens to their experts and combination of what comes back, over all layers with experts [s].

    Each GPU sends its share of the rank's tokens once for each of their experts: in fp8 where the experts compute in 8
    bits or fewer, else in 16 bits; what comes back has 16 bits.
    """
    moe, parallelism = deployment.model.moe, deployment.parallelism
    assert moe is not None  # noqa: S101 (only models with experts have ranks, see ``require_supported``)
    gpus = parallelism.tensor_parallel_size * parallelism.data_parallel_size
    nodes = _nodes_of_ranks(deployment)
    values = tokens / parallelism.tensor_parallel_size * moe.top_k * deployment.model.hidden_size
    narrow = compute_type(deployment.gpu, deployment.precision.weights) != "bf16"
    there = operators.collective_s("all_to_all", (FP8_VALUE_BYTES if narrow else 2.0) * values, gpus, nodes)
    back = operators.collective_s("all_to_all", 2.0 * values, gpus, nodes)
    return np.asarray(moe.num_moe_layers * (there + back))


def _nodes_of_ranks(deployment: Deployment) -> int:
    """Fewest nodes over which the GPUs with the same layers are spread.

    vLLM numbers GPUs by data parallel rank, then stage, then within the stage (``distributed/parallel_state.py``:
    ``initialize_model_parallel``, 0.33.0): the stages of a rank stand together. Other engines keep a stage together.
    """
    parallelism, node = deployment.parallelism, deployment.gpu.link_gpus
    of_rank = parallelism.tensor_parallel_size * parallelism.pipeline_parallel_size
    if deployment.engine != "vllm":
        return 1
    return parallelism.data_parallel_size if of_rank > node else -(-parallelism.num_gpus // node)


def _sends_s(deployment: Deployment, operators: Operators, message: Array) -> Array:
    """Hidden state and residual from stage to stage [s]: every rank sends its share, the receivers gather them.

    Stages fill the nodes one after the other, of vLLM's data parallel ranks those of each rank; a boundary lies between
    nodes where one is full.
    """
    parallelism, stages = deployment.parallelism, deployment.parallelism.pipeline_parallel_size
    size, tp = parallelism.num_gpus // stages, parallelism.tensor_parallel_size
    if deployment.engine == "vllm":
        size = tp
    total = np.zeros_like(message)
    for boundary in range(1, stages):
        between = (boundary * size) % deployment.gpu.link_gpus == 0
        gathered = operators.collective_s("all_gather", 2.0 * message, tp)
        total = total + operators.send_s(2.0 * message / tp, between=between) + gathered
    return np.asarray(total)
