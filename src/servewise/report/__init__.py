"""Plans for people: text for a terminal and one self-contained page."""

from servewise.report.advice import advice
from servewise.report.calibration import calibration_terminal
from servewise.report.comparison import comparison_json, comparison_terminal
from servewise.report.difference import difference_json, difference_terminal, imported_json, imported_terminal
from servewise.report.escape import visible
from servewise.report.measurement import measurement_terminal, sweep_document, sweep_terminal
from servewise.report.page import plan_html
from servewise.report.quality import quality_json, quality_terminal
from servewise.report.terminal import plan_terminal
from servewise.report.verification import verification_json, verification_terminal
from servewise.report.view import PlanReport
from servewise.report.words import shortfall

__all__ = [
    "PlanReport",
    "advice",
    "calibration_terminal",
    "comparison_json",
    "comparison_terminal",
    "difference_json",
    "difference_terminal",
    "imported_json",
    "imported_terminal",
    "measurement_terminal",
    "plan_html",
    "plan_terminal",
    "quality_json",
    "quality_terminal",
    "shortfall",
    "sweep_document",
    "sweep_terminal",
    "verification_json",
    "verification_terminal",
    "visible",
]
