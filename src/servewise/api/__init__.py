"""The public verbs. The command line and the local page call these and nothing else."""

from servewise.api.endpoint import VerifyResult, calibrate, calibration_document, planned_deployment, verify
from servewise.api.planning import (
    PlanResult,
    compare,
    describe_traffic,
    list_gpus,
    list_models,
    list_profiles,
    plan,
    replay,
    resolve,
    simulate,
    traffic_statistics,
)
from servewise.config import load_service, named_deployment
from servewise.measure.files import compare_runs, export_run, import_runs
from servewise.measure.job import MeasureResult, SweepResult, Target, find_max, measure, measure_loads
from servewise.measure.spec import LoadSpec

__all__ = [
    "LoadSpec",
    "MeasureResult",
    "PlanResult",
    "SweepResult",
    "Target",
    "VerifyResult",
    "calibrate",
    "calibration_document",
    "compare",
    "compare_runs",
    "describe_traffic",
    "export_run",
    "find_max",
    "import_runs",
    "list_gpus",
    "list_models",
    "list_profiles",
    "load_service",
    "measure",
    "measure_loads",
    "named_deployment",
    "plan",
    "planned_deployment",
    "replay",
    "resolve",
    "simulate",
    "traffic_statistics",
    "verify",
]
