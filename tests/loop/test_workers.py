"""Several processes measure what one would."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.loop.engine import NUM_TOKENS, PROMPTS, PlainPrompts, endpoint, make_load, stream
from tests.net.scripted import serve

from servewise.measure import run_load
from servewise.measure.workers import parts_of
from servewise.types import RequestStatus


@given(st.data(), st.integers(1, 5))
def test_parts_are_a_partition_that_keeps_conversations_together(data: st.DataObject, workers: int) -> None:
    num = data.draw(st.integers(1, 30))
    after = [data.draw(st.integers(-1, i - 1)) for i in range(num)]
    concurrency = data.draw(st.none() | st.integers(workers, 40))
    load = make_load([0.1 * i for i in range(num)], after=after, concurrency=concurrency)
    parts = parts_of(load, workers)
    assert sorted(np.concatenate([part.requests for part in parts])) == list(range(num))
    for part in parts:
        assert (np.diff(part.requests) > 0).all()
        assert (part.load.send_s == load.send_s[part.requests]).all()
        mapped = [-1 if a < 0 else int(part.requests[a]) for a in part.load.after]
        assert mapped == list(load.after[part.requests])
    if concurrency is not None:
        places = [part.load.concurrency or 0 for part in parts]
        assert max(places) - min(places) <= 1
        assert len(parts) < workers or sum(places) == concurrency


def test_two_workers_measure_what_one_does() -> None:
    prompts = PlainPrompts({4: [0], 5: [1]})
    load = make_load([0.0, 0.0, 0.01, 0.02, 0.03, 0.03], after=[-1, -1, -1, -1, 0, 1], think_s=0.01)
    with serve(stream) as server:
        alone = run_load(endpoint(server), load, prompts)
        together = run_load(endpoint(server), load, prompts, workers=2)
    for run in (alone, together):
        assert sorted(run.details.request) == list(range(6))
        assert (run.log.status == RequestStatus.OK).all()
        assert (run.log.output_tokens == NUM_TOKENS).all()
        assert (np.diff(run.log.intended_s) >= 0).all()
        assert (np.diff(run.chunks.offsets) == NUM_TOKENS).all()
        row = {int(request): i for i, request in enumerate(run.details.request)}
        for later, earlier in ((4, 0), (5, 1)):
            assert run.log.intended_s[row[later]] >= run.details.end_s[row[earlier]] + 0.01 - 1e-6
        assert [run.details.intended_input_tokens[row[i]] for i in range(6)] == [10 + i for i in range(6)]
    assert set(alone.trust.facts) == set(together.trust.facts)


def test_a_worker_that_dies_loses_only_its_own() -> None:
    def kill_one() -> None:
        time.sleep(0.3)
        children = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and parent_of(int(pid)) == os.getpid()]
        workers = [pid for pid in children if b"spawn_main" in command_of(pid)]
        os.kill(workers[0], signal.SIGKILL)

    if not os.path.isdir("/proc/self"):
        pytest.skip("needs /proc to find the worker")
    killers: list[threading.Thread] = []

    def told(_: object) -> None:
        if not killers:
            killers.append(threading.Thread(target=kill_one))
            killers[0].start()

    with serve(stream) as server:
        run = run_load(endpoint(server), make_load([0.0] * 80, concurrency=4), PROMPTS, workers=2, progress=told)
    killers[0].join()
    assert run.log.num_requests == 40
    assert (run.log.status == RequestStatus.OK).all()
    assert any("ended early" in reason for reason in run.trust.reasons)


def parent_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rsplit(")", 1)[1].split()[1])
    except (OSError, IndexError):
        return -1


def command_of(pid: int) -> bytes:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()
