"""A load against a server with known delays."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
from tests.loop.engine import ITL_S, NUM_TOKENS, PROMPTS, TTFT_S, PlainPrompts, endpoint, make_load, requests_of, stream
from tests.net.scripted import Wire, serve, with_length

from servewise.errors import InputError, MeasurementError
from servewise.measure import Progress, Run, run_load
from servewise.metrics import chunk_gaps
from servewise.types import Endpoint, RequestStatus

SLACK_S = 0.002
"""Sleeps may end early by the grain of a clock."""


def check_answers(run: Run) -> None:
    """Every request was answered as the engine answers, and its times are in order."""
    log, details = run.log, run.details
    assert set(details.failure) == {""}
    assert (log.status == RequestStatus.OK).all()
    assert (log.output_tokens == NUM_TOKENS).all()
    assert (log.input_tokens == 7).all()
    assert (log.cached_tokens == -1).all()
    assert (np.diff(run.chunks.offsets) == NUM_TOKENS).all()
    assert set(details.finish_reason) == {"length"}
    assert (details.http_status == 200).all()
    assert (np.diff(log.intended_s) >= 0).all()
    assert (log.sent_s >= log.intended_s).all()
    assert (log.first_token_s - log.sent_s >= TTFT_S - SLACK_S).all()
    assert (log.last_token_s - log.first_token_s >= (NUM_TOKENS - 1) * ITL_S - SLACK_S).all()
    assert (details.first_answer_s == log.first_token_s).all()
    assert (details.end_s >= log.last_token_s).all()
    first, last = run.chunks.offsets[:-1], run.chunks.offsets[1:] - 1
    assert (run.chunks.time_s[first] == log.first_token_s).all()
    assert (run.chunks.time_s[last] == log.last_token_s).all()
    assert log.itl is not None
    assert len(log.itl.first_s) == log.num_requests * (NUM_TOKENS - 1)
    assert (log.itl.first_s >= 0).all()


def test_open_loop() -> None:
    with serve(stream) as server:
        run = run_load(endpoint(server), make_load([0.0, 0.01, 0.015, 0.1, 0.11]), PROMPTS)
    check_answers(run)
    assert list(run.details.request) == [0, 1, 2, 3, 4]
    assert run.log.intended_s == pytest.approx([0.0, 0.01, 0.015, 0.1, 0.11], abs=1e-6)
    assert list(run.details.intended_input_tokens) == [10, 11, 12, 13, 14]
    assert not run.interrupted
    assert run.trust.facts["tokens_per_chunk"] == 1.0
    assert run.trust.facts["failed_frac"] == 0.0
    assert {"requested_rps", "offered_rps"} <= set(run.trust.facts)


def test_closed_loop_holds_its_places_and_no_more() -> None:
    in_flight, most = 0, 0
    lock = threading.Lock()

    def script(wire: Wire) -> None:
        nonlocal in_flight, most
        with lock:
            in_flight += 1
            most = max(most, in_flight)
        wire.wait(0.005)
        with lock:
            in_flight -= 1
        stream(wire)

    with serve(script) as server:
        run = run_load(endpoint(server), make_load([0.0] * 12, concurrency=4), PROMPTS)
        assert len(server.connections) == 4
    check_answers(run)
    assert most <= 4
    log = run.log
    assert (log.intended_s[:4] == 0.0).all()
    # A place is free again when an answer ends, and then the next request is intended.
    assert log.intended_s[4:] == pytest.approx(np.sort(run.details.end_s)[:8], abs=1e-9)
    assert run.trust.facts["requested_concurrency"] == 4.0
    assert 0.0 < run.trust.facts["held_concurrency"] <= 4.0


def test_a_conversation_waits_for_its_answers_and_repeats_them() -> None:
    prompts = PlainPrompts({2: [0], 3: [0, 2]})
    with serve(stream) as server:
        run = run_load(endpoint(server), make_load([0.0] * 4, after=[-1, -1, 0, 2], think_s=0.03), prompts)
        bodies = {b["request"]: b["repeats"] for b in map(json.loads, server.bodies)}
        order = requests_of(server)
    check_answers(run)
    number = {request: order.index(request) for request in range(4)}
    said = {request: "".join(f"{number[request]}.{i} " for i in range(NUM_TOKENS)) for request in range(4)}
    assert bodies == {0: [], 1: [], 2: [said[0]], 3: [said[0], said[2]]}
    row = {int(request): i for i, request in enumerate(run.details.request)}
    for later, earlier in ((2, 0), (3, 2)):
        assert run.log.intended_s[row[later]] == pytest.approx(run.details.end_s[row[earlier]] + 0.03, abs=1e-6)


def test_nothing_is_sent_after_the_duration() -> None:
    with serve(stream) as server:
        run = run_load(endpoint(server), make_load([0.0, 0.02, 0.3, 0.31], duration_s=0.1), PROMPTS)
        closed = run_load(endpoint(server), make_load([0.0] * 500, concurrency=2, duration_s=0.25), PROMPTS)
        assert len(server.bodies) == run.log.num_requests + closed.log.num_requests
    check_answers(run)
    check_answers(closed)
    assert list(run.details.request) == [0, 1]
    assert closed.log.sent_s.max() <= 0.25
    assert 2 < closed.log.num_requests < 500
    assert not closed.interrupted


def test_an_answer_in_one_piece_has_an_end_only() -> None:
    body = b'{"choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":7,"completion_tokens":5}}'

    def script(wire: Wire) -> None:
        wire.wait(TTFT_S)
        wire.send(with_length(body, headers="Content-Type: application/json\r\n"))

    with serve(script) as server:
        run = run_load(endpoint(server, streamed=False), make_load([0.0, 0.01]), PROMPTS)
    log = run.log
    assert (log.status == RequestStatus.OK).all()
    assert np.isnan(log.first_token_s).all()
    assert log.itl is None
    assert (log.last_token_s == run.details.end_s).all()
    assert (log.last_token_s - log.sent_s >= TTFT_S - SLACK_S).all()
    assert (log.output_tokens == 5).all()
    assert any("one piece" in note for note in run.trust.notes)
    assert "tokens_per_chunk" not in run.trust.facts


def test_progress() -> None:
    told: list[Progress] = []
    with serve(stream) as server:
        run_load(endpoint(server), make_load([0.0] * 40, concurrency=2), PROMPTS, progress=told.append)
    assert told
    assert [p.done for p in told] == sorted(p.done for p in told)
    last = told[-1]
    assert last.num_requests == 40
    assert 0 < last.done < 40
    assert 0 <= last.in_flight <= 2
    assert last.failed == 0
    assert 0.9 * TTFT_S < last.ttft_p50_s <= last.ttft_p99_s
    assert 0.0 < last.itl_p50_s <= last.itl_p99_s


def test_the_key_goes_to_the_server_and_nowhere_else() -> None:
    with serve(stream) as other:

        def redirect(wire: Wire) -> None:
            wire.send(with_length(b"", status="307 Go", headers=f"Location: {other.url}/v1/chat/completions\r\n"))

        with serve(redirect) as server:
            run = run_load(endpoint(server), make_load([0.0]), PROMPTS, api_key="sk-secret")
            assert b"Authorization: Bearer sk-secret" in server.heads[0]
        assert other.heads == []
    assert run.log.status[0] == RequestStatus.FAILED
    assert "HTTP 307" in run.details.failure[0]
    assert "does not follow" in run.details.failure[0]


def test_paths_of_the_apis() -> None:
    with serve(stream) as server:
        for api, path in (
            ("openai-chat", b"/base/v1/chat/completions"),
            ("openai-completions", b"/base/v1/completions"),
            ("ollama-chat", b"/base/api/chat"),
            ("ollama-generate", b"/base/api/generate"),
            ("tgi-generate", b"/base/generate_stream"),
        ):
            run_load(Endpoint(base_url=server.url + "/base/", api=api, model="m"), make_load([0.0]), PROMPTS)  # type: ignore[arg-type]
            assert server.heads[-1].startswith(b"POST " + path + b" HTTP/1.1")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"send_s": [0.1, 0.0]}, "falls at request 1"),
        ({"send_s": [0.0, float("nan")]}, "must be finite"),
        ({"send_s": [0.0, 0.0], "after": [-1, 1]}, "must be an earlier one"),
        ({"send_s": [0.0], "after": [-1, -1]}, "one of each"),
        ({"send_s": []}, "one request or more"),
        ({"send_s": [0.0], "concurrency": 0}, "concurrency is 0"),
        ({"send_s": [0.0], "timeout_s": -1.0}, "timeout_s is -1"),
    ],
)
def test_bad_loads(change: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        run_load(Endpoint(base_url="http://127.0.0.1:9", api="openai-chat", model="m"), make_load(**change), PROMPTS)  # type: ignore[arg-type]


def test_more_workers_than_places() -> None:
    target = Endpoint(base_url="http://127.0.0.1:9", api="openai-chat", model="m")
    with pytest.raises(InputError, match="1 to 2"):
        run_load(target, make_load([0.0] * 5, concurrency=2), PROMPTS, workers=3)
    with pytest.raises(MeasurementError, match="cannot be found"):
        run_load(
            Endpoint(base_url="http://no-such-host.invalid", api="openai-chat", model="m"), make_load([0.0]), PROMPTS
        )


def test_gaps_do_not_cross_answers() -> None:
    from servewise.types import Chunks

    chunks = Chunks(
        offsets=np.array([0, 0, 2, 2, 3, 6, 6], dtype=np.int64), time_s=np.array([1.0, 1.5, 9.0, 4.0, 4.25, 5.0])
    )
    assert list(chunk_gaps(chunks, np.ones(len(chunks.offsets) - 1, dtype=np.bool_)).first_s) == [0.5, 0.25, 0.75]
