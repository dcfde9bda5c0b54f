"""vLLM with pipeline stages."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from servewise.errors import InputError
from servewise.kernel import layout
from servewise.kernel.pipeline import Pipeline, new_pipeline
from servewise.sim.drivers.vllm import Vllm
from servewise.sim.pack import Packed
from servewise.types import Deployment, MemoryReport, Workload

__all__ = ["VllmPipeline", "layers_of_stages"]


def layers_of_stages(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Layers of each stage, first to last: those left over go one each to the stages before the last.

    Sources
    -------
    vLLM 0.33.0, ``distributed/utils.py``: ``get_pp_indices``.
    """
    each, left = divmod(num_layers, num_stages)
    return tuple(each + (num_stages - 1 - left <= stage < num_stages - 1) for stage in range(num_stages))


class VllmPipeline:
    """See ``servewise.kernel.pipeline``."""

    def caches_prefixes(self, deployment: Deployment) -> bool:
        """As the parameter says."""
        return Vllm().caches_prefixes(deployment)

    def check(self, deployment: Deployment, memory: MemoryReport) -> int:
        """Check what the kernel rests on."""
        params = deployment.vllm_params
        if params.scheduling_policy != "fcfs" or params.watermark or params.long_prefill_token_threshold:
            raise InputError(
                "scheduling_policy, watermark and long_prefill_token_threshold are not simulated with pipeline stages; "
                "leave them at their defaults"
            )
        return Vllm().check(deployment, memory)

    def accepts(self, workload: Workload, deployment: Deployment) -> NDArray[np.bool_]:
        """All."""
        return Vllm().accepts(workload, deployment)

    def engine(self, deployment: Deployment, num_kv_blocks: int) -> layout.Engine:
        """vLLM's parameters; with asynchronous scheduling one more batch is in flight than there are stages."""
        return Vllm().engine(deployment, num_kv_blocks)

    def driver(self, packed: Packed, deployment: Deployment, engine: layout.Engine, memory: MemoryReport) -> Pipeline:
        """The stages of every replica, with nothing in flight."""
        del memory
        num_stages = deployment.parallelism.pipeline_parallel_size
        layers = np.array(layers_of_stages(deployment.model.num_layers, num_stages), np.float64)
        shares = layers / deployment.model.num_layers
        return new_pipeline(engine, packed.requests, deployment.num_replicas, shares)
