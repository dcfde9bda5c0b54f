"""SGLang's cases with pipeline stages, and the plain pipeline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from oracle.sglang_cases import SglangCase
from oracle.sglang_pipeline_plain import Engine
from servewise.sim.drivers.sglang_pipeline import layers_of_stages
from servewise.types import Deployment, Parallelism
from sim.agree import MODEL, Comparison
from sim.sglang_agree import deployment_of, workload_of


def staged(case: SglangCase, num_stages: int, *fleet: Any) -> Deployment:
    """The case's deployment with pipeline stages."""
    return replace(deployment_of(case, *fleet), parallelism=Parallelism(pipeline_parallel_size=num_stages))


def pipeline(num_stages: int) -> Comparison:
    """Pipelines of so many stages."""
    layers = layers_of_stages(MODEL.num_layers, num_stages)
    return Comparison(
        deployment_of=lambda case, *fleet: staged(case, num_stages, *fleet),
        engine_of=lambda case: Engine(case.params, case.times, layers),
        workload_of=workload_of,
        normalized=lambda case: replace(case, params=replace(case.params, enable_mixed_chunk=False)),
    )
