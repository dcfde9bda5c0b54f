"""The knobs of each engine, spelt as the engine spells them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "CONTEXT_PADDING",
    "BaselineParams",
    "CacheType",
    "CapacitySchedulerPolicy",
    "CudagraphMode",
    "EngineParams",
    "LlamacppParams",
    "OllamaParams",
    "SchedulePolicy",
    "SchedulingPolicy",
    "SglangParams",
    "TgiParams",
    "TrtllmParams",
    "VllmParams",
]

CacheType = Literal["f16", "q8_0", "q4_0"]
"""How llama.cpp stores keys and values: 2, 34/32 or 18/32 bytes an element (``ggml/src/ggml-common.h``)."""
CapacitySchedulerPolicy = Literal["GUARANTEED_NO_EVICT", "MAX_UTILIZATION"]
CudagraphMode = Literal["FULL_AND_PIECEWISE", "FULL_DECODE_ONLY", "PIECEWISE", "NONE"]
SchedulePolicy = Literal["fcfs", "lpm"]
LoadBalanceMethod = Literal["round_robin", "total_requests"]
SchedulingPolicy = Literal["fcfs", "priority"]
CONTEXT_PADDING = 256
"""llama.cpp pads a stream's cells to a multiple of this (``src/llama-context.cpp``)."""


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
    """SGLang's own knobs, spelt as SGLang spells them.

    ``ignore_eos`` is the clients': it says that all their requests run to ``max_tokens``, as benchmarks' do. SGLang
    sets all of it aside for them, and a share for others. ``load_balance_method`` chooses the data parallel rank of a
    request.
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
    load_balance_method: LoadBalanceMethod = "round_robin"


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
    in passes of ``ubatch_size``. Of ``n_gpu_layers`` the last is the output; -1 puts all on the GPU. What slots held
    is kept in up to ``cache_ram_mib`` MiB of the host's memory (``--cache-ram``), with 0 not at all.
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
    cache_ram_mib: int = 8192

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
    has been idle for ``keep_alive_s`` is unloaded, never if that is None; ``starts_loaded`` says whether the
    first request finds it loaded. ``num_gpu`` layers are on the GPU, -1 for all. ``cache_ram_mib`` is that of the
    ``llama-server`` which it starts.
    """

    num_parallel: int
    context_length: int
    num_batch: int
    kv_cache_type: CacheType = "f16"
    keep_alive_s: float | None = 300.0
    num_gpu: int = -1
    context_shift: bool = True
    starts_loaded: bool = True
    cache_ram_mib: int = 8192


EngineParams = VllmParams | SglangParams | TrtllmParams | TgiParams | LlamacppParams | OllamaParams | BaselineParams
