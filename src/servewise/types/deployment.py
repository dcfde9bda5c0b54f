"""A deployment: everything that decides how requests are served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from servewise.types.hardware import GpuSpec
from servewise.types.model import ModelSpec, WeightPrecision

__all__ = ["Deployment", "KvPrecision", "Parallelism", "Precision", "Router", "VllmParams"]

KvPrecision = Literal["bf16", "fp8"]
Router = Literal["round_robin", "least_requests", "prefix_aware"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Precision of linear layers and of the KV cache."""

    weights: WeightPrecision = "bf16"
    kv: KvPrecision = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """How one replica is spread over GPUs."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    expert_parallel_size: int = 1

    @property
    def num_gpus(self) -> int:
        """GPUs of one replica."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmParams:
    """vLLM's own knobs, spelt as vLLM spells them (see ``engines/vllm.py`` for the defaults of each version)."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    gpu_memory_utilization: float
    block_size_tokens: int
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    async_scheduling: bool
    scheduler_reserve_full_isl: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """``num_replicas`` equal replicas behind a router.

    Parameters
    ----------
    model : ModelSpec
    gpu : GpuSpec
    engine : str
        ``vllm`` (others follow).
    engine_version : str
    precision : Precision
    parallelism : Parallelism
        Of one replica.
    params : VllmParams
    num_replicas : int
    router : Router
    """

    model: ModelSpec
    gpu: GpuSpec
    engine: str
    engine_version: str
    precision: Precision
    parallelism: Parallelism
    params: VllmParams
    num_replicas: int = 1
    router: Router = "round_robin"

    @property
    def num_gpus(self) -> int:
        """GPUs of the whole fleet."""
        return self.num_replicas * self.parallelism.num_gpus
