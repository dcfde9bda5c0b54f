"""Imported runs on disk: a run folder with imported.json and the tables that a measurement has, too."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from servewise import __version__
from servewise.errors import InputError
from servewise.store.documents import read_head
from servewise.store.files import write_json
from servewise.store.logs import read_log, write_log
from servewise.store.measurements import (
    CHUNK_COLUMNS,
    DETAIL_COLUMNS,
    MEASUREMENT_SCHEMA,
    read_measurement,
)
from servewise.store.parquet import read_columns, write_columns
from servewise.types import Chunks, ImportedRun, Measurement, RequestDetails, Tool

__all__ = ["IMPORT_SCHEMA", "read_run_dir", "write_imported"]

IMPORT_SCHEMA = "servewise.imported/1"
"""Name and version of the schema of imported.json."""


class _Head(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    tool: Tool
    tool_version: str
    name: str
    model: str
    one_clock: bool
    definitions: dict[str, str]
    missing: tuple[str, ...]
    notes: tuple[str, ...]


def write_imported(folder: Path, run: ImportedRun) -> None:
    """Write an imported run into an existing folder that holds none; imported.json appears last.

    Raises
    ------
    InputError
        When a file exists already or cannot be written.
    """
    write_log(folder / "requests.parquet", run.log)
    details = {field.name: getattr(run.details, field.name) for field in dataclasses.fields(run.details)}
    write_columns(folder / "details.parquet", MEASUREMENT_SCHEMA, details, DETAIL_COLUMNS)
    if run.chunks is not None:
        offsets = run.chunks.offsets
        parts = {"row": np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)), "time_s": run.chunks.time_s}
        write_columns(folder / "chunks.parquet", MEASUREMENT_SCHEMA, parts, CHUNK_COLUMNS)
    head = {name: getattr(run, name) for name in _Head.model_fields}
    write_json(folder / "imported.json", {"schema": IMPORT_SCHEMA, "servewise": __version__, **head})


def read_run_dir(folder: Path) -> Measurement | ImportedRun:
    """Read a run folder: a measurement, or a run that was imported.

    Raises
    ------
    InputError
        When it is neither, a file is missing, has another schema or impossible values.
    """
    if (folder / "measurement.json").exists():
        return read_measurement(folder)
    if not (folder / "imported.json").exists():
        raise InputError(f"{folder} holds neither measurement.json nor imported.json; give the folder of a run")
    head = read_head(folder / "imported.json", IMPORT_SCHEMA, _Head, "import the run again")
    log = read_log(folder / "requests.parquet")
    details = read_columns(folder / "details.parquet", MEASUREMENT_SCHEMA, DETAIL_COLUMNS)[0]
    if len(details["request"]) != log.num_requests:
        raise InputError(f"{folder}: details.parquet has {len(details['request'])} rows, the log {log.num_requests}")
    for name in ("finish_reason", "failure"):
        details[name] = details[name].tolist()
    chunks = _read_chunks(folder / "chunks.parquet", log.num_requests)
    return ImportedRun(**head.model_dump(), log=log, details=RequestDetails(**details), chunks=chunks)


def _read_chunks(path: Path, num_requests: int) -> Chunks | None:
    if not path.exists():
        return None
    columns = read_columns(path, MEASUREMENT_SCHEMA, CHUNK_COLUMNS)[0]
    rows = columns["row"]
    if len(rows) and (rows[0] < 0 or rows[-1] >= num_requests or np.any(np.diff(rows) < 0)):
        raise InputError(f"{path}: rows must ascend within 0 .. {num_requests - 1}")
    counts = np.bincount(rows, minlength=num_requests)
    return Chunks(offsets=np.concatenate(([0], np.cumsum(counts))), time_s=columns["time_s"])
