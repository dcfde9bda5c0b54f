"""Enumerate replica shapes: model x GPU x precision x tensor parallelism x settings, each with its memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from servewise.catalog import supported_precisions
from servewise.effort import excess
from servewise.errors import InputError
from servewise.perf import calibration_of, memory
from servewise.search.context import mean_tokens
from servewise.search.group_deployments import group_deployments
from servewise.search.pricing import usd_per_h
from servewise.search.settings import settings
from servewise.search.spreads import spreads
from servewise.traffic import context_limit
from servewise.types import (
    DESCRIBED,
    Deployment,
    MemoryReport,
    PrecisionChoice,
    Search,
    VllmParams,
)

__all__ = ["Shape", "enumerate_shapes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One replica that could be built, or why it cannot.

    Parameters
    ----------
    index : int
    deployment : Deployment
        With one replica.
    memory : MemoryReport or None
        Of a group of prefill and decode instances: of a decode instance.
    precision : PrecisionChoice
    reason : str
        Why it cannot be built; empty when it can.
    prefill_memory : MemoryReport or None
        Of a prefill instance of a group.
    """

    index: int
    deployment: Deployment
    memory: MemoryReport | None
    precision: PrecisionChoice
    reason: str
    prefill_memory: MemoryReport | None = None


def enumerate_shapes(search: Search) -> tuple[Shape, ...]:
    """Every replica shape that the search considers, in a fixed order.

    Settings of one replica stand together, the largest first; a replica whose parallelism no rented node holds,
    or whose weights and KV cache do not fit, carries the reason.
    """
    shapes: list[Shape] = []
    for model in search.models:
        longest = context_limit(search.workload, model)
        for gpu in search.gpus:
            for choice in search.precisions[model.name]:
                for engine, version in search.engines:
                    if choice.precision not in supported_precisions(gpu, engine):
                        continue
                    for spread in spreads(engine, model, gpu, choice.precision.weights):
                        tried = settings(engine, version, gpu, model, spread, longest)
                        plain = [
                            Deployment(
                                model=model,
                                gpu=gpu,
                                engine=engine,
                                engine_version=version,
                                precision=choice.precision,
                                parallelism=spread,
                                params=params,
                                router=search.router,
                            )
                            for params in tried
                        ]
                        for deployment in (*plain, *_speculating(search, plain)):
                            shapes.append(_shape(search, deployment, choice, len(shapes)))
    for choice, deployment in group_deployments(search):
        shapes.append(_group_shape(search, deployment, choice, len(shapes)))
    return tuple(shapes)


def _speculating(search: Search, deployments: Sequence[Deployment]) -> Iterator[Deployment]:
    """The deployments with each drafter, where it is simulated; every running request must fit a step."""
    for drafter in search.speculations:
        for deployment in deployments:
            params, spread = deployment.params, deployment.parallelism
            if not isinstance(params, VllmParams) or spread.data_parallel_size * spread.pipeline_parallel_size > 1:
                continue
            if drafter.step_tokens(params.max_num_seqs) <= params.max_num_batched_tokens:
                yield replace(deployment, speculation=drafter)


def _shape(search: Search, deployment: Deployment, choice: PrecisionChoice, index: int) -> Shape:
    """A shape with its memory, or the reason why it cannot be built."""
    longest = deployment.max_request_tokens
    try:
        report = memory(deployment, mean_tokens(search))
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
        reason=_unavailable(search, deployment) or report.reason or too_long or excess(deployment, search.max_effort),
    )


def _group_shape(search: Search, deployment: Deployment, choice: PrecisionChoice, index: int) -> Shape:
    """A group with the memory of both its instances, or the reason why it cannot be built."""
    prefill, decode = (_shape(search, deployment.pool(role), choice, index) for role in ("prefill", "decode"))
    reason = prefill.reason or decode.reason
    limit = search.budget.max_gpus
    if not reason and limit is not None and deployment.gpus_per_replica > limit:
        reason = f"{deployment.gpus_per_replica} GPUs a group > the budget of {limit}"
    if not reason:
        try:
            usd_per_h(search, deployment, 1)
        except InputError as refused:  # nobody rents both kinds of GPU, or no node holds the group
            reason = str(refused)
    return Shape(
        index=index,
        deployment=deployment,
        memory=decode.memory,
        precision=choice,
        reason=reason,
        prefill_memory=prefill.memory,
    )


def _unavailable(search: Search, deployment: Deployment) -> str:
    gpu, spread = deployment.gpu, deployment.parallelism
    if gpu.vendor == DESCRIBED and calibration_of(deployment, search.calibrations) is None:
        return f"how fast {gpu.name} is, no calibration of {deployment.engine} with this model on it says"
    offers = search.offers.get(gpu.name, ())
    if not offers:
        return f"no {search.price_kind} price is known for {gpu.name}; give one in a prices file"
    largest = max(offer.num_gpus for offer in offers)
    # what spans nodes, stages or ranks, takes whole ones
    together = min(spread.num_gpus // spread.pipeline_parallel_size, gpu.gpus_per_node)
    if together > largest:
        return f"{together} GPUs that work together > {largest} GPUs in the largest node offered of {gpu.name}"
    limit = search.budget.max_gpus
    if limit is not None and spread.num_gpus > limit:
        return f"{spread.num_gpus} GPUs a replica > the budget of {limit}"
    return ""
