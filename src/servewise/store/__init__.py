"""What is kept on disk: run folders, plans, request logs. Versioned, atomic, never overwritten."""

from servewise.store.calibration_json import (
    CALIBRATION_SCHEMA,
    calibration_from_json,
    calibration_to_json,
    read_calibration,
    write_calibration,
)
from servewise.store.documents import read_document
from servewise.store.files import check_run_parent, digest, new_run_dir, write_json, write_text_atomic
from servewise.store.imports import IMPORT_SCHEMA, read_run_dir, write_imported
from servewise.store.logs import LOG_SCHEMA, log_to_csv, read_log, write_log
from servewise.store.measurements import (
    MEASUREMENT_SCHEMA,
    measurement_document,
    read_measurement,
    write_measurement,
)
from servewise.store.plan_document import PLAN_SCHEMA, WorkloadMeta, plan_json_schema
from servewise.store.plan_json import PlanMeta, plan_from_json, plan_meta, plan_to_json, read_plan
from servewise.store.sweeps import SWEEP_SCHEMA, SweepFolder
from servewise.store.table import csv_text
from servewise.store.workloads import WORKLOAD_SCHEMA, read_workload, write_workload

__all__ = [
    "CALIBRATION_SCHEMA",
    "IMPORT_SCHEMA",
    "LOG_SCHEMA",
    "MEASUREMENT_SCHEMA",
    "PLAN_SCHEMA",
    "SWEEP_SCHEMA",
    "WORKLOAD_SCHEMA",
    "PlanMeta",
    "SweepFolder",
    "WorkloadMeta",
    "calibration_from_json",
    "calibration_to_json",
    "check_run_parent",
    "csv_text",
    "digest",
    "log_to_csv",
    "measurement_document",
    "new_run_dir",
    "plan_from_json",
    "plan_json_schema",
    "plan_meta",
    "plan_to_json",
    "read_calibration",
    "read_document",
    "read_log",
    "read_measurement",
    "read_plan",
    "read_run_dir",
    "read_workload",
    "write_calibration",
    "write_imported",
    "write_json",
    "write_log",
    "write_measurement",
    "write_text_atomic",
    "write_workload",
]
