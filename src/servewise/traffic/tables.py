"""Turn a trace file into small tables of the needed columns, and a row of such a table back into a line."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import polars as pl

from servewise.errors import TraceFormatError
from servewise.traffic.blocks import TextBlock, text_blocks
from servewise.traffic.formats import Container, TraceFormat

__all__ = ["Table", "tables"]

_BLANK_LINES = re.compile(rb"\n(?:\r?\n)+")
_PARQUET_ROWS = 1 << 19
_MAX_FIELD_BYTES = 64 << 20


class Table(Protocol):
    """Some consecutive rows of a trace."""

    @property
    def frame(self) -> pl.DataFrame:
        """The needed columns, named by field."""

    def locate(self, row: int) -> tuple[int, dict[str, object]]:
        """Line of a row (its number in Parquet) and its values as the file has them, by field."""


def tables(path: Path, trace: TraceFormat, names: Sequence[str]) -> Iterator[Table]:
    """Yield the trace in tables of bounded size.

    Parameters
    ----------
    path : Path
    trace : TraceFormat
    names : sequence of str
        All columns of the file.

    Raises
    ------
    TraceFormatError
        A line that is not a record.
    """
    readers = {"csv": _csv_tables, "jsonl": _jsonl_tables, "parquet": _parquet_tables}
    container: Container = trace.container
    yield from readers[container](path, trace, names)


@dataclass(frozen=True, slots=True)
class _CsvTable:
    frame: pl.DataFrame
    path: Path
    trace: TraceFormat
    names: Sequence[str]
    block: TextBlock
    header_rows: int

    def locate(self, row: int) -> tuple[int, dict[str, object]]:
        for index, (line, record) in enumerate(_csv_records(self.path, self.block)):
            if index == row + self.header_rows:
                values = dict(zip(self.names, record, strict=False))
                return line, {name: values[column] for name, column in self.trace.columns.items()}
        raise IndexError(row)


def _csv_records(path: Path, block: TextBlock) -> Iterator[tuple[int, list[str]]]:
    """Records of a block that are not blank lines, with the line each starts on."""
    try:
        text = block.data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = block.first_line + block.data.count(b"\n", 0, error.start)
        raise TraceFormatError("not UTF-8 text", path=str(path), line=line) from error
    csv.field_size_limit(_MAX_FIELD_BYTES)  # prompts are longer than the 128 KiB that csv allows at first
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    line = block.first_line
    try:
        for record in reader:
            if record:
                yield line, record
            line = block.first_line + reader.line_num
    except csv.Error as error:
        raise TraceFormatError(f"not a CSV record: {error}", path=str(path), line=line) from error


def _last_line(block: TextBlock) -> int:
    return block.first_line + block.data.rstrip().count(b"\n")


def _csv_tables(path: Path, trace: TraceFormat, names: Sequence[str]) -> Iterator[Table]:
    # polars numbers the columns of a file that it reads without a header.
    numbered = {name: f"column_{index}" for index, name in enumerate(names, start=1)}
    wanted = {numbered[column]: name for name, column in trace.columns.items()}
    header_rows = 1
    for block in text_blocks(path, quoted=True):
        data = block.data.lstrip(b"\r\n") if header_rows else block.data
        if b"\n\n" in data or b"\n\r\n" in data:
            data = _BLANK_LINES.sub(b"\n", data)
        has_quotes = b'"' in data
        try:
            frame = pl.read_csv(
                io.BytesIO(data),
                has_header=False,
                schema=dict.fromkeys(numbered.values(), pl.String),
                columns=None if has_quotes else list(wanted),
            )
        except pl.exceptions.PolarsError as error:
            _check_widths(path, names, block)
            message = f"cannot be read as a table up to line {_last_line(block)}; check quotes and separators"
            raise TraceFormatError(message, path=str(path), line=block.first_line) from error
        # A separator too many or too few shifts columns. Without quotes it shows in their number; with quotes
        # polars refuses rows that are too long and leaves the last column of short ones empty.
        if has_quotes:
            is_suspect = frame[numbered[names[-1]]].null_count() > 0
        else:
            is_suspect = data.count(b",") != (len(names) - 1) * frame.height
        if is_suspect:
            _check_widths(path, names, block)
        frame = frame.slice(header_rows).select(pl.col(number).alias(name) for number, name in wanted.items())
        if frame.height:
            yield _CsvTable(frame, path, trace, names, block, header_rows)
        header_rows = 0


def _check_widths(path: Path, names: Sequence[str], block: TextBlock) -> None:
    for line, record in _csv_records(path, block):
        if len(record) == len(names):
            continue
        message = f"{len(record)} fields where the header has {len(names)}"
        if block.is_last and len(record) < len(names) and line == _last_line(block):
            message += ": the last line is cut off; remove it or complete the file"
        raise TraceFormatError(message, path=str(path), line=line)


@dataclass(frozen=True, slots=True)
class _JsonlTable:
    frame: pl.DataFrame
    path: Path
    trace: TraceFormat
    block: TextBlock

    def locate(self, row: int) -> tuple[int, dict[str, object]]:
        for index, (line, record) in enumerate(_json_records(self.path, self.block)):
            if index == row:
                return line, {name: record.get(column) for name, column in self.trace.columns.items()}
        raise IndexError(row)


def _json_records(path: Path, block: TextBlock) -> Iterator[tuple[int, dict[str, object]]]:
    for index, text in enumerate(block.data.split(b"\n")):
        if not text.strip():
            continue
        line = block.first_line + index
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            message = f"not valid JSON ({error})"
            if block.is_last and line == _last_line(block):
                message += ": the last line is cut off; remove it or complete the file"
            raise TraceFormatError(message, path=str(path), line=line) from error
        if not isinstance(record, dict):
            raise TraceFormatError("not a JSON object", path=str(path), line=line)
        yield line, record


def _jsonl_schema(path: Path, trace: TraceFormat) -> dict[str, pl.DataType]:
    """Types of the needed columns; names may be numbers or text, as the first line has them."""
    first: dict[str, object] = {}
    for block in text_blocks(path, quoted=False):
        _, first = next(_json_records(path, block))
        break
    schema: dict[str, pl.DataType] = {}
    for name, column in trace.columns.items():
        if name == "hash_ids":
            schema[column] = pl.List(pl.Int64())
        elif name == "arrival_time":
            schema[column] = pl.String()
        elif name in ("session", "request_id", "parent_id"):
            schema[column] = pl.String() if isinstance(first.get(column), str) else pl.Int64()
        else:
            schema[column] = pl.Float64()
    return schema


def _jsonl_tables(path: Path, trace: TraceFormat, names: Sequence[str]) -> Iterator[Table]:
    del names  # a JSON record names its own columns
    schema = _jsonl_schema(path, trace)
    rename = {column: name for name, column in trace.columns.items()}
    for block in text_blocks(path, quoted=False):
        try:
            frame = pl.read_ndjson(io.BytesIO(block.data), schema=schema)
        except pl.exceptions.PolarsError as error:
            _explain_json(path, trace, schema, block)
            message = f"rows from here on cannot be read: {str(error).splitlines()[0]}"
            raise TraceFormatError(message, path=str(path), line=block.first_line) from error
        yield _JsonlTable(frame.rename(rename), path, trace, block)


def _explain_json(path: Path, trace: TraceFormat, schema: dict[str, pl.DataType], block: TextBlock) -> None:
    """Raise for the first line of the block whose values have the wrong type."""
    for line, record in _json_records(path, block):
        for column in trace.columns.values():
            value = record.get(column)
            if value is not None and not _has_type(value, schema[column]):
                message = f"{column!r} is {json.dumps(value)[:60]}; it must be {_TYPE_NAMES[type(schema[column])]}"
                raise TraceFormatError(message, path=str(path), line=line)


_TYPE_NAMES = {
    pl.Float64: "a number",
    pl.Int64: "a whole number below 2^63",
    pl.String: "text",
    pl.List: "a list of whole numbers below 2^63",
}


def _has_type(value: object, dtype: pl.DataType) -> bool:
    if isinstance(dtype, pl.List):
        return isinstance(value, list) and all(_has_type(item, pl.Int64()) for item in value)
    if isinstance(dtype, pl.String):
        return isinstance(value, str)
    if isinstance(value, bool):
        return False
    if isinstance(dtype, pl.Int64):
        return isinstance(value, int) and abs(value) < 2**63
    return isinstance(value, int) or (isinstance(value, float) and abs(value) < float("inf"))


@dataclass(frozen=True, slots=True)
class _ParquetTable:
    frame: pl.DataFrame
    path: Path
    first_row: int

    def locate(self, row: int) -> tuple[int, dict[str, object]]:
        # Parquet has no lines: the row, counted from 1, stands for it.
        return self.first_row + row + 1, self.frame.row(row, named=True)


def _parquet_tables(path: Path, trace: TraceFormat, names: Sequence[str]) -> Iterator[Table]:
    del names  # a Parquet file stores its own
    scan = pl.scan_parquet(path, glob=False).select(
        [pl.col(column).alias(name) for name, column in trace.columns.items()]
    )
    row = 0
    while True:
        try:
            frame = scan.slice(row, _PARQUET_ROWS).collect()
        except pl.exceptions.PolarsError as error:
            raise TraceFormatError(f"damaged Parquet: {str(error).splitlines()[0]}", path=str(path)) from error
        if not frame.height:
            return
        yield _ParquetTable(frame, path, row)
        row += frame.height
