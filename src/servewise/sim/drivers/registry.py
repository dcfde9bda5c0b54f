"""The engines' files by the type of their parameters: a new engine adds a line."""

from __future__ import annotations

from collections.abc import Mapping

from servewise.errors import InputError
from servewise.sim.drivers.base import SimDriver
from servewise.sim.drivers.baselines import Baseline
from servewise.sim.drivers.pipeline import VllmPipeline
from servewise.sim.drivers.reserving import Sglang
from servewise.sim.drivers.tgi import Tgi
from servewise.sim.drivers.trtllm import Trtllm
from servewise.sim.drivers.vllm import Vllm
from servewise.types import BaselineParams, Deployment, SglangParams, TgiParams, TrtllmParams, VllmParams

__all__ = ["caches_prefixes", "driver_of"]

DRIVERS: Mapping[type, SimDriver] = {
    VllmParams: Vllm(),
    SglangParams: Sglang(),
    TrtllmParams: Trtllm(),
    TgiParams: Tgi(),
    BaselineParams: Baseline(),
}

STAGED: Mapping[type, SimDriver] = {VllmParams: VllmPipeline()}
"""Engines whose pipeline stages are simulated."""


def driver_of(deployment: Deployment) -> SimDriver:
    """How a deployment's engine is simulated.

    Raises
    ------
    InputError
        When it is not.
    """
    found = DRIVERS.get(type(deployment.params))
    if found is not None and deployment.parallelism.pipeline_parallel_size > 1:
        found = STAGED.get(type(deployment.params))
        if found is None:
            raise InputError(
                f"pipeline_parallel_size {deployment.parallelism.pipeline_parallel_size}: pipeline stages of "
                f"{deployment.engine!r} are not simulated; use tensor parallelism, or vllm"
            )
    if found is None:
        raise InputError(
            f"the scheduler of {deployment.engine!r} is not simulated; allowed: vllm, sglang, tensorrt-llm, tgi, "
            "static, orca, sarathi"
        )
    return found


def caches_prefixes(deployment: Deployment) -> bool:
    """Whether a deployment's prompts may be served from a prefix cache that is simulated."""
    return driver_of(deployment).caches_prefixes(deployment)
