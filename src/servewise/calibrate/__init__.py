"""Correct the step model with what was measured: few physical parameters, with intervals and held-out errors."""

from servewise.calibrate.calibration import calibrate
from servewise.calibrate.runs import MeasuredRun, measured_run

__all__ = ["MeasuredRun", "calibrate", "measured_run"]
