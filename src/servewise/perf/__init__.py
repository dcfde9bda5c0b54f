"""Memory and time of one replica: does it fit, how many tokens does it cache, how long does a step take."""

from servewise.perf.calibrated import (
    calibrated_draws,
    calibrated_error,
    calibrated_step_model,
    calibration_of,
    corrected,
    outside_range,
)
from servewise.perf.formula import StepFormula
from servewise.perf.kv_link import kv_link, kv_transfer_bytes, kv_transfer_bytes_per_token
from servewise.perf.memory_budget import largest_model_len, memory
from servewise.perf.memory_kv import KvLayout, kv_layout
from servewise.perf.memory_weights import weights_bytes
from servewise.perf.start_up import start_up_s
from servewise.perf.step import explain, step_model
from servewise.perf.table import TABLE_TOLERANCE_FRAC, tabulate
from servewise.perf.uncertainty import draw_step_models
from servewise.perf.validation import MeanError, mean_error, nearest_runs

__all__ = [
    "TABLE_TOLERANCE_FRAC",
    "KvLayout",
    "MeanError",
    "StepFormula",
    "calibrated_draws",
    "calibrated_error",
    "calibrated_step_model",
    "calibration_of",
    "corrected",
    "draw_step_models",
    "explain",
    "kv_layout",
    "kv_link",
    "kv_transfer_bytes",
    "kv_transfer_bytes_per_token",
    "largest_model_len",
    "mean_error",
    "memory",
    "nearest_runs",
    "outside_range",
    "start_up_s",
    "step_model",
    "tabulate",
    "weights_bytes",
]
