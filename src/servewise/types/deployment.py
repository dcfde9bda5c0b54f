"""A deployment: everything that decides how requests are served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from servewise.errors import InputError
from servewise.types.hardware import GpuSpec
from servewise.types.model import ModelSpec, WeightPrecision

__all__ = [
    "CudagraphMode",
    "Deployment",
    "EngineName",
    "EngineParams",
    "KvPrecision",
    "LlamacppParams",
    "Parallelism",
    "Precision",
    "Router",
    "SchedulingPolicy",
    "SglangParams",
    "TrtllmParams",
    "VllmParams",
]

CudagraphMode = Literal["FULL_AND_PIECEWISE", "FULL_DECODE_ONLY", "PIECEWISE", "NONE"]
EngineName = Literal["vllm", "sglang", "tensorrt-llm", "llama.cpp"]
KvPrecision = Literal["bf16", "fp8"]
Router = Literal["round_robin", "least_requests", "prefix_aware"]
SchedulingPolicy = Literal["fcfs", "priority"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Precision of linear layers and of the KV cache."""

    weights: WeightPrecision = "bf16"
    kv: KvPrecision = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """How one replica is spread over GPUs.

    Parameters
    ----------
    tensor_parallel_size : int
        GPUs that share every attention head group and dense matrix.
    pipeline_parallel_size : int
    data_parallel_size : int
        Ranks that each attend to their own requests and share the experts, in lock step.
    expert_parallel_size : int
        Groups that the experts are divided among; each expert is split over the remaining
        ``tensor_parallel_size * data_parallel_size / expert_parallel_size`` GPUs.
    """

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
    cudagraph_mode: CudagraphMode = "FULL_AND_PIECEWISE"
    scheduling_policy: SchedulingPolicy = "fcfs"
    watermark: float = 0.0
    long_prefill_token_threshold: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangParams:
    """SGLang's own knobs, spelt as SGLang spells them."""

    max_running_requests: int
    chunked_prefill_size: int
    max_prefill_tokens: int
    context_length: int
    mem_fraction_static: float
    page_size: int
    cuda_graph_max_bs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrtllmParams:
    """TensorRT-LLM's own knobs (PyTorch backend), spelt as TensorRT-LLM spells them.

    ``cuda_graph_padding`` is ``cuda_graph_config.enable_padding``, ``cuda_graph_max_batch_size`` its
    ``max_batch_size``. While something runs, prompts wait for a batch of ``batch_wait_max_tokens_ratio`` times
    ``max_num_tokens``, at most ``batch_wait_timeout_iters`` steps (0: they do not wait).
    """

    max_batch_size: int
    max_num_tokens: int
    max_seq_len: int
    free_gpu_memory_fraction: float
    tokens_per_block: int
    enable_chunked_prefill: bool
    cuda_graph_padding: bool
    cuda_graph_max_batch_size: int
    batch_wait_timeout_iters: int = 0
    batch_wait_max_tokens_ratio: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamacppParams:
    """llama-server's own knobs: ``ctx_size`` tokens over ``parallel`` slots, batches of ``ubatch_size``."""

    ctx_size: int
    parallel: int
    batch_size: int
    ubatch_size: int
    kv_unified: bool


EngineParams = VllmParams | SglangParams | TrtllmParams | LlamacppParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """``num_replicas`` equal replicas behind a router.

    Parameters
    ----------
    model : ModelSpec
    gpu : GpuSpec
    engine : EngineName
    engine_version : str
    precision : Precision
    parallelism : Parallelism
        Of one replica.
    params : EngineParams
        The knobs of ``engine``.
    num_replicas : int
    router : Router
    """

    model: ModelSpec
    gpu: GpuSpec
    engine: EngineName
    engine_version: str
    precision: Precision
    parallelism: Parallelism
    params: EngineParams
    num_replicas: int = 1
    router: Router = "round_robin"

    @property
    def num_gpus(self) -> int:
        """GPUs of the whole fleet."""
        return self.num_replicas * self.parallelism.num_gpus

    @property
    def vllm_params(self) -> VllmParams:
        """Knobs of a vLLM deployment.

        Raises
        ------
        InputError
            When the engine is another one.
        """
        if not isinstance(self.params, VllmParams):
            raise InputError(f"engine {self.engine!r} is not yet supported here; allowed: vllm")
        return self.params

    @property
    def max_rows(self) -> int:
        """Most requests a rank runs at once."""
        match self.params:
            case VllmParams(max_num_seqs=rows) | SglangParams(max_running_requests=rows):
                return rows
            case TrtllmParams(max_batch_size=rows) | LlamacppParams(parallel=rows):
                return rows

    @property
    def max_step_tokens(self) -> int:
        """Most tokens of a step of a rank [tokens]."""
        match self.params:
            case VllmParams(max_num_batched_tokens=tokens) | TrtllmParams(max_num_tokens=tokens):
                return tokens
            case SglangParams(max_prefill_tokens=tokens) | LlamacppParams(batch_size=tokens):
                return tokens

    @property
    def max_request_tokens(self) -> int:
        """Longest prompt and answer together [tokens]."""
        match self.params:
            case VllmParams(max_model_len=tokens) | TrtllmParams(max_seq_len=tokens):
                return tokens
            case SglangParams(context_length=tokens):
                return tokens
            case LlamacppParams(ctx_size=size, parallel=slots, kv_unified=unified):
                return size if unified else size // slots

    @property
    def kv_block_tokens(self) -> int:
        """Tokens of a block of the KV cache."""
        match self.params:
            case VllmParams(block_size_tokens=tokens) | SglangParams(page_size=tokens):
                return tokens
            case TrtllmParams(tokens_per_block=tokens):
                return tokens
            case LlamacppParams():
                return 1
