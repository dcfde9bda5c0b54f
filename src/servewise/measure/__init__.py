"""Measure a real endpoint: what to send, when, and whether the numbers can be trusted."""

from servewise.measure.job import MeasureResult, SweepResult, Target, find_max, measure, measure_loads
from servewise.measure.runner import Progress
from servewise.measure.spec import LoadSpec

__all__ = ["LoadSpec", "MeasureResult", "Progress", "SweepResult", "Target", "find_max", "measure", "measure_loads"]
