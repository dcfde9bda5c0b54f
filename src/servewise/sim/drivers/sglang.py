"""SGLang: prompts in batches of their own, admission by an estimate, retraction, a prefix tree."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from servewise.errors import InputError
from servewise.kernel import layout
from servewise.kernel.radix import new_radix
from servewise.kernel.sglang import Sglang as State
from servewise.kernel.sglang import new_sglang
from servewise.sim.drivers.base import plain_engine
from servewise.sim.pack import Packed
from servewise.types import Deployment, MemoryReport, SglangParams, Workload

__all__ = ["Sglang"]

DATA_PARALLEL_CONSERVATIVENESS = 0.3
"""By which SGLang multiplies ``schedule_conservativeness`` under attention data parallelism (``parallel_hook.py``)."""


class Sglang:
    """See ``servewise.kernel.sglang``."""

    def caches_prefixes(self, deployment: Deployment) -> bool:
        """As the parameter says."""
        return not _params(deployment).disable_radix_cache

    def check(self, deployment: Deployment, memory: MemoryReport) -> int:
        """Check what the kernel rests on."""
        del memory
        params = _params(deployment)
        chunk, page = params.chunked_prefill_size, params.page_size
        if chunk < 1:
            raise InputError(f"only chunked prefill is simulated; chunked_prefill_size must be positive, got {chunk}")
        if page & (page - 1):
            raise InputError(f"page_size must be a power of two, got {page}")
        if chunk % page:
            raise InputError(f"chunked_prefill_size {chunk} must be a multiple of page_size {page}")
        if params.schedule_policy not in ("fcfs", "lpm"):
            raise InputError(f"schedule_policy {params.schedule_policy!r} is not simulated; allowed: fcfs, lpm")
        if params.schedule_conservativeness < 0.0:
            raise InputError(f"schedule_conservativeness must not be negative, got {params.schedule_conservativeness}")
        least = min(chunk, params.max_prefill_tokens)
        if params.enable_mixed_chunk and least <= params.max_running_requests:
            raise InputError(
                "with enable_mixed_chunk, chunked_prefill_size and max_prefill_tokens must exceed max_running_requests "
                f"{params.max_running_requests}, got {least}; lower max_running_requests"
            )
        if params.ignore_eos and params.disable_radix_cache:
            raise InputError("clients that ignore_eos are not simulated together with disable_radix_cache")
        return chunk

    def accepts(self, workload: Workload, deployment: Deployment) -> NDArray[np.bool_]:
        """All."""
        del deployment
        return np.ones(workload.num_requests, np.bool_)

    def engine(self, deployment: Deployment, num_kv_blocks: int) -> layout.Engine:
        """SGLang's parameters."""
        params = _params(deployment)
        return plain_engine(deployment, num_kv_blocks)._replace(
            max_num_seqs=min(params.max_running_requests, max(num_kv_blocks * params.page_size // 2, 1)),
            max_num_batched_tokens=params.chunked_prefill_size,
            block_shift=params.page_size.bit_length() - 1,
            caching=int(not params.disable_radix_cache),
        )

    def driver(self, packed: Packed, deployment: Deployment, engine: layout.Engine, memory: MemoryReport) -> State:
        """Its own state, with nothing running, of every rank of every replica."""
        num_ranks = deployment.num_replicas * deployment.parallelism.data_parallel_size
        return self.state(packed, deployment, engine, memory, num_ranks, num_ranks)

    def state(
        self,
        packed: Packed,
        deployment: Deployment,
        engine: layout.Engine,
        memory: MemoryReport,
        num_batches: int,
        num_trees: int,
    ) -> State:
        """State of so many running batches, and trees."""
        params = _params(deployment)
        page, capacity = params.page_size, memory.kv_capacity_tokens
        inputs = packed.requests.input_tokens.astype(np.int64)
        room = capacity - -(-inputs // page) * page - page - 1
        short = np.flatnonzero(packed.requests.output_tokens > room)
        if len(short):
            r = short[0]
            raise InputError(
                f"a request of {inputs[r]} and {packed.requests.output_tokens[r]} tokens does not fit the KV cache of "
                f"{capacity} tokens, and would be cut; use more or larger GPUs, or shorter requests"
            )
        conservativeness = params.schedule_conservativeness
        if deployment.parallelism.data_parallel_size > 1:
            conservativeness *= DATA_PARALLEL_CONSERVATIVENESS
        num_pages = engine.num_blocks if engine.caching else 0
        return new_sglang(
            max_new=np.minimum(packed.max_tokens, room).astype(np.int32),
            conservativeness=conservativeness,
            ignore_eos=params.ignore_eos,
            max_prefill_tokens=params.max_prefill_tokens,
            mixed=params.enable_mixed_chunk,
            longest_prefix_first=params.schedule_policy == "lpm",
            num_replicas=num_batches,
            tree=new_radix(num_trees, num_pages, packed.num_shared, len(inputs)),
        )


def _params(deployment: Deployment) -> SglangParams:
    params = deployment.params
    assert isinstance(params, SglangParams)  # noqa: S101 (the registry is keyed by this type)
    return params
