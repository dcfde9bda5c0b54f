"""Read a large text file in blocks of whole lines, so that memory does not grow with the file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from servewise.errors import TraceFormatError

__all__ = ["BLOCK_BYTES", "TextBlock", "text_blocks"]

BLOCK_BYTES = 8 << 20
"""Bytes parsed at a time [bytes]."""
_MAX_RECORD_BYTES = 64 << 20
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextBlock:
    """Whole records of a text file.

    Parameters
    ----------
    data : bytes
    first_line : int
        1-based line the block starts with.
    is_last : bool
        Whether the file ends with this block.
    """

    data: bytes
    first_line: int
    is_last: bool


def text_blocks(path: Path, *, quoted: bool, block_bytes: int = BLOCK_BYTES) -> Iterator[TextBlock]:
    """Yield the file in blocks that end with a record.

    Parameters
    ----------
    path : Path
    quoted : bool
        Line ends between double quotes belong to a field (CSV), so that a record may span lines.
    block_bytes : int [bytes]

    Raises
    ------
    TraceFormatError
        A record longer than 64 MiB.
    """
    line = 1
    data = b""
    with path.open("rb") as file:
        while True:
            read = file.read(block_bytes)
            data += read
            cut = _last_record_end(data, quoted) if read else len(data)
            if cut == 0 and len(data) > _MAX_RECORD_BYTES:
                message = "a record is longer than 64 MiB; a quote is probably left open"
                raise TraceFormatError(message, path=str(path), line=line)
            if data[:cut].strip():
                block = data[:cut].removeprefix(_BOM) if line == 1 else data[:cut]
                yield TextBlock(data=block, first_line=line, is_last=len(read) < block_bytes and not data[cut:])
            line += data.count(b"\n", 0, cut)
            data = data[cut:]
            if not read:
                return


def _last_record_end(data: bytes, quoted: bool) -> int:
    cut = data.rfind(b"\n") + 1
    if not quoted or b'"' not in data:
        return cut
    open_quotes = data.count(b'"', 0, cut)
    while cut and open_quotes % 2:
        earlier = data.rfind(b"\n", 0, cut - 1) + 1
        open_quotes -= data.count(b'"', earlier, cut)
        cut = earlier
    return cut
