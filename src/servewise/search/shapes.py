"""Enumerate replica shapes: model x GPU x precision x tensor parallelism x settings, each with its memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from servewise.catalog import supported_precisions
from servewise.engines import vllm
from servewise.perf import memory
from servewise.types import (
    Deployment,
    EngineName,
    GpuSpec,
    MemoryReport,
    ModelSpec,
    Parallelism,
    PrecisionChoice,
    Search,
)

__all__ = ["MAX_NUM_BATCHED_TOKENS", "MAX_NUM_SEQS", "Shape", "enumerate_shapes"]

MAX_NUM_SEQS = (1024, 256, 64)
"""Settings of ``max_num_seqs`` tried, the largest first: among settings that behave alike the first is kept."""

MAX_NUM_BATCHED_TOKENS = (16384, 8192, 2048)
"""Settings of ``max_num_batched_tokens`` tried."""

CONTEXT_STEP_TOKENS = 1024
"""``max_model_len`` is rounded up to a multiple of this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One replica that could be built, or why it cannot.

    Parameters
    ----------
    index : int
    deployment : Deployment
        With one replica.
    memory : MemoryReport or None
    precision : PrecisionChoice
    reason : str
        Why it cannot be built; empty when it can.
    """

    index: int
    deployment: Deployment
    memory: MemoryReport | None
    precision: PrecisionChoice
    reason: str


def enumerate_shapes(search: Search) -> tuple[Shape, ...]:
    """Every replica shape that the search considers, in a fixed order.

    Settings of one replica stand together, the largest first; a replica whose parallelism no rented node holds,
    or whose weights and KV cache do not fit, carries the reason.
    """
    shapes: list[Shape] = []
    for model in search.models:
        context_tokens = _context(search, model)
        for gpu in search.gpus:
            runnable = set(supported_precisions(gpu))
            for choice in search.precisions[model.name]:
                if choice.precision not in runnable:
                    continue
                for engine, version in search.engines:
                    for size in vllm.supported_tensor_parallel_sizes(model, gpu, choice.precision.weights):
                        shapes += _settings(
                            search, model, gpu, choice, engine, version, size, context_tokens, len(shapes)
                        )
    return tuple(shapes)


def _context(search: Search, model: ModelSpec) -> int:
    """Context limit to launch with: room for the longest request as declared, within the model's own limit."""
    longest = int((search.workload.input_tokens + search.workload.max_tokens).max())
    return min(-(-longest // CONTEXT_STEP_TOKENS) * CONTEXT_STEP_TOKENS, model.max_context_tokens)


def _settings(
    search: Search,
    model: ModelSpec,
    gpu: GpuSpec,
    choice: PrecisionChoice,
    engine: EngineName,
    version: str,
    tensor_parallel_size: int,
    context_tokens: int,
    first_index: int,
) -> list[Shape]:
    default = vllm.default_params(version, gpu, model)
    mean_tokens = int((search.workload.input_tokens + search.workload.output_tokens / 2).mean())
    unavailable = _unavailable(search, gpu, tensor_parallel_size)
    shapes: list[Shape] = []
    for num_seqs in MAX_NUM_SEQS:
        for num_tokens in MAX_NUM_BATCHED_TOKENS:
            if num_tokens < num_seqs:
                continue
            deployment = Deployment(
                model=model,
                gpu=gpu,
                engine=engine,
                engine_version=version,
                precision=choice.precision,
                parallelism=Parallelism(tensor_parallel_size=tensor_parallel_size),
                params=replace(
                    default,
                    max_num_seqs=num_seqs,
                    max_num_batched_tokens=num_tokens,
                    max_model_len=context_tokens,
                ),
                router=search.router,
            )
            report = memory(deployment, mean_tokens)
            too_long = ""
            if report.fits and report.kv_capacity_tokens < context_tokens:
                # only with sliding windows, whose longest request takes less memory than its tokens suggest
                too_long = (
                    f"the KV cache holds {report.kv_capacity_tokens} tokens at the mean context, less than one request "
                    f"of max_model_len {context_tokens}, which is not simulated"
                )
            shapes.append(
                Shape(
                    index=first_index + len(shapes),
                    deployment=deployment,
                    memory=report,
                    precision=choice,
                    reason=unavailable or report.reason or too_long,
                )
            )
    return shapes


def _unavailable(search: Search, gpu: GpuSpec, num_gpus: int) -> str:
    offers = search.offers.get(gpu.name, ())
    if not offers:
        return f"no {search.price_kind} price is known for {gpu.name}; give one in a prices file"
    largest = max(offer.num_gpus for offer in offers)
    if num_gpus > largest:
        return f"{num_gpus} GPUs a replica > {largest} GPUs in the largest node offered of {gpu.name}"
    limit = search.budget.max_gpus
    if limit is not None and num_gpus > limit:
        return f"{num_gpus} GPUs a replica > the budget of {limit}"
    return ""
