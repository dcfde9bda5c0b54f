"""Documents of a streamed answer's body, whatever the pieces it comes in: server-sent events, or JSON lines."""

from __future__ import annotations

from typing import Protocol

from servewise.errors import MeasurementError

__all__ = ["MAX_DOCUMENT_BYTES", "Document", "EventFraming", "Framing", "LineFraming", "WholeFraming"]

MAX_DOCUMENT_BYTES = 16 << 20

Document = tuple[int, bytes]
"""When its last byte came [ns], and its bytes."""


class Framing(Protocol):
    """Cuts a body into documents."""

    def feed(self, at_ns: int, body: bytes) -> list[Document]:
        """Documents that end in this part of the body."""

    def close(self) -> list[Document]:
        """The document that ends with the body without saying so."""


class LineFraming:
    """One document a line; lines end with LF, CRLF or CR."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._held = False
        self._at_ns = 0

    def feed(self, at_ns: int, body: bytes) -> list[Document]:
        return [(at_ns, line) for line in self.lines(at_ns, body) if line and not line.isspace()]

    def close(self) -> list[Document]:
        line = bytes(self._rest).strip()
        self._rest.clear()
        return [(self._at_ns, line)] if line else []

    @property
    def has_rest(self) -> bool:
        """Whether a line has begun and not ended."""
        return self._held or bool(self._rest)

    def lines(self, at_ns: int, body: bytes) -> list[bytes]:
        """Lines that end in this part of the body, empty ones too.

        Raises
        ------
        MeasurementError
            When a line is too long.
        """
        if self._held:
            body = b"\r" + body
        self._held = body.endswith(b"\r")  # may be half of a CRLF: it waits for the next byte
        if b"\r" in body:
            body = body[: len(body) - self._held].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        rest = self._rest
        seen = len(rest)
        rest += body
        self._at_ns = at_ns
        end = rest.rfind(b"\n", seen)
        if end < 0:
            if len(rest) > MAX_DOCUMENT_BYTES:
                rest.clear()
                raise MeasurementError(f"a line of the answer is longer than {MAX_DOCUMENT_BYTES >> 20} MiB")
            return []
        lines = bytes(rest[:end]).split(b"\n")
        del rest[: end + 1]
        return lines


class EventFraming:
    """Server-sent events (WHATWG HTML, section 9.2.6): the data of each, its lines joined.

    An event's time is that of its last data line: the empty line that ends it may come later.
    """

    def __init__(self) -> None:
        self._lines = LineFraming()
        self._data: list[bytes] = []
        self._size = 0
        self._at_ns = 0
        self._is_between = True

    def feed(self, at_ns: int, body: bytes) -> list[Document]:
        end = len(body) - 2
        if self._is_between and body.startswith(b"data: ") and body.find(b"\n") == end and body.endswith(b"\n\n"):
            # the common case: this is one event
            return [(at_ns, body[6:end])]
        documents: list[Document] = []
        for line in self._lines.lines(at_ns, body):
            if not line:
                if self._data:
                    documents.append(self._event())
                continue
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value[1:] if value.startswith(b" ") else value)
                self._at_ns = at_ns
                self._size += len(value)
                if self._size > MAX_DOCUMENT_BYTES:
                    raise MeasurementError(f"an event of the answer is longer than {MAX_DOCUMENT_BYTES >> 20} MiB")
        self._is_between = not self._data and not self._lines.has_rest
        return documents

    def close(self) -> list[Document]:
        for at_ns, line in self._lines.close():
            if line.startswith(b"data:"):
                self._data.append(line[5:].strip())
                self._at_ns = at_ns
        return [self._event()] if self._data else []

    def _event(self) -> Document:
        data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
        self._data.clear()
        self._size = 0
        return self._at_ns, data


class WholeFraming:
    """The whole body is one document."""

    def __init__(self) -> None:
        self._body = bytearray()
        self._at_ns = 0

    def feed(self, at_ns: int, body: bytes) -> list[Document]:
        self._body += body
        self._at_ns = at_ns
        if len(self._body) > MAX_DOCUMENT_BYTES:
            raise MeasurementError(f"the answer is longer than {MAX_DOCUMENT_BYTES >> 20} MiB")
        return []

    def close(self) -> list[Document]:
        return [(self._at_ns, bytes(self._body))] if self._body else []
