"""What every engine's file in this folder tells the simulator."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from servewise.kernel import layout
from servewise.sim.pack import Packed
from servewise.types import Deployment, MemoryReport, Workload

__all__ = ["SimDriver", "plain_engine"]


class SimDriver(Protocol):
    """An engine's scheduler as the simulator sees it: a stateless object in each file."""

    def caches_prefixes(self, deployment: Deployment) -> bool:
        """Whether prompts may be served from a prefix cache that is simulated."""
        ...

    def check(self, deployment: Deployment, memory: MemoryReport) -> int:
        """Check the parameters; returns the most tokens of a step of a rank.

        Raises
        ------
        InputError
            When they contradict each other or cannot be simulated.
        """
        ...

    def accepts(self, workload: Workload, deployment: Deployment) -> NDArray[np.bool_]:
        """Which requests the engine does not turn down for their lengths, beside those beyond its context."""
        ...

    def engine(self, deployment: Deployment, num_kv_blocks: int) -> layout.Engine:
        """Scheduling parameters that all drivers share."""
        ...

    def driver(self, packed: Packed, deployment: Deployment, engine: layout.Engine, memory: MemoryReport) -> Any:
        """What chooses the kernel's driver by its type, with all that only this engine has; new for each run."""
        ...


def plain_engine(deployment: Deployment, num_kv_blocks: int) -> layout.Engine:
    """An engine with a lag of one step and without a prefix cache."""
    return layout.Engine(
        max_num_seqs=deployment.max_rows,
        max_num_batched_tokens=deployment.max_step_tokens,
        num_blocks=num_kv_blocks,
        block_shift=0,
        lag=1,
        reserve_full=1,
        caching=0,
        stop_at_preemption=0,
        single_step=0,
    )
