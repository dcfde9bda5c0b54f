"""CSV that a spreadsheet shows and does not run."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence

__all__ = ["csv_text"]

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Format a table as CSV.

    Text that a spreadsheet would take for a formula (it starts with ``= + - @``, a tab or a carriage return)
    gets an apostrophe in front; numbers are left alone. NaN and None become empty cells.

    Parameters
    ----------
    header : sequence of str
    rows : iterable of sequences of str, int, float, bool or None

    Returns
    -------
    str
        As RFC 4180 has it: lines end with CR LF, cells are quoted where they need it.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\r\n")
    writer.writerow([_cell(name) for name in header])
    writer.writerows([_cell(value) for value in row] for row in rows)
    return buffer.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, str):
        return f"'{value}" if value.startswith(FORMULA_STARTS) else value
    if isinstance(value, float) and math.isnan(value):
        return None
    return value
