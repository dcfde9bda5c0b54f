"""JSON that somebody else wrote: bounded, and every error names the place."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servewise.errors import InputError

__all__ = ["MAX_FILE_BYTES", "Value", "read_documents"]

MAX_FILE_BYTES = 512 << 20
"""Largest file that is read: its content takes several times as much memory."""
MAX_COUNT = 2**40
MAX_TIME_S = 1e12
SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a document and where it stands: the file, with the line where it has one document a line, and the
    path within the document.
    """

    raw: Any
    file: str
    path: str = ""

    @property
    def where(self) -> str:
        """Where it stands, e.g. ``run.jsonl, line 3: metrics.request_latency``."""
        return f"{self.file}: {self.path}" if self.path else self.file

    def fail(self, expected: str) -> InputError:
        """The error that says what was expected here."""
        found = "null" if self.raw is None else repr(self.raw)
        shown = found if len(found) <= SHOWN_CHARACTERS else f"{found[:SHOWN_CHARACTERS]}..."
        return InputError(f"{self.where} is {shown}; expected {expected}")

    def has(self, name: str) -> bool:
        """Whether this is an object with this field, and the field is not null."""
        return isinstance(self.raw, dict) and self.raw.get(name) is not None

    def get(self, name: str) -> Value:
        """A field, which may be null or missing; both read as null."""
        if not isinstance(self.raw, dict):
            raise self.fail("an object")
        return Value(self.raw.get(name), self.file, f"{self.path}.{name}" if self.path else name)

    def items(self) -> Iterator[Value]:
        """The entries of a list."""
        if not isinstance(self.raw, list):
            raise self.fail("a list")
        return (Value(raw, self.file, f"{self.path}[{i}]") for i, raw in enumerate(self.raw))

    def text(self) -> str:
        """Text; empty for null."""
        if self.raw is None:
            return ""
        if not isinstance(self.raw, str):
            raise self.fail("text")
        return self.raw

    def seconds(self, *, optional: bool = False) -> float:
        """A finite number; NaN for null where it is optional."""
        if self.raw is None and optional:
            return math.nan
        if isinstance(self.raw, bool) or not isinstance(self.raw, int | float) or not abs(self.raw) < MAX_TIME_S:
            raise self.fail(f"a number of seconds below {MAX_TIME_S:g}")
        return float(self.raw)

    def count(self, *, optional: bool = False) -> int:
        """A whole number from 0; -1 for null where it is optional."""
        if self.raw is None and optional:
            return -1
        if isinstance(self.raw, bool) or not isinstance(self.raw, int | float):
            raise self.fail("a whole number")
        if not 0 <= self.raw <= MAX_COUNT or self.raw != int(self.raw):
            raise self.fail(f"a whole number from 0 to {MAX_COUNT}")
        return int(self.raw)

    def nanoseconds(self) -> int:
        """A whole number of nanoseconds since 1970."""
        if isinstance(self.raw, bool) or not isinstance(self.raw, int) or not 0 <= self.raw < 2**63:
            raise self.fail("a whole number of nanoseconds")
        return self.raw

    def all_seconds(self) -> NDArray[np.float64]:
        """A list of finite numbers, as an array."""
        if isinstance(self.raw, list) and set(map(type, self.raw)) <= {float}:
            array = np.array(self.raw, dtype=np.float64)
            if np.all(np.abs(array) < MAX_TIME_S):
                return array
        return np.array([value.seconds() for value in self.items()], dtype=np.float64)


def read_documents(path: Path) -> list[Value]:
    """Read a file of one JSON document, or of one document a line.

    Raises
    ------
    InputError
        When it cannot be read, is too large, or a document is broken; the line is named.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; give the result file of a load generator") from error
    if len(data) > MAX_FILE_BYTES:
        raise InputError(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB; write it without prompts and answers")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8; give a JSON or JSONL file") from error
    if not text.strip():
        raise InputError(f"{path} is empty; give the result file of a load generator")
    try:
        return [Value(json.loads(text), str(path))]
    except json.JSONDecodeError as error:
        if error.msg != "Extra data":
            raise _broken(path, error, error.lineno) from error
    except (ValueError, RecursionError) as error:  # an absurd number, an absurd depth
        raise _broken(path, error, None) from error
    documents = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                documents.append(Value(json.loads(line), f"{path}, line {number}"))
            except (ValueError, RecursionError) as error:
                raise _broken(path, error, number) from error
    return documents


def _broken(path: Path, error: Exception, line: int | None) -> InputError:
    where = f"{path}" if line is None else f"{path}, line {line}"
    why = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
    return InputError(f"{where} is not JSON: {why}; was the file cut short?")
