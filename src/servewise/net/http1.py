"""The answer side of HTTP/1.1, read as it comes in. Nothing here knows of sockets or of what a body says."""

from __future__ import annotations

from servewise.errors import MeasurementError

__all__ = ["HttpAnswer", "request_head"]

MAX_HEAD_BYTES = 65_536
MAX_LINE_BYTES = 4_096
"""Longest line of a chunk's size or a trailer."""
MAX_INFORMATIONAL = 8

_HEAD, _CHUNK_SIZE, _CHUNK, _CHUNK_END, _TRAILER, _LENGTH, _UNTIL_CLOSE, _DONE = range(8)
_HEX = frozenset(b"0123456789abcdefABCDEF")


def request_head(method: str, path: str, host: str, headers: dict[str, str]) -> bytes:
    """Head of a request up to its content length, which the caller appends with two line ends.

    Raises
    ------
    MeasurementError
        When a part holds a line end or is not Latin-1.
    """
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if any(not line.isprintable() for line in lines):
        raise MeasurementError("the request's path or headers hold characters that HTTP forbids; check the URL and key")
    try:
        return ("\r\n".join(lines) + "\r\nContent-Length: ").encode("latin-1")
    except UnicodeEncodeError:
        raise MeasurementError("the request's path or headers are not Latin-1; check the URL and the key") from None


class HttpAnswer:
    """Reads one answer from the bytes of a connection, in whatever pieces they come.

    Attributes
    ----------
    status : int
        0 until the head has been read.
    headers : dict of str to str
        Names in lower case; of repeated ones the last.
    done : bool
        The whole answer has been read.
    keeps_alive : bool
        Whether the connection may carry another request; meaningful once ``done``.
    """

    __slots__ = ("_informational", "_left", "_rest", "_state", "done", "headers", "keeps_alive", "started", "status")

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.done = False
        self.keeps_alive = False
        self.started = False
        self._state = _HEAD
        self._rest = bytearray()
        self._left = 0
        self._informational = 0

    def feed(self, data: bytes) -> bytes:
        """Read the next bytes of the connection.

        Returns
        -------
        bytes
            What they hold of the body.

        Raises
        ------
        MeasurementError
            When this is no HTTP/1 answer or a part of its framing is too long.
        """
        if self._state == _CHUNK_SIZE and not self._rest:  # the common case first: one whole chunk
            at = data.find(b"\r\n", 0, 10)
            if at > 0 and _HEX.issuperset(data[:at]):
                size = int(data[:at], 16)
                if size and len(data) == at + size + 4 and data.endswith(b"\r\n"):
                    return data[at + 2 : -2]
        self.started = True
        return self._step(data)

    def _step(self, data: bytes) -> bytes:
        rest = self._rest
        rest += data
        body: list[bytes] = []
        while rest and self._state != _DONE:
            if self._state == _HEAD:
                if not self._read_head():
                    break
            elif self._state in (_CHUNK, _LENGTH):
                part = bytes(rest[: self._left])
                del rest[: self._left]
                body.append(part)
                self._left -= len(part)
                if self._left == 0:
                    self._state = _CHUNK_END if self._state == _CHUNK else _DONE
            elif self._state == _UNTIL_CLOSE:
                body.append(bytes(rest))
                rest.clear()
            elif not self._read_line():
                break
        if self._state == _DONE:
            self.done = True
            self.keeps_alive = self.keeps_alive and not rest
        return body[0] if len(body) == 1 else b"".join(body)

    def close(self) -> bool:
        """Take note that the server closed the connection; returns whether the answer is whole."""
        if self._state == _UNTIL_CLOSE:
            self._state = _DONE
            self.done = True
        self.keeps_alive = False
        return self.done

    def _read_head(self) -> bool:
        at = self._rest.find(b"\r\n\r\n")
        if max(at, 0 if at >= 0 else len(self._rest)) > MAX_HEAD_BYTES:
            raise MeasurementError(f"the answer's headers are longer than {MAX_HEAD_BYTES} bytes")
        if at < 0:
            if len(self._rest) >= 5 and not self._rest.startswith(b"HTTP/"):
                raise MeasurementError("the server does not answer in HTTP/1; is the port right, and http or https?")
            return False
        lines = bytes(self._rest[:at]).decode("latin-1").split("\r\n")
        del self._rest[: at + 4]
        words = lines[0].split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not _is_number(words[1]) or len(words[1]) != 3:
            raise MeasurementError(f"the server does not answer in HTTP/1: {lines[0][:80]!r}")
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        if 100 <= int(words[1]) < 200:
            self._informational += 1
            if self._informational > MAX_INFORMATIONAL:
                raise MeasurementError("the server sends one informational answer after the other")
            return True
        self.status, self.headers = int(words[1]), headers
        self._frame(words[0])
        return True

    def _frame(self, version: str) -> None:
        """Find how the body ends (RFC 9112, section 6.3)."""
        headers = self.headers
        connection = headers.get("connection", "").lower()
        self.keeps_alive = "close" not in connection if version != "HTTP/1.0" else "keep-alive" in connection
        if self.status in (204, 304):
            self._state = _DONE
        elif "chunked" in headers.get("transfer-encoding", "").lower():
            self._state = _CHUNK_SIZE
        elif "content-length" in headers:
            length = headers["content-length"]
            if not _is_number(length) or len(length) > 15:
                raise MeasurementError(f"the answer's Content-Length is {length[:40]!r}; it must be a number")
            self._left = int(length)
            self._state = _LENGTH if self._left else _DONE
        else:
            self.keeps_alive = False
            self._state = _UNTIL_CLOSE

    def _read_line(self) -> bool:
        """Read a line of the chunked framing, when it is there."""
        at = self._rest.find(b"\r\n")
        if max(at, 0 if at >= 0 else len(self._rest)) > MAX_LINE_BYTES:
            raise MeasurementError(f"a line of the answer's chunked framing is longer than {MAX_LINE_BYTES} bytes")
        if at < 0:
            return False
        line = bytes(self._rest[:at])
        del self._rest[: at + 2]
        if self._state == _CHUNK_END:
            if line:
                raise MeasurementError("a chunk of the answer is longer than it says")
            self._state = _CHUNK_SIZE
        elif self._state == _TRAILER:
            if not line:
                self._state = _DONE
        else:
            size = line.split(b";", 1)[0].strip()
            if not size or len(size) > 12 or not _HEX.issuperset(size):
                raise MeasurementError(f"the size of a chunk of the answer is {line[:40]!r}; it must be hexadecimal")
            self._left = int(size, 16)
            self._state = _CHUNK if self._left else _TRAILER
        return True


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
