"""Starting and stopping an engine's server, with a program that stands for the engine."""

from __future__ import annotations

import os
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from benchmarks import engine_installs
from benchmarks.engines import started

ANSWERS = """
import http.server, os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"{os.getpid()} {child.pid} {os.sched_getaffinity(0)} {sys.argv[4:]}".encode())
http.server.HTTPServer((sys.argv[3], int(sys.argv[4])), Handler).serve_forever()
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The interpreter of an installed llama.cpp, to be written by the test."""
    monkeypatch.setenv("SERVEWISE_ENGINES", str(tmp_path / "engines"))
    with pytest.raises(FileNotFoundError, match=r"benchmarks\.engine_installs llamacpp"):
        engine_installs.find("llamacpp")
    venv = engine_installs.place("llamacpp")
    (venv / "bin").mkdir(parents=True)
    (venv / "complete").touch()
    return venv / "bin" / "python"


def write(program: Path, text: str) -> None:
    program.write_text(f"#!{sys.executable}\n{text}")
    program.chmod(0o755)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="engines are run on Linux only")
def test_a_server_answers_on_its_core_and_leaves_nothing_behind(engine: Path, tmp_path: Path) -> None:
    write(engine, ANSWERS)
    core = max(os.sched_getaffinity(0))
    with started("llamacpp", model=tmp_path, options=["n_parallel=4"], core=core) as server:
        with urllib.request.urlopen(server.url) as answer:  # noqa: S310 (our own server)
            pid, child, rest = answer.read().decode().split(" ", 2)
        assert is_alive(int(pid))
    assert rest.startswith(f"{{{core}}}")
    assert rest.endswith("'n_parallel=4']")
    until_s = time.monotonic() + 10
    while is_alive(int(child)) and time.monotonic() < until_s:
        time.sleep(0.02)
    assert not is_alive(int(pid))
    assert not is_alive(int(child))
    assert not server.log.exists()


def test_a_server_that_ends_says_why(engine: Path, tmp_path: Path) -> None:
    write(engine, "raise SystemExit('no room for the weights')")
    log = tmp_path / "log"
    with (
        pytest.raises(RuntimeError, match=r"llamacpp ended with code 1(.|\n)*no room for the weights"),
        started("llamacpp", model=tmp_path, log=log),
    ):
        pass
    assert log.exists()


def test_a_model_that_is_not_there_is_named(engine: Path, tmp_path: Path) -> None:
    assert engine_installs.find("llamacpp") == engine.parents[1]
    with pytest.raises(FileNotFoundError, match=r"none\.gguf"), started("llamacpp", model=tmp_path / "none.gguf"):
        pass
