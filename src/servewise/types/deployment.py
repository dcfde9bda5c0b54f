"""A deployment: everything that decides how requests are served."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from servewise.errors import InputError
from servewise.types.hardware import GpuSpec
from servewise.types.kv_link import KvLink
from servewise.types.model import ModelSpec, WeightPrecision

__all__ = [
    "BaselineParams",
    "CapacitySchedulerPolicy",
    "CudagraphMode",
    "Deployment",
    "Disaggregation",
    "EngineName",
    "EngineParams",
    "GroupRouter",
    "InstancePool",
    "KvPrecision",
    "LlamacppParams",
    "Parallelism",
    "Precision",
    "Role",
    "Router",
    "SglangParams",
    "TgiParams",
    "TrtllmParams",
    "VllmParams",
]

CapacitySchedulerPolicy = Literal["GUARANTEED_NO_EVICT", "MAX_UTILIZATION"]
CudagraphMode = Literal["FULL_AND_PIECEWISE", "FULL_DECODE_ONLY", "PIECEWISE", "NONE"]
EngineName = Literal["vllm", "sglang", "tensorrt-llm", "llama.cpp", "tgi", "static", "orca", "sarathi"]
"""The last three are the textbook baselines of docs/baseline-schedulers.md."""
KvPrecision = Literal["bf16", "fp8"]
Router = Literal["round_robin", "least_requests", "prefix_aware", "session_sticky"]
"""``session_sticky`` sends a conversation to the replica that had its last turn, a new one to the least loaded."""
GroupRouter = Literal["round_robin", "least_requests"]
Role = Literal["prefill", "decode"]


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
    """llama-server's own knobs: ``ctx_size`` tokens over ``parallel`` slots, batches of ``ubatch_size``."""

    ctx_size: int
    parallel: int
    batch_size: int
    ubatch_size: int
    kv_unified: bool


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


EngineParams = VllmParams | SglangParams | TrtllmParams | LlamacppParams | TgiParams | BaselineParams


@dataclass(frozen=True, slots=True, kw_only=True)
class InstancePool:
    """Equal instances of an engine that have one role in a group.

    Parameters
    ----------
    gpu : GpuSpec
    parallelism : Parallelism
        Of one instance.
    params : EngineParams
    num_instances : int
        In each group.
    """

    gpu: GpuSpec
    parallelism: Parallelism
    params: EngineParams
    num_instances: int

    @property
    def num_gpus(self) -> int:
        """GPUs of the pool in one group."""
        return self.num_instances * self.parallelism.num_gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Disaggregation:
    """Prompts are computed by some instances, outputs by others; the engine decides how they work together.

    Parameters
    ----------
    prefill, decode : InstancePool
    link : KvLink
    router : GroupRouter
        How a group chooses its instances for a request.
    """

    prefill: InstancePool
    decode: InstancePool
    link: KvLink
    router: GroupRouter = "round_robin"


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
    disaggregation : Disaggregation, optional
        Then a replica is a group of prefill and decode instances, and ``gpu``, ``parallelism`` and ``params`` are
        those of the decode pool.
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
    disaggregation: Disaggregation | None = None

    def __post_init__(self) -> None:
        """Refuse a disaggregated deployment whose own fields are not those of its decode pool."""
        if self.disaggregation is not None:
            pool = self.disaggregation.decode
            if (self.gpu, self.parallelism, self.params) != (pool.gpu, pool.parallelism, pool.params):
                raise InputError(
                    "gpu, parallelism and params of a disaggregated deployment must be those of its decode pool"
                )

    @property
    def gpus_per_replica(self) -> int:
        """GPUs of one replica; of a disaggregated deployment, of a group."""
        group = self.disaggregation
        return self.parallelism.num_gpus if group is None else group.prefill.num_gpus + group.decode.num_gpus

    @property
    def num_gpus(self) -> int:
        """GPUs of the whole fleet."""
        return self.num_replicas * self.gpus_per_replica

    def pool(self, role: Role) -> Deployment:
        """One instance of a pool of a disaggregated deployment, as a deployment of its own.

        Raises
        ------
        InputError
            When the deployment is not disaggregated.
        """
        if self.disaggregation is None:
            raise InputError("the deployment is not disaggregated; it has no prefill and decode pools")
        pool = self.disaggregation.prefill if role == "prefill" else self.disaggregation.decode
        return replace(
            self,
            gpu=pool.gpu,
            parallelism=pool.parallelism,
            params=pool.params,
            num_replicas=1,
            router="round_robin",
            disaggregation=None,
        )

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
            case (
                TrtllmParams(max_batch_size=rows) | LlamacppParams(parallel=rows) | BaselineParams(max_batch_size=rows)
            ):
                return rows
            case TgiParams(max_concurrent_requests=rows):
                return rows

    @property
    def max_step_tokens(self) -> int:
        """Most tokens of a step of a rank [tokens]."""
        match self.params:
            case VllmParams(max_num_batched_tokens=tokens) | TrtllmParams(max_num_tokens=tokens):
                return tokens
            case SglangParams(chunked_prefill_size=chunk, max_prefill_tokens=tokens):
                return chunk if chunk > 0 else tokens
            case LlamacppParams(batch_size=tokens):
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
            case LlamacppParams(ctx_size=size, parallel=slots, kv_unified=unified):
                return size if unified else size // slots

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
            case LlamacppParams():
                return 1
