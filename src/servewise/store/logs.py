"""Request logs as Parquet: one file for the requests, one each for gaps and timeline when there are any."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from servewise.errors import InputError
from servewise.store.parquet import read_columns, write_columns
from servewise.store.table import csv_text
from servewise.types import ItlSegments, RequestLog, RequestStatus, Timeline

__all__ = ["LOG_SCHEMA", "log_to_csv", "read_log", "write_log"]

LOG_SCHEMA = "servewise.log/1"
"""Name and version of the log's schema, in the Parquet metadata."""

REQUEST_COLUMNS: dict[str, pl.DataType] = {
    "intended_s": pl.Float64(),
    "sent_s": pl.Float64(),
    "first_token_s": pl.Float64(),
    "last_token_s": pl.Float64(),
    "input_tokens": pl.Int64(),
    "output_tokens": pl.Int64(),
    "cached_tokens": pl.Int64(),
    "num_preemptions": pl.Int64(),
    "replica": pl.Int64(),
    "status": pl.Int8(),
}
ITL_COLUMNS: dict[str, pl.DataType] = {
    "first_s": pl.Float64(),
    "increment_s": pl.Float64(),
    "steps": pl.Int64(),
    "weight": pl.Int64(),
}
TIMELINE_COLUMNS: dict[str, pl.DataType] = {
    "time_s": pl.Float64(),
    "running": pl.Float64(),
    "waiting": pl.Float64(),
    "kv_used_frac": pl.Float64(),
}


def write_log(path: Path, log: RequestLog) -> None:
    """Write a log to new Parquet files: ``NAME.parquet``, ``NAME.itl.parquet``, ``NAME.timeline.parquet``.

    The file with the requests is written last, so that a log that can be found is whole.

    Raises
    ------
    InputError
        When a file exists already or cannot be written, or the path does not end in ``.parquet``.
    """
    parts = []
    if log.itl is not None:
        parts.append("itl")
        _write(_companion(path, "itl"), log.itl, ITL_COLUMNS)
    if log.timeline is not None:
        parts.append("timeline")
        _write(_companion(path, "timeline"), log.timeline, TIMELINE_COLUMNS)
    _write(_parquet(path), log, REQUEST_COLUMNS, ",".join(parts))


def read_log(path: Path) -> RequestLog:
    """Read a log that :func:`write_log` wrote.

    Raises
    ------
    InputError
        When a file is missing, is not Parquet, has another schema or impossible values.
    """
    columns, parts = read_columns(_parquet(path), LOG_SCHEMA, REQUEST_COLUMNS)
    known = [int(status) for status in RequestStatus]
    if not np.isin(columns["status"], known).all():
        raise InputError(f"{path}: column status holds a value outside {known}; write the log again")
    if not np.isfinite(columns["intended_s"]).all():
        raise InputError(f"{path}: column intended_s must be finite; write the log again")
    itl = timeline = None
    if "itl" in parts:
        itl = ItlSegments(**read_columns(_companion(path, "itl"), LOG_SCHEMA, ITL_COLUMNS)[0])
    if "timeline" in parts:
        timeline = Timeline(**read_columns(_companion(path, "timeline"), LOG_SCHEMA, TIMELINE_COLUMNS)[0])
    return RequestLog(**columns, itl=itl, timeline=timeline)


def log_to_csv(log: RequestLog) -> str:
    """Format the requests of a log as CSV, status in words."""
    names = list(REQUEST_COLUMNS)
    values = [getattr(log, name).tolist() for name in names[:-1]]
    values.append([RequestStatus(code).name.lower() for code in log.status.tolist()])
    return csv_text(names, zip(*values, strict=True))


def _parquet(path: Path) -> Path:
    if path.suffix != ".parquet":
        raise InputError(f"a log is kept in a file that ends in .parquet, not {path.name!r}")
    return path


def _companion(path: Path, part: str) -> Path:
    return _parquet(path).with_name(f"{path.stem}.{part}.parquet")


def _write(path: Path, table: object, columns: dict[str, pl.DataType], parts: str = "") -> None:
    write_columns(path, LOG_SCHEMA, {name: getattr(table, name) for name in columns}, columns, parts=parts)
