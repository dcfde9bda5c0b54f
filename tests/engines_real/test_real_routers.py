"""HAProxy with the configuration of ``servewise deploy`` spreads requests as the plan's router does.

It has to be installed (``apt-get install haproxy``).
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from deploy.fleets import CASES
from servewise.deploy import render

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="HAProxy is not installed: apt-get install haproxy"),
]

NUM_SERVERS = 3


def free_port() -> int:
    """First of several ports in a row that are free now."""
    while True:
        with socket.socket() as first:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
        try:
            for offset in range(NUM_SERVERS + 1):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port + offset))
        except OSError:
            continue
        return port


class Server(ThreadingHTTPServer):
    """Answers with its name; POST waits until it is told to go on."""

    def __init__(self, name: str, port: int) -> None:
        self.name, self.go_on = name, threading.Event()
        super().__init__(("127.0.0.1", port), Handler)


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        body = json.dumps(self.server.name).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.server.go_on.wait(30)
        self.do_GET()

    def log_message(self, *_: Any) -> None:
        """Stay quiet."""


@contextmanager
def balancing(router: Any, folder: Path) -> Iterator[tuple[int, str]]:
    """HAProxy as it is deployed for three servers: its port, after which theirs follow, and where its own pages are."""
    port, status = free_port(), free_port()
    deployment = replace(CASES["vllm, several replicas"], router=router)
    (config,) = [f for f in render(deployment, "command", name="chat", port=port).files if f.name.endswith(".cfg")]
    (folder / config.name).write_text(config.text.replace("127.0.0.1:8404", f"127.0.0.1:{status}"))
    balancer = subprocess.Popen(["haproxy", "-db", "-f", config.name], cwd=folder, stderr=subprocess.PIPE)
    try:
        yield port, f"http://127.0.0.1:{status}"
    finally:
        balancer.terminate()
        balancer.communicate()


def serving(port: int) -> list[Server]:
    """The three servers."""
    servers = [Server(f"replica-{index}", port + 1 + index) for index in range(NUM_SERVERS)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    return servers


@contextmanager
def routed(router: Any, folder: Path) -> Iterator[tuple[str, list[Server]]]:
    """Three servers behind HAProxy."""
    with balancing(router, folder) as (port, _):
        servers = serving(port)
        try:
            url = f"http://127.0.0.1:{port}/v1/models"
            wait_for(url)
            yield url, servers
        finally:
            stop(servers)


def stop(servers: list[Server]) -> None:
    for server in servers:
        server.go_on.set()
        server.shutdown()
        server.server_close()


def wait_for(url: str, status: int = 200) -> None:
    for _ in range(300):
        if answered(url) == status:
            return
        time.sleep(0.1)
    raise AssertionError(f"{url} does not answer {status}")


def answered(url: str) -> int:
    """Status of an answer; 0 when there is none."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 (this machine)
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def ask(url: str, session: str = "", data: bytes | None = None) -> str:
    """Name of the server that answered."""
    request = urllib.request.Request(url, data=data, headers={"X-Session-ID": session} if session else {})  # noqa: S310
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
        return str(json.loads(answer.read()))


def test_round_robin_gives_each_the_same(tmp_path: Path) -> None:
    with routed("round_robin", tmp_path) as (url, servers):
        names = [ask(url) for _ in range(10 * NUM_SERVERS)]
    assert Counter(names) == {server.name: 10 for server in servers}
    assert all(names[n] == names[n + NUM_SERVERS] for n in range(len(names) - NUM_SERVERS))


def test_the_least_busy_gets_the_next(tmp_path: Path) -> None:
    with routed("least_requests", tmp_path) as (url, servers):
        answers: list[str] = []
        busy = [threading.Thread(target=lambda: answers.append(ask(url, data=b"x"))) for _ in range(2)]
        for thread in busy:
            thread.start()
        time.sleep(1.0)
        names = {ask(url) for _ in range(20)}
        for server in servers:
            server.go_on.set()
        for thread in busy:
            thread.join()
    assert len(names) == 1
    assert len({*answers, *names}) == NUM_SERVERS


def test_a_conversation_stays_with_its_server(tmp_path: Path) -> None:
    with routed("session_sticky", tmp_path) as (url, servers):
        first = {f"session {n}": ask(url, f"session {n}") for n in range(30)}
        for _ in range(3):
            assert {session: ask(url, session) for session in first} == first
    assert set(first.values()) == {server.name for server in servers}


def test_the_balancer_is_ready_while_a_server_is(tmp_path: Path) -> None:
    with balancing("least_requests", tmp_path) as (port, status):
        wait_for(f"{status}/ready", 503)
        assert answered(f"{status}/health") == 200
        assert answered(f"{status}/metrics") == 200
        servers = serving(port)
        try:
            wait_for(f"{status}/ready")
        finally:
            stop(servers)
        wait_for(f"{status}/ready", 503)
        assert answered(f"{status}/health") == 200
