"""TensorRT-LLM: reserves a request's blocks to its end, or pauses requests when blocks run out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from servewise.engines import trtllm as facts
from servewise.errors import InputError
from servewise.kernel import layout
from servewise.kernel.trtllm import Trtllm as Driver
from servewise.kernel.trtllm import new_trtllm
from servewise.kernel.trtllm_pipeline import TrtllmPipeline as StagedDriver
from servewise.kernel.trtllm_pipeline import new_trtllm_pipeline
from servewise.sim.drivers.base import plain_engine
from servewise.sim.pack import Packed
from servewise.types import Deployment, MemoryReport, TrtllmParams, Workload

__all__ = ["Trtllm", "TrtllmPipeline", "layers_of_stages"]


def _params(deployment: Deployment) -> TrtllmParams:
    params = deployment.params
    assert isinstance(params, TrtllmParams)  # noqa: S101 (the registry is keyed by this type)
    return params


class Trtllm:
    """See ``servewise.kernel.trtllm``."""

    def caches_prefixes(self, deployment: Deployment) -> bool:
        """As the parameter says."""
        return _params(deployment).enable_block_reuse

    def check(self, deployment: Deployment, memory: MemoryReport) -> int:
        """Check what the kernel rests on."""
        del memory
        params = _params(deployment)
        if params.tokens_per_block < 1 or params.tokens_per_block & (params.tokens_per_block - 1):
            raise InputError(f"tokens_per_block must be a power of two, got {params.tokens_per_block}")
        may_cut = params.enable_chunked_prefill or params.capacity_scheduler_policy == "MAX_UTILIZATION"
        least = max(params.max_batch_size, params.tokens_per_block if may_cut else 1)
        if params.max_num_tokens < least:
            raise InputError(
                f"max_num_tokens {params.max_num_tokens} is below {least}, the larger of max_batch_size and, with "
                "chunked prefill or MAX_UTILIZATION, tokens_per_block; raise it, or lower max_batch_size"
            )
        return params.max_num_tokens

    def accepts(self, workload: Workload, deployment: Deployment) -> NDArray[np.bool_]:
        """Prompts that fit a step, unless they may be cut."""
        params = _params(deployment)
        if params.enable_chunked_prefill:
            return np.ones(workload.num_requests, np.bool_)
        return np.asarray(workload.input_tokens <= params.max_num_tokens)

    def engine(self, deployment: Deployment, num_kv_blocks: int) -> layout.Engine:
        """TensorRT-LLM's parameters."""
        params = _params(deployment)
        return plain_engine(deployment, num_kv_blocks)._replace(
            block_shift=params.tokens_per_block.bit_length() - 1, caching=int(params.enable_block_reuse)
        )

    def driver(self, packed: Packed, deployment: Deployment, engine: layout.Engine, memory: MemoryReport) -> Driver:
        """What each request reserves, and the rest that only TensorRT-LLM has."""
        params = _params(deployment)
        ranks = deployment.parallelism.data_parallel_size
        evicting = params.capacity_scheduler_policy == "MAX_UTILIZATION"
        output = packed.requests.output_tokens if evicting else packed.max_tokens
        blocks = -(-(packed.requests.input_tokens.astype(np.int64) + output) // params.tokens_per_block)
        most = int(blocks.max(initial=0))
        if most > engine.num_blocks:
            size = f"{most} KV blocks of {memory.block_size_tokens} tokens"
            needs = f"output need {size}" if evicting else f"max_tokens set {size} aside"
            raise InputError(
                f"a request's prompt and {needs}, the engine has {engine.num_blocks}; lower "
                f"{'' if evicting else 'max_tokens or '}the context, or use more or larger GPUs"
            )
        return new_trtllm(
            engine,
            deployment.num_replicas * ranks,
            packed.num_shared,
            blocks=blocks.astype(np.int32),
            evicting=evicting,
            chunking=params.enable_chunked_prefill,
            counts_reuse=facts.counts_reuse(deployment.engine_version),
            wait_steps=params.batch_wait_timeout_iters if ranks == 1 else 0,  # no rank waits for a batch of its own
            wait_tokens=params.batch_wait_max_tokens_ratio * params.max_num_tokens,
        )


def layers_of_stages(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Layers of each stage, first to last: those left over go one each to the first stages.

    Sources
    -------
    NVIDIA/TensorRT-LLM, ``tensorrt_llm/mapping.py``: ``pp_layers``.
    """
    each, left = divmod(num_layers, num_stages)
    return tuple(each + (stage < left) for stage in range(num_stages))


class TrtllmPipeline:
    """See ``servewise.kernel.trtllm_pipeline``."""

    def caches_prefixes(self, deployment: Deployment) -> bool:
        """As the parameter says."""
        return Trtllm().caches_prefixes(deployment)

    def check(self, deployment: Deployment, memory: MemoryReport) -> int:
        """Check what the kernel rests on."""
        params = _params(deployment)
        if deployment.parallelism.data_parallel_size > 1:
            raise InputError(
                f"data_parallel_size {deployment.parallelism.data_parallel_size} with pipeline stages of "
                "'tensorrt-llm' is not simulated; use one of the two, or vllm"
            )
        if params.capacity_scheduler_policy != "GUARANTEED_NO_EVICT" or params.batch_wait_timeout_iters:
            raise InputError(
                "MAX_UTILIZATION and batch_wait_timeout_iters are not simulated with pipeline stages, where "
                "TensorRT-LLM does not pause requests; use GUARANTEED_NO_EVICT and no waiting"
            )
        return Trtllm().check(deployment, memory)

    def accepts(self, workload: Workload, deployment: Deployment) -> NDArray[np.bool_]:
        """As without stages."""
        return Trtllm().accepts(workload, deployment)

    def engine(self, deployment: Deployment, num_kv_blocks: int) -> layout.Engine:
        """TensorRT-LLM's parameters; a batch of its own for each stage, and no lag."""
        stages = deployment.parallelism.pipeline_parallel_size
        engine = Trtllm().engine(deployment, num_kv_blocks)
        return engine._replace(max_num_seqs=engine.max_num_seqs * stages, lag=0)

    def driver(
        self, packed: Packed, deployment: Deployment, engine: layout.Engine, memory: MemoryReport
    ) -> StagedDriver:
        """The stages of every replica, with nothing in flight."""
        num_layers, stages = deployment.model.num_layers, deployment.parallelism.pipeline_parallel_size
        shares = np.array(layers_of_stages(num_layers, stages), np.float64) / num_layers
        trt = Trtllm().driver(packed, deployment, engine, memory)
        return new_trtllm_pipeline(engine, packed.requests, deployment.num_replicas, shares, trt)
