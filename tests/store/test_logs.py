"""Request logs on disk: the same bytes back, or an error that names the file."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servewise.errors import InputError
from servewise.store import LOG_SCHEMA, csv_text, log_to_csv, read_log, write_log
from servewise.types import ItlSegments, RequestLog, Timeline

LOG = RequestLog(
    intended_s=np.array([0.0, 0.1]),
    sent_s=np.array([0.0, 0.2]),
    first_token_s=np.array([1.0 / 3.0, np.nan]),
    last_token_s=np.array([2.0, np.nan]),
    input_tokens=np.array([5, 6]),
    output_tokens=np.array([7, 1]),
    cached_tokens=np.array([-1, 4]),
    num_preemptions=np.array([0, -1]),
    replica=np.array([1, -1]),
    status=np.array([0, 1], dtype=np.int8),
    itl=ItlSegments(first_s=np.array([0.01]), increment_s=np.array([1e-6]), steps=np.array([6]), weight=np.array([1])),
    timeline=Timeline(
        time_s=np.array([0.0, 1.0, 2.0]),
        running=np.array([1.0, 1.0, 0.0]),
        waiting=np.zeros(3),
        kv_used_frac=np.array([0.1, 0.2, 0.0]),
    ),
)


def assert_same(one: object, other: object) -> None:
    assert type(one) is type(other)
    for field in dataclasses.fields(one):  # type: ignore[arg-type]
        left, right = getattr(one, field.name), getattr(other, field.name)
        if isinstance(left, np.ndarray):
            assert left.dtype == right.dtype
            np.testing.assert_array_equal(left, right)
        elif left is None:
            assert right is None
        else:
            assert_same(left, right)


def test_a_log_survives_the_round_trip(tmp_path: Path) -> None:
    write_log(tmp_path / "log.parquet", LOG)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["log.itl.parquet", "log.parquet", "log.timeline.parquet"]
    assert_same(read_log(tmp_path / "log.parquet"), LOG)
    assert pl.read_parquet_metadata(tmp_path / "log.parquet")["servewise.schema"] == LOG_SCHEMA


def test_what_was_not_recorded_stays_none(tmp_path: Path) -> None:
    bare = dataclasses.replace(LOG, itl=None, timeline=None)
    write_log(tmp_path / "log.parquet", bare)
    assert [path.name for path in tmp_path.iterdir()] == ["log.parquet"]
    assert_same(read_log(tmp_path / "log.parquet"), bare)


def test_names_with_glob_characters_are_files(tmp_path: Path) -> None:
    path = tmp_path / "log[1]*.parquet"
    write_log(path, LOG)
    assert_same(read_log(path), LOG)


def test_a_log_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    write_log(path, LOG)
    before = path.read_bytes()
    with pytest.raises(InputError, match="exists already"):
        write_log(path, dataclasses.replace(LOG, itl=None, timeline=None))
    assert path.read_bytes() == before


def test_a_missing_companion_is_an_error(tmp_path: Path) -> None:
    write_log(tmp_path / "log.parquet", LOG)
    (tmp_path / "log.itl.parquet").unlink()
    with pytest.raises(InputError, match=r"log\.itl\.parquet: cannot be read"):
        read_log(tmp_path / "log.parquet")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"intended_s\n1.0\n", b"PAR1" + b"\x00" * 100 + b"PAR1"])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "log.parquet"
    path.write_bytes(content)
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        read_log(path)


def test_a_cut_off_file_is_refused(tmp_path: Path) -> None:
    whole = tmp_path / "log.parquet"
    write_log(whole, LOG)
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(whole.read_bytes()[:-20])
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        read_log(cut)


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ends in \.parquet, not 'log\.csv'"):
        write_log(tmp_path / "log.csv", LOG)


def rewritten(tmp_path: Path, change: pl.Expr | None, schema: str = LOG_SCHEMA) -> Path:
    write_log(tmp_path / "log.parquet", dataclasses.replace(LOG, itl=None, timeline=None))
    frame = pl.read_parquet(tmp_path / "log.parquet")
    path = tmp_path / "changed.parquet"
    (frame if change is None else frame.with_columns(change)).write_parquet(path, metadata={"servewise.schema": schema})
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (pl.lit(9).cast(pl.Int8).alias("status"), "column status"),
        (pl.lit(math.nan).alias("intended_s"), "intended_s must be finite"),
        (pl.lit(None).cast(pl.Int64).alias("replica"), "column replica has empty cells"),
        (pl.col("input_tokens").cast(pl.Float64), "columns are"),
        (pl.lit(1).alias("extra"), "columns are"),
    ],
)
def test_impossible_columns_are_refused(tmp_path: Path, change: pl.Expr, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_log(rewritten(tmp_path, change))


def test_another_schema_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"schema is 'servewise\.log/9'"):
        read_log(rewritten(tmp_path, None, "servewise.log/9"))


def test_csv_of_a_log() -> None:
    rows = list(csv.DictReader(io.StringIO(log_to_csv(LOG))))
    assert [row["status"] for row in rows] == ["ok", "rejected"]
    assert rows[0]["cached_tokens"] == "-1"  # a number, not a formula
    assert float(rows[0]["first_token_s"]) == 1.0 / 3.0
    assert rows[1]["first_token_s"] == ""


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_formulas_are_quoted(start: str) -> None:
    text = csv_text(["name", "value"], [[f"{start}cmd|' /C calc'!A0", -1.5]])
    row = list(csv.reader(io.StringIO(text, newline="")))[1]
    assert row == [f"'{start}cmd|' /C calc'!A0", "-1.5"]


@given(cell=st.text(max_size=30).filter(lambda text: "\x00" not in text))
def test_any_text_survives_and_none_is_a_formula(cell: str) -> None:
    found = list(csv.reader(io.StringIO(csv_text(["x", "y"], [[cell, None]]), newline="")))[1]
    assert found[0] in (cell, f"'{cell}")
    assert found[0][:1] not in ("=", "+", "-", "@", "\t", "\r")
    assert found[1] == ""
