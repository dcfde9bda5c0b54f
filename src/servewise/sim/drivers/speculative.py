"""vLLM with speculative decoding."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from servewise.errors import InputError
from servewise.kernel import layout
from servewise.kernel.speculative import UNIT, Speculative, new_speculative
from servewise.sim.drivers.vllm import Vllm
from servewise.sim.pack import Packed
from servewise.types import Deployment, MemoryReport, Speculation, Workload

__all__ = ["VllmSpeculative"]


class VllmSpeculative:
    """See ``servewise.kernel.speculative``."""

    def caches_prefixes(self, deployment: Deployment) -> bool:
        """Not with speculation: vLLM has a cache, which is not simulated."""
        del deployment
        return False

    def check(self, deployment: Deployment, memory: MemoryReport) -> int:
        """Check what the kernel rests on."""
        spread = deployment.parallelism
        if spread.data_parallel_size > 1 or spread.pipeline_parallel_size > 1:
            raise InputError(
                f"speculative decoding with data_parallel_size {spread.data_parallel_size} and pipeline_parallel_size "
                f"{spread.pipeline_parallel_size} is not simulated; use tensor parallelism"
            )
        params = deployment.vllm_params
        if params.scheduling_policy != "fcfs" or params.watermark or params.long_prefill_token_threshold:
            raise InputError(
                "scheduling_policy, watermark and long_prefill_token_threshold are not simulated with speculative "
                "decoding; leave them at their defaults"
            )
        known = _speculation(deployment)
        needed = known.step_tokens(params.max_num_seqs)
        if params.max_num_batched_tokens < needed:
            raise InputError(
                f"max_num_batched_tokens {params.max_num_batched_tokens} is below the {needed} tokens that "
                f"{params.max_num_seqs} requests with {known.num_speculative_tokens} speculative tokens each take; "
                "raise it, or lower max_num_seqs or num_speculative_tokens"
            )
        return Vllm().check(deployment, memory)

    def accepts(self, workload: Workload, deployment: Deployment) -> NDArray[np.bool_]:
        """All."""
        return Vllm().accepts(workload, deployment)

    def engine(self, deployment: Deployment, num_kv_blocks: int) -> layout.Engine:
        """vLLM's parameters, without a prefix cache."""
        return Vllm().engine(deployment, num_kv_blocks)._replace(caching=0)

    def driver(
        self, packed: Packed, deployment: Deployment, engine: layout.Engine, memory: MemoryReport
    ) -> Speculative:
        """The drafter, with requests that have not begun."""
        del engine, memory
        known = _speculation(deployment)
        return new_speculative(
            len(packed.requests.arrival),
            proposed=known.num_speculative_tokens,
            accepted=round(UNIT * math.fsum(known.acceptance)),
            lookahead=known.lookahead_tokens,
            extra=known.budget_tokens_per_request,
            longest=deployment.vllm_params.max_model_len,
        )


def _speculation(deployment: Deployment) -> Speculation:
    known = deployment.speculation
    assert known is not None  # noqa: S101 (the registry comes here with speculation only)
    return known
