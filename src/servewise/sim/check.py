"""What must hold before a deployment can be simulated."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from servewise.errors import InputError
from servewise.kernel import fleet
from servewise.sim.drivers import driver_of
from servewise.types import Deployment, MemoryReport, StepModel

__all__ = ["check"]


def check(
    deployment: Deployment, step_model: StepModel, memory: MemoryReport, *, num_rows: int, num_ranks: int = 1
) -> None:
    """Check what the kernel rests on; ``num_rows`` is the most rows a step of one of ``num_ranks`` ranks can have.

    Raises
    ------
    InputError
        When the deployment does not fit in memory, or a setting contradicts the step table or cannot be simulated.
    """
    table = step_model.table
    if deployment.disaggregation is not None:
        raise InputError("a disaggregated deployment has two pools; use simulate_disaggregated")
    if deployment.router == "prefix_aware" and deployment.num_replicas > fleet.MAX_PREFIX_AWARE_REPLICAS:
        raise InputError(
            f"the prefix_aware router is simulated for at most {fleet.MAX_PREFIX_AWARE_REPLICAS} replicas, "
            f"got {deployment.num_replicas}; use least_requests"
        )
    if not memory.fits:
        raise InputError(f"the deployment does not fit: {memory.reason}")
    num_tokens = driver_of(deployment).check(deployment, memory)
    if not all(np.isfinite(getattr(table, field.name)).all() for field in fields(table)):
        raise InputError("the step table has times that are not finite; a simulation with it would never end")
    if table.max_rows < num_rows or table.max_batched_tokens < num_tokens:
        raise InputError(
            f"the step table covers {table.max_rows} rows and {table.max_batched_tokens} tokens, the engine "
            f"can run {num_rows} and {num_tokens}"
        )
    if num_ranks > 1 and len(table.experts_s) <= num_ranks * max(num_rows, num_tokens):
        raise InputError(
            f"the step table covers {max(len(table.experts_s) - 1, 0)} tokens of all data parallel ranks together, "
            f"{num_ranks} ranks can run {num_ranks * max(num_rows, num_tokens)}; tabulate the deployment's own formula"
        )
