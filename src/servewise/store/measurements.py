"""Measurements on disk: a run folder with measurement.json and the tables of its requests.

====================== ==================================================================================
``measurement.json``   schema, endpoint (no secrets), load in words, trust, summary; written last
``requests.parquet``   the request log, with ``requests.itl.parquet`` when gaps are known
``details.parquet``    what the client knows of each request beside the log
``chunks.parquet``     when the parts of each answer arrived: one row a part
``server.parquet``     the engine's own metrics beside the run, when it has a page of them
====================== ==================================================================================
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from pydantic import BaseModel, ConfigDict

from servewise import __version__
from servewise.errors import InputError
from servewise.store.documents import read_head
from servewise.store.files import write_json
from servewise.store.logs import read_log, write_log
from servewise.store.parquet import read_columns, write_columns
from servewise.types import Api, Chunks, Endpoint, Measurement, Promise, RequestDetails, Summary, Trust

__all__ = ["MEASUREMENT_SCHEMA", "measurement_document", "read_measurement", "write_measurement"]

MEASUREMENT_SCHEMA = "servewise.measurement/1"
"""Name and version of the schema of measurement.json and of the tables that only a measurement has."""

DETAIL_COLUMNS: dict[str, pl.DataType] = {
    "request": pl.Int64(),
    "intended_input_tokens": pl.Int64(),
    "first_answer_s": pl.Float64(),
    "end_s": pl.Float64(),
    "http_status": pl.Int64(),
    "retries": pl.Int64(),
    "finish_reason": pl.String(),
    "failure": pl.String(),
}
CHUNK_COLUMNS: dict[str, pl.DataType] = {"row": pl.Int64(), "time_s": pl.Float64()}


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Endpoint(_Part):
    base_url: str
    api: Api
    model: str
    engine: str = "unknown"
    engine_version: str = ""
    stream: bool = True
    temperature: float | None = None


class _Trust(_Part):
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    facts: dict[str, float | None]


class _Head(_Part):
    """What is read of measurement.json; the summary is computed from the log instead."""

    name: str
    started: str
    endpoint: _Endpoint
    load: str
    interrupted: bool
    counted_s: tuple[float | None, float | None]
    trust: _Trust


def write_measurement(
    folder: Path, measurement: Measurement, *, summary: Summary | None = None, promise: Promise | None = None
) -> None:
    """Write a measurement into an existing folder that holds none; measurement.json appears last.

    Parameters
    ----------
    folder : Path
        See :func:`servewise.store.new_run_dir`.
    measurement : Measurement
    summary : Summary or None
        None when no request could be counted.
    promise : Promise or None
        What the summary was judged by.

    Raises
    ------
    InputError
        When a file exists already or cannot be written.
    """
    write_log(folder / "requests.parquet", measurement.log)
    details, chunks = measurement.details, measurement.chunks
    values = {name: getattr(details, name) for name in DETAIL_COLUMNS}
    write_columns(folder / "details.parquet", MEASUREMENT_SCHEMA, values, DETAIL_COLUMNS)
    rows = np.repeat(np.arange(len(chunks.offsets) - 1), np.diff(chunks.offsets))
    parts = {"row": rows, "time_s": chunks.time_s}
    write_columns(folder / "chunks.parquet", MEASUREMENT_SCHEMA, parts, CHUNK_COLUMNS)
    if measurement.server_metrics:
        floats = {name: pl.Float64() for name in measurement.server_metrics}
        write_columns(folder / "server.parquet", MEASUREMENT_SCHEMA, measurement.server_metrics, floats)
    write_json(folder / "measurement.json", measurement_document(measurement, summary, promise))


def measurement_document(measurement: Measurement, summary: Summary | None, promise: Promise | None) -> dict[str, Any]:
    """The content of measurement.json; undefined and unbounded numbers are null."""
    trust = measurement.trust
    return {
        "schema": MEASUREMENT_SCHEMA,
        "servewise": __version__,
        "name": measurement.name,
        "started": measurement.started,
        "endpoint": dataclasses.asdict(measurement.endpoint),
        "load": measurement.load_words,
        "interrupted": measurement.interrupted,
        "counted_s": _finite(list(measurement.counted_s)),
        "num_requests": measurement.log.num_requests,
        "trust": {
            "trustworthy": trust.trustworthy,
            "reasons": list(trust.reasons),
            "notes": list(trust.notes),
            "facts": _finite(dict(trust.facts)),
        },
        "promise": None if promise is None else _finite(dataclasses.asdict(promise)),
        "summary": None if summary is None else _finite(dataclasses.asdict(summary)),
    }


def read_measurement(folder: Path) -> Measurement:
    """Read what :func:`write_measurement` wrote.

    Raises
    ------
    InputError
        When a file is missing, has another schema or impossible values.
    """
    head = read_head(folder / "measurement.json", MEASUREMENT_SCHEMA, _Head, "give the folder of a measurement")
    log = read_log(folder / "requests.parquet")
    details = read_columns(folder / "details.parquet", MEASUREMENT_SCHEMA, DETAIL_COLUMNS)[0]
    chunks = read_columns(folder / "chunks.parquet", MEASUREMENT_SCHEMA, CHUNK_COLUMNS)[0]
    rows = chunks["row"]
    if len(details["request"]) != log.num_requests:
        raise InputError(f"{folder}: details.parquet has {len(details['request'])} rows, the log {log.num_requests}")
    if len(rows) and (rows[0] < 0 or rows[-1] >= log.num_requests or np.any(np.diff(rows) < 0)):
        raise InputError(f"{folder / 'chunks.parquet'}: rows must ascend within 0 .. {log.num_requests - 1}")
    counts = np.bincount(rows, minlength=log.num_requests)
    server: Mapping[str, Any] = {}
    if (folder / "server.parquet").exists():
        server = read_columns(folder / "server.parquet", MEASUREMENT_SCHEMA, None)[0]
    low, high = head.counted_s
    facts = {name: math.nan if value is None else value for name, value in head.trust.facts.items()}
    for name in ("finish_reason", "failure"):
        details[name] = details[name].tolist()
    return Measurement(
        name=head.name,
        endpoint=Endpoint(**head.endpoint.model_dump()),
        load_words=head.load,
        started=head.started,
        log=log,
        details=RequestDetails(**details),
        chunks=Chunks(offsets=np.concatenate(([0], np.cumsum(counts))), time_s=chunks["time_s"]),
        trust=Trust(reasons=head.trust.reasons, notes=head.trust.notes, facts=facts),
        server_metrics=server,
        counted_s=(-math.inf if low is None else low, math.inf if high is None else high),
        interrupted=head.interrupted,
    )


def _finite(value: Any) -> Any:
    """The same with null for numbers that JSON does not know."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
