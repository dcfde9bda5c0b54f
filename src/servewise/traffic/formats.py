"""Trace formats: which column of which file means what, and how a file is recognised from its content."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from servewise.errors import InputError, TraceFormatError, UnknownNameError

__all__ = ["ARRIVAL_UNITS", "FIELDS", "FORMATS", "Container", "TraceFormat", "choose_format", "peek"]

Container = Literal["csv", "jsonl", "parquet"]

ARRIVAL_UNITS: Mapping[str, float] = {
    "arrival_s": 1.0,
    "arrival_ms": 1e3,
    "arrival_us": 1e6,
    "arrival_ns": 1e9,
    "arrival_time": 1.0,
}
"""Fields that can hold the time of arrival, with their ticks per second; ``arrival_time`` is text."""

FIELDS = (
    *ARRIVAL_UNITS,
    "input_tokens",
    "output_tokens",
    "max_tokens",
    "priority",
    "session",
    "request_id",
    "parent_id",
    "hash_ids",
)
"""What a column can mean. ``session`` names the conversation; ``request_id`` with ``parent_id`` names it
through the request it continues."""

_PEEK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFormat:
    """How to read one kind of trace.

    Parameters
    ----------
    name : str
    container : Container
    columns : mapping of str to str
        From a field of ``FIELDS`` to the file's column.
    optional : frozenset of str
        Fields whose column may be absent.
    block_size_tokens : int
        Tokens of one hash id; 0 without hash ids.
    drops_failed : bool
        Rows with 0 tokens are failed requests: left out and counted.
    reorders : bool
        Rows need not be in order of arrival (the authors bucket or regroup them): sorted, and said so.
    source : str
        Where the format is defined.
    """

    name: str
    container: Container
    columns: Mapping[str, str]
    optional: frozenset[str] = field(default_factory=frozenset)
    block_size_tokens: int = 0
    drops_failed: bool = False
    reorders: bool = False
    source: str = "user's file"

    @property
    def arrival(self) -> str:
        """The field that holds the time of arrival."""
        return next(name for name in self.columns if name in ARRIVAL_UNITS)


FORMATS: Mapping[str, TraceFormat] = {
    trace.name: trace
    for trace in (
        TraceFormat(
            name="azure",
            container="csv",
            columns={
                "arrival_time": "TIMESTAMP",
                "input_tokens": "ContextTokens",
                "output_tokens": "GeneratedTokens",
            },
            source="https://github.com/Azure/AzurePublicDataset",
        ),
        TraceFormat(
            name="burstgpt",
            container="csv",
            columns={
                "arrival_s": "Timestamp",
                "input_tokens": "Request tokens",
                "output_tokens": "Response tokens",
                "session": "Session ID",
            },
            optional=frozenset({"session"}),
            drops_failed=True,
            reorders=True,
            source="https://github.com/HPMLL/BurstGPT",
        ),
        TraceFormat(
            name="bailian",
            container="jsonl",
            columns={
                "arrival_s": "timestamp",
                "input_tokens": "input_length",
                "output_tokens": "output_length",
                "hash_ids": "hash_ids",
                "request_id": "chat_id",
                "parent_id": "parent_chat_id",
            },
            block_size_tokens=16,
            reorders=True,
            source="https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon",
        ),
        TraceFormat(
            name="mooncake",
            container="jsonl",
            columns={
                "arrival_ms": "timestamp",
                "input_tokens": "input_length",
                "output_tokens": "output_length",
                "hash_ids": "hash_ids",
            },
            block_size_tokens=512,
            reorders=True,
            source="https://github.com/kvcache-ai/Mooncake",
        ),
    )
}
"""Known public formats, the more specific first."""

_CONTAINERS: tuple[Container, ...] = ("csv", "jsonl", "parquet")


def peek(path: Path) -> tuple[Container, list[str]]:
    """Container and column names of a trace, from its content.

    Raises
    ------
    TraceFormatError
        When the file is empty or neither CSV with a header, nor one JSON object a line, nor Parquet.
    """
    with path.open("rb") as file:
        head = file.read(_PEEK_BYTES)
    if head.startswith(b"PAR1"):
        import polars as pl

        try:
            return "parquet", pl.scan_parquet(path, glob=False).collect_schema().names()
        except pl.exceptions.PolarsError as error:
            raise TraceFormatError(f"damaged Parquet: {_first_line(error)}", path=str(path)) from error
    if not head.strip():
        raise TraceFormatError("the trace is empty; it needs at least one request", path=str(path))
    if b"\0" in head:
        raise TraceFormatError("neither text nor Parquet; give CSV, JSONL or Parquet", path=str(path))
    line = head.removeprefix(b"\xef\xbb\xbf").lstrip().split(b"\n", 1)[0].decode("utf-8", "replace")
    if line.startswith("["):
        raise TraceFormatError("a JSON array; write one JSON object a line instead", path=str(path), line=1)
    if line.startswith("{"):
        return "jsonl", _json_keys(line, path)
    return "csv", _csv_header(head, path)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]


def _json_keys(line: str, path: Path) -> list[str]:
    try:
        return list(json.loads(line))
    except (ValueError, RecursionError) as error:
        message = f"not valid JSON ({error}); write one JSON object a line"
        raise TraceFormatError(message, path=str(path), line=1) from error


def _csv_header(head: bytes, path: Path) -> list[str]:
    try:
        text = head.decode("utf-8-sig", "replace").lstrip("\r\n")
        names = next(csv.reader(text.splitlines(), strict=True))
    except csv.Error as error:
        raise TraceFormatError(f"unreadable CSV header: {error}", path=str(path), line=1) from error
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise TraceFormatError(f"column {twice[0]!r} appears twice in the header", path=str(path), line=1)
    return names


def choose_format(
    path: Path,
    container: Container,
    names: Sequence[str],
    format: str | None = None,  # noqa: A002
    columns: Mapping[str, str] | None = None,
    block_size_tokens: int = 0,
) -> TraceFormat:
    """The format of a file whose columns are ``names``: named, mapped by the user, or recognised.

    Raises
    ------
    UnknownNameError
        A format, field or column that does not exist, with the nearest ones.
    TraceFormatError
        The columns match no known format.
    """
    if format is not None and format not in FORMATS and format not in _CONTAINERS:
        raise UnknownNameError("trace format", format, (*FORMATS, *_CONTAINERS))
    known = None if format is None else FORMATS.get(format)
    wanted = format if known is None else known.container
    if wanted is not None and wanted != container:
        message = f"format {format!r} is {wanted}, but the file's content is {container}"
        raise TraceFormatError(message, path=str(path))
    if columns is not None:
        if known is not None:
            raise InputError(f"format {format!r} fixes its columns: give either a known format or columns")
        return _mapped(container, names, columns, block_size_tokens)
    if known is not None:
        return _present(known, names)
    for trace in FORMATS.values():
        needed = {column for name, column in trace.columns.items() if name not in trace.optional}
        if trace.container == container and needed <= set(names):
            return _present(trace, names)
    own = {name: name for name in FIELDS if name in names}
    if {"input_tokens", "output_tokens"} <= own.keys() and ARRIVAL_UNITS.keys() & own.keys():
        return _mapped(container, names, own, block_size_tokens)
    shown = ", ".join(repr(name) for name in names[:12])
    raise TraceFormatError(
        f"columns {shown} match no known format ({', '.join(FORMATS)}); say what they mean, e.g. "
        "columns: {arrival_s: <column>, input_tokens: <column>, output_tokens: <column>}",
        path=str(path),
    )


def _present(trace: TraceFormat, names: Sequence[str]) -> TraceFormat:
    """``trace`` without the optional columns the file lacks."""
    columns = {name: column for name, column in trace.columns.items() if column in names}
    for name, column in trace.columns.items():
        if name not in columns and name not in trace.optional:
            raise UnknownNameError("column", column, names, f"(format {trace.name!r} needs it)")
    return TraceFormat(
        name=trace.name,
        container=trace.container,
        columns=columns,
        block_size_tokens=trace.block_size_tokens,
        drops_failed=trace.drops_failed,
        reorders=trace.reorders,
        source=trace.source,
    )


def _mapped(
    container: Container, names: Sequence[str], columns: Mapping[str, str], block_size_tokens: int
) -> TraceFormat:
    for name, column in columns.items():
        if name not in FIELDS:
            raise UnknownNameError("field", name, FIELDS)
        if column not in names:
            raise UnknownNameError("column", column, names, f"(mapped to {name})")
    arrivals = [name for name in columns if name in ARRIVAL_UNITS]
    if len(arrivals) != 1:
        given = ", ".join(arrivals) or "none"
        raise InputError(f"map exactly one of {', '.join(ARRIVAL_UNITS)}; given: {given}")
    missing = [name for name in ("input_tokens", "output_tokens") if name not in columns]
    if missing:
        raise InputError(f"columns lack {' and '.join(missing)}; map {', '.join(missing)} to a column")
    twice = sorted({column for column in columns.values() if list(columns.values()).count(column) > 1})
    if twice:
        raise InputError(f"column {twice[0]!r} is mapped to two fields; map each column once")
    if ("request_id" in columns) != ("parent_id" in columns):
        raise InputError("request_id and parent_id name conversations together: map both or neither")
    if "hash_ids" in columns:
        if container == "csv":
            raise InputError("hash_ids cannot be read from CSV; use JSONL or Parquet")
        if block_size_tokens < 1 or block_size_tokens & (block_size_tokens - 1):
            message = f"block_size_tokens is {block_size_tokens}; with hash_ids it must be a power of two"
            raise InputError(message)
    return TraceFormat(
        name=container,
        container=container,
        columns=dict(columns),
        block_size_tokens=block_size_tokens if "hash_ids" in columns else 0,
    )
