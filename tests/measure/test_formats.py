"""Files that the tools themselves wrote against servers whose truth is known.

``*-clean``: six requests to a server that sends the first token 100 ms after the request and nine more, one every
20 ms; it reports 128 prompt tokens. ``vllm-role-first``: the same, with a chunk that holds a role alone 2 ms after
the request. ``*-flaky``: of every three requests one is answered so, one refused with status 503 and one
cut off after four tokens. Texts, tracebacks and summaries were cut out of the files; no time or count was touched.
The client was not alone on its machine, so times are later than the truth by some milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servewise.errors import InputError
from servewise.measure.formats import document, read_runs
from servewise.metrics import e2e_s, finished, summarize, tpot_s, ttft_s, ttft_sent_s
from servewise.types import ImportedRun, Promise, RequestStatus

FILES = Path(__file__).parent / "files"
TOOLS = {
    "aiperf": "aiperf-{}.jsonl",
    "guidellm": "guidellm-{}.json",
    "inference-perf": "inference-perf-{}.json",
    "sglang": "sglang-{}.jsonl",
    "vllm": "vllm-{}.json",
}
LATE_S = 0.02
"""How much later than the server's truth a client on a busy machine may see a chunk."""


def read(name: str) -> ImportedRun:
    (run,) = read_runs(FILES / name)
    return run


@pytest.mark.parametrize("tool", TOOLS)
def test_the_truth_of_the_server_comes_out(tool: str) -> None:
    run = read(TOOLS[tool].format("clean"))
    log = run.log
    assert run.tool == tool
    assert finished(log).tolist() == [True] * 6
    assert np.all((ttft_sent_s(log) >= 0.1) & (ttft_sent_s(log) < 0.1 + LATE_S))
    assert np.all(ttft_s(log) >= ttft_sent_s(log))
    assert np.all(np.abs(tpot_s(log) - 0.02) < LATE_S / 9)
    assert np.all(np.abs(log.last_token_s - log.sent_s - 0.28) < LATE_S)
    assert log.output_tokens.tolist() == [10] * 6
    # SGLang counts the prompt itself, the others take the server's usage.
    assert set(log.input_tokens.tolist()) == {16 if tool == "sglang" else 128}
    assert np.all(np.diff(log.intended_s) >= 0.0)
    assert set(run.definitions) == {"ttft", "itl", "tpot", "e2e"}


@pytest.mark.parametrize("tool", TOOLS)
def test_gaps_are_those_between_chunks_or_unknown(tool: str) -> None:
    run = read(TOOLS[tool].format("clean"))
    if tool == "guidellm":  # means of a request, no gaps
        assert run.chunks is None
        assert run.log.itl is None
        assert "times of single chunks" in run.missing
        return
    assert run.chunks is not None
    assert run.log.itl is not None
    assert np.diff(run.chunks.offsets).tolist() == [10] * 6
    assert abs(float(np.median(run.log.itl.first_s)) - 0.02) < 0.001
    assert np.allclose(run.chunks.time_s[run.chunks.offsets[:-1]], run.log.first_token_s)


@pytest.mark.parametrize("tool", TOOLS)
def test_failures_are_failures_with_their_reason(tool: str) -> None:
    run = read(TOOLS[tool].format("flaky"))
    log = run.log
    failed = log.status == RequestStatus.FAILED
    assert (len(log.status), int(failed.sum()), int(finished(log).sum())) == (6, 4, 2)
    assert all(bool(words) == bool(bad) for words, bad in zip(run.details.failure, failed, strict=True))
    assert any("503" in words or "Service Unavailable" in words for words in run.details.failure)
    assert summarize(log, Promise(ttft_s=1.0), with_intervals=False).attainment.value == pytest.approx(2 / 6)
    if run.log.itl is not None:  # gaps of answers that were cut off do not count
        assert len(run.log.itl.first_s) == 2 * 9


def test_sends_that_were_late_count_where_the_file_knows_them() -> None:
    """AIPerf names the release, GuideLLM the schedule; the others start the clock with the send."""
    for tool in TOOLS:
        run = read(TOOLS[tool].format("clean"))
        late_s = run.log.sent_s - run.log.intended_s
        if tool in ("aiperf", "guidellm"):
            assert np.all((late_s > 0.0) & (late_s < LATE_S))
        else:
            assert np.all(late_s == 0.0)
            assert "intended send times" in run.missing


def test_a_role_alone_is_vllms_first_token_and_the_file_shows_it() -> None:
    run = read("vllm-role-first.json")
    assert np.all(ttft_sent_s(run.log) < 0.1)
    assert np.all(np.abs(e2e_s(run.log) - 0.28) < LATE_S)
    assert np.all(tpot_s(run.log) > 0.03)
    assert any("more chunks than tokens" in note for note in run.notes)
    assert not any("more chunks than tokens" in note for note in read("vllm-clean.json").notes)


def test_without_send_times_there_is_no_common_clock() -> None:
    run = read("sglang-clean.jsonl")
    assert not run.one_clock
    assert "send times" in run.missing
    assert run.log.sent_s.tolist() == [0.0] * 6


def test_versions_and_models_are_named_or_unknown() -> None:
    named = {tool: read(TOOLS[tool].format("clean")) for tool in TOOLS}
    assert {tool: run.tool_version for tool, run in named.items() if run.tool_version != "unknown"} == {
        "guidellm": "0.8.1"
    }
    assert {tool for tool, run in named.items() if run.model == "mock"} == {"guidellm", "vllm"}


GUIDELLM_0_3 = {
    "benchmarks": [
        {
            "args": {"strategy": {"type_": "constant"}},
            "requests": {
                "successful": [
                    {
                        "type_": "generative_text_response",
                        "scheduler_info": {"targeted_start_time": 1000.0},
                        "prompt_tokens": 7,
                        "output_tokens": 3,
                        "start_time": 1000.5,
                        "end_time": 1002.0,
                        "first_token_time": 1001.0,
                        "last_token_time": 1001.5,
                    }
                ],
                "errored": [],
                "incomplete": [
                    {
                        "scheduler_info": {"targeted_start_time": -1},
                        "prompt_tokens": 7,
                        "start_time": 1001.0,
                        "end_time": 1001.2,
                        "error": "stopped",
                    }
                ],
            },
        }
    ]
}
"""The shape of guidellm 0.3.1 (``guidellm/benchmark/benchmark.py``), written by hand from its classes."""


def test_guidellm_0_3_is_read(tmp_path: Path) -> None:
    path = tmp_path / "benchmarks.json"
    path.write_text(json.dumps(GUIDELLM_0_3))
    (run,) = read_runs(path)
    assert run.tool_version == "unknown"
    assert ttft_s(run.log)[0] == pytest.approx(1.0)
    assert ttft_sent_s(run.log)[0] == pytest.approx(0.5)
    assert tpot_s(run.log)[0] == pytest.approx(0.25)
    assert run.log.status.tolist() == [RequestStatus.OK, RequestStatus.UNFINISHED]
    assert run.log.output_tokens.tolist() == [3, -1]


def test_each_benchmark_of_a_sweep_is_a_run(tmp_path: Path) -> None:
    content = json.loads((FILES / "guidellm-clean.json").read_text())
    content["benchmarks"] *= 3
    path = tmp_path / "benchmarks.json"
    path.write_text(json.dumps(content))
    assert [run.name for run in read_runs(path)] == [f"benchmarks.json, benchmark {i} of 3" for i in (1, 2, 3)]


def test_tokens_without_usage_are_unknown_or_named(tmp_path: Path) -> None:
    """GuideLLM counts chunks, AIPerf and inference-perf the text."""

    def of_guidellm(content: Any) -> None:
        for request in content["benchmarks"][0]["requests"]["successful"]:
            request["output_metrics"] = {"text_tokens": None, "total_tokens": None}

    (run,) = read_runs(changed(tmp_path, "guidellm-clean.json", of_guidellm))
    assert set(run.log.output_tokens.tolist()) == {-1}
    assert any("6 answers came without usage" in note for note in run.notes)
    (run,) = read_runs(changed(tmp_path, "aiperf-clean.jsonl", lambda d: d["metrics"].pop("usage_completion_tokens")))
    assert sorted(run.log.output_tokens.tolist()) == [10] * 5 + [30]
    assert any("output tokens of 1 requests are counted by AIPerf's own tokenizer" in note for note in run.notes)
    path = changed(
        tmp_path, "inference-perf-clean.json", lambda d: d[0]["info"]["response_metrics"].pop("server_usage")
    )
    (run,) = read_runs(path)
    assert sorted(run.log.output_tokens.tolist()) == [10] * 5 + [30]
    assert any("output tokens of 1 requests" in note for note in run.notes)


def test_runs_appended_to_a_file_are_runs(tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    path.write_text((FILES / "sglang-clean.jsonl").read_text() + (FILES / "sglang-flaky.jsonl").read_text())
    assert [int(finished(run.log).sum()) for run in read_runs(path)] == [6, 2]


def test_a_warm_up_is_left_out(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in (FILES / "aiperf-clean.jsonl").read_text().splitlines()]
    lines[0]["metadata"]["benchmark_phase"] = "warmup"
    path = tmp_path / "profile_export.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    (run,) = read_runs(path)
    assert run.log.num_requests == 5
    assert any("other phases" in note for note in run.notes)


def changed(tmp_path: Path, name: str, change: Any) -> Path:
    """A copy of a file with its first document changed."""
    text = (FILES / name).read_text()
    lines = text.splitlines()
    content = json.loads(lines[0])
    change(content)
    path = tmp_path / name
    path.write_text("\n".join([json.dumps(content), *lines[1:]]))
    return path


BROKEN: dict[str, tuple[str, Any, str]] = {
    "text for a time": ("vllm-clean.json", lambda d: d["ttfts"].__setitem__(2, "0.1"), r"ttfts\[2\] is '0.1'"),
    "NaN": ("vllm-clean.json", lambda d: d["itls"][1].__setitem__(3, float("nan")), r"itls\[1\]\[3\] is nan"),
    "too few": ("vllm-clean.json", lambda d: d["itls"].pop(), r"itls is .*expected 6 entries"),
    "a negative gap": ("vllm-clean.json", lambda d: d["itls"][1].__setitem__(3, -1.0), r"itls\[1\]: .*ascend"),
    "half a token": ("vllm-clean.json", lambda d: d["output_lens"].__setitem__(0, 1.5), r"output_lens\[0\] is 1.5"),
    "a huge count": ("vllm-clean.json", lambda d: d["input_lens"].__setitem__(0, 1 << 70), r"input_lens\[0\] is"),
    "a huge time": ("sglang-clean.jsonl", lambda d: d["ttfts"].__setitem__(0, 1e300), r"ttfts\[0\] is 1e\+300"),
    "no details": ("vllm-clean.json", lambda d: d.pop("ttfts"), "run the benchmark with --save-result --save-detailed"),
    "no details of sglang": ("sglang-clean.jsonl", lambda d: d.pop("ttfts"), "--output-details"),
    "no requests": ("guidellm-clean.json", lambda d: d["benchmarks"][0]["requests"].clear(), "the requests themselves"),
    "no timings": (
        "guidellm-clean.json",
        lambda d: d["benchmarks"][0]["requests"]["successful"][1]["info"].pop("timings"),
        r"benchmarks\[0\].requests.successful\[1\].info.timings is null",
    ),
    "a token before the send": (
        "inference-perf-clean.json",
        lambda d: d[3].update(start_time=1e9),
        r"\[3\]: sent at",
    ),
    "an unknown unit": (
        "aiperf-clean.jsonl",
        lambda d: d["metrics"]["time_to_first_token"].update(unit="fortnight"),
        r"line 1: metrics.time_to_first_token.unit is 'fortnight'",
    ),
    "a list for an object": ("aiperf-clean.jsonl", lambda d: d.update(metadata=[]), "line 1: metadata is"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, what: str) -> None:
    name, change, words = BROKEN[what]
    with pytest.raises(InputError, match=words):
        read_runs(changed(tmp_path, name, change))


@pytest.mark.parametrize("name", sorted(path.name for path in FILES.iterdir()))
def test_a_file_that_was_cut_short_is_refused_with_its_line(tmp_path: Path, name: str) -> None:
    text = (FILES / name).read_text().rstrip()
    path = tmp_path / name
    path.write_text(text[: len(text) - 20])
    with pytest.raises(InputError, match=rf"{name}, line {len(text.splitlines())} is not JSON.*cut short"):
        read_runs(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("{}", "not recognised"),
        ("[]", "not recognised"),
        ('{"benchmarks": []}', "holds no run"),
        ("[" * 100_000, "is not JSON"),
        ("1" * 10_000, "is not JSON"),
        ('{"a": 1}\nnonsense', "line 2 is not JSON"),
    ],
)
def test_what_is_no_result_file_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        read_runs(path)


def test_bytes_that_are_no_text_and_files_that_are_too_large_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(b"\x80\x04\x95pickle")
    with pytest.raises(InputError, match="byte 0 is not UTF-8"):
        read_runs(path)
    monkeypatch.setattr(document, "MAX_FILE_BYTES", 1 << 10)
    with pytest.raises(InputError, match="is larger than"):
        read_runs(FILES / "vllm-clean.json")
    with pytest.raises(InputError, match="No such file"):
        read_runs(tmp_path / "nothing.json")


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(),
    st.text(max_size=4),
    st.builds(list),
    st.builds(dict),
    st.builds(lambda: [{}, None, 3]),
)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to everything in a document."""
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inner:
        yield from places(below, (*at, key))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(sorted(path.name for path in FILES.iterdir())), data=st.data())
def test_anything_anywhere_is_read_or_refused(tmp_path: Path, name: str, data: st.DataObject) -> None:
    documents = [json.loads(line) for line in (FILES / name).read_text().splitlines()]
    content = documents[0]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.sampled_from([place for place in places(content) if place]))
        inside = content
        for key in at[:-1]:
            inside = inside[key]
        inside[at[-1]] = data.draw(JUNK)
    path = tmp_path / name
    path.write_text("\n".join(map(json.dumps, documents)))
    try:
        runs = read_runs(path)
    except InputError:
        return
    for run in runs:
        summarize(run.log, Promise(ttft_s=1.0), with_intervals=False)


def test_a_tool_that_is_named_wrongly_is_refused() -> None:
    with pytest.raises(InputError, match="unknown load generator 'vlm'; did you mean vllm"):
        read_runs(FILES / "vllm-clean.json", "vlm")
    with pytest.raises(InputError, match=r"benchmarks is null"):
        read_runs(FILES / "vllm-clean.json", "guidellm")
