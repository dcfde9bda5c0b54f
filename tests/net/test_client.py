"""Streams over real sockets: stamps, connections used again, and what goes wrong."""

from __future__ import annotations

import select
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from shutil import which

import pytest
from tests.net.scripted import SSE_HEAD, Script, Wire, chunk, serve, with_length

from servewise.net import Client, Clock, Exchange, parse_server, request_head
from servewise.net.poll import EpollPoll, PortablePoll

NEEDS_STAMPS = pytest.mark.skipif(sys.platform != "linux", reason="only Linux stamps what it receives")


class Recorded(Exchange):
    """Keeps what comes."""

    def __init__(self, body: bytes = b"{}") -> None:
        super().__init__(request_head("POST", "/x", "h", {}) + b"%d\r\n\r\n%b" % (len(body), body))
        self.parts: list[tuple[int, bytes]] = []
        self.read_ns: list[int] = []
        self.end_ns = 0
        self.failure: str | None = None

    def received(self, at_ns: int, body: bytes) -> None:
        self.parts.append((at_ns, body))
        self.read_ns.append(time.monotonic_ns())

    def ended(self, at_ns: int, failure: str) -> None:
        self.end_ns = at_ns
        self.failure = failure

    @property
    def body(self) -> bytes:
        return b"".join(part for _, part in self.parts)


def finish(client: Client, *exchanges: Recorded, read_late_s: float = 0.0) -> None:
    until = time.monotonic() + 20.0
    while any(exchange.failure is None for exchange in exchanges):
        assert time.monotonic() < until, "the exchange hangs"
        time.sleep(read_late_s)
        client.poll(0.1)


def client_for(url: str) -> Client:
    return Client(parse_server(url), Clock())


def exchange_with(script: Script, prepare: Callable[[Client], None] = lambda _: None) -> Recorded:
    with serve(script) as server:
        client = client_for(server.url)
        prepare(client)
        exchange = Recorded()
        client.submit(exchange)
        finish(client, exchange)
        client.close()
    return exchange


def test_connections_are_used_again() -> None:
    with serve(lambda wire: wire.send(with_length(b"hi"))) as server:
        client = client_for(server.url)
        for _ in range(3):
            exchange = Recorded()
            client.submit(exchange)
            finish(client, exchange)
            assert (exchange.failure, exchange.status, exchange.body) == ("", 200, b"hi")
        client.close()
        assert len(server.connections) == 1


def test_connections_opened_ahead() -> None:
    with serve(lambda wire: wire.send(with_length(b"hi"))) as server:
        client = client_for(server.url)
        client.open(5, 5.0)
        exchanges = [Recorded() for _ in range(5)]
        for exchange in exchanges:
            client.submit(exchange)
        finish(client, *exchanges)
        client.close()
        assert len(server.connections) == 5


def test_a_server_that_announces_keep_alive_and_closes_is_no_failure() -> None:
    def script(wire: Wire) -> None:
        wire.send(with_length(b"hi", headers="Connection: keep-alive\r\nKeep-Alive: timeout=5\r\n"))
        wire.hang_up()

    with serve(script) as server:
        client = client_for(server.url)
        retries = 0
        for _ in range(20):
            exchange = Recorded()
            client.submit(exchange)
            finish(client, exchange)
            assert (exchange.failure, exchange.body) == ("", b"hi")
            retries += exchange.retries
        client.close()
        assert len(server.heads) == 20
        # The client learns that connections to this server are not to be used again.
        assert retries <= 3


def test_an_idle_connection_that_was_reset_is_opened_again() -> None:
    def script(wire: Wire) -> None:
        if wire.on_connection == 1:
            wire.reset()
        wire.send(with_length(b"hi"))

    with serve(script) as server:
        client = client_for(server.url)
        for retries in (0, 1):
            exchange = Recorded()
            client.submit(exchange)
            finish(client, exchange)
            assert (exchange.failure, exchange.retries) == ("", retries)
        client.close()


@pytest.mark.parametrize("end", [Wire.hang_up, Wire.reset])
def test_a_new_connection_closed_without_an_answer_is_a_failure(end: Callable[[Wire], None]) -> None:
    exchange = exchange_with(end)
    assert exchange.failure in (
        "the server closed the connection without an answer",
        "the server reset the connection",
    )
    assert exchange.retries == 0


def test_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    client = client_for(f"http://127.0.0.1:{port}")
    client.open(3, 1.0)
    exchange = Recorded()
    client.submit(exchange)
    finish(client, exchange)
    client.close()
    assert exchange.failure == "connection refused"
    assert exchange.end_ns >= exchange.sent_ns > 0


@pytest.mark.parametrize(
    "sent",
    [
        [SSE_HEAD + chunk(b"data: a\n\n")],
        [SSE_HEAD + chunk(b"data: a\n\n") + b"ff\r\nhalf"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ndata: a\n\n"],
    ],
)
def test_a_body_cut_short_has_failed_and_is_kept(sent: list[bytes]) -> None:
    def script(wire: Wire) -> None:
        wire.send(*sent)
        wire.hang_up()

    exchange = exchange_with(script)
    assert exchange.failure == "the answer was cut short"
    assert exchange.body.startswith(b"data: a\n\n")


def test_a_body_until_close() -> None:
    def script(wire: Wire) -> None:
        wire.send(b"HTTP/1.1 200 OK\r\n\r\nab", b"cd", gap_s=0.01)
        wire.hang_up()

    exchange = exchange_with(script)
    assert (exchange.failure, exchange.body) == ("", b"abcd")


def test_a_slow_answer_comes_byte_by_byte() -> None:
    whole = SSE_HEAD + chunk(b"data: a\n\n") + b"0\r\n\r\n"
    exchange = exchange_with(lambda wire: wire.send(*(whole[i : i + 1] for i in range(len(whole))), gap_s=0.0005))
    assert (exchange.failure, exchange.body) == ("", b"data: a\n\n")


def test_headers_without_end_are_given_up() -> None:
    def script(wire: Wire) -> None:
        wire.send(b"HTTP/1.1 200 OK\r\n")
        while True:
            wire.send(b"x: " + b"y" * 1000 + b"\r\n")

    failure = exchange_with(script).failure
    assert failure is not None
    assert "headers are longer" in failure


def test_what_answers_in_another_protocol() -> None:
    failure = exchange_with(lambda wire: wire.send(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")).failure
    assert failure is not None
    assert "does not answer in HTTP/1" in failure


def test_an_early_answer_to_a_large_body_is_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = client_for(f"http://127.0.0.1:{listener.getsockname()[1]}")
        exchange = Recorded(b"x" * 20_000_000)
        client.submit(exchange)
        client.poll(1.0)
        sock, _ = listener.accept()
        sock.recv(1000)
        sock.sendall(with_length(b"no", status="413 Too Large"))
        finish(client, exchange)
        sock.close()
        client.close()
    assert (exchange.status, exchange.body, exchange.failure) == (413, b"no", "")


def test_a_large_request_arrives_whole() -> None:
    with serve(lambda wire: wire.send(with_length(b"%d" % len(wire.body)))) as server:
        client = client_for(server.url)
        exchange = Recorded(b"x" * 5_000_000)
        client.submit(exchange)
        finish(client, exchange)
        client.close()
    assert exchange.body == b"5000000"


def test_an_abandoned_exchange_hears_nothing_more() -> None:
    with serve(lambda wire: wire.wait(30.0)) as server:
        client = client_for(server.url)
        exchange = Recorded()
        client.submit(exchange)
        client.poll(0.05)
        client.abandon(exchange)
        client.poll(0.05)
        assert exchange.failure is None
        client.close()


def test_an_exchange_abandoned_just_after_it_failed_hears_nothing_more() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    client = client_for(url)
    exchange = Recorded()
    client.submit(exchange)
    while exchange.connection is not None:
        client.poll(0.1)
    client.abandon(exchange)
    client.poll(0.0)
    client.close()
    assert exchange.failure is None


@NEEDS_STAMPS
def test_the_kernel_says_when_a_part_came_however_late_it_is_read() -> None:
    sent_at: list[int] = []

    def script(wire: Wire) -> None:
        wire.send(SSE_HEAD)
        for _ in range(5):
            wire.wait(0.08)
            sent_at.append(time.monotonic_ns())
            wire.send(chunk(b"data: a\n\n"))
        wire.send(b"0\r\n\r\n")

    with serve(script) as server:
        client = client_for(server.url)
        exchange = Recorded()
        client.submit(exchange)
        finish(client, exchange, read_late_s=0.05)
        client.close()
    late_ns = [at_ns - sent_ns for (at_ns, _), sent_ns in zip(exchange.parts, sent_at, strict=True)]
    read_late_ns = [read_ns - sent_ns for read_ns, sent_ns in zip(exchange.read_ns, sent_at, strict=True)]
    assert client.num_stamped >= client.num_reads - 1
    assert sum(late_ns) < sum(read_late_ns) / 2


@pytest.mark.skipif(not hasattr(select, "epoll"), reason="needs epoll")
def test_both_ways_to_poll_do_the_same() -> None:
    def script(wire: Wire) -> None:
        wire.send(SSE_HEAD, *[chunk(b"data: %d\n\n" % i) for i in range(5)], b"0\r\n\r\n", gap_s=0.002)

    bodies = []
    for poll in (EpollPoll(), PortablePoll()):
        with serve(script) as server:
            client = Client(parse_server(server.url), Clock(), poll)
            exchanges = [Recorded(b"x" * 3_000_000) for _ in range(3)]
            for exchange in exchanges:
                client.submit(exchange)
            finish(client, *exchanges)
            client.close()
        bodies.append([(exchange.failure, exchange.body) for exchange in exchanges])
    assert bodies[0] == bodies[1]


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for localhost, with its key in the same file."""
    if which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    key, cert, both = folder / "key.pem", folder / "cert.pem", folder / "both.pem"
    made = f"req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout {key} -out {cert}".split()
    subprocess.run(
        ["openssl", *made, "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True, timeout=60
    )
    both.write_bytes(key.read_bytes() + cert.read_bytes())
    return both


def tls_server(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def test_https(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))

    def script(wire: Wire) -> None:
        wire.send(SSE_HEAD, *[chunk(b"x" * 40_000) for _ in range(5)], b"0\r\n\r\n")

    with serve(script, tls_server(certificate)) as server:
        client = client_for(server.url)
        client.open(2, 5.0)
        exchanges = [Recorded(b"y" * 300_000) for _ in range(4)]
        for exchange in exchanges:
            client.submit(exchange)
        finish(client, *exchanges)
        client.close()
        assert {len(body) for body in server.bodies} == {300_000}
    assert [(exchange.failure, len(exchange.body)) for exchange in exchanges] == [("", 200_000)] * 4
    assert not client.can_stamp


def test_a_certificate_that_nobody_vouches_for_is_refused(certificate: Path) -> None:
    with serve(lambda wire: wire.send(with_length(b"hi")), tls_server(certificate)) as server:
        client = client_for(server.url)
        exchange = Recorded()
        client.submit(exchange)
        finish(client, exchange)
        client.close()
        assert server.heads == []
    assert exchange.failure is not None
    assert exchange.failure.startswith("TLS: the server's certificate is not trusted (self-signed")
