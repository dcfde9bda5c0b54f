"""Columns as Parquet files that carry the name of their schema."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from servewise import __version__
from servewise.errors import InputError
from servewise.store.files import write_bytes_atomic

__all__ = ["read_columns", "write_columns"]


def write_columns(
    path: Path, schema: str, values: Mapping[str, Any], columns: Mapping[str, pl.DataType], *, parts: str = ""
) -> None:
    """Write a new file with these columns; ``parts`` names its companions.

    Raises
    ------
    InputError
        When the file exists already or cannot be written.
    """
    frame = pl.DataFrame(dict(values), schema=pl.Schema(columns))
    buffer = io.BytesIO()
    metadata = {"servewise.schema": schema, "servewise.version": __version__, "servewise.parts": parts}
    frame.write_parquet(buffer, metadata=metadata)
    write_bytes_atomic(path, buffer.getvalue())


def read_columns(
    path: Path, schema: str, columns: Mapping[str, pl.DataType] | None
) -> tuple[dict[str, Any], list[str]]:
    """Columns by name as arrays, and the companions that the file names.

    Parameters
    ----------
    path : Path
    schema : str
        Name and version that the file must carry.
    columns : mapping of str to polars type or None
        What the file must hold; None takes any float64 columns.

    Raises
    ------
    InputError
        When the file is missing, is not Parquet, has another schema, other columns or empty cells.
    """
    try:
        metadata = pl.read_parquet_metadata(path)
        frame = pl.read_parquet(path, hive_partitioning=False, glob=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{path}: cannot be read as Parquet: {error}") from error
    found = metadata.get("servewise.schema", "none")
    if found != schema:
        raise InputError(f"{path}: schema is {found!r}, this version reads {schema!r}")
    expected = dict.fromkeys(frame.columns, pl.Float64()) if columns is None else columns
    if frame.schema != pl.Schema(expected):
        raise InputError(f"{path}: columns are {dict(frame.schema)}, expected {dict(expected)}")
    with_nulls = [name for name in expected if frame[name].null_count()]
    if with_nulls:
        raise InputError(f"{path}: column {with_nulls[0]} has empty cells; write the file again")
    arrays = {name: frame[name].to_numpy(writable=True) for name in expected}
    return arrays, metadata.get("servewise.parts", "").split(",")
