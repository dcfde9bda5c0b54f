"""How each engine is simulated, one file an engine."""

from __future__ import annotations

from collections.abc import Mapping

from servewise.errors import InputError
from servewise.sim.drivers.base import AdaptsRequests, SimDriver
from servewise.sim.drivers.llamacpp import Llamacpp, Ollama
from servewise.sim.drivers.reserving import Sglang, Trtllm
from servewise.sim.drivers.vllm import Vllm, routes_by_kv_use
from servewise.types import Deployment, LlamacppParams, OllamaParams, SglangParams, TrtllmParams, VllmParams

__all__ = ["AdaptsRequests", "SimDriver", "driver_of", "routes_by_kv_use"]

DRIVERS: Mapping[type, SimDriver] = {
    VllmParams: Vllm(),
    SglangParams: Sglang(),
    TrtllmParams: Trtllm(),
    LlamacppParams: Llamacpp(),
    OllamaParams: Ollama(),
}


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
            f"the scheduler of {deployment.engine!r} is not simulated; allowed: vllm, sglang, tensorrt-llm, llama.cpp, "
            "ollama"
        )
    return found
