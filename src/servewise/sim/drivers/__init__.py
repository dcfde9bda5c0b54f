"""How each engine is simulated, one file an engine."""

from servewise.sim.drivers.registry import caches_prefixes, driver_of
from servewise.sim.drivers.vllm import routes_by_kv_use

__all__ = ["caches_prefixes", "driver_of", "routes_by_kv_use"]
