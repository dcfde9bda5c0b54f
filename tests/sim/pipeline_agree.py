"""vLLM's cases with pipeline stages, and the plain pipeline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from oracle.pipeline_plain import Engine
from oracle.strategies import Case
from servewise.sim import Outcome
from servewise.sim.drivers.pipeline import layers_of_stages
from servewise.types import Deployment, Parallelism, Router
from sim.agree import MODEL, Comparison, deployment_of, normalized


def staged(case: Case, num_stages: int, num_replicas: int = 1, router: Router = "round_robin") -> Deployment:
    """The case's deployment with pipeline stages."""
    parallelism = Parallelism(pipeline_parallel_size=num_stages)
    return replace(deployment_of(case, num_replicas, router), parallelism=parallelism)


def pipeline(num_stages: int) -> Comparison:
    """Pipelines of so many stages."""
    layers = layers_of_stages(MODEL.num_layers, num_stages)
    return Comparison(
        deployment_of=lambda case, *fleet: staged(case, num_stages, *fleet),
        engine_of=lambda case: Engine(case.params, case.times, layers),
    )


def run_kernel(case: Case, num_stages: int, **asked: Any) -> Outcome:
    """The kernel's view of a case."""
    return pipeline(num_stages).run_open(case, **asked)


def assert_agrees(case: Case, num_stages: int, **asked: Any) -> Outcome:
    """Compare one case in both implementations; return the kernel's outcome."""
    return pipeline(num_stages).assert_open_agrees(normalized(case), **asked)
