"""Whole measurements against a scripted server: what is sent, counted, kept and gone on with."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.measure import servers
from tests.measure.server import Page, serve

from servewise.errors import InputError
from servewise.measure.job import Target, find_max, measure, measure_loads
from servewise.measure.spec import LoadSpec
from servewise.store import read_measurement
from servewise.traffic import Arrivals, Conversations, EmpiricalLength, FixedLength, SynthesisSpec, synthesize
from servewise.types import Promise

SHORT = {"input_tokens": FixedLength(tokens=40), "output_tokens": FixedLength(tokens=5)}
FIVE = LoadSpec(concurrency=2, num_requests=5, **SHORT)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _unhurried(unhurried: None) -> None:
    pass


def test_a_closed_loop_is_measured_and_kept(tmp_path: Path) -> None:
    with serve(servers.measurable()) as script:
        result = measure(Target(url=script.url), FIVE, promise=Promise(ttft_s=60.0), seed=3, out_dir=tmp_path)
    measured, summary = result.measurement, result.summary
    assert summary is not None
    assert (summary.num_requests, summary.num_ok, summary.promise_kept) == (5, 5, True)
    assert measured.log.input_tokens.tolist() == [40] * 5
    assert measured.log.output_tokens.tolist() == [5] * 5
    assert measured.endpoint.engine == "vllm"
    assert measured.load_words == "closed loop of 2, 40 input and 5 output tokens, 5 requests, seed 3"
    facts = measured.trust.facts
    assert measured.trust.reasons == ()
    assert (facts["input_drift_max_frac"], facts["output_of_intended_frac"]) == (0.0, 1.0)
    assert facts["server_output_tokens"] == 25.0
    assert result.run_dir is not None
    assert read_measurement(result.run_dir).log.num_requests == 5


def test_prompts_never_repeat_unless_a_seed_does() -> None:
    with serve(servers.measurable()) as script:
        for seed in (None, None, 7, 7):
            measure(Target(url=script.url), FIVE, seed=seed)
        sent = [asked["messages"][0]["content"] for _, path, _, asked in script.asked if asked.get("stream")]
    assert len(sent) == 20
    assert len(set(sent)) == 15


def test_the_warm_up_is_kept_and_not_counted() -> None:
    spec = LoadSpec(rate_rps=50.0, burstiness=0.0, duration_s=0.4, warm_up_s=0.2, **SHORT)  # type: ignore[arg-type]
    with serve(servers.measurable()) as script:
        result = measure(Target(url=script.url), spec)
    assert result.summary is not None
    assert result.measurement.log.num_requests == 21
    assert result.summary.num_requests == 11


def test_others_on_the_server_and_short_answers_are_told() -> None:
    counts = iter(range(0, 10_000, 1000))
    pages: dict[str, Page] = servers.measurable() | {
        "/metrics": lambda _: f"vllm:generation_tokens_total {next(counts)}\n"
    }
    with serve(pages) as script:
        trust = measure(Target(url=script.url), FIVE).measurement.trust
    assert any("it served others too" in reason for reason in trust.reasons)

    def short(asked: dict[str, Any]) -> Any:
        return servers.streaming_chat(asked | {"max_tokens": 2})

    with serve(servers.unknown() | {"/v1/chat/completions": short}) as script:
        trust = measure(Target(url=script.url), FIVE).measurement.trust
    assert any("answers had 40.0% of the tokens that were meant; this engine cannot" in note for note in trust.notes)
    assert any("known from the usage of short requests" in note for note in trust.notes)


def test_conversations_are_sent_with_the_real_answers() -> None:
    talks = Conversations(turns=FixedLength(tokens=2), turn_gap_s=0.01)
    spec = SynthesisSpec(
        num_requests=6,
        arrivals=Arrivals(rate_rps=100.0),
        input_tokens=FixedLength(tokens=30),
        output_tokens=FixedLength(tokens=4),
        conversations=talks,
    )
    workload = synthesize(spec, 1)
    with serve(servers.measurable()) as script:
        measured = measure(Target(url=script.url), LoadSpec(workload=workload)).measurement
        sent = [asked["messages"] for _, path, _, asked in script.asked if asked.get("stream")]
    assert sum(len(messages) == 3 for messages in sent) == 3
    assert all(messages[1]["content"] == " w0 w1 w2 w3" for messages in sent if len(messages) == 3)
    np.testing.assert_array_equal(measured.log.input_tokens, workload.input_tokens[measured.details.request])


def test_requests_longer_than_the_context_are_refused_before_they_are_sent() -> None:
    spec = LoadSpec(concurrency=1, num_requests=1, input_tokens=FixedLength(tokens=2000))
    with serve(servers.measurable()) as script:
        with pytest.raises(InputError, match="the longest request has 2,128 tokens"):
            measure(Target(url=script.url), spec)
        assert not any(asked.get("stream") for _, _, _, asked in script.asked)


def test_longer_requests_can_be_skipped_and_are_told() -> None:
    lengths = EmpiricalLength(values=(40, 4000))
    spec = LoadSpec(
        concurrency=2, num_requests=20, input_tokens=lengths, output_tokens=FixedLength(tokens=5), skip_longer=True
    )
    with serve(servers.measurable()) as script:
        measured = measure(Target(url=script.url), spec, seed=1).measurement
    assert 0 < measured.log.num_requests < 20
    assert measured.log.input_tokens.tolist() == [40] * measured.log.num_requests
    skipped = 20 - measured.log.num_requests
    assert measured.trust.notes[0].startswith(f"{skipped} of 20 requests are longer")


def test_a_sweep_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    pages = servers.measurable()
    chat = pages["/v1/chat/completions"]
    stops = iter([7])  # the first request of the second load
    seen = [0, next(stops)]

    def stopping(asked: dict[str, Any]) -> Any:
        seen[0] += bool(asked.get("stream"))
        if seen[0] == seen[1]:
            os.kill(os.getpid(), signal.SIGINT)
        return chat(asked)  # type: ignore[operator]

    with serve(pages | {"/v1/chat/completions": stopping}) as script:
        target = Target(url=script.url)
        with pytest.raises(KeyboardInterrupt, match="--resume"):
            measure_loads(target, FIVE, [1.0, 2.0, 3.0], out_dir=tmp_path)
        (folder,) = tmp_path.iterdir()
        before = {path.name for path in folder.iterdir()}
        assert {"sweep.json", "load-1-run-1", "load-2-run-1"} == before
        assert read_measurement(folder / "load-2-run-1").interrupted
        seen[0] = 100
        result = measure_loads(target, FIVE, [1.0, 2.0, 3.0], resume=folder)
        assert [point.folder for point in result.sweep.points] == [
            "load-1-run-1",
            "load-2-run-1-again-2",
            "load-3-run-1",
        ]
        assert seen[0] == 110  # two loads of five
        with pytest.raises(InputError, match="was asked with loads"):
            measure_loads(target, FIVE, [4.0], resume=folder)
        with pytest.raises(InputError, match=r"was asked with timeout_s 600\.0, not 5\.0"):
            measure_loads(target, replace(FIVE, timeout_s=5.0), [1.0, 2.0, 3.0], resume=folder)
        with pytest.raises(InputError, match="leave --seed out"):
            measure_loads(target, FIVE, [1.0, 2.0, 3.0], resume=folder, seed=0)


def test_a_load_that_is_named_twice_is_measured_twice(tmp_path: Path) -> None:
    with serve(servers.measurable()) as script:
        result = measure_loads(Target(url=script.url), FIVE, [2.0, 2.0], out_dir=tmp_path)
    assert [point.folder for point in result.sweep.points] == ["load-2-run-1", "load-2-run-2"]


def test_a_search_ends_where_more_places_are_the_same_load() -> None:
    with serve(servers.measurable()) as script:
        result = find_max(Target(url=script.url), FIVE, promise=Promise(e2e_s=30.0))
    edge = result.sweep.edge
    assert edge is not None
    assert (edge.low, edge.high) == (5, None)


def test_what_an_interrupted_measurement_saw_is_kept(tmp_path: Path) -> None:
    pages = servers.measurable()
    chat, lock, seen = pages["/v1/chat/completions"], threading.Lock(), [0]

    def stopping(asked: dict[str, Any]) -> Any:
        with lock:
            seen[0] += bool(asked.get("stream"))
            if seen[0] == 3:
                os.kill(os.getpid(), signal.SIGINT)
        return chat(asked)  # type: ignore[operator]

    spec = LoadSpec(concurrency=1, duration_s=60.0, **SHORT)  # type: ignore[arg-type]
    with serve(pages | {"/v1/chat/completions": stopping}) as script:
        result = measure(Target(url=script.url), spec, out_dir=tmp_path)
    assert result.measurement.interrupted
    assert result.run_dir is not None
    assert read_measurement(result.run_dir).interrupted
    assert result.measurement.log.num_requests >= 2


def test_the_edge_is_searched_by_the_promise(tmp_path: Path) -> None:
    in_flight, lock = [0], threading.Lock()
    pages = servers.measurable()
    chat = pages["/v1/chat/completions"]

    def refusing(asked: dict[str, Any]) -> Any:
        with lock:
            in_flight[0] += 1
            busy = in_flight[0] > 3
        try:
            if asked.get("stream"):
                threading.Event().wait(0.05)
            return (503, {}, b"") if busy else chat(asked)  # type: ignore[operator]
        finally:
            with lock:
                in_flight[0] -= 1

    spec = LoadSpec(concurrency=1, num_requests=12, **SHORT)  # type: ignore[arg-type]
    with serve(pages | {"/v1/chat/completions": refusing}) as script:
        result = find_max(Target(url=script.url), spec, promise=Promise(e2e_s=30.0), out_dir=tmp_path)
    edge = result.sweep.edge
    assert edge is not None
    assert (edge.low, edge.high, edge.low_kept[1], edge.high_kept[1]) == (3, 4, 3, 3)
    assert result.trustworthy


def test_answers_in_one_piece_have_no_first_token() -> None:
    with serve(servers.measurable()) as script:
        target = Target(url=script.url, stream=False)
        with pytest.raises(InputError, match="promise e2e_s"):
            measure(target, FIVE, promise=Promise(ttft_s=1.0))
        result = measure(target, FIVE, promise=Promise(e2e_s=60.0))
    assert result.summary is not None
    assert result.summary.promise_kept
    assert np.isnan(result.measurement.log.first_token_s).all()
    assert result.summary.percentiles["ttft"]["p50"].num_samples == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"concurrency": 1, "rate_rps": 1.0}, "either a concurrency"),
        ({}, "neither a concurrency nor a rate"),
        ({"concurrency": 1, "last_rate_rps": 2.0}, "a ramp goes"),
        ({"rate_rps": 1.0, "ramp_up_s": 2.0}, "only a closed loop"),
        ({"rate_rps": 1.0, "duration_s": 2.0, "warm_up_s": 2.0}, "leaves nothing"),
    ],
)
def test_loads_that_contradict_themselves_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        LoadSpec(**options)
