"""Memory and time of one replica: does it fit, how many tokens does it cache, how long does a step take."""

from servewise.perf.formula import StepFormula
from servewise.perf.memory_budget import KvLayout, kv_layout, largest_model_len, memory, weights_bytes
from servewise.perf.step import explain, step_model
from servewise.perf.table import TABLE_TOLERANCE_FRAC, tabulate

__all__ = [
    "TABLE_TOLERANCE_FRAC",
    "KvLayout",
    "StepFormula",
    "explain",
    "kv_layout",
    "largest_model_len",
    "memory",
    "step_model",
    "tabulate",
    "weights_bytes",
]
