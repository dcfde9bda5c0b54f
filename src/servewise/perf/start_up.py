"""How long a replica takes to start."""

from __future__ import annotations

from servewise.engines import start_up
from servewise.types import MemoryReport, Provenance
from servewise.units import GIB

__all__ = ["start_up_s"]


def start_up_s(memory: MemoryReport, num_gpus: int) -> tuple[float, Provenance]:
    """Time [s] from the order to start a replica to the first request it can serve, on a machine that is there.

    Process and warm-up take what they take; the weights of all of a replica's GPUs are read from one disk.

    Parameters
    ----------
    memory : MemoryReport
        Of the replica's fullest GPU.
    num_gpus : int
        Of the replica.

    Sources
    -------
    ``servewise/data/engines/start_up.toml``.
    """
    known, origin = start_up.facts()
    reading_s = known.weights_s / (known.weights_gib * GIB) * memory.weights_bytes * num_gpus
    return known.process_s + known.warm_up_s + reading_s, origin
