"""Real serving engines on this machine's CPU, started for tests and benchmarks, and stopped again.

    with started("vllm", model=Path("models/tiny"), options=["--max-num-seqs", "32"], core=0) as server:
        ...  # server.url answers

The engines must be installed: ``python -m benchmarks.engine_installs``. They compute with one thread on one core, if
one is named: what they decide is the real thing, how fast they are says nothing about a GPU.
"""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import engine_installs

__all__ = ["HOST", "MODEL_NAME", "EngineServer", "end_of", "free_port", "started", "started_as_written"]

HOST = "127.0.0.1"
MODEL_NAME = "test"
"""What every server calls its model."""
START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 30.0
SERVE_LLAMACPP = Path(__file__).with_name("serve_llamacpp.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineServer:
    """A server that answers: its engine, its port, and the file that has what it prints."""

    engine: str
    port: int
    log: Path

    @property
    def url(self) -> str:
        """Where it answers, without a path."""
        return f"http://{HOST}:{self.port}"


def end_of(log: Path, num_lines: int = 60) -> str:
    """The last lines of a server's log."""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-num_lines:])


@contextmanager
def started(
    engine: str,
    *,
    model: Path,
    options: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
    core: int | None = None,
    log: Path | None = None,
) -> Iterator[EngineServer]:
    """A server, from when it answers ``/v1/models`` until the block is left; then its processes are ended.

    Parameters
    ----------
    engine
        ``vllm``, ``sglang`` or ``llamacpp``.
    model
        A folder in Hugging Face format, or a GGUF file for llama.cpp.
    options
        Arguments of ``vllm serve`` or of SGLang's ``launch_server``; for llama.cpp ``NAME=VALUE`` with a field of its
        ``common_params`` and a JSON value. They come after ours, and so win.
    settings
        Environment variables, beside those that keep the engine on this machine and quiet.
    core
        The only core that the server may use; all by default.
    log
        File for what the server prints. By default a new one, which is kept if the block is left by an exception.

    Raises
    ------
    FileNotFoundError
        The engine is not installed, or there is no such model.
    RuntimeError
        The server ended or did not answer in time; the message has the end of its log.
    """
    if not model.exists():
        raise FileNotFoundError(f"{model} does not exist; {engine} needs a model to serve")
    venv = engine_installs.find(engine)
    port = free_port()
    command = [*_command(engine, venv, model, port), *options]
    with _running(engine, command, port, _settings(engine, core) | dict(settings or {}), core, log) as server:
        yield server


@contextmanager
def started_as_written(
    args: Sequence[str], env: Mapping[str, str], *, core: int | None = None, log: Path | None = None
) -> Iterator[EngineServer]:
    """A server by a command that somebody wrote, from when it answers until the block is left, as :func:`started`.

    Of the command only the program's name becomes the path of the one that is installed. Added are variables: those
    that keep an engine on this machine and quiet, and for vLLM what its CPU build asks for instead of a GPU's memory.

    Parameters
    ----------
    args : sequence of str
        A command of ``vllm`` or ``llama-server`` with ``--port``.
    env : mapping of str to str

    Raises
    ------
    FileNotFoundError
        The engine is not installed.
    RuntimeError
        The server ended or did not answer in time; the message has the end of its log.
    """
    engine = args[0]
    program = (
        engine_installs.llama_server() if engine == "llama-server" else engine_installs.find(engine) / "bin" / engine
    )
    port = int(args[args.index("--port") + 1])
    with _running(engine, [str(program), *args[1:]], port, _settings(engine, core) | dict(env), core, log) as server:
        yield server


@contextmanager
def _running(
    engine: str,
    command: Sequence[str],
    port: int,
    settings: Mapping[str, str],
    core: int | None,
    log: Path | None,
) -> Iterator[EngineServer]:
    """A process that is a server, until the block is left."""
    if log is None:
        handle, name = tempfile.mkstemp(prefix=f"{engine}-", suffix=".log")
        os.close(handle)
        path = Path(name)
    else:
        path = log
    server = EngineServer(engine=engine, port=port, log=path)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with path.open("w") as output:
        process = subprocess.Popen(
            command,
            env=environment | dict(settings),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        if core is not None:
            os.sched_setaffinity(process.pid, {core})
        _wait_for(server, process)
        yield server
    finally:
        _stop(process)
    if log is None:
        path.unlink()


def _command(engine: str, venv: Path, model: Path, port: int) -> list[str]:
    """What starts a server, but for the caller's options."""
    python = str(venv / "bin" / "python")
    address = ["--host", HOST, "--port", str(port)]
    if engine == "vllm":
        named = ["--served-model-name", MODEL_NAME, "--dtype", "bfloat16", "--enforce-eager"]
        return [str(venv / "bin" / "vllm"), "serve", str(model), *named, *address]
    if engine == "sglang":
        named = ["--model-path", str(model), "--served-model-name", MODEL_NAME, "--enable-metrics"]
        on_cpu = ["--device", "cpu", "--disable-overlap-schedule", "--attention-backend", "torch_native"]
        memory = ["--mem-fraction-static", "0.3"]
        return [python, "-m", "sglang.launch_server", *named, *on_cpu, *memory, *address]
    one_thread = ["cpuparams.n_threads=1", "cpuparams_batch.n_threads=1"]
    return [python, str(SERVE_LLAMACPP), str(model), HOST, str(port), *one_thread]


def _settings(engine: str, core: int | None) -> dict[str, str]:
    """Environment variables that keep an engine on this machine and quiet."""
    threads = 1 if core is not None else len(os.sched_getaffinity(0))
    common = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads)}
    if engine == "vllm":
        common |= {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_HOST_IP": HOST}
        common |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    elif engine == "sglang":
        common |= {"SGLANG_USE_CPU_ENGINE": "1"}
    return common


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/v1/models")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _wait_for(server: EngineServer, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not _answers(server.port):
        ended = process.poll()
        if ended is not None or time.monotonic() > deadline_s:
            what = f"did not answer within {START_TIMEOUT_S:.0f} s" if ended is None else f"ended with code {ended}"
            raise RuntimeError(f"{server.engine} {what}; the end of its log, {server.log}:\n{end_of(server.log)}")
        time.sleep(0.3)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a server and all that it started, which is in its process group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            continue
    process.wait()
