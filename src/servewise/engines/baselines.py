"""The textbook baselines: static batching, Orca's and Sarathi's schedulers; their defaults, and what they run on.

None of them is an engine that one starts. They run on vLLM's kernels and memory, so that what differs from vLLM is the
strategy and nothing else (specification: docs/baseline-schedulers.md).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

from servewise.engines import vllm
from servewise.errors import InputError
from servewise.types import BaselineParams, Deployment, GpuSpec, ModelSpec, Provenance

__all__ = [
    "BASELINES",
    "VERSION",
    "BaselineName",
    "as_vllm",
    "default_params",
    "is_baseline",
    "num_slots",
    "provenance",
    "validate",
]

BaselineName = Literal["static", "orca", "sarathi"]
BASELINES: Final[tuple[BaselineName, ...]] = ("static", "orca", "sarathi")
VERSION: Final = "textbook"
"""Engine version of a baseline: there are no releases."""

MAX_BATCH_SIZE: Final = 128
"""``max_num_seqs`` of all schedulers (microsoft/sarathi-serve, ``sarathi/config/config.py``@13f16cf)."""
CHUNK_SIZE_TOKENS: Final = 512
"""``chunk_size`` of the Sarathi scheduler (the same file)."""
BLOCK_SIZE_TOKENS: Final = 16
"""``block_size`` (the same file)."""


def default_params(engine: BaselineName, gpu: GpuSpec, model: ModelSpec) -> BaselineParams:
    """Parameters of a baseline when nothing is set.

    Parameters
    ----------
    engine : {"static", "orca", "sarathi"}
    gpu : GpuSpec
    model : ModelSpec

    Returns
    -------
    BaselineParams
        ``max_seq_len`` is the model's whole context. ``max_wait_s`` is 0: a batch takes what waits.

    Sources
    -------
    microsoft/sarathi-serve, ``sarathi/config/config.py``@13f16cf (read 2026-11-30). Its share of the memory is 0.8;
    assumed: vLLM's, so that no strategy gets more than another. ``max_wait_s``: Triton's dynamic batcher does not delay
    requests by default (docs.nvidia.com, Triton user guide, "Batchers", read 2026-11-30).
    """
    usual = vllm.default_params(vllm.default_version(), gpu, model)
    return BaselineParams(
        max_batch_size=MAX_BATCH_SIZE,
        max_seq_len=model.max_context_tokens,
        memory_utilization=usual.gpu_memory_utilization,
        block_size_tokens=max(BLOCK_SIZE_TOKENS, usual.block_size_tokens),
        chunk_size=CHUNK_SIZE_TOKENS if engine == "sarathi" else 0,
    )


def is_baseline(deployment: Deployment) -> bool:
    """Whether a deployment runs one of the baselines."""
    return isinstance(deployment.params, BaselineParams)


def provenance() -> Provenance:
    """Origin of a baseline's memory and step times."""
    return Provenance(
        kind="assumed",
        source=f"assumed: vLLM {vllm.default_version()}'s memory and step times with synchronous scheduling, so that "
        "only the strategy differs",
    )


def num_slots(params: BaselineParams, num_kv_blocks: int) -> int:
    """Requests that contiguous allocation of ``max_seq_len`` tokens each lets run at once."""
    return min(params.max_batch_size, num_kv_blocks // params.blocks_of_slot)


def as_vllm(deployment: Deployment, step_tokens: int) -> Deployment:
    """The vLLM deployment whose memory and step times a baseline is given.

    Parameters
    ----------
    deployment : Deployment
        Of a baseline.
    step_tokens : int [tokens]
        Most tokens of a step that are to be covered.

    Returns
    -------
    Deployment
        Synchronous: the scheduler's time adds to the GPU's.
    """
    params = deployment.params
    assert isinstance(params, BaselineParams)  # noqa: S101 (the caller asked is_baseline)
    version = vllm.default_version()
    return replace(
        deployment,
        engine="vllm",
        engine_version=version,
        params=replace(
            vllm.default_params(version, deployment.gpu, deployment.model),
            max_num_seqs=params.max_batch_size,
            max_num_batched_tokens=max(step_tokens, params.max_batch_size),
            max_model_len=params.max_seq_len,
            gpu_memory_utilization=params.memory_utilization,
            block_size_tokens=params.block_size_tokens,
            enable_prefix_caching=False,
            async_scheduling=False,
        ),
    )


def validate(deployment: Deployment) -> None:
    """Check a baseline's parameters.

    Raises
    ------
    InputError
        Naming the parameter, its value and what is allowed.
    """
    params, model = deployment.params, deployment.model
    assert isinstance(params, BaselineParams)  # noqa: S101 (the caller asked is_baseline)
    for name in ("max_batch_size", "max_seq_len", "block_size_tokens"):
        if getattr(params, name) < 1:
            raise InputError(f"{name} is {getattr(params, name)}; it must be at least 1")
    if params.max_seq_len > model.max_context_tokens:
        raise InputError(
            f"max_seq_len {params.max_seq_len} exceeds the {model.max_context_tokens} tokens of context "
            f"{model.name} supports; lower it"
        )
    if not 0.0 < params.memory_utilization <= 1.0:
        raise InputError(f"memory_utilization is {params.memory_utilization}; it must be in (0, 1]")
    if not 0.0 <= params.max_wait_s < float("inf"):
        raise InputError(f"max_wait_s is {params.max_wait_s}; it must be 0 or more and finite")
    if (params.chunk_size > 0) != (deployment.engine == "sarathi"):
        raise InputError(
            f"chunk_size is {params.chunk_size} for {deployment.engine!r}; it must be positive for 'sarathi', and 0 "
            "for 'static' and 'orca', which compute prompts whole"
        )
