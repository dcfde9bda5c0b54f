"""The engines' files by the type of their parameters: a new engine adds a line."""

from __future__ import annotations

from collections.abc import Mapping

from servewise.errors import InputError
from servewise.sim.drivers.base import SimDriver
from servewise.sim.drivers.baselines import Baseline
from servewise.sim.drivers.llamacpp import Llamacpp, Ollama
from servewise.sim.drivers.pipeline import VllmPipeline
from servewise.sim.drivers.sglang import Sglang
from servewise.sim.drivers.sglang_pipeline import SglangPipeline
from servewise.sim.drivers.speculative import VllmSpeculative
from servewise.sim.drivers.tgi import Tgi
from servewise.sim.drivers.trtllm import Trtllm, TrtllmPipeline
from servewise.sim.drivers.vllm import Vllm
from servewise.types import (
    BaselineParams,
    Deployment,
    LlamacppParams,
    OllamaParams,
    SglangParams,
    TgiParams,
    TrtllmParams,
    VllmParams,
)

__all__ = ["caches_prefixes", "driver_of"]

DRIVERS: Mapping[type, SimDriver] = {
    VllmParams: Vllm(),
    SglangParams: Sglang(),
    TrtllmParams: Trtllm(),
    TgiParams: Tgi(),
    LlamacppParams: Llamacpp(),
    OllamaParams: Ollama(),
    BaselineParams: Baseline(),
}

STAGED: Mapping[type, SimDriver] = {
    VllmParams: VllmPipeline(),
    SglangParams: SglangPipeline(),
    TrtllmParams: TrtllmPipeline(),
}
"""Engines whose pipeline stages are simulated."""

SPECULATING: Mapping[type, SimDriver] = {VllmParams: VllmSpeculative()}
"""Engines whose speculative decoding is simulated."""


def driver_of(deployment: Deployment) -> SimDriver:
    """How a deployment's engine is simulated.

    Raises
    ------
    InputError
        When it is not.
    """
    found = DRIVERS.get(type(deployment.params))
    if found is not None and deployment.speculation is not None:
        found = SPECULATING.get(type(deployment.params))
        if found is None:
            raise InputError(f"speculative decoding of {deployment.engine!r} is not simulated; use vllm")
    elif found is not None and deployment.parallelism.pipeline_parallel_size > 1:
        found = STAGED.get(type(deployment.params))
        if found is None:
            raise InputError(
                f"pipeline_parallel_size {deployment.parallelism.pipeline_parallel_size}: pipeline stages of "
                f"{deployment.engine!r} are not simulated; use tensor parallelism, vllm, sglang or tensorrt-llm"
            )
    assert found is not None, deployment.engine  # noqa: S101 (every type of parameters has its line above)
    return found


def caches_prefixes(deployment: Deployment) -> bool:
    """Whether a deployment's prompts may be served from a prefix cache that is simulated."""
    return driver_of(deployment).caches_prefixes(deployment)
