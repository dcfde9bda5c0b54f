"""A server that does what a test says, byte for byte, on plain sockets in threads."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(body: bytes) -> bytes:
    """One chunk of HTTP's chunked framing."""
    return b"%x\r\n%b\r\n" % (len(body), body)


def with_length(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    """A whole answer."""
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


class HangupError(Exception):
    """The script ends its connection."""


@dataclass
class Wire:
    """One request, and how to answer it."""

    sock: socket.socket
    number: int
    """Of the request on the server, from 0."""
    on_connection: int
    """Of the request on its connection, from 0."""
    head: bytes
    body: bytes

    def send(self, *parts: bytes, gap_s: float = 0.0) -> None:
        for part in parts:
            self.sock.sendall(part)
            if gap_s:
                time.sleep(gap_s)

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def hang_up(self) -> None:
        raise HangupError

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise HangupError


Script = Callable[[Wire], None]


@dataclass
class Scripted:
    """A running server."""

    listener: socket.socket
    url: str
    connections: list[socket.socket] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    arrived_s: list[float] = field(default_factory=list)
    """Monotonic time at which each request was read."""

    def kill(self) -> None:
        """Stop listening and cut every connection."""
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for sock in self.connections:
            with_linger = struct.pack("ii", 1, 0)
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, with_linger)
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


@contextmanager
def serve(script: Script, tls: ssl.SSLContext | None = None) -> Iterator[Scripted]:
    """Run a server for as long as the context lasts."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    scheme, host = ("http", "127.0.0.1") if tls is None else ("https", "localhost")
    server = Scripted(listener, f"{scheme}://{host}:{listener.getsockname()[1]}")
    lock = threading.Lock()

    def answer(sock: socket.socket) -> None:
        rest, served = b"", 0
        try:
            if tls is not None:
                sock = tls.wrap_socket(sock, server_side=True)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while True:
                while b"\r\n\r\n" not in rest:
                    if not (data := sock.recv(65536)):
                        return
                    rest += data
                head, rest = rest.split(b"\r\n\r\n", 1)
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                while len(rest) < length:
                    if not (data := sock.recv(65536)):
                        return
                    rest += data
                body, rest = rest[:length], rest[length:]
                with lock:
                    number = len(server.heads)
                    server.heads.append(head)
                    server.bodies.append(body)
                    server.arrived_s.append(time.monotonic())
                script(Wire(sock, number, served, head, body))
                served += 1
        except (HangupError, OSError):
            return
        finally:
            sock.close()

    def accept() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            server.connections.append(sock)
            threading.Thread(target=answer, args=(sock,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield server
    finally:
        try:
            server.kill()
        except OSError:
            listener.close()
