"""Simulation of a deployment on a workload."""

from servewise.kernel.fleet import MAX_PREFIX_AWARE_REPLICAS
from servewise.sim.cluster import ClusterRun, Life, simulate_cluster, simulate_group_cluster
from servewise.sim.disaggregated import pack_disaggregated, simulate_disaggregated
from servewise.sim.drivers import caches_prefixes
from servewise.sim.memory_use import memory_use
from servewise.sim.outcome import Handover, Outcome, schedulers, to_log
from servewise.sim.pack import Packed
from servewise.sim.run import pack_requests, run, simulate, simulate_closed_loop
from servewise.sim.task import num_ranks
from servewise.sim.warm import compile_drivers, driver_name, not_compiled

__all__ = [
    "MAX_PREFIX_AWARE_REPLICAS",
    "ClusterRun",
    "Handover",
    "Life",
    "Outcome",
    "Packed",
    "caches_prefixes",
    "compile_drivers",
    "driver_name",
    "memory_use",
    "not_compiled",
    "num_ranks",
    "pack_disaggregated",
    "pack_requests",
    "run",
    "schedulers",
    "simulate",
    "simulate_closed_loop",
    "simulate_cluster",
    "simulate_disaggregated",
    "simulate_group_cluster",
    "to_log",
]
