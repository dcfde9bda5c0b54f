"""Measure a real endpoint: what to send, when, and whether the numbers can be trusted."""

from servewise.measure.answer import api_path
from servewise.measure.progress import Progress
from servewise.measure.runner import Run, run_load

__all__ = ["Progress", "Run", "api_path", "run_load"]
