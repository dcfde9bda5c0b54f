"""SGLang with pipeline stages."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from servewise.errors import InputError
from servewise.kernel import layout
from servewise.kernel.sglang_pipeline import SglangPipeline as Driver
from servewise.kernel.sglang_pipeline import new_sglang_pipeline
from servewise.sim.drivers.sglang import Sglang
from servewise.sim.pack import Packed
from servewise.types import Deployment, MemoryReport, SglangParams, Workload

__all__ = ["SglangPipeline", "layers_of_stages"]


def layers_of_stages(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Layers of each stage, first to last: those left over go one each to the last stages.

    Sources
    -------
    SGLang 0.5.23, ``distributed/utils.py``: ``get_pp_indices``.
    """
    each, left = divmod(num_layers, num_stages)
    return tuple(each + (stage >= num_stages - left) for stage in range(num_stages))


class SglangPipeline:
    """See ``servewise.kernel.sglang_pipeline``."""

    def caches_prefixes(self, deployment: Deployment) -> bool:
        """As the parameter says."""
        return Sglang().caches_prefixes(deployment)

    def check(self, deployment: Deployment, memory: MemoryReport) -> int:
        """Check what the kernel rests on."""
        params = deployment.params
        assert isinstance(params, SglangParams)  # noqa: S101 (the registry is keyed by this type)
        if deployment.parallelism.data_parallel_size > 1:
            raise InputError(
                f"data_parallel_size {deployment.parallelism.data_parallel_size} with pipeline stages is not "
                "simulated; use one of the two"
            )
        if params.enable_mixed_chunk:
            raise InputError("enable_mixed_chunk is not simulated with pipeline stages; leave it off")
        return Sglang().check(deployment, memory)

    def accepts(self, workload: Workload, deployment: Deployment) -> NDArray[np.bool_]:
        """All."""
        return Sglang().accepts(workload, deployment)

    def engine(self, deployment: Deployment, num_kv_blocks: int) -> layout.Engine:
        """SGLang's parameters; its micro-batches divide the running requests among them."""
        return Sglang().engine(deployment, num_kv_blocks)

    def driver(self, packed: Packed, deployment: Deployment, engine: layout.Engine, memory: MemoryReport) -> Driver:
        """The stages and micro-batches of every replica, with nothing in flight."""
        num_stages, n = deployment.parallelism.pipeline_parallel_size, deployment.num_replicas
        layers = np.array(layers_of_stages(deployment.model.num_layers, num_stages), np.float64)
        states = Sglang().state(packed, deployment, engine, memory, n * num_stages, n)
        return new_sglang_pipeline(engine, packed.requests, n, layers / deployment.model.num_layers, states)
