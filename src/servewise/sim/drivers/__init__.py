"""How each engine is simulated, one file an engine."""

from __future__ import annotations

from collections.abc import Mapping

from servewise.errors import InputError
from servewise.sim.drivers.base import SimDriver
from servewise.sim.drivers.pipeline import VllmPipeline
from servewise.sim.drivers.reserving import Sglang, Trtllm
from servewise.sim.drivers.vllm import Vllm, routes_by_kv_use
from servewise.types import Deployment, SglangParams, TrtllmParams, VllmParams

__all__ = ["SimDriver", "driver_of", "routes_by_kv_use"]

DRIVERS: Mapping[type, SimDriver] = {VllmParams: Vllm(), SglangParams: Sglang(), TrtllmParams: Trtllm()}
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
            f"the scheduler of {deployment.engine!r} is not simulated; allowed: vllm, sglang, tensorrt-llm"
        )
    return found
