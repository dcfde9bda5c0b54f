"""Bad input: one sentence with file, line and what is allowed, exit code 2, and nothing written."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from servewise import api, search
from servewise.errors import InputError

Command = Callable[..., Any]

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
FIRST = "2023-11-16 18:15:46.6805900,374,44\n"
SECOND = "2023-11-16 18:15:50.9951690,396,109\n"
GOOD_JSON = '{"timestamp": 0, "input_length": 10, "output_length": 5, "hash_ids": [1]}\n'


def refused(ended: Any, pattern: str) -> None:
    """The command wrote nothing, printed nothing, and said one sentence that matches."""
    assert ended.code == 2
    assert ended.out == ""
    assert ended.folders == ()
    assert re.search(pattern, ended.error), ended.error


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", "", r"t\.csv: the trace is empty; it needs at least one request"),
        ("t.csv", HEAD, r"t\.csv: the trace has no requests; it needs at least one"),
        ("t.csv", HEAD + SECOND + FIRST, r"t\.csv, line 3: 'TIMESTAMP' is .* before the row above: .* sort the file"),
        ("t.csv", HEAD + FIRST + SECOND.replace("396", "0"), r"line 3: 'ContextTokens' is '0'; .* from 1 to"),
        ("t.csv", HEAD + FIRST + SECOND.replace("109", "0"), r"line 3: 'GeneratedTokens' is '0'; .* from 1 to"),
        ("t.csv", HEAD + FIRST + SECOND.replace("396", "-3"), r"line 3: 'ContextTokens' is '-3'; .* from 1 to"),
        ("t.csv", HEAD + FIRST + SECOND.replace("396", "nan"), r"line 3: 'ContextTokens' is 'nan'; .* whole number"),
        ("t.csv", HEAD + FIRST + SECOND.replace("396", ""), r"line 3: 'ContextTokens' is missing; .* whole number"),
        ("t.csv", HEAD + FIRST + SECOND[:-6], r"line 3: 2 fields where the header has 3: the last line is cut off"),
        ("t.csv", HEAD + FIRST + "soon,1,2\n", r"line 3: 'TIMESTAMP' is 'soon'"),
        ("t.csv", "a,b\n1,2\n", r"t\.csv.*(columns|format)"),
        ("t.csv", "\x00\x01\x02", r"t\.csv: neither text nor Parquet; give CSV, JSONL or Parquet"),
        ("t.jsonl", GOOD_JSON.replace(": 0,", ": -5,"), r"line 1: 'timestamp' is -5; it must be a time of 0 or later"),
        ("t.jsonl", GOOD_JSON.replace(": 0,", ": NaN,"), r"line 1: 'timestamp' is NaN; it must be a number"),
        ("t.jsonl", GOOD_JSON + GOOD_JSON[:40], r"line 2: not valid JSON .*: the last line is cut off; remove it"),
        ("t.jsonl", GOOD_JSON.replace("10", "0"), r"line 1: 'input_length' is 0; .* from 1 to"),
    ],
)  # fmt: skip
def test_traces(plan: Command, tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    refused(plan(traffic={"trace": name}), message)


def test_a_missing_trace(plan: Command) -> None:
    refused(plan(traffic={"trace": "no.csv"}), r"service\.yaml, line 3: traffic\.trace: no file 'no\.csv' in ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hardwares": ["L40S-48GB"]}, r"line 9: hardwares: unknown key; did you mean hardware\?"),
        ({"promise": {"tfft_s": 1.0}}, r"line 4: promise\.tfft_s: unknown key; did you mean ttft_s\?"),
        ({"promise": {"ttft_s": "1s"}}, r"line 4: promise\.ttft_s: '1s' carries a unit; write a number of seconds"),
        ({"promise": {"ttft_s": -1}}, r"line 4: promise\.ttft_s: -1 is out of range; it must be > 0"),
        ({"promise": {"ttft_s": 1, "attainment": 0}}, r"line 4: promise\.attainment: 0 promises nothing; .*0\.99"),
        ({"promise": {"ttft_s": 1, "attainment": 1}}, r"promise\.attainment: 1 promises every request, .* below 1"),
        ({"promise": {"ttft_s": 1, "attainment": 1.0}}, r"promise\.attainment: 1 promises every request, .* below 1"),
        ({"promise": {"ttft_s": 1, "attainment": 99}}, r"attainment: 99 is not a share .*; for 99 percent write 0\.99"),
        ({"promise": {"ttft_s": 1, "attainment": -0.1}}, r"attainment: -0\.1 is not a share between 0 and 1"),
        ({"promise": {}}, r"promise: promises nothing; give ttft_s"),
        ({"promise": None}, r"promise: this key is required and missing"),
        ({"hardware": ["H100"]}, r"line 6: hardware\.0: GPU 'H100' is ambiguous: .*H100-SXM-80GB, H100-PCIe-80GB"),
        ({"hardware": "L40S-48G"}, r"line 6: hardware: unknown GPU 'L40S-48G'; did you mean L40S-48GB"),
        ({"hardware": ["L40S-48GB", "l40s"]}, r"line 6: hardware\.1: 'l40s' is 'L40S-48GB' again; list it once"),
        ({"hardware": []}, r"hardware: the list is empty; name at least one"),
        ({"model": "meta-llama/Llama-3.1-9B-Instruct"}, r"line 2: model: unknown model .* did you mean meta-llama"),
        ({"model": "mine.json"}, r"line 2: model: no file 'mine\.json' in "),
        ({"traffic": {"profile": "azure-conv"}}, r"line 3: traffic\.profile: unknown profile 'azure-conv'; did you m"),
        ({"engines": ["vlm"]}, r"line 8: engines: unknown engine 'vlm'; did you mean vllm\?"),
        ({"budget": {"max_gpus": 0}}, r"line 7: budget\.max_gpus: 0 is out of range; it must be >= 1"),
        ({"quality": {"min_recovery_pct": 0.99}}, r"0\.99 is read as a percentage; for 0\.99 of the score write 99"),
        ({"prices": "no.yaml"}, r"line 9: prices: no file 'no\.yaml' in "),
    ],
)  # fmt: skip
def test_service_files(plan: Command, changes: dict[str, Any], message: str) -> None:
    refused(plan(**changes), message)


def test_a_promise_that_is_not_a_number(run: Command, write_service: Command) -> None:
    path = write_service()
    path.write_text(path.read_text().replace('"ttft_s": 1.0', '"ttft_s": .nan'))
    refused(run("plan", path), r"line 4: promise\.ttft_s: nan is not a finite number")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{gpu: L40S-48GB, usd_per_gpu_h: 0}", r"row 1: usd_per_gpu_h is 0, must be above 0"),
        ("{gpu: L40S-48GB}", r"row 1: usd_per_gpu_h is missing; a price is never assumed"),
        ("{gpu: L40S-48GB, usd_per_gpu_h: -1}", r"row 1: usd_per_gpu_h is -1, must be above 0"),
        ("{gpu: L40S-48GB, usd_per_gpu_h: .nan}", r"row 1: usd_per_gpu_h is nan, must be above 0"),
        ("{gpu: L40S-48GB, usd_per_gpu_h: '1'}", r"row 1: usd_per_gpu_h is '1', must be a number of dollars"),
        ("{gpu: L40S-48GB, usd_per_gpu_hr: 1}", r"row 1: unknown field 'usd_per_gpu_hr'; allowed: gpu, num_gpus"),
        ("{gpu: L40, usd_per_gpu_h: 1}", r"unknown GPU 'L40'; did you mean L40S-48GB\?"),
        ("3", r"row 1: got 3, must be a mapping"),
    ],
)
def test_price_files(plan: Command, tmp_path: Path, row: str, message: str) -> None:
    (tmp_path / "prices.yaml").write_text(f"prices:\n  - {row}\n")
    refused(plan(prices="prices.yaml"), r"prices\.yaml: .*" + message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", r"mine\.json: architectures: the field is missing and is never guessed"),
        ('{"architectures": ["FooForCausalLM"]}', r"mine\.json: .*FooForCausalLM.* is never guessed; supported: Llama"),
        ('{"architectures": ["LlamaForCausalLM"], "hidden_size": 64}', r"mine\.json: \w+: the field is missing"),
        ('{"architectures": ["Ll', r"mine\.json: not valid JSON"),
        ("[]", r"mine\.json: "),
    ],
)
def test_model_files(plan: Command, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "mine.json").write_text(text)
    refused(plan(model="mine.json"), message)


@pytest.fixture
def no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search may not begin."""

    def begin(*_args: object, **_options: object) -> None:
        raise AssertionError("searched before it was known that the results have a place")

    monkeypatch.setattr(search, "plan", begin)


@pytest.mark.usefixtures("no_search")
def test_a_model_in_no_precision_that_runs_is_a_sentence(run: Command, write_service: Command) -> None:
    path = write_service(model="openai/gpt-oss-20b", hardware=["A100-SXM-80GB"], engines=["tensorrt-llm"])
    refused(
        run("plan", path), "no precision that A100-SXM-80GB can run passes the quality floor: mxfp4 weights on A100"
    )


@pytest.mark.usefixtures("no_search")
def test_results_need_a_folder(run: Command, write_service: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    refused(run("plan", write_service(), "--out", tmp_path / "file"), r"'--out': Directory '.*file' is a file")
    refused(run("plan", write_service(), "--out", tmp_path / "file" / "runs"), r"file is not a folder; choose another")
    with pytest.raises(InputError, match="is not a folder"):
        api.plan(api.load_service(write_service()), out_dir=tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.usefixtures("no_search")
def test_results_need_a_folder_that_may_be_written_to(
    run: Command, write_service: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) != tmp_path)  # the superuser may write everywhere
    refused(run("plan", write_service(), "--out", tmp_path / "new" / "runs"), r"may not be written to; choose another")
    assert {path.name for path in tmp_path.iterdir()} == {"service.yaml"}


def test_a_write_that_fails_is_a_sentence(plan: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    ended = plan()
    assert (ended.code, ended.out) == (2, "")
    assert re.search(r"cannot write .*plan\.json: No space left on device; choose another place", ended.error)
    assert [path.name for folder in (tmp_path / "runs").iterdir() for path in folder.iterdir()] == []


@pytest.mark.parametrize("name", ["../../etc/passwd", "/absolute", "a\\b:c\x1b[31m", "..", "\u202ename"])
def test_a_name_never_leads_out_of_the_folder(plan: Command, tmp_path: Path, name: str) -> None:
    ended = plan(name=name)
    assert ended.code == 0
    (folder,) = ended.folders
    assert folder.parent == tmp_path / "runs"
    assert re.fullmatch(r"\d{8}T\d{6}Z-[A-Za-z0-9_-][A-Za-z0-9._-]*", folder.name)
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "service.yaml"}
    assert not {"\x1b", "\u202e"} & set(ended.out)
    assert ended.document["name"] == name


def test_a_service_file_that_is_no_file(run: Command, tmp_path: Path) -> None:
    refused(run("plan", tmp_path / "none.yaml"), r"none\.yaml: no such file")
    refused(run("plan", tmp_path), r"cannot be read: Is a directory")
