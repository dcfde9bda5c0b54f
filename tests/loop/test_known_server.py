"""The benchmark's server, whose answers are known: what it says it did is what is measured."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.loop.engine import PROMPTS, make_load

from benchmarks.loadgen import HERE, seen
from servewise.measure import run_load
from servewise.types import Endpoint, RequestStatus

TTFT_S, ITL_S, NUM_TOKENS = 0.05, 0.005, 20


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs Linux and a C compiler")
    program = tmp_path_factory.mktemp("known") / "loadgen_server"
    subprocess.run([compiler, "-O2", "-o", str(program), str(Path(HERE) / "loadgen_server.c")], check=True, timeout=60)
    with socket.create_server(("127.0.0.1", 0)) as free:
        number = int(free.getsockname()[1])
    command = [str(program), str(number), str(TTFT_S * 1e3), str(ITL_S * 1e3), str(NUM_TOKENS)]
    with subprocess.Popen(command) as server:
        for _ in range(100):
            try:
                seen(number)
                break
            except OSError:
                time.sleep(0.05)
        yield number
        server.kill()


@pytest.mark.parametrize("workers", [1, 2])
def test_every_token_of_every_stream_is_timed(port: int, workers: int) -> None:
    seen(port)
    endpoint = Endpoint(base_url=f"http://127.0.0.1:{port}", api="openai-chat", model="known")
    run = run_load(endpoint, make_load([0.0] * 200, concurrency=50), PROMPTS, workers=workers)
    log = run.log
    assert (log.status == RequestStatus.OK).all()
    assert (log.output_tokens == NUM_TOKENS).all()
    assert run.trust.facts["tokens_per_chunk"] == pytest.approx(1.0, abs=0.05)
    assert seen(port)[1] == 200
    # The server is never early. Time stamps of two clocks may differ by a fraction of a millisecond.
    assert (log.first_token_s - log.sent_s >= TTFT_S - 0.001).all()
    assert (log.last_token_s - log.sent_s >= TTFT_S + (NUM_TOKENS - 1) * ITL_S - 0.001).all()
    assert (np.diff(run.chunks.offsets) <= NUM_TOKENS).all()
