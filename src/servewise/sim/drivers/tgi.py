"""Text Generation Inference: turns requests away, sets the rest's whole KV cache aside."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from servewise.errors import InputError
from servewise.kernel import layout
from servewise.kernel.tgi import Tgi as Driver
from servewise.kernel.tgi import new_tgi
from servewise.sim.drivers.base import plain_engine
from servewise.sim.pack import Packed
from servewise.types import Deployment, MemoryReport, TgiParams, Workload

__all__ = ["Tgi"]


def _params(deployment: Deployment) -> TgiParams:
    params = deployment.params
    assert isinstance(params, TgiParams)  # noqa: S101 (the registry is keyed by this type)
    return params


class Tgi:
    """See ``servewise.kernel.tgi``."""

    def caches_prefixes(self, deployment: Deployment) -> bool:
        """As the parameter says."""
        return _params(deployment).prefix_caching

    def check(self, deployment: Deployment, memory: MemoryReport) -> int:
        """Check what the kernel rests on."""
        params = _params(deployment)
        if params.block_size_tokens & (params.block_size_tokens - 1):
            raise InputError(f"block_size_tokens must be a power of two, got {params.block_size_tokens}")
        if params.prefix_caching and not params.prefill_chunking:
            raise InputError(
                "a prefix cache without prefill_chunking is not simulated: TGI enters prompts in it that it has not "
                "computed; switch prefix_caching off"
            )
        if memory.kv_capacity_tokens < params.max_total_tokens - 1:
            raise InputError(
                f"max_total_tokens {params.max_total_tokens} exceeds the KV capacity of {memory.kv_capacity_tokens} "
                "tokens; lower it, or use more or larger GPUs"
            )
        return deployment.max_step_tokens

    def accepts(self, workload: Workload, deployment: Deployment) -> NDArray[np.bool_]:
        """All, or prompts that fit a forward whole."""
        params = _params(deployment)
        size = params.block_size_tokens
        whole = -(-params.max_batch_prefill_tokens // size) * size
        return np.asarray((workload.input_tokens <= whole) | params.prefill_chunking, np.bool_)

    def engine(self, deployment: Deployment, num_kv_blocks: int) -> layout.Engine:
        """TGI's parameters; ``max_num_batched_tokens`` is the budget, which the first chunks may exceed by a block."""
        params = _params(deployment)
        return plain_engine(deployment, num_kv_blocks)._replace(
            max_num_batched_tokens=params.max_batch_prefill_tokens,
            block_shift=params.block_size_tokens.bit_length() - 1,
            lag=0,
            caching=int(params.prefix_caching),
        )

    def driver(self, packed: Packed, deployment: Deployment, engine: layout.Engine, memory: MemoryReport) -> Driver:
        """What each request sets aside, and how many must wait before the others are interrupted."""
        del memory
        params = _params(deployment)
        size = params.block_size_tokens
        blocks = -(-(packed.requests.input_tokens.astype(np.int64) + packed.max_tokens - 1) // size)
        rows = np.arange(engine.max_num_seqs + 1, dtype=np.float32)  # TGI multiplies in 32 bits
        return new_tgi(
            blocks.astype(np.int32),
            deployment.num_replicas,
            engine.max_num_seqs,
            chunking=params.prefill_chunking,
            least_new=np.floor(rows * np.float32(params.waiting_served_ratio)).astype(np.int32),
            max_waiting=params.max_waiting_tokens,
        )
