"""Check the rows of a trace and keep them as columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from servewise.errors import TraceFormatError
from servewise.traffic.formats import ARRIVAL_UNITS, TraceFormat
from servewise.traffic.tables import Table

__all__ = ["MAX_TOKENS", "Rows"]

MAX_TOKENS = 2**31 - 1
"""More tokens than this in one request is refused as a wrong column [tokens]."""

_SPARE_PART = 16
_TOKEN_FIELDS = ("input_tokens", "output_tokens", "max_tokens")
_LARGEST_PRIORITY = 2**31 - 1
_NAME_FIELDS = ("session", "request_id", "parent_id")


class Column:
    """An array that grows where it is, so that memory holds it once.

    Parameters
    ----------
    dtype : numpy scalar type
    """

    __slots__ = ("num", "values")

    def __init__(self, dtype: type[np.int64] | type[np.float64]) -> None:
        self.values: NDArray[Any] = np.empty(0, dtype=dtype)
        self.num = 0

    def extend(self, values: NDArray[Any]) -> None:
        """Append; values may have a smaller type."""
        end = self.num + len(values)
        if end > len(self.values):
            # Little room to spare: resizing a large array moves its pages instead of copying them.
            self.values.resize(end + end // _SPARE_PART, refcheck=False)
        self.values[self.num : end] = values
        self.num = end

    def finish(self) -> NDArray[Any]:
        """The array, cut to its length."""
        self.values.resize(self.num, refcheck=False)
        return self.values


@dataclass(slots=True, kw_only=True)
class Rows:
    """The checked rows of a trace so far, column by column in pieces.

    Parameters
    ----------
    path : str
        For messages.
    trace : TraceFormat
    """

    path: str
    trace: TraceFormat
    columns: dict[str, Column] = field(default_factory=dict)
    num_rows: int = 0
    num_failed: int = 0
    num_unsorted: int = 0
    _origin_ns: int | None = None
    _last_arrival_s: float = -np.inf
    _codes: dict[object, int] = field(default_factory=dict)

    def add(self, table: Table) -> None:
        """Check and keep a table.

        Raises
        ------
        TraceFormatError
            For the first bad row, with its line.
        """
        frame = table.frame
        arrival, arrival_is_bad = self._arrival(frame)
        tokens = {name: _number(frame[name]) for name in _TOKEN_FIELDS if name in frame.columns}
        keep = np.ones(frame.height, dtype=np.bool_)
        if self.trace.drops_failed:
            keep = (tokens["input_tokens"] != 0) & (tokens["output_tokens"] != 0)
            self.num_failed += int(np.count_nonzero(~keep))
        bad = arrival_is_bad.copy()
        for values in tokens.values():
            bad |= ~((values >= 1) & (values <= MAX_TOKENS) & (values == np.floor(values)))
        if "priority" in frame.columns:
            bad |= ~_is_priority(_number(frame["priority"]))
        if "max_tokens" in tokens:
            bad |= tokens["max_tokens"] < tokens["output_tokens"]
        if "hash_ids" in frame.columns:
            bad |= self._bad_hash_ids(frame["hash_ids"], tokens)
        steps = np.diff(arrival[keep], prepend=self._last_arrival_s)
        if not self.trace.reorders:
            bad[np.flatnonzero(keep)[steps < 0]] = True
        rows = np.flatnonzero(bad & keep)
        if len(rows):
            self._refuse(table, int(rows[0]))
        self.num_unsorted += int(np.count_nonzero(steps < 0))
        self._keep(frame, arrival, tokens, keep)

    def _keep(
        self,
        frame: pl.DataFrame,
        arrival: NDArray[np.float64],
        tokens: dict[str, NDArray[np.float64]],
        keep: NDArray[np.bool_],
    ) -> None:
        num_kept = int(np.count_nonzero(keep))
        if num_kept == 0:
            return
        arrival = arrival[keep]
        self._last_arrival_s = float(arrival[-1])
        self._put("arrival_s", arrival)
        for name, values in tokens.items():
            self._put(name, values[keep])
        if "priority" in frame.columns:
            self._put("priority", _number(frame["priority"])[keep])
        mask = pl.Series(keep)
        for name in _NAME_FIELDS:
            if name in frame.columns:
                self._put(name, self._code(frame[name].filter(mask)))
        if "hash_ids" in frame.columns:
            input_tokens = tokens["input_tokens"][keep].astype(np.int64)
            counts, ids = _full_blocks(frame["hash_ids"].filter(mask), input_tokens, self.trace.block_size_tokens)
            self._put("num_blocks", counts)
            self._put("hash_ids", ids)
        self.num_rows += num_kept

    def _put(self, name: str, values: NDArray[Any]) -> None:
        if name not in self.columns:
            self.columns[name] = Column(np.float64 if name == "arrival_s" else np.int64)
        self.columns[name].extend(values)

    @property
    def span_s(self) -> float:
        """Time from the first row to the last [s]."""
        return self._last_arrival_s - float(self.columns["arrival_s"].values[0])

    def take_int(self, name: str) -> NDArray[np.int64]:
        """One whole column, which is then no longer kept here."""
        return self.columns.pop(name).finish()

    def take_float(self, name: str) -> NDArray[np.float64]:
        """One whole column, which is then no longer kept here."""
        return self.columns.pop(name).finish()

    def _arrival(self, frame: pl.DataFrame) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Arrivals [s] and which of them are bad."""
        name = self.trace.arrival
        if name != "arrival_time":
            values = _number(frame[name]) / ARRIVAL_UNITS[name]
            return values, ~((values >= 0) & np.isfinite(values))
        times = _date_time(frame[name])
        is_bad = times.is_null().to_numpy()
        # Dates far from 1970 do not fit 64-bit nanoseconds; polars yields null for them, like for other text.
        since_epoch_ns = times.to_physical().fill_null(0).to_numpy()
        if self._origin_ns is None and not is_bad[0]:
            self._origin_ns = int(since_epoch_ns[0])
        return (since_epoch_ns - (self._origin_ns or 0)) / 1e9, is_bad

    def _bad_hash_ids(self, ids: pl.Series, tokens: dict[str, NDArray[np.float64]]) -> NDArray[np.bool_]:
        counts = ids.list.len().cast(pl.Float64).fill_null(np.nan).to_numpy()
        most = np.ceil((tokens["input_tokens"] + tokens["output_tokens"]) / self.trace.block_size_tokens)
        is_bad: NDArray[np.bool_] = ~(counts <= most)
        if ids.explode().null_count() > int(np.count_nonzero(~(counts > 0))):
            is_bad |= ids.list.eval(pl.element().is_null()).list.any().fill_null(True).to_numpy()
        return is_bad

    def _code(self, names: pl.Series) -> NDArray[np.int64]:
        """Whole numbers for names, the same for the same name; -1 for none."""
        unique = names.unique(maintain_order=True)
        codes = [-1 if name is None else self._codes.setdefault(name, len(self._codes)) for name in unique]
        return names.replace_strict(unique, codes, return_dtype=pl.Int64).to_numpy()

    def _refuse(self, table: Table, row: int) -> None:
        line, values = table.locate(row)
        message = self._complaint(table, row, values)
        raise TraceFormatError(message, path=self.path, line=line)

    def _complaint(self, table: Table, row: int, values: dict[str, object]) -> str:
        one = table.frame.slice(row, 1)
        shown = {name: f"{self.trace.columns[name]!r} is {_show(value)}" for name, value in values.items()}
        _, is_bad = self._arrival(one)
        if is_bad[0]:
            if self.trace.arrival == "arrival_time":
                return f"{shown['arrival_time']}; it must be a date and time such as 2023-11-16 18:15:46.68"
            return f"{shown[self.trace.arrival]}; it must be a time of 0 or later, as a finite number"
        for name in _TOKEN_FIELDS:
            if name in values:
                number = _number(one[name])[0]
                if not (1 <= number <= MAX_TOKENS and number == np.floor(number)):
                    return f"{shown[name]}; it must be a whole number of tokens from 1 to {MAX_TOKENS}"
        if "priority" in values and not _is_priority(_number(one["priority"]))[0]:
            most = _LARGEST_PRIORITY
            return f"{shown['priority']}; it must be a whole number from {-most} to {most}, lower is served first"
        if "max_tokens" in values and _number(one["max_tokens"])[0] < _number(one["output_tokens"])[0]:
            return f"{shown['max_tokens']} but {shown['output_tokens']}: more output than the declared limit"
        if "hash_ids" in values:
            tokens = {name: _number(one[name]) for name in ("input_tokens", "output_tokens")}
            if self._bad_hash_ids(one["hash_ids"], tokens)[0]:
                return (
                    f"{shown['hash_ids']}; it must be a list of whole numbers, one for each "
                    f"{self.trace.block_size_tokens} tokens of the prompt at most"
                )
        return (
            f"{shown[self.trace.arrival]}, before the row above: rows must be in order of arrival; "
            f"sort the file by {self.trace.columns[self.trace.arrival]!r}"
        )


def _show(value: object) -> str:
    text = "missing" if value is None or value == "" else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _number(values: pl.Series) -> NDArray[np.float64]:
    """Numbers, NaN where the file has none."""
    if values.dtype == pl.String:
        values = values.str.strip_chars()
    elif not values.dtype.is_numeric():
        return np.full(len(values), np.nan)
    return values.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()


def _is_priority(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    whole: NDArray[np.bool_] = values == np.floor(values)
    return whole & (np.abs(values) <= _LARGEST_PRIORITY)


def _date_time(values: pl.Series) -> pl.Series:
    """Date and time as nanoseconds since 1970 in UTC when a zone is given, null where it is none."""
    if values.dtype.is_temporal():
        return values.cast(pl.Datetime("ns"), strict=False)
    if values.dtype != pl.String:
        return pl.Series([None] * len(values), dtype=pl.Datetime("ns"))
    present = values.drop_nulls()
    sample = present[0] if len(present) else ""
    if "T" in sample:
        values = values.str.replace("T", " ", literal=True)
    for utc in ("Z", "+00:00"):
        if sample.endswith(utc):
            values = values.str.strip_suffix(utc)
            sample = sample.removesuffix(utc)
    if "+" in sample or sample.count("-") == 3:
        times = values.str.to_datetime("%Y-%m-%d %H:%M:%S%.f%:z", time_unit="ns", strict=False)
        return times.dt.replace_time_zone(None)
    # Whole seconds and fraction apart: several times faster than one pattern for both.
    seconds = values.str.slice(0, 19).str.to_datetime("%Y-%m-%d %H:%M:%S", time_unit="ns", strict=False)
    fraction = values.str.slice(19)
    is_fraction = fraction.str.starts_with(".") | (fraction == "")
    digits = fraction.set(fraction == "", "0").cast(pl.Float64, strict=False)
    nanoseconds = seconds.to_physical() + (digits * 1e9).round().cast(pl.Int64)
    return pl.select(pl.when(is_fraction).then(nanoseconds)).to_series().cast(pl.Datetime("ns"))


def _full_blocks(
    rows: pl.Series, input_tokens: NDArray[np.int64], block_size_tokens: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ids of the prompt's full blocks, and their number by request."""
    listed = rows.list.len().cast(pl.Int64).to_numpy()
    ids = rows.filter(rows.list.len() > 0).explode().to_numpy().astype(np.int64, copy=False)
    counts = np.minimum(listed, input_tokens // block_size_tokens)
    position = np.arange(len(ids)) - np.repeat(np.cumsum(listed) - listed, listed)
    return counts, ids[position < np.repeat(counts, listed)]
