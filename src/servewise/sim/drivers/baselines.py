"""The textbook baselines: static batching, Orca, Sarathi (specification: docs/baseline-schedulers.md)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from servewise.engines.baselines import num_slots
from servewise.errors import InputError
from servewise.kernel import layout, orca, static
from servewise.sim.drivers.base import plain_engine
from servewise.sim.pack import Packed
from servewise.types import BaselineParams, Deployment, MemoryReport, Workload

__all__ = ["Baseline"]

TAKE_WHOLE_PROMPT = 2
"""Value of ``layout.Engine.reserve_full``: a prompt takes its blocks when it is admitted."""


class Baseline:
    """See ``servewise.kernel.static``, ``orca`` and, for Sarathi, ``vllm``."""

    def caches_prefixes(self, deployment: Deployment) -> bool:
        """Never: there is no cache."""
        del deployment
        return False

    def check(self, deployment: Deployment, memory: MemoryReport) -> int:
        """Check what the kernel rests on."""
        params = _params(deployment)
        if params.block_size_tokens & (params.block_size_tokens - 1):
            raise InputError(f"block_size_tokens must be a power of two, got {params.block_size_tokens}")
        slots = num_slots(params, memory.num_kv_blocks)
        if slots < 1:
            raise InputError(
                f"max_seq_len {params.max_seq_len} exceeds the KV capacity of {memory.kv_capacity_tokens} tokens; "
                "lower it, or use more or larger GPUs"
            )
        if deployment.engine != "sarathi":
            return slots * params.max_seq_len
        if params.chunk_size < params.max_batch_size:
            raise InputError(
                f"chunk_size {params.chunk_size} is below max_batch_size {params.max_batch_size}; raise it, or lower "
                "max_batch_size"
            )
        return params.chunk_size

    def accepts(self, workload: Workload, deployment: Deployment) -> NDArray[np.bool_]:
        """All."""
        del deployment
        return np.ones(workload.num_requests, np.bool_)

    def engine(self, deployment: Deployment, num_kv_blocks: int) -> layout.Engine:
        """Without lag; with contiguous slots a seat a slot, and a budget that cannot bind."""
        params = _params(deployment)
        engine = plain_engine(deployment, num_kv_blocks)._replace(
            lag=0, block_shift=params.block_size_tokens.bit_length() - 1
        )
        if deployment.engine == "sarathi":
            return engine._replace(reserve_full=TAKE_WHOLE_PROMPT)
        slots = num_slots(params, num_kv_blocks)
        return engine._replace(max_num_seqs=slots, max_num_batched_tokens=slots * params.max_seq_len)

    def driver(
        self, packed: Packed, deployment: Deployment, engine: layout.Engine, memory: MemoryReport
    ) -> static.Batching | orca.Slots | None:
        """What a slot holds, and how a batch is made."""
        del packed, memory
        params = _params(deployment)
        by_memory = int(engine.max_num_seqs < params.max_batch_size)
        if deployment.engine == "static":
            return static.Batching(engine.max_num_seqs, params.blocks_of_slot, by_memory, params.max_wait_s)
        if deployment.engine == "orca":
            return orca.Slots(params.blocks_of_slot, by_memory)
        return None


def _params(deployment: Deployment) -> BaselineParams:
    params = deployment.params
    assert isinstance(params, BaselineParams)  # noqa: S101 (the registry is keyed by this type)
    return params
