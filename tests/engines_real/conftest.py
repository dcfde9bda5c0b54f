"""Real engines, one server each for all tests. They must be installed (``make engines``): nothing is skipped."""

from __future__ import annotations

import importlib
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.engines import EngineServer, end_of, started

SERVER_CORE = 0
SERVERS = ("vllm_server", "llamacpp_server", "sglang_server")


@pytest.fixture(scope="session", autouse=True)
def clients_have_other_cores() -> None:
    """Leave the server's core to the server, where there is another one."""
    os.sched_setaffinity(0, os.sched_getaffinity(0) - {SERVER_CORE} or {SERVER_CORE})


@pytest.fixture(scope="session")
def models(shared_dir: Path) -> Path:
    """The folder with ``tiny`` and ``tiny.gguf``: one model of four layers with random weights."""
    return shared_dir / "models"


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engine-logs")


def tool(name: str) -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).resolve().parents[2] / "tools")
        return importlib.import_module(name)


@pytest.fixture(scope="session")
def compare_with_engines() -> ModuleType:
    return tool("compare_with_engines")


@pytest.fixture(scope="session")
def compare_with_llamacpp() -> ModuleType:
    return tool("compare_with_llamacpp")


def too_little_cache(engine: str, compare: ModuleType, models: Path, logs: Path) -> Iterator[EngineServer]:
    model = models / "tiny"
    options = compare.server_options(compare.parse(["--engine", engine, "--model", str(model)]))
    with started(engine, model=model, options=options, core=SERVER_CORE, log=logs / f"{engine}.log") as server:
        yield server


@pytest.fixture(scope="session")
def vllm_server(compare_with_engines: ModuleType, models: Path, logs: Path) -> Iterator[EngineServer]:
    """vLLM with a KV cache that is too small for the bursts of ``tools/compare_with_engines.py``."""
    yield from too_little_cache("vllm", compare_with_engines, models, logs)


@pytest.fixture(scope="session")
def sglang_server(compare_with_engines: ModuleType, models: Path, logs: Path) -> Iterator[EngineServer]:
    """SGLang with a KV cache that is too small for the bursts of ``tools/compare_with_engines.py``."""
    yield from too_little_cache("sglang", compare_with_engines, models, logs)


@pytest.fixture(scope="session")
def llamacpp_server(models: Path, logs: Path) -> Iterator[EngineServer]:
    """llama.cpp with four slots."""
    options = ["n_parallel=4", "n_ctx=8192", "cache_ram_mib=0"]
    with started(
        "llamacpp", model=models / "tiny.gguf", options=options, core=SERVER_CORE, log=logs / "llamacpp.log"
    ) as server:
        yield server


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of the server's log below a test that failed."""
    report = yield
    if report.failed and isinstance(item, pytest.Function):
        servers = [item.funcargs[name] for name in SERVERS if name in item.funcargs]
        report.sections += [(f"log of {server.engine}", end_of(server.log)) for server in servers]
    return report
