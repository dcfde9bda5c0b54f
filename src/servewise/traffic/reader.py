"""Read a trace file as a workload."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from servewise.errors import InputError, TraceFormatError
from servewise.traffic.formats import TraceFormat, choose_format, peek
from servewise.traffic.max_tokens import assumed_limits
from servewise.traffic.prefixes import canonical_prefix
from servewise.traffic.rows import Rows
from servewise.traffic.selection import check_limits, limit, select_requests
from servewise.traffic.tables import tables
from servewise.types import PrefixBlocks, Provenance, Workload

__all__ = ["read_trace"]


def read_trace(
    path: str | Path,
    *,
    format: str | None = None,  # noqa: A002
    columns: Mapping[str, str] | None = None,
    block_size_tokens: int = 0,
    num_requests: int | None = None,
    duration_s: float | None = None,
) -> Workload:
    """Read a trace, a few megabytes at a time.

    Parameters
    ----------
    path : str or Path
        CSV with a header, one JSON object a line, or Parquet.
    format : str or None
        ``azure``, ``burstgpt``, ``bailian``, ``mooncake``; by default recognised from the content.
    columns : mapping of str to str or None
        What columns of any other file mean, e.g. ``{"arrival_ms": "t", "input_tokens": "in", "output_tokens":
        "out"}``. The unit of time is part of the field: ``arrival_s``, ``_ms``, ``_us``, ``_ns``, or
        ``arrival_time`` for date and time. Optional: ``max_tokens``, ``priority``, ``session``, ``request_id`` with
        ``parent_id``, ``hash_ids``.
    block_size_tokens : int [tokens]
        Of one hash id, when ``columns`` maps ``hash_ids``.
    num_requests, duration_s : int or None, float or None [s]
        Read only the start of the trace.

    Returns
    -------
    Workload
        The first request arrives at 0. Limits on output that the trace lacks are assumed, see
        :func:`servewise.traffic.assume_max_tokens`.

    Raises
    ------
    TraceFormatError
        A bad row (named by its line), an empty trace, an unknown format.
    UnknownNameError
        A format, field or column that does not exist.
    InputError
        The file cannot be opened.
    """
    path = Path(path)
    check_limits(num_requests, duration_s)
    try:
        container, names = peek(path)
        trace = choose_format(path, container, names, format, columns, block_size_tokens)
        rows = _read_rows(path, trace, names, num_requests, duration_s)
    except OSError as error:
        raise InputError(f"cannot read the trace {path}: {error.strerror or error}") from error
    return limit(_workload(path, trace, rows), num_requests, duration_s)


def _read_rows(
    path: Path,
    trace: TraceFormat,
    names: list[str],
    num_requests: int | None,
    duration_s: float | None,
) -> Rows:
    rows = Rows(path=str(path), trace=trace)
    for table in tables(path, trace, names):
        rows.add(table)
        if trace.reorders or not rows.num_rows:
            continue  # a later row may arrive earlier
        if num_requests is not None and rows.num_rows >= num_requests:
            break
        if duration_s is not None and rows.span_s > duration_s:
            break
    if not rows.num_rows:
        failed = f" ({rows.num_failed} failed ones were left out)" if rows.num_failed else ""
        raise TraceFormatError(f"the trace has no requests{failed}; it needs at least one", path=str(path))
    return rows


def _workload(path: Path, trace: TraceFormat, rows: Rows) -> Workload:
    arrival_s = rows.take_float("arrival_s")
    arrival_s -= arrival_s.min()
    prefix = _prefix(trace, rows)
    session = _session(path, trace, rows)
    input_tokens = rows.take_int("input_tokens")
    output_tokens = rows.take_int("output_tokens")
    is_declared = "max_tokens" in trace.columns
    notes = [f"read as {trace.name}"]
    if rows.num_failed:
        notes.append(f"{rows.num_failed} failed requests (0 tokens) left out")
    if rows.num_unsorted:
        notes.append(f"sorted by arrival ({rows.num_unsorted} rows were earlier than the row above)")
    workload = Workload(
        name=path.stem,
        arrival_s=arrival_s,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        max_tokens=rows.take_int("max_tokens") if is_declared else assumed_limits(input_tokens, output_tokens),
        max_tokens_kind="declared" if is_declared else "assumed",
        prefix=prefix,
        session=session,
        provenance=Provenance(kind="measured", source=trace.source, note="; ".join(notes)),
        priority=rows.take_int("priority") if "priority" in trace.columns else None,
    )
    if not rows.num_unsorted:
        return workload
    return select_requests(workload, np.argsort(arrival_s, kind="stable"))


def _prefix(trace: TraceFormat, rows: Rows) -> PrefixBlocks | None:
    if "hash_ids" not in trace.columns:
        return None
    offsets = np.zeros(rows.num_rows + 1, dtype=np.int64)
    np.cumsum(rows.take_int("num_blocks"), out=offsets[1:])
    return canonical_prefix(offsets, rows.take_int("hash_ids"), trace.block_size_tokens)


def _session(path: Path, trace: TraceFormat, rows: Rows) -> NDArray[np.int64] | None:
    if "session" in trace.columns:
        names = rows.take_int("session")
        # A request without a name is a conversation of its own.
        names = np.where(names >= 0, names, names.max() + 1 + np.arange(len(names)))
    elif "parent_id" in trace.columns:
        names = _roots(path, rows.take_int("request_id"), rows.take_int("parent_id"))
    else:
        return None
    return np.unique(names, return_inverse=True)[1].astype(np.int64, copy=False)


def _roots(path: Path, ids: NDArray[np.int64], parents: NDArray[np.int64]) -> NDArray[np.int64]:
    """Row of the request that began each conversation: the first one whose parent is not in the file."""
    row_of = np.full(max(int(ids.max()), int(parents.max())) + 2, -1, dtype=np.int64)
    row_of[ids[::-1]] = np.arange(len(ids))[::-1]
    row_of[-1] = -1
    rows = np.arange(len(ids))
    parent = row_of[parents]
    parent = np.where(parent < 0, rows, parent)
    above = parent
    # Each round doubles the distance, so 64 reach the top of any conversation.
    for _ in range(64):
        further = above[above]
        if np.array_equal(further, above):
            break
        above = further
    if not np.array_equal(parent[above], above):
        raise TraceFormatError("requests continue each other in a circle; check parent ids", path=str(path))
    return above
