"""vLLM: grows its requests block by block; data parallel ranks run in lock step behind a router of its own."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from servewise.engines.vllm import validate_policy
from servewise.errors import InputError
from servewise.kernel import layout
from servewise.kernel.policy import Policy, new_policy
from servewise.sim.drivers.base import plain_engine
from servewise.sim.pack import Packed
from servewise.types import Deployment, MemoryReport, Workload

__all__ = ["Vllm", "routes_by_kv_use"]


class Vllm:
    """See ``servewise.kernel.vllm`` and ``servewise.kernel.ranks``."""

    def caches_prefixes(self, deployment: Deployment) -> bool:
        """As the parameter says."""
        return deployment.vllm_params.enable_prefix_caching

    def check(self, deployment: Deployment, memory: MemoryReport) -> int:
        """Check what the kernel rests on."""
        params = deployment.vllm_params
        if memory.kv_capacity_tokens < params.max_model_len:
            raise InputError(
                f"max_model_len {params.max_model_len} exceeds the KV capacity of {memory.kv_capacity_tokens} "
                "tokens; lower it, or use more or larger GPUs"
            )
        if not params.enable_chunked_prefill:
            raise InputError("only chunked prefill is simulated; set enable_chunked_prefill")
        if params.block_size_tokens & (params.block_size_tokens - 1):
            raise InputError(f"block_size_tokens must be a power of two, got {params.block_size_tokens}")
        if params.max_num_batched_tokens < params.max_num_seqs:
            raise InputError(
                f"max_num_batched_tokens {params.max_num_batched_tokens} is below max_num_seqs "
                f"{params.max_num_seqs}; raise it, or lower max_num_seqs"
            )
        validate_policy(params)
        return params.max_num_batched_tokens

    def accepts(self, workload: Workload, deployment: Deployment) -> NDArray[np.bool_]:
        """All."""
        del deployment
        return np.ones(workload.num_requests, np.bool_)

    def engine(self, deployment: Deployment, num_kv_blocks: int) -> layout.Engine:
        """vLLM's parameters."""
        params = deployment.vllm_params
        return plain_engine(deployment, num_kv_blocks)._replace(
            block_shift=params.block_size_tokens.bit_length() - 1,
            lag=int(params.async_scheduling),
            reserve_full=int(params.scheduler_reserve_full_isl),
            caching=int(params.enable_prefix_caching),
        )

    def driver(
        self, packed: Packed, deployment: Deployment, engine: layout.Engine, memory: MemoryReport
    ) -> Policy | None:
        """The settings that are off by default, or None if they are."""
        params = deployment.vllm_params
        # vLLM's null block, which it counts too
        watermark_blocks = int(params.watermark * (memory.num_kv_blocks + 1))
        by_priority = params.scheduling_policy == "priority"
        if not by_priority and watermark_blocks == 0 and params.long_prefill_token_threshold == 0:
            return None
        num_requests = len(packed.requests.arrival)
        num_replicas = deployment.num_replicas
        priority = packed.priority if packed.priority is not None else np.zeros(num_requests, np.int64)
        return new_policy(
            engine,
            num_replicas * deployment.parallelism.data_parallel_size,
            num_requests=num_requests,
            queue_size=num_requests,
            priority=priority if by_priority else None,
            watermark_blocks=watermark_blocks,
            most_tokens=params.long_prefill_token_threshold,
        )


def routes_by_kv_use(deployment: Deployment) -> bool:
    """Whether vLLM's router between ranks weighs waiting requests by the use of the KV cache.

    Sources
    -------
    vLLM pull request 49204 (merged in July 2026, after 0.26.0, whose ``v1/engine/core_client.py`` still counts a
    waiting request as four running ones); 0.33.0 has it. That 0.27.0 is the first with it is assumed.
    """
    return tuple(int(part) for part in re.findall(r"\d+", deployment.engine_version)[:2]) >= (0, 27)
