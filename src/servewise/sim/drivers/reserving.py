"""TensorRT-LLM: sets a request's whole KV cache aside when it admits it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from servewise.errors import InputError
from servewise.kernel import layout
from servewise.sim.drivers.base import plain_engine
from servewise.sim.pack import Packed
from servewise.types import Deployment, MemoryReport, TrtllmParams, Workload

__all__ = ["Trtllm"]


def _checked(reservation: layout.Reservation, engine: layout.Engine, memory: MemoryReport) -> layout.Reservation:
    """Check that every request can be admitted to an empty engine."""
    most = int(reservation.blocks.max(initial=0))
    if most > engine.num_blocks:
        raise InputError(
            f"a request's prompt and max_tokens set {most} KV blocks of {memory.block_size_tokens} tokens aside, the "
            f"engine has {engine.num_blocks}; lower max_tokens or the context, or use more or larger GPUs"
        )
    return reservation


class Trtllm:
    """TensorRT-LLM with ``GUARANTEED_NO_EVICT``."""

    knows_prefixes = False

    def check(self, deployment: Deployment, memory: MemoryReport) -> int:
        """Check what the kernel rests on."""
        del memory
        params = deployment.params
        assert isinstance(params, TrtllmParams)  # noqa: S101 (the registry is keyed by this type)
        least = max(params.max_batch_size, params.tokens_per_block if params.enable_chunked_prefill else 1)
        if params.max_num_tokens < least:
            raise InputError(
                f"max_num_tokens {params.max_num_tokens} is below {least}, the larger of max_batch_size and, with "
                "chunked prefill, tokens_per_block; raise it, or lower max_batch_size"
            )
        return params.max_num_tokens

    def accepts(self, workload: Workload, deployment: Deployment) -> NDArray[np.bool_]:
        """Prompts that fit a step, unless they may be cut."""
        params = deployment.params
        assert isinstance(params, TrtllmParams)  # noqa: S101
        if params.enable_chunked_prefill:
            return np.ones(workload.num_requests, np.bool_)
        return np.asarray(workload.input_tokens <= params.max_num_tokens)

    def engine(self, deployment: Deployment, num_kv_blocks: int) -> layout.Engine:
        """TensorRT-LLM's parameters."""
        return plain_engine(deployment, num_kv_blocks)

    def driver(
        self, packed: Packed, deployment: Deployment, engine: layout.Engine, memory: MemoryReport
    ) -> layout.Reservation:
        """What each request sets aside."""
        params = deployment.params
        assert isinstance(params, TrtllmParams)  # noqa: S101
        size = params.tokens_per_block
        blocks = -(-(packed.requests.input_tokens.astype(np.int64) + packed.max_tokens) // size)
        reservation = layout.Reservation(
            blocks.astype(np.int32),
            exclusive=0,
            chunking=int(params.enable_chunked_prefill),
            cut=size,
            charge=1,
            wait_steps=params.batch_wait_timeout_iters,
            wait_tokens=params.batch_wait_max_tokens_ratio * params.max_num_tokens,
        )
        return _checked(reservation, engine, memory)
