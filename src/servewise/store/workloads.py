"""Workloads as Parquet files, so that what was planned for can be sent to a server later, request by request.

``NAME.parquet`` has one row a request; ``NAME.prefix.parquet`` the blocks they share, one row a block, when those are
known; ``NAME.json`` the rest.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from pydantic import BaseModel, ConfigDict, Field

from servewise.errors import InputError
from servewise.store.documents import read_head
from servewise.store.files import write_json
from servewise.store.parquet import read_columns, write_columns
from servewise.types import MaxTokensKind, PrefixBlocks, Provenance, Workload

__all__ = ["WORKLOAD_SCHEMA", "read_workload", "write_workload"]

WORKLOAD_SCHEMA = "servewise.workload/1"
REQUEST_COLUMNS: dict[str, pl.DataType] = {
    "arrival_s": pl.Float64(),
    "input_tokens": pl.Int64(),
    "output_tokens": pl.Int64(),
    "max_tokens": pl.Int64(),
    "session": pl.Int64(),
    "priority": pl.Int64(),
}
PREFIX_COLUMNS: dict[str, pl.DataType] = {"row": pl.Int64(), "id": pl.Int64()}


class _Prefix(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    num_ids: int = Field(ge=0)
    block_size_tokens: int = Field(ge=1)


class _Head(BaseModel):
    """What is true of the whole workload."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    max_tokens_kind: MaxTokensKind
    knows_sessions: bool
    knows_priorities: bool
    prefix: _Prefix | None
    provenance: Provenance


def write_workload(path: Path, workload: Workload) -> None:
    """Write a workload to new files; the one that is named comes last, so that one that can be found is whole.

    Parameters
    ----------
    path : Path
        Ends in ``.json``.
    workload : Workload

    Raises
    ------
    InputError
        When a file exists already or cannot be written.
    """
    unknown = np.full(workload.num_requests, -1, np.int64)
    values = {name: getattr(workload, name) for name in REQUEST_COLUMNS}
    values = {name: unknown if value is None else value for name, value in values.items()}
    write_columns(path.with_suffix(".parquet"), WORKLOAD_SCHEMA, values, REQUEST_COLUMNS)
    prefix = workload.prefix
    if prefix is not None:
        rows = np.repeat(np.arange(workload.num_requests), np.diff(prefix.offsets))
        write_columns(_prefix_path(path), WORKLOAD_SCHEMA, {"row": rows, "id": prefix.ids}, PREFIX_COLUMNS)
    head: dict[str, Any] = {
        "schema": WORKLOAD_SCHEMA,
        "name": workload.name,
        "max_tokens_kind": workload.max_tokens_kind,
        "knows_sessions": workload.session is not None,
        "knows_priorities": workload.priority is not None,
        "prefix": None,
        "provenance": asdict(workload.provenance),
    }
    if prefix is not None:
        head["prefix"] = {"num_ids": prefix.num_ids, "block_size_tokens": prefix.block_size_tokens}
    write_json(path, head)


def read_workload(path: Path) -> Workload:
    """Read what :func:`write_workload` wrote.

    Raises
    ------
    InputError
        When a file is missing, has another schema or impossible values.
    """
    head = read_head(path, WORKLOAD_SCHEMA, _Head, "the folder of a plan holds it beside plan.json")
    requests = read_columns(path.with_suffix(".parquet"), WORKLOAD_SCHEMA, REQUEST_COLUMNS)[0]
    session, priority = requests.pop("session"), requests.pop("priority")
    num = len(requests["arrival_s"])
    arrivals = requests["arrival_s"]
    sound = num > 0 and bool(np.isfinite(arrivals).all() and (np.diff(arrivals) >= 0).all() and arrivals[0] >= 0)
    counts = [requests[name] for name in ("input_tokens", "output_tokens", "max_tokens")]
    if not sound or min(int(count.min()) for count in counts) < 1:
        raise InputError(f"{path}: requests must have ascending arrivals and at least one token each; plan again")
    if (requests["max_tokens"] < requests["output_tokens"]).any():
        raise InputError(f"{path}: a request's max_tokens is below its output_tokens; plan again")
    return Workload(
        name=head.name,
        **requests,
        max_tokens_kind=head.max_tokens_kind,
        prefix=None if head.prefix is None else _prefix(path, head.prefix, num),
        session=session if head.knows_sessions else None,
        priority=priority if head.knows_priorities else None,
        provenance=head.provenance,
    )


def _prefix(path: Path, head: _Prefix, num_requests: int) -> PrefixBlocks:
    table = read_columns(_prefix_path(path), WORKLOAD_SCHEMA, PREFIX_COLUMNS)[0]
    rows, ids = table["row"], table["id"]
    within = not len(rows) or (rows[0] >= 0 and rows[-1] < num_requests and bool((np.diff(rows) >= 0).all()))
    if not within or (len(ids) and (ids.min() < 0 or ids.max() >= head.num_ids)):
        raise InputError(f"{_prefix_path(path)}: rows and ids must lie within the workload's; plan again")
    counts = np.bincount(rows, minlength=num_requests)
    return PrefixBlocks(
        offsets=np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        ids=ids,
        num_ids=head.num_ids,
        block_size_tokens=head.block_size_tokens,
    )


def _prefix_path(path: Path) -> Path:
    return path.with_name(f"{path.stem}.prefix.parquet")
