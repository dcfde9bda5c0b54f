"""Runs in files: kept in folders, written as other tools' files and read again."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from measure.test_formats import FILES, read
from servewise.errors import InputError
from servewise.measure.files import compare_runs, export_run, import_runs, read_run
from servewise.measure.formats import FORMATS, read_runs, write_run
from servewise.metrics import tpot_s, ttft_sent_s
from servewise.store import read_run_dir, write_measurement
from servewise.types import Chunks, ImportedRun, RequestDetails, RequestLog, RequestStatus
from store.measurements import measurement

START_NS = int(datetime(2026, 11, 30, tzinfo=UTC).timestamp()) * 10**9
NAMES = sorted(path.name for path in FILES.iterdir())


def same(one: ImportedRun, other: ImportedRun) -> None:
    """Both hold the same requests, to a nanosecond."""
    for name in ("intended_s", "sent_s", "first_token_s", "last_token_s", "input_tokens", "output_tokens", "status"):
        np.testing.assert_allclose(getattr(one.log, name), getattr(other.log, name), atol=2e-9, err_msg=name)
    assert (one.chunks is None) == (other.chunks is None)
    if one.chunks is not None and other.chunks is not None:
        np.testing.assert_array_equal(one.chunks.offsets, other.chunks.offsets)
        np.testing.assert_allclose(one.chunks.time_s, other.chunks.time_s, atol=2e-9)


@pytest.mark.parametrize("name", NAMES)
def test_an_imported_run_survives_its_folder(tmp_path: Path, name: str) -> None:
    ((run, folder),) = import_runs(FILES / name, out_dir=tmp_path / "runs")
    kept = read_run_dir(folder)
    assert isinstance(kept, ImportedRun)
    same(run, kept)
    for field in ("tool", "tool_version", "name", "model", "one_clock", "definitions", "missing", "notes"):
        assert getattr(kept, field) == getattr(run, field)
    assert kept.details.failure == run.details.failure
    assert (kept.log.itl is None) == (run.log.itl is None)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"neither measurement\.json nor imported\.json"):
        read_run(tmp_path)
    (tmp_path / "imported.json").write_text('{"schema": "servewise.imported/9"}')
    with pytest.raises(InputError, match=r"servewise\.imported/9"):
        read_run(tmp_path)
    (tmp_path / "imported.json").write_text('{"schema": "servewise.imported/1", "tool": "telnet"}')
    with pytest.raises(InputError, match=r"imported\.json: tool"):
        read_run(tmp_path)


def test_a_file_of_several_runs_is_not_one_run(tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    path.write_text((FILES / "sglang-clean.jsonl").read_text() * 2)
    with pytest.raises(InputError, match="holds 2 runs; import it"):
        read_run(path)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("format_", FORMATS)
def test_export_and_import_agree_in_what_the_format_holds(tmp_path: Path, name: str, format_: str) -> None:
    run, path = read(name), tmp_path / "out"
    if format_ == "aiperf" and not run.one_clock:
        with pytest.raises(InputError, match="when requests were sent"):
            write_run(path, run, format_)
        return
    write_run(path, run, format_)
    (again,) = read_runs(path)
    assert again.tool == format_
    assert again.log.status.tolist() == run.log.status.tolist()
    np.testing.assert_allclose(
        again.log.sent_s, run.log.sent_s - (run.log.sent_s[0] if format_ == "vllm" else 0.0), atol=2e-9
    )
    for column in (ttft_sent_s, tpot_s):
        np.testing.assert_allclose(column(again.log), column(run.log), atol=2e-9)
    # vLLM's file holds no intended sends, and AIPerf's reader none of the chunks of requests that failed.
    if format_ == "aiperf" and (run.log.status == RequestStatus.OK).all():
        same(run, again)


def test_scripts_find_what_vllm_writes(tmp_path: Path) -> None:
    """Aggregates of an exported vLLM run are those that vLLM computed itself, as far as its file names them."""
    path = tmp_path / "out.json"
    export_run(FILES / "vllm-flaky.json", format="vllm", out=path)
    original, written = json.loads((FILES / "vllm-flaky.json").read_text()), json.loads(path.read_text())
    assert set(original) - set(written) == {
        "burstiness",
        "endpoint_type",
        "max_concurrency",
        "max_concurrent_requests",
        "max_output_tokens_per_s",
        "queue_times",
        "request_goodput",
        "request_rate",
        "rtfx",
    }
    for name, value in original.items():
        if name.endswith("_ms") or name in ("completed", "failed", "total_input_tokens", "total_output_tokens"):
            assert written[name] == pytest.approx(value), name
    # vLLM's duration runs from before the first send to after the last answer.
    assert written["duration"] <= original["duration"]


def test_a_measurement_is_written_without_its_warm_up_or_with_its_phase(tmp_path: Path) -> None:
    """Three requests: one of the warm-up, one whole answer, one that failed after a token."""
    folder = tmp_path / "run"
    folder.mkdir()
    write_measurement(folder, measurement())
    export_run(folder, format="vllm", out=tmp_path / "vllm.json")
    document = json.loads((tmp_path / "vllm.json").read_text())
    assert (document["num_prompts"], document["completed"], document["failed"]) == (2, 1, 1)
    assert (document["date"], document["model_id"]) == ("20261130-000000", "m")
    assert (document["input_lens"], document["output_lens"], document["errors"]) == ([11, None], [3, 0], ["", "=cmd()"])
    assert document["mean_tpot_ms"] == pytest.approx(150.0)
    assert document["itls"] == [pytest.approx([0.2, 0.1]), []]
    export_run(folder, format="aiperf", out=tmp_path / "aiperf.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "aiperf.jsonl").read_text().splitlines()]
    assert [line["metadata"]["benchmark_phase"] for line in lines] == ["warmup", "profiling", "profiling"]
    assert lines[2]["metadata"]["request_start_ns"] == START_NS + 2_001_000_000
    assert lines[2]["error"] == {"code": 200, "type": "failed", "message": "=cmd()"}
    (again,) = read_runs(tmp_path / "aiperf.jsonl")
    assert again.log.output_tokens.tolist() == [3, -1]
    assert again.log.cached_tokens.tolist() == [4, -1]


def test_answers_in_one_piece_are_refused(tmp_path: Path) -> None:
    whole = measurement()
    log = replace(whole.log, first_token_s=np.array([np.nan, np.nan, np.nan]))
    for format_ in FORMATS:
        with pytest.raises(InputError, match=r"2 answers of .* came in one piece"):
            write_run(tmp_path / "file", replace(whole, log=log), format_)


def test_what_a_comparison_must_say_of_its_runs(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    write_measurement(folder, measurement())
    notes = compare_runs([folder], [FILES / "sglang-clean.jsonl"]).notes
    for words in ("different tools (servewise, sglang)", "when requests were sent", "not trustworthy: slow client"):
        assert any(words in note for note in notes)


def test_nothing_is_overwritten_and_formats_are_known(tmp_path: Path) -> None:
    path = tmp_path / "taken.json"
    path.write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        export_run(FILES / "vllm-clean.json", format="vllm", out=path)
    assert path.read_text() == "mine"
    with pytest.raises(InputError, match="unknown format 'vlm'"):
        export_run(FILES / "vllm-clean.json", format="vlm", out=tmp_path / "new.json")


@st.composite
def runs(draw: st.DrawFn) -> ImportedRun:
    """Any run of streamed answers, with unknown counts and failures."""
    num = draw(st.integers(1, 6))
    gaps = [draw(st.lists(st.floats(0.0, 2.0), max_size=5)) for _ in range(num)]
    sent_s = np.sort([draw(st.floats(0.0, 50.0)) for _ in range(num)])
    sent_s -= sent_s[0]
    ttft = np.array([draw(st.floats(1e-3, 9.0)) for _ in range(num)])
    parts = [sent_s[i] + ttft[i] + np.concatenate(([0.0], np.cumsum(gaps[i]))) for i in range(num)]
    counts = st.integers(-1, 1 << 20)
    tokens = np.array([[draw(counts), draw(counts)] for _ in range(num)], dtype=np.int64)
    failed = np.array([draw(st.booleans()) for _ in range(num)])
    unknown = np.full(num, -1, dtype=np.int64)
    nan = np.full(num, np.nan)
    tokens[failed, 1] = -1
    log = RequestLog(
        intended_s=sent_s,
        sent_s=sent_s,
        first_token_s=np.array([part[0] for part in parts]),
        last_token_s=np.array([part[-1] for part in parts]),
        input_tokens=tokens[:, 0],
        output_tokens=tokens[:, 1],
        cached_tokens=unknown,
        num_preemptions=unknown,
        replica=unknown,
        status=np.where(failed, RequestStatus.FAILED, RequestStatus.OK).astype(np.int8),
    )
    details = RequestDetails(
        request=np.arange(num),
        intended_input_tokens=unknown,
        first_answer_s=nan,
        end_s=nan,
        http_status=unknown,
        retries=unknown,
        finish_reason=[""] * num,
        failure=["\x1b[31mfailed" if bad else "" for bad in failed],
    )
    offsets = np.concatenate(([0], np.cumsum([len(part) for part in parts])))
    return ImportedRun(
        tool="vllm",
        tool_version="unknown",
        name="any",
        model="any",
        log=log,
        details=details,
        chunks=Chunks(offsets=offsets, time_s=np.concatenate(parts)),
        one_clock=True,
        definitions={},
        missing=(),
        notes=(),
    )


@settings(max_examples=60, deadline=None)
@given(run=runs(), format_=st.sampled_from(FORMATS))
def test_any_run_survives_export_and_import(
    tmp_path_factory: pytest.TempPathFactory, run: ImportedRun, format_: str
) -> None:
    path = tmp_path_factory.mktemp("export") / "file"
    write_run(path, run, format_)
    (again,) = read_runs(path, format_)
    order = np.argsort(again.details.request)
    assert again.log.status[order].tolist() == run.log.status.tolist()
    for name in ("sent_s", "first_token_s", "last_token_s", "input_tokens", "output_tokens"):
        np.testing.assert_allclose(getattr(again.log, name)[order], getattr(run.log, name), atol=1e-8, err_msg=name)
