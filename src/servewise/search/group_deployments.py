"""Groups of prefill and decode instances that the search tries: engine x GPUs x precision x size x ratio."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from servewise.catalog import supported_precisions
from servewise.effort import permits
from servewise.perf import kv_link, memory
from servewise.search.settings import pool_params
from servewise.search.spreads import spreads
from servewise.traffic import context_limit
from servewise.types import (
    Deployment,
    Disaggregation,
    EngineName,
    GpuSpec,
    InstancePool,
    ModelSpec,
    Parallelism,
    PrecisionChoice,
    Role,
    Search,
)

__all__ = ["RATIOS", "group_deployments"]

ENGINES: tuple[EngineName, ...] = ("vllm", "sglang", "tensorrt-llm")
"""Engines that hand over the KV cache."""
RATIOS = ((1, 1), (1, 2), (1, 3), (2, 1), (3, 1))
"""Prefill and decode instances of a group."""
NUM_SIZES = 2
"""Tensor parallel sizes of an instance: the smallest one that fits, and the next."""


def group_deployments(search: Search) -> Iterator[tuple[PrecisionChoice, Deployment]]:
    """Every group to try, in a fixed order, of the engines whose groups the team can run.

    Both pools run one engine, one precision and blocks of one size.
    """
    if search.router not in ("round_robin", "least_requests"):
        return
    for model in search.models:
        longest = context_limit(search.workload, model)
        for choice in search.precisions[model.name]:
            for engine, version in search.engines:
                if engine not in ENGINES or not permits(engine, {"disaggregated"}, search.max_effort):
                    continue
                alone = {
                    (gpu.name, role): _instances(model, gpu, choice, engine, version, longest, role)
                    for gpu in search.gpus
                    for role in ("prefill", "decode")
                }
                for first, second in product(search.gpus, search.gpus):
                    pairs = zip(alone[first.name, "prefill"], alone[second.name, "decode"], strict=False)
                    for prefill, decode in pairs:
                        if prefill.kv_block_tokens != decode.kv_block_tokens:
                            continue
                        for ratio in RATIOS:
                            yield choice, _group(search, prefill, decode, ratio)


def _instances(
    model: ModelSpec,
    gpu: GpuSpec,
    choice: PrecisionChoice,
    engine: EngineName,
    version: str,
    longest: int,
    role: Role,
) -> list[Deployment]:
    """Instances on one kind of GPU, the smallest that fits first."""
    if choice.precision not in supported_precisions(gpu, engine):
        return []
    found: list[Deployment] = []
    for spread in spreads(engine, model, gpu, choice.precision.weights):
        if spread != Parallelism(tensor_parallel_size=spread.tensor_parallel_size):
            continue
        instance = Deployment(
            model=model,
            gpu=gpu,
            engine=engine,
            engine_version=version,
            precision=choice.precision,
            parallelism=spread,
            params=pool_params(engine, version, gpu, model, spread, longest, role),
        )
        if memory(instance).fits and len(found) < NUM_SIZES:
            found.append(instance)
    return found


def _group(search: Search, prefill: Deployment, decode: Deployment, ratio: tuple[int, int]) -> Deployment:
    pools = [
        InstancePool(gpu=one.gpu, parallelism=one.parallelism, params=one.params, num_instances=number)
        for one, number in zip((prefill, decode), ratio, strict=True)
    ]
    return Deployment(
        model=decode.model,
        gpu=decode.gpu,
        engine=decode.engine,
        engine_version=decode.engine_version,
        precision=decode.precision,
        parallelism=decode.parallelism,
        params=decode.params,
        router=search.router,
        disaggregation=Disaggregation(
            prefill=pools[0], decode=pools[1], link=kv_link(prefill, decode, *ratio), router="least_requests"
        ),
    )
