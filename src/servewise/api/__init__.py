"""The public verbs. The command line and the local page call these and nothing else.

A verb's module is imported when the verb is asked for: measuring needs neither the simulator nor the search.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from servewise.api.deploying import DeployResult, deploy
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
    from servewise.api.quality_loss import QualityResult, quality
    from servewise.api.starting import Answers, check_gpu, check_model, effort_permits, start_service, uses
    from servewise.config import load_service, named_deployment
    from servewise.measure.files import compare_runs, export_run, import_runs
    from servewise.measure.job import MeasureResult, SweepResult, Target, find_max, measure, measure_loads
    from servewise.measure.spec import LoadSpec
    from servewise.quality.tasks import TaskRun
    from servewise.quality.way import Asked

__all__ = [
    "Answers",
    "Asked",
    "DeployResult",
    "LoadSpec",
    "MeasureResult",
    "PlanResult",
    "QualityResult",
    "SweepResult",
    "Target",
    "TaskRun",
    "VerifyResult",
    "calibrate",
    "calibration_document",
    "check_gpu",
    "check_model",
    "compare",
    "compare_runs",
    "deploy",
    "describe_traffic",
    "effort_permits",
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
    "quality",
    "replay",
    "resolve",
    "simulate",
    "start_service",
    "traffic_statistics",
    "uses",
    "verify",
]

_MODULES = {
    "servewise.api.deploying": (
        "DeployResult",
        "deploy",
    ),
    "servewise.api.endpoint": (
        "VerifyResult",
        "calibrate",
        "calibration_document",
        "planned_deployment",
        "verify",
    ),
    "servewise.api.planning": (
        "PlanResult",
        "compare",
        "describe_traffic",
        "list_gpus",
        "list_models",
        "list_profiles",
        "plan",
        "replay",
        "resolve",
        "simulate",
        "traffic_statistics",
    ),
    "servewise.api.starting": (
        "Answers",
        "check_gpu",
        "check_model",
        "effort_permits",
        "start_service",
        "uses",
    ),
    "servewise.api.quality_loss": (
        "QualityResult",
        "quality",
    ),
    "servewise.config": (
        "load_service",
        "named_deployment",
    ),
    "servewise.measure.files": (
        "compare_runs",
        "export_run",
        "import_runs",
    ),
    "servewise.measure.job": (
        "MeasureResult",
        "SweepResult",
        "Target",
        "find_max",
        "measure",
        "measure_loads",
    ),
    "servewise.measure.spec": ("LoadSpec",),
    "servewise.quality.tasks": ("TaskRun",),
    "servewise.quality.way": ("Asked",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)
