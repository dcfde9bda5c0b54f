"""Enumerate replica shapes: model x GPU x precision x tensor parallelism x settings, each with its memory."""

from __future__ import annotations

from dataclasses import dataclass

from servewise.catalog import supported_precisions
from servewise.errors import InputError
from servewise.perf import memory
from servewise.search.settings import settings
from servewise.search.spreads import spreads
from servewise.types import (
    Deployment,
    MemoryReport,
    ModelSpec,
    PrecisionChoice,
    Search,
)

__all__ = ["Shape", "enumerate_shapes"]

CONTEXT_STEP_TOKENS = 1024
"""The context limit is rounded up to a multiple of this."""


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
            for choice in search.precisions[model.name]:
                for engine, version in search.engines:
                    if choice.precision not in supported_precisions(gpu, engine):
                        continue
                    for spread in spreads(engine, model, gpu, choice.precision.weights):
                        for params in settings(engine, version, gpu, model, spread, context_tokens):
                            deployment = Deployment(
                                model=model,
                                gpu=gpu,
                                engine=engine,
                                engine_version=version,
                                precision=choice.precision,
                                parallelism=spread,
                                params=params,
                                router=search.router,
                            )
                            shapes.append(_shape(search, deployment, choice, len(shapes)))
    return tuple(shapes)


def _context(search: Search, model: ModelSpec) -> int:
    """Context limit to launch with: room for the longest request as declared, within the model's own limit."""
    longest = int((search.workload.input_tokens + search.workload.max_tokens).max())
    return min(-(-longest // CONTEXT_STEP_TOKENS) * CONTEXT_STEP_TOKENS, model.max_context_tokens)


def _shape(search: Search, deployment: Deployment, choice: PrecisionChoice, index: int) -> Shape:
    """A shape with its memory, or the reason why it cannot be built."""
    longest = deployment.max_request_tokens
    mean_tokens = int((search.workload.input_tokens + search.workload.output_tokens / 2).mean())
    try:
        report = memory(deployment, mean_tokens)
    except InputError as refused:  # by the engine's own rules
        return Shape(index=index, deployment=deployment, memory=None, precision=choice, reason=str(refused))
    too_long = ""
    if report.fits and report.kv_capacity_tokens < longest:
        # only with sliding windows, whose longest request takes less memory than its tokens suggest
        too_long = (
            f"the KV cache holds {report.kv_capacity_tokens} tokens at the mean context, less than one request "
            f"of {longest} tokens, which is not simulated"
        )
    return Shape(
        index=index,
        deployment=deployment,
        memory=report,
        precision=choice,
        reason=_unavailable(search, deployment) or report.reason or too_long,
    )


def _unavailable(search: Search, deployment: Deployment) -> str:
    gpu, spread = deployment.gpu, deployment.parallelism
    offers = search.offers.get(gpu.name, ())
    if not offers:
        return f"no {search.price_kind} price is known for {gpu.name}; give one in a prices file"
    largest = max(offer.num_gpus for offer in offers)
    together = spread.num_gpus // spread.pipeline_parallel_size  # only stages may stand in several nodes
    if together > largest:
        return f"{together} GPUs that work together > {largest} GPUs in the largest node offered of {gpu.name}"
    limit = search.budget.max_gpus
    if limit is not None and spread.num_gpus > limit:
        return f"{spread.num_gpus} GPUs a replica > the budget of {limit}"
    return ""
