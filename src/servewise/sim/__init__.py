"""Simulation of a deployment on a workload."""

from servewise.kernel import is_compiled
from servewise.kernel.fleet import MAX_PREFIX_AWARE_REPLICAS
from servewise.sim.disaggregated import pack_disaggregated, simulate_disaggregated
from servewise.sim.outcome import Outcome, to_log
from servewise.sim.pack import Packed
from servewise.sim.run import pack_requests, run, simulate, simulate_closed_loop

__all__ = [
    "MAX_PREFIX_AWARE_REPLICAS",
    "Outcome",
    "Packed",
    "is_compiled",
    "pack_disaggregated",
    "pack_requests",
    "run",
    "simulate",
    "simulate_closed_loop",
    "simulate_disaggregated",
    "to_log",
]
