"""A deployment: everything that decides how requests are served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from servewise.errors import InputError
from servewise.types.hardware import GpuSpec
from servewise.types.model import ModelSpec, WeightPrecision

__all__ = [
    "BaselineParams",
    "CacheType",
    "CapacitySchedulerPolicy",
    "CudagraphMode",
    "Deployment",
    "EngineName",
    "EngineParams",
    "KvPrecision",
    "LlamacppParams",
    "OllamaParams",
    "Parallelism",
    "Precision",
    "Router",
    "SglangParams",
    "TgiParams",
    "TrtllmParams",
    "VllmParams",
]

CacheType = Literal["f16", "q8_0", "q4_0"]
"""How llama.cpp stores keys and values: 2, 34/32 or 18/32 bytes an element (``ggml/src/ggml-common.h``)."""
CapacitySchedulerPolicy = Literal["GUARANTEED_NO_EVICT", "MAX_UTILIZATION"]
CudagraphMode = Literal["FULL_AND_PIECEWISE", "FULL_DECODE_ONLY", "PIECEWISE", "NONE"]
EngineName = Literal["vllm", "sglang", "tensorrt-llm", "tgi", "ollama", "llama.cpp", "static", "orca", "sarathi"]
"""The last three are the textbook baselines of docs/baseline-schedulers.md."""
KvPrecision = Literal["bf16", "fp8"]
CONTEXT_PADDING = 256
"""llama.cpp pads a stream's cells to a multiple of this (``src/llama-context.cpp``)."""
SchedulePolicy = Literal["fcfs", "lpm"]
Router = Literal["round_robin", "least_requests", "prefix_aware", "session_sticky"]
"""``session_sticky`` sends a conversation to the replica that had its last turn, a new one to the least loaded."""


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
    expert_all_to_all : bool
        Whether data parallel ranks send tokens to their experts alone (DeepEP and the like), instead of gathering all
        tokens on all ranks.
    """

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    expert_parallel_size: int = 1
    expert_all_to_all: bool = False

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangParams:
    """SGLang's own knobs, spelt as SGLang spells them.

    ``ignore_eos`` is the clients': it says that all their requests run to ``max_tokens``, as benchmarks' do. SGLang
    sets all of it aside for them, and a share for others.
    """

    max_running_requests: int
    chunked_prefill_size: int
    max_prefill_tokens: int
    context_length: int
    mem_fraction_static: float
    page_size: int
    cuda_graph_max_bs: int
    schedule_policy: SchedulePolicy = "fcfs"
    schedule_conservativeness: float = 1.0
    enable_mixed_chunk: bool = False
    disable_radix_cache: bool = False
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrtllmParams:
    """TensorRT-LLM's own knobs (PyTorch backend), spelt as TensorRT-LLM spells them.

    ``cuda_graph_padding`` is ``cuda_graph_config.enable_padding``, ``cuda_graph_max_batch_size`` its
    ``max_batch_size``. While something runs, prompts wait for a batch of ``batch_wait_max_tokens_ratio`` times
    ``max_num_tokens``, at most ``batch_wait_timeout_iters`` steps (0: they do not wait).
    ``capacity_scheduler_policy`` is that of ``scheduler_config``, ``enable_block_reuse`` that of ``kv_cache_config``.
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
    capacity_scheduler_policy: CapacitySchedulerPolicy = "GUARANTEED_NO_EVICT"
    enable_block_reuse: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamacppParams:
    """llama-server's own knobs, spelt as it spells them.

    ``ctx_size`` tokens, shared by ``parallel`` slots (``kv_unified``) or divided among them; batches of ``batch_size``
    in passes of ``ubatch_size``. Of ``n_gpu_layers`` the last is the output; -1 puts all on the GPU.
    """

    ctx_size: int
    parallel: int
    batch_size: int
    ubatch_size: int
    kv_unified: bool
    cache_type_k: CacheType = "f16"
    cache_type_v: CacheType = "f16"
    n_gpu_layers: int = -1
    context_shift: bool = False

    @property
    def is_split(self) -> bool:
        """Whether every slot has a KV cache of its own."""
        return self.parallel > 1 and not self.kv_unified

    @property
    def slot_context_tokens(self) -> int:
        """Context of a slot, padded as the server pads it [tokens]."""
        whole = -(-self.ctx_size // CONTEXT_PADDING) * CONTEXT_PADDING
        return -(-(whole // self.parallel) // CONTEXT_PADDING) * CONTEXT_PADDING if self.is_split else whole


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineParams:
    """Knobs of the textbook baselines ``static``, ``orca`` and ``sarathi``.

    Parameters
    ----------
    max_batch_size : int
        Requests that run at once.
    max_seq_len : int [tokens]
        Longest prompt and answer together; what ``static`` and ``orca`` set aside for every request.
    memory_utilization : float
        Share of the GPU's memory.
    block_size_tokens : int
    chunk_size : int [tokens]
        Tokens of a step of ``sarathi``; 0 (``static``, ``orca``) computes prompts whole, however many.
    max_wait_s : float [s]
        How long the first request of a ``static`` batch waits for more.
    """

    max_batch_size: int
    max_seq_len: int
    memory_utilization: float
    block_size_tokens: int
    chunk_size: int = 0
    max_wait_s: float = 0.0

    @property
    def blocks_of_slot(self) -> int:
        """Blocks of ``max_seq_len`` tokens: what contiguous allocation sets aside for a request."""
        return -(-self.max_seq_len // self.block_size_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class TgiParams:
    """TGI's own knobs, spelt as its launcher spells them.

    ``block_size_tokens`` follows from the environment variable ``ATTENTION`` (see ``engines/tgi.py``),
    ``prefix_caching``, ``prefill_chunking`` and ``wiggle_room`` are ``PREFIX_CACHING``, ``PREFILL_CHUNKING`` and
    ``TGI_WIGGLE_ROOM``. The last two are looked at only without chunking.
    """

    max_concurrent_requests: int
    max_batch_prefill_tokens: int
    max_total_tokens: int
    cuda_memory_fraction: float
    wiggle_room: float
    block_size_tokens: int
    prefix_caching: bool
    prefill_chunking: bool
    cuda_graphs: tuple[int, ...]
    waiting_served_ratio: float = 0.3
    max_waiting_tokens: int = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class OllamaParams:
    """Ollama's own knobs: environment variables without their ``OLLAMA_``, and a model's parameters.

    ``num_parallel`` requests of ``context_length`` tokens each (``num_ctx``), ``num_batch`` tokens a pass. A model that
    has been idle for ``keep_alive_s`` is unloaded, never if that is infinite; ``starts_loaded`` says whether the
    first request finds it loaded. ``num_gpu`` layers are on the GPU, -1 for all.
    """

    num_parallel: int
    context_length: int
    num_batch: int
    kv_cache_type: CacheType = "f16"
    keep_alive_s: float = 300.0
    num_gpu: int = -1
    context_shift: bool = True
    starts_loaded: bool = True


EngineParams = VllmParams | SglangParams | TrtllmParams | TgiParams | LlamacppParams | OllamaParams | BaselineParams


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
            case TrtllmParams(max_batch_size=rows) | BaselineParams(max_batch_size=rows):
                return rows
            case LlamacppParams(parallel=rows) | OllamaParams(num_parallel=rows):
                return rows
            case TgiParams(max_concurrent_requests=rows):
                return rows

    @property
    def max_step_tokens(self) -> int:
        """Most tokens of a step of a rank, of a pass where a step takes several [tokens]."""
        match self.params:
            case VllmParams(max_num_batched_tokens=tokens) | TrtllmParams(max_num_tokens=tokens):
                return tokens
            case SglangParams(chunked_prefill_size=chunk, max_prefill_tokens=tokens):
                return chunk if chunk > 0 else tokens
            case LlamacppParams(ubatch_size=tokens) | OllamaParams(num_batch=tokens):  # of a pass
                return tokens
            case BaselineParams(chunk_size=chunk, max_batch_size=rows, max_seq_len=longest):
                return chunk or rows * longest
            case TgiParams() as tgi:  # the budget of new prompts is rounded up to whole blocks
                return max(tgi.max_batch_prefill_tokens, tgi.max_concurrent_requests) + tgi.block_size_tokens - 1

    @property
    def max_request_tokens(self) -> int:
        """Longest prompt and answer together [tokens]."""
        match self.params:
            case (
                VllmParams(max_model_len=tokens) | TrtllmParams(max_seq_len=tokens) | BaselineParams(max_seq_len=tokens)
            ):
                return tokens
            case TgiParams(max_total_tokens=tokens):
                return tokens
            case SglangParams(context_length=tokens):
                return tokens
            case OllamaParams(context_length=tokens):
                return tokens
            case LlamacppParams() as params:
                return min(params.slot_context_tokens, self.model.max_context_tokens)

    @property
    def kv_block_tokens(self) -> int:
        """Tokens of a block of the KV cache."""
        match self.params:
            case VllmParams(block_size_tokens=tokens) | SglangParams(page_size=tokens):
                return tokens
            case TrtllmParams(tokens_per_block=tokens) | TgiParams(block_size_tokens=tokens):
                return tokens
            case BaselineParams(block_size_tokens=tokens):
                return tokens
            case LlamacppParams() | OllamaParams():
                return 1
