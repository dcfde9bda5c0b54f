"""Thousands of streaming HTTP/1.1 exchanges on one thread, each part stamped with when it came.

The client's loop is the caller's: it calls :meth:`Client.poll`, and the client reads what is there and hands it to
the exchanges. On plain TCP the kernel's stamp says when a part came, however late it is read.
"""

from __future__ import annotations

import errno
import socket
import ssl
import struct
import sys
from collections import deque
from time import monotonic_ns

from servewise.errors import MeasurementError
from servewise.net.clock import Clock
from servewise.net.http1 import HttpAnswer
from servewise.net.poll import READ, WRITE, Poll, make_poll
from servewise.net.server import Server, addresses

__all__ = ["MAX_EVENTS", "Client", "Exchange", "raise_file_limit"]

MAX_EVENTS = 16
"""Sockets that one poll reads: a request that is due waits for no more than these."""
READ_BYTES = 65_536
"""At once; more than a TLS record, so that none is left where poll does not see it."""
STALE_ALLOWED = 2
"""A server that closes connections more often than they can be used again, give or take this, gets a new one for each
request: some announce keep-alive and close after every stream (llama.cpp)."""
MAX_FILES = 65_536
SO_TIMESTAMPNS = 35
"""``asm-generic/socket.h``; with 64-bit words its message is a ``struct timespec`` of two of them."""
HAS_STAMPS = sys.platform == "linux" and struct.calcsize("P") == 8
ANCILLARY_BYTES = socket.CMSG_SPACE(16) if hasattr(socket, "CMSG_SPACE") else 0
_TIMESPEC = struct.Struct("qq")
_CLOSED = (ConnectionResetError, BrokenPipeError, ConnectionAbortedError)


class Exchange:
    """One request and its answer. A user of the client derives from it.

    Attributes
    ----------
    message : bytes
        The whole request; released once the answer has begun.
    sent_ns : int [ns]
        When the client turned to the server with it: began to write it, or to connect for it.
    last_ns : int [ns]
        When the last part of the answer so far came; 0 when none has.
    status : int
        Of HTTP; 0 until the answer's head has come.
    headers : mapping of str to str
        Names in lower case.
    retries : int
        Connections that the server had closed before it saw the request, and that were opened again.
    """

    __slots__ = ("connection", "headers", "last_ns", "message", "retries", "sent_ns", "status")

    def __init__(self, message: bytes) -> None:
        self.message = message
        self.sent_ns = 0
        self.last_ns = 0
        self.status = 0
        self.headers: dict[str, str] = {}
        self.retries = 0
        self.connection: _Connection | None = None

    def received(self, at_ns: int, body: bytes) -> None:
        """Take a part of the answer's body."""
        raise NotImplementedError

    def ended(self, at_ns: int, failure: str) -> None:
        """Take note that nothing more comes: the answer is whole, or what went wrong."""
        raise NotImplementedError


class _Connection:
    __slots__ = ("answer", "exchange", "fd", "is_old", "is_open", "is_used", "sock", "unsent")

    def __init__(self, sock: socket.socket, exchange: Exchange | None) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.exchange = exchange
        self.answer = HttpAnswer()
        self.unsent: bytes | memoryview | None = None
        self.is_open = False
        self.is_old = exchange is None
        """Opened before its exchange was there, so that the server may have closed it meanwhile."""
        self.is_used = False
        """Has carried an answer."""


class Client:
    """Connections to one server, used again as long as the server lets them.

    Parameters
    ----------
    server : Server
    clock : Clock
    poll : Poll, optional
    """

    def __init__(self, server: Server, clock: Clock, poll: Poll | None = None) -> None:
        self._addresses = addresses(server)
        self._server = server
        self._tls = ssl.create_default_context() if server.tls else None
        self._clock = clock
        self._poll = poll or make_poll()
        self._connections: dict[int, _Connection] = {}
        self._idle: list[_Connection] = []
        self._failed: deque[tuple[Exchange, str]] = deque()
        self.can_stamp = HAS_STAMPS and self._tls is None
        """Whether the kernel is asked for stamps."""
        self._num_reused = 0
        self._num_stale = 0
        """Connections that were used again with success, and those that the server had closed."""
        self.num_stamped = 0
        """Reads that the kernel stamped."""
        self.num_reads = 0

    def open(self, count: int, timeout_s: float) -> None:
        """Open connections ahead of the requests, as many as the server accepts in the time."""
        self._choose_address(timeout_s)
        deadline = monotonic_ns() + int(timeout_s * 1e9)
        for _ in range(count - len(self._idle)):
            self._connect(None)
        while len(self._idle) < len(self._connections) and (left := deadline - monotonic_ns()) > 0:
            self.poll(left / 1e9)
        for connection in [c for c in self._connections.values() if not c.is_open]:
            self._drop(connection)

    def _choose_address(self, timeout_s: float) -> None:
        """Keep the first address that somebody listens at: names often have one that nobody does."""
        for family, address in self._addresses if len(self._addresses) > 1 else []:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.settimeout(min(timeout_s, 2.0))
                try:
                    probe.connect(address)
                except OSError:
                    continue
            self._addresses = [(family, address)]
            return

    def submit(self, exchange: Exchange) -> None:
        """Send a request now. What goes wrong is told by the next poll."""
        exchange.sent_ns = monotonic_ns()
        if self._idle:
            connection = self._idle.pop()
            connection.exchange = exchange
            exchange.connection = connection
            self._write(connection, exchange.message)
        else:
            self._connect(exchange)

    def abandon(self, exchange: Exchange) -> None:
        """Give up an exchange: it hears nothing more."""
        if exchange.connection is not None:
            self._drop(exchange.connection)
        self._failed = deque(failed for failed in self._failed if failed[0] is not exchange)

    def close(self) -> None:
        """Close every connection; exchanges hear nothing more."""
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._poll.close()

    def poll(self, timeout_s: float) -> int:
        """Wait for something to read, read it and hand it out; returns how many sockets had something."""
        while self._failed:
            exchange, failure = self._failed.popleft()
            exchange.ended(monotonic_ns(), failure)
            timeout_s = 0.0
        events = self._poll.poll(timeout_s, MAX_EVENTS)
        if events:
            self._clock.sync()
            for fd, mask in events:
                connection = self._connections.get(fd)
                if connection is None:
                    continue
                if not connection.is_open:
                    self._opened(connection)
                elif mask & WRITE and connection.unsent is not None:
                    self._write(connection, connection.unsent)
                if mask != WRITE and connection.is_open:
                    self._read(connection)
        return len(events)

    def _connect(self, exchange: Exchange | None) -> None:
        family, address = self._addresses[0]
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            if exchange is not None:
                self._failed.append((exchange, _words(error)))
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.can_stamp:
            try:
                sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            except OSError:
                self.can_stamp = False
        connection = _Connection(sock, exchange)
        if exchange is not None:
            exchange.connection = connection
        self._connections[connection.fd] = connection
        self._poll.register(connection.fd, WRITE)
        error_number = sock.connect_ex(address)
        if error_number not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
            self._fail(connection, _words(OSError(error_number, "")))

    def _opened(self, connection: _Connection) -> None:
        """Go on with connecting: look how it went, shake hands, write."""
        if not isinstance(connection.sock, ssl.SSLSocket):
            error_number = connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error_number:
                self._fail(connection, _words(OSError(error_number, "")))
                return
        if self._tls is not None:
            try:
                if not isinstance(connection.sock, ssl.SSLSocket):
                    connection.sock = self._tls.wrap_socket(
                        connection.sock, server_hostname=self._server.host, do_handshake_on_connect=False
                    )
                connection.sock.do_handshake()
            except ssl.SSLWantReadError:
                self._poll.modify(connection.fd, READ)
                return
            except ssl.SSLWantWriteError:
                self._poll.modify(connection.fd, WRITE)
                return
            except (OSError, ValueError) as error:
                self._fail(connection, _words(error) if isinstance(error, OSError) else f"TLS: {error}")
                return
        connection.is_open = True
        self._poll.modify(connection.fd, READ)
        if connection.exchange is None:
            self._idle.append(connection)
        else:
            self._write(connection, connection.exchange.message)

    def _write(self, connection: _Connection, data: bytes | memoryview) -> None:
        was_waiting = connection.unsent is not None
        try:
            while (num_sent := connection.sock.send(data)) < len(data):
                data = memoryview(data)[num_sent:]
            connection.unsent = None
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            connection.unsent = data
        except OSError:
            connection.unsent = None  # reading tells why: the server may have answered before it closed
        if was_waiting != (connection.unsent is not None):
            self._poll.modify(connection.fd, READ if was_waiting else READ | WRITE)

    def _read(self, connection: _Connection) -> None:
        stamp_ns = -1
        try:
            if self.can_stamp:
                data, ancillary, _, _ = connection.sock.recvmsg(READ_BYTES, ANCILLARY_BYTES)
                if ancillary and ancillary[0][1] == SO_TIMESTAMPNS:
                    seconds, nanoseconds = _TIMESPEC.unpack(ancillary[0][2])
                    stamp_ns = seconds * 1_000_000_000 + nanoseconds
            else:
                data = connection.sock.recv(READ_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError as error:
            self._lost(connection, error)
            return
        exchange = connection.exchange
        if exchange is None or not data:
            self._lost(connection, None)
            return
        now = monotonic_ns()
        self.num_reads += 1
        if stamp_ns > 0:
            stamp_ns = self._clock.received(stamp_ns, exchange.last_ns or exchange.sent_ns, now)
            if stamp_ns > 0:
                self.num_stamped += 1
                now = stamp_ns
        exchange.last_ns = now
        answer = connection.answer
        try:
            body = answer.feed(data)
        except MeasurementError as error:
            self._fail(connection, str(error))
            return
        if not exchange.status and answer.status:
            exchange.status, exchange.headers, exchange.message = answer.status, answer.headers, b""
        if body:
            exchange.received(now, body)
        if answer.done:
            self._done(connection, now)

    def _done(self, connection: _Connection, at_ns: int) -> None:
        exchange = connection.exchange
        self._num_reused += connection.is_used
        may_reuse = self._num_stale <= self._num_reused + STALE_ALLOWED
        if may_reuse and connection.answer.keeps_alive and connection.unsent is None:
            connection.exchange = None
            connection.answer = HttpAnswer()
            connection.is_old = connection.is_used = True
            self._idle.append(connection)
        else:
            self._drop(connection)
        if exchange is not None:
            exchange.connection = None
            exchange.ended(at_ns, "")

    def _lost(self, connection: _Connection, error: OSError | None) -> None:
        """The server closed the connection: the end of the answer, a cut, or nothing at all."""
        exchange, answer = connection.exchange, connection.answer
        if exchange is None:
            self._drop(connection)
        elif error is None and answer.close():
            self._done(connection, monotonic_ns())
        elif connection.is_old and not answer.started and (error is None or isinstance(error, _CLOSED)):
            self._drop(connection)
            self._num_stale += connection.is_used
            exchange.retries += 1
            self._connect(exchange)
        elif answer.started:
            self._fail(connection, f"the answer was cut short{'' if error is None else f' ({_words(error)})'}")
        else:
            self._fail(connection, _words(error) if error else "the server closed the connection without an answer")

    def _fail(self, connection: _Connection, failure: str) -> None:
        """The exchange hears of it in the next poll, so that nothing that sends is called from within a sending."""
        if connection.exchange is not None:
            connection.exchange.connection = None
            self._failed.append((connection.exchange, failure))
        self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        if self._connections.pop(connection.fd, None) is None:
            return
        if connection.exchange is None and connection.is_open:
            self._idle.remove(connection)
        self._poll.unregister(connection.fd)
        connection.sock.close()
        connection.is_open = False


def raise_file_limit() -> None:
    """Let this process open as many sockets as the system lets it."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _words(error: OSError) -> str:
    """What went wrong, in words that do not differ between machines."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: the server's certificate is not trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    name = errno.errorcode.get(error.errno or 0, "")
    return {
        "ECONNREFUSED": "connection refused",
        "ECONNRESET": "the server reset the connection",
        "EPIPE": "the server closed the connection while the request was sent",
        "ETIMEDOUT": "the connection timed out",
        "EHOSTUNREACH": "no route to the host",
        "ENETUNREACH": "the network is unreachable",
        "EMFILE": "too many open files: raise the limit (ulimit -n)",
        "EADDRNOTAVAIL": "no free local port",
    }.get(name, f"{name or type(error).__name__}: {error.strerror or error}")
