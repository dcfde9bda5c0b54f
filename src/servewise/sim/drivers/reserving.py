"""Engines that set a request's whole KV cache aside: SGLang's estimate taken as a reservation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from servewise.errors import InputError
from servewise.kernel import layout
from servewise.sim.drivers.base import plain_engine
from servewise.sim.pack import Packed
from servewise.types import Deployment, MemoryReport, SglangParams, Workload

__all__ = ["Sglang"]

SGLANG_CLIP_TOKENS = 4096
"""The most output that SGLang counts for a request when it admits it (``SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION``)."""


def _checked(reservation: layout.Reservation, engine: layout.Engine, memory: MemoryReport) -> layout.Reservation:
    """Check that every request can be admitted to an empty engine."""
    most = int(reservation.blocks.max(initial=0))
    if most > engine.num_blocks:
        raise InputError(
            f"a request's prompt and max_tokens set {most} KV blocks of {memory.block_size_tokens} tokens aside, the "
            f"engine has {engine.num_blocks}; lower max_tokens or the context, or use more or larger GPUs"
        )
    return reservation


class Sglang:
    """SGLang for clients that ignore the end-of-sequence token."""

    def caches_prefixes(self, deployment: Deployment) -> bool:
        """Never: every prompt is computed whole."""
        del deployment
        return False

    def check(self, deployment: Deployment, memory: MemoryReport) -> int:
        """Check what the kernel rests on."""
        del memory
        params = deployment.params
        assert isinstance(params, SglangParams)  # noqa: S101 (the registry is keyed by this type)
        chunk, page = params.chunked_prefill_size, params.page_size
        if chunk < 1:
            raise InputError(f"only chunked prefill is simulated; chunked_prefill_size must be positive, got {chunk}")
        if chunk % page or chunk > params.max_prefill_tokens:
            raise InputError(
                f"chunked_prefill_size {chunk} must be a multiple of page_size {page} and at most max_prefill_tokens "
                f"{params.max_prefill_tokens}"
            )
        return chunk

    def accepts(self, workload: Workload, deployment: Deployment) -> NDArray[np.bool_]:
        """All."""
        del deployment
        return np.ones(workload.num_requests, np.bool_)

    def engine(self, deployment: Deployment, num_kv_blocks: int) -> layout.Engine:
        """SGLang's parameters; what a request sets aside must be *less* than what is free."""
        params = deployment.params
        assert isinstance(params, SglangParams)  # noqa: S101
        return plain_engine(deployment, num_kv_blocks - 1)._replace(max_num_batched_tokens=params.chunked_prefill_size)

    def driver(
        self, packed: Packed, deployment: Deployment, engine: layout.Engine, memory: MemoryReport
    ) -> layout.Reservation:
        """What each request sets aside: with room for all that it turns out to produce, nothing is retracted."""
        size = deployment.kv_block_tokens
        output = np.maximum(np.minimum(packed.max_tokens, SGLANG_CLIP_TOKENS), packed.requests.output_tokens)
        blocks = -(-packed.requests.input_tokens.astype(np.int64) // size) + -(-output // size) + 1
        reservation = layout.Reservation(
            blocks.astype(np.int32), exclusive=1, chunking=1, cut=size, charge=size, wait_steps=0, wait_tokens=0.0
        )
        return _checked(reservation, engine, memory)
