"""What goes wrong is counted and kept, and nothing hangs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from tests.loop.engine import NUM_TOKENS, PROMPTS, TTFT_S, PlainPrompts, endpoint, event, make_load, stream
from tests.net.scripted import SSE_HEAD, Scripted, Wire, serve, with_length

from servewise.measure import Run, run_load
from servewise.measure import loop as loop_module
from servewise.net import Clock
from servewise.types import RequestStatus

ROOT = Path(__file__).resolve().parents[2]


def statuses(run: Run) -> list[RequestStatus]:
    return [RequestStatus(status) for status in run.log.status]


def test_refusals_are_failures_with_their_wait() -> None:
    def script(wire: Wire) -> None:
        wire.wait(0.05)
        if wire.number == 0:
            body = b'{"error":{"message":"queue full"}}'
            wire.send(with_length(body, status="429 Too Many Requests", headers="Retry-After: 7\r\n"))
        elif wire.number == 1:
            wire.send(with_length(b"busy", status="503 Service Unavailable", headers="Retry-After: 1\r\n"))
        elif wire.number == 2:
            wire.send(with_length(b'{"error":"no such model"}', status="404 Not Found"))
        else:
            stream(wire)

    with serve(script) as server:
        run = run_load(endpoint(server), make_load([0.0] * 4, concurrency=1), PROMPTS)
    failed = RequestStatus.FAILED
    assert statuses(run) == [RequestStatus.REJECTED, failed, failed, RequestStatus.OK]
    assert list(run.details.http_status) == [429, 503, 404, 200]
    assert run.details.failure[:3] == [
        "HTTP 429: queue full (Retry-After: 7)",
        "HTTP 503: busy (Retry-After: 1)",
        "HTTP 404: no such model",
    ]
    assert (run.details.end_s - run.log.sent_s >= 0.045).all()
    assert np.isnan(run.log.first_token_s[:3]).all()
    assert (run.log.output_tokens[:3] == -1).all()
    assert run.trust.facts["failed_frac"] == 0.75
    assert any("3 of 4 requests failed" in reason for reason in run.trust.reasons)


def test_nobody_listens() -> None:
    with serve(stream) as server:
        target = endpoint(server)
    run = run_load(target, make_load([0.0] * 50, concurrency=5), PROMPTS)
    assert set(statuses(run)) == {RequestStatus.FAILED}
    assert run.log.num_requests == 50
    assert set(run.details.failure) == {"connection refused"}
    assert not run.trust.trustworthy


def test_a_server_killed_in_mid_run_loses_no_result() -> None:
    def script(wire: Wire) -> None:
        if wire.number == 12:
            killer.append(wire)
            server.kill()
        stream(wire)

    killer: list[Wire] = []
    with serve(script) as server:
        run = run_load(endpoint(server), make_load([0.0] * 40, concurrency=4), PROMPTS)
    assert killer
    assert sorted(run.details.request) == list(range(40))
    ok = run.log.status == RequestStatus.OK
    assert 4 <= ok.sum() <= 12
    assert (run.log.output_tokens[ok] == NUM_TOKENS).all()
    assert set(statuses(run)) == {RequestStatus.OK, RequestStatus.FAILED}
    assert all(failure for failure, fine in zip(run.details.failure, ok, strict=True) if not fine)
    assert np.isfinite(run.details.end_s).all()


def test_an_answer_cut_short_has_failed_and_keeps_what_came() -> None:
    def script(wire: Wire) -> None:
        wire.send(SSE_HEAD, event("a"), event("b"))
        wire.hang_up()

    with serve(script) as server:
        run = run_load(endpoint(server), make_load([0.0]), PROMPTS)
    assert statuses(run) == [RequestStatus.FAILED]
    assert run.details.failure == ["the answer was cut short"]
    assert list(run.chunks.offsets) == [0, 2]
    assert run.log.first_token_s[0] == run.chunks.time_s[0]
    assert run.log.last_token_s[0] == run.chunks.time_s[1]
    assert run.log.output_tokens[0] == -1
    assert run.log.itl is not None
    assert len(run.log.itl.first_s) == 0  # gaps of answers that failed do not count


def test_a_cut_after_the_stream_said_that_it_is_complete_is_no_failure() -> None:
    def script(wire: Wire) -> None:
        wire.send(SSE_HEAD, event("a"), b"e\r\ndata: [DONE]\n\n\r\n")
        wire.hang_up()

    with serve(script) as server:
        run = run_load(endpoint(server), make_load([0.0]), PROMPTS)
    assert statuses(run) == [RequestStatus.OK]


def test_an_answer_without_a_token() -> None:
    def script(wire: Wire) -> None:
        done = b"e\r\ndata: [DONE]\n\n\r\n" if wire.number == 0 else b""
        wire.send(SSE_HEAD + done + b"0\r\n\r\n")

    with serve(script) as server:
        run = run_load(endpoint(server), make_load([0.0, 0.0], concurrency=1), PROMPTS)
    assert statuses(run) == [RequestStatus.OK, RequestStatus.FAILED]
    assert np.isnan(run.log.first_token_s).all()
    assert "no token" in run.details.failure[1]
    assert any("no TTFT" in note for note in run.trust.notes)


def test_an_error_in_mid_stream_is_a_failure() -> None:
    def script(wire: Wire) -> None:
        error = b'data: {"error":{"message":"EngineDeadError"}}\n\n'
        wire.send(SSE_HEAD, event("a"), b"%x\r\n%b\r\n" % (len(error), error), b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

    with serve(script) as server:
        run = run_load(endpoint(server), make_load([0.0]), PROMPTS)
    assert statuses(run) == [RequestStatus.FAILED]
    assert run.details.failure == ["EngineDeadError"]
    assert run.details.http_status[0] == 200


@pytest.mark.parametrize("drip", [b"", SSE_HEAD])
def test_time_outs_are_failures_with_their_wait(drip: bytes) -> None:
    def script(wire: Wire) -> None:
        wire.send(*(drip[i : i + 1] for i in range(len(drip))), gap_s=0.02)  # a slow loris
        wire.wait(30.0)

    with serve(script) as server:
        run = run_load(endpoint(server), make_load([0.0, 0.05, 0.1], timeout_s=0.2), PROMPTS)
    assert set(statuses(run)) == {RequestStatus.FAILED}
    assert set(run.details.failure) == {"timed out after 0.2 s"}
    assert (run.details.end_s - run.log.sent_s >= 0.199).all()


def test_a_stopped_run_keeps_what_was_measured() -> None:
    asked = count()
    with serve(lambda wire: stream(wire) if wire.number < 4 else _stall(wire)) as server:
        run = run_load(endpoint(server), make_load([0.0] * 100, concurrency=2), PROMPTS, stop=lambda: next(asked) > 70)
    assert run.interrupted
    assert statuses(run)[:4] == [RequestStatus.OK] * 4
    assert statuses(run)[4:] == [RequestStatus.UNFINISHED] * 2
    assert (np.diff(run.chunks.offsets) == [*[NUM_TOKENS] * 4, 1, 1]).all()
    assert np.isfinite(run.log.first_token_s).all()
    assert np.isfinite(run.details.end_s).all()
    assert "stopped before its end" in run.trust.notes[-1]


def _stall(wire: Wire) -> None:
    wire.send(SSE_HEAD, event("a"))
    wire.wait(30.0)


CHILD = """
import json, sys
sys.path[:0] = [{root!r}]
from tests.loop.engine import PROMPTS, make_load
from servewise.measure import run_load
from servewise.types import Endpoint
if __name__ == "__main__":
    def told(progress):
        print("going", flush=True)
    target = Endpoint(base_url={url!r}, api="openai-chat", model="m")
    run = run_load(target, make_load([0.0] * {num}, concurrency=4), PROMPTS, workers={workers}, progress=told)
    print(json.dumps([run.interrupted, run.log.status.tolist(), list(run.trust.reasons), run.trust.facts]))
"""


def start_child(server: Scripted, tmp_path: Path, *, num: int, workers: int = 1) -> subprocess.Popen[str]:
    program = tmp_path / "child.py"
    program.write_text(CHILD.format(root=str(ROOT), url=server.url, num=num, workers=workers))
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    child = subprocess.Popen(
        [sys.executable, str(program)], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "going\n"
    return child


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c(tmp_path: Path, workers: int) -> None:
    with serve(stream) as server:
        child = start_child(server, tmp_path, num=5000, workers=workers)
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    interrupted, status, _, _ = json.loads(out.splitlines()[-1])
    assert interrupted
    assert status.count(RequestStatus.OK) > 4
    assert status.count(RequestStatus.UNFINISHED) <= 4
    assert set(status) <= {RequestStatus.OK, RequestStatus.UNFINISHED}


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="needs SIGSTOP")
def test_a_client_that_stood_still_is_not_trusted(tmp_path: Path) -> None:
    with serve(stream) as server:
        child = start_child(server, tmp_path, num=120)
        child.send_signal(signal.SIGSTOP)
        time.sleep(0.3)
        child.send_signal(signal.SIGCONT)
        out, _ = child.communicate(timeout=60)
    _, status, reasons, facts = json.loads(out.splitlines()[-1])
    assert set(status) == {RequestStatus.OK}
    assert facts["client_lag_max_s"] >= 0.25
    assert any("stood still" in reason for reason in reasons)


class BurningPrompts(PlainPrompts):
    """The client computes for a while before it sends."""

    def body(self, request: int, answers: Mapping[int, str]) -> bytes:
        until = time.monotonic() + 0.05
        while time.monotonic() < until:
            pass
        return super().body(request, answers)


def test_a_starved_client_is_not_trusted() -> None:
    with serve(stream) as server:
        run = run_load(endpoint(server), make_load([0.001 * i for i in range(30)]), BurningPrompts({}))
    assert set(statuses(run)) == {RequestStatus.OK}
    words = " ".join(run.trust.reasons)
    assert "sent late" in words
    assert "offered" in words
    # TTFT counts from the intended send, so that it shows what the client did.
    assert np.median(run.log.first_token_s - run.log.intended_s) > 2 * np.median(run.log.first_token_s - run.log.sent_s)


def test_a_wall_clock_that_is_set_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(stream) as server:

        def wall() -> int:  # an hour is gained once half of the requests have come
            return time.time_ns() + (3_600_000_000_000 if len(server.heads) > 6 else 0)

        monkeypatch.setattr(loop_module, "Clock", lambda: Clock(wall=wall))
        run = run_load(endpoint(server), make_load([0.0] * 12, concurrency=1), PROMPTS)
    assert set(statuses(run)) == {RequestStatus.OK}
    ttft_s = run.log.first_token_s - run.log.sent_s
    assert (ttft_s >= TTFT_S - 0.002).all()
    assert (ttft_s < 60.0).all()
    assert run.log.itl is not None
    assert (run.log.itl.first_s >= 0.0).all()
    if sys.platform == "linux":
        assert any("the wall clock was set 1 times" in note for note in run.trust.notes)
        assert 0.0 < run.trust.facts["kernel_stamped_frac"] < 1.0
