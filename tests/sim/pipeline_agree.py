"""Run one case through the kernel with pipeline stages and through the independent plain pipeline."""

from __future__ import annotations

from dataclasses import replace

from oracle.pipeline_plain import Engine
from oracle.router_plain import simulate_fleet
from oracle.strategies import Case
from servewise.sim import Outcome, simulate
from servewise.sim.drivers.pipeline import layers_of_stages
from servewise.types import Deployment, Parallelism, Router, Workload
from sim.agree import MODEL, assert_same, deployment_of, memory_of, model_of, normalized, workload_of


def staged(case: Case, num_stages: int, num_replicas: int = 1, router: Router = "round_robin") -> Deployment:
    """The case's deployment with pipeline stages."""
    parallelism = Parallelism(pipeline_parallel_size=num_stages)
    return replace(deployment_of(case, num_replicas, router), parallelism=parallelism)


def run_kernel(
    case: Case,
    num_stages: int,
    *,
    num_replicas: int = 1,
    router: Router = "round_robin",
    workload: Workload | None = None,
    record_itl: bool = False,
    num_samples: int = 0,
) -> Outcome:
    """The kernel's view of a case."""
    return simulate(
        workload or workload_of(case),
        staged(case, num_stages, num_replicas, router),
        model_of(case),
        memory_of(case),
        record_itl=record_itl,
        num_samples=num_samples,
    )


def assert_agrees(case: Case, num_stages: int, *, num_replicas: int = 1, router: Router = "round_robin") -> Outcome:
    """Compare one case in both implementations; return the kernel's outcome."""
    case = normalized(case)
    layers = layers_of_stages(MODEL.num_layers, num_stages)
    plain = simulate_fleet(
        case.requests,
        case.params,
        case.times,
        num_replicas=num_replicas,
        router=router,
        engine=lambda: Engine(case.params, case.times, layers),
    )
    kernel = run_kernel(case, num_stages, num_replicas=num_replicas, router=router)
    assert_same(kernel, plain)
    return kernel
