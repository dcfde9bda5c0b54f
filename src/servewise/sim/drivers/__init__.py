"""How each engine is simulated, one file an engine."""

from __future__ import annotations

from collections.abc import Mapping

from servewise.errors import InputError
from servewise.sim.drivers.base import SimDriver
from servewise.sim.drivers.reserving import Trtllm
from servewise.sim.drivers.sglang import Sglang
from servewise.sim.drivers.vllm import Vllm, routes_by_kv_use
from servewise.types import Deployment, SglangParams, TrtllmParams, VllmParams

__all__ = ["SimDriver", "driver_of", "routes_by_kv_use"]

DRIVERS: Mapping[type, SimDriver] = {VllmParams: Vllm(), SglangParams: Sglang(), TrtllmParams: Trtllm()}


def driver_of(deployment: Deployment) -> SimDriver:
    """How a deployment's engine is simulated.

    Raises
    ------
    InputError
        When it is not.
    """
    found = DRIVERS.get(type(deployment.params))
    if found is None:
        raise InputError(
            f"the scheduler of {deployment.engine!r} is not simulated; allowed: vllm, sglang, tensorrt-llm"
        )
    return found
