"""A deployment: everything that decides how requests are served."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from servewise.errors import InputError
from servewise.types.engine_params import (
    BaselineParams,
    EngineParams,
    LlamacppParams,
    OllamaParams,
    SglangParams,
    TgiParams,
    TrtllmParams,
    VllmParams,
)
from servewise.types.hardware import GpuSpec
from servewise.types.kv_link import KvLink
from servewise.types.model import ModelSpec, WeightPrecision
from servewise.types.speculation import Speculation

__all__ = [
    "ROLES",
    "Deployment",
    "Disaggregation",
    "EngineName",
    "GroupRouter",
    "InstancePool",
    "KvPrecision",
    "Parallelism",
    "Precision",
    "Role",
    "Router",
]

EngineName = Literal["vllm", "sglang", "tensorrt-llm", "tgi", "ollama", "llama.cpp", "static", "orca", "sarathi"]
"""The last three are the textbook baselines of docs/baseline-schedulers.md."""
KvPrecision = Literal["bf16", "fp8"]
Router = Literal["round_robin", "least_requests", "prefix_aware", "session_sticky"]
"""``session_sticky`` sends a conversation to the replica that had its last turn, a new one to the least loaded."""
GroupRouter = Literal["round_robin", "least_requests"]
Role = Literal["prefill", "decode"]
ROLES: tuple[Role, ...] = get_args(Role)


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
    speculation : Speculation, optional
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
    speculation: Speculation | None = None

    def __post_init__(self) -> None:
        """Refuse a disaggregated deployment whose own fields are not those of its decode pool, or that speculates."""
        if self.disaggregation is not None and self.speculation is not None:
            raise InputError("speculative decoding in disaggregated deployments is not simulated; use one of the two")
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
            case TrtllmParams(max_batch_size=rows) | BaselineParams(max_batch_size=rows):
                return rows
            case LlamacppParams(parallel=rows) | OllamaParams(num_parallel=rows):
                return rows
            case TgiParams(max_concurrent_requests=rows):
                return rows

    @property
    def queries_per_row(self) -> int:
        """Tokens that a step computes for a decoding request."""
        return 1 if self.speculation is None else self.speculation.queries_per_row

    @property
    def max_tokens_per_step(self) -> int:
        """Most tokens that a step yields for a decoding request."""
        return 1 if self.speculation is None else self.speculation.max_tokens_per_step

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
