"""``servewise quality``: the verdict first, exit codes, JSON, and nothing of the texts unless asked."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.measure.server import Script, serve
from tests.quality import toy

from servewise.errors import InputError
from servewise.quality.recording import RecordingClient
from servewise.types import Endpoint

Run = Callable[..., Any]
EXACT = toy.table(1)


@pytest.fixture
def base() -> Iterator[Script]:
    with serve(toy.vllm(toy.Toy(EXACT))) as script:
        yield script


@pytest.fixture
def candidate() -> Iterator[Script]:
    with serve(toy.vllm(toy.Toy(toy.blurred(EXACT, 0.7, 2)))) as script:
        yield script


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(f"a secret \x1b[31m[bold]{chr(65 + i)}" for i in range(12)))
    return path


def common(prompts: Path) -> tuple[str, ...]:
    return "--prompts", str(prompts), "--out", str(prompts.parent / "runs"), "--top-logprobs", "9", "--max-tokens", "16"


def test_the_verdict_comes_first_and_the_run_is_kept(base: Script, candidate: Script, prompts: Path, run: Run) -> None:
    ended = run("quality", base.url, candidate.url, *common(prompts))
    assert ended.code == 0
    lines = ended.out.splitlines()
    assert lines[0].startswith("The candidate differs from its base: another next token at ")
    assert max(map(len, lines)) <= 100
    for words in ("same next token", "KL, nats per token", "noise", "Where they differ most", "12 of 12 compared"):
        assert words in ended.out
    (folder,) = (prompts.parent / "runs").iterdir()
    assert f"quality.json is in {folder}" in ended.err
    text = (folder / "quality.json").read_text()
    assert json.loads(text)["schema"] == "servewise.quality/1"
    assert "secret" not in text + ended.out + ended.err


def test_json_is_one_document(base: Script, candidate: Script, prompts: Path, run: Run) -> None:
    ended = run("quality", base.url, candidate.url, *common(prompts), "--json")
    document = json.loads(ended.out)
    assert document["settings"]["prompts_file"] == "prompts.txt"
    assert [prompt["line"] for prompt in document["prompts"]] == list(range(1, 13))
    assert {figure["name"] for figure in document["figures"]} >= {"agreement", "kl_nats", "exact_match"}
    (folder,) = (prompts.parent / "runs").iterdir()
    assert json.loads((folder / "quality.json").read_text()) == document


def test_texts_are_shown_when_asked_for_and_not_obeyed(
    base: Script, candidate: Script, prompts: Path, run: Run
) -> None:
    ended = run("quality", base.url, candidate.url, *common(prompts), "--show-text")
    assert r"a secret \x1b[31m[bold]" in ended.out
    assert "\x1b" not in ended.out


def test_a_base_against_itself_loses_nothing(base: Script, prompts: Path, run: Run) -> None:
    ended = run("quality", base.url, base.url, *common(prompts), "--min-agreement", "0.5")
    assert ended.out.startswith("No loss seen beyond the noise: another next token at 0.0% of the base's positions")
    assert "50.00% of the positions at least: kept" in ended.out
    assert ended.code == 0


@pytest.mark.parametrize(("least", "code"), [("0.99999", 3), ("0", 0), ("0.985", 4)])
def test_a_limit_decides_the_exit_code(
    base: Script, candidate: Script, prompts: Path, run: Run, least: str, code: int
) -> None:
    assert run("quality", base.url, candidate.url, *common(prompts), "--min-agreement", least).code == code


def test_failed_prompts_make_it_untrustworthy(base: Script, prompts: Path, run: Run) -> None:
    with serve(toy.vllm(toy.Toy(EXACT, fails_on="BCD"))) as failing:
        ended = run("quality", base.url, failing.url, *common(prompts))
    assert ended.code == 4
    assert ended.out.startswith("NOT TRUSTWORTHY")
    assert "3 of 12 prompts failed" in ended.out


def test_keys_go_to_their_own_server(
    base: Script, candidate: Script, prompts: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BASE_KEY", "base-secret")
    monkeypatch.setenv("CANDIDATE_KEY", "candidate-secret")
    keys = ("--base-key-env", "BASE_KEY", "--candidate-key-env", "CANDIDATE_KEY")
    ended = run("quality", base.url, candidate.url, *common(prompts), *keys, "--json")
    assert {headers["authorization"] for _, _, headers, _ in base.asked} == {"Bearer base-secret"}
    assert {headers["authorization"] for _, _, headers, _ in candidate.asked} == {"Bearer candidate-secret"}
    assert "secret" not in ended.out + ended.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--tasks-limit", "3"), "--tasks-limit is about standard tasks"),
        (("--tasks", "a;b"), "is no name of a task"),
        (("--top-logprobs", "0"), "0 is not in the range"),
    ],
)
def test_bad_input(base: Script, prompts: Path, run: Run, options: tuple[str, ...], said: str) -> None:
    ended = run("quality", base.url, base.url, *common(prompts), *options)
    assert ended.code == 2
    assert said in ended.err
    assert not base.asked


def test_another_machine_is_asked_about_first(base: Script, prompts: Path, run: Run) -> None:
    ended = run("quality", base.url, "http://gpu.example:8000", *common(prompts))
    assert ended.code == 2
    assert "add --yes" in ended.err
    assert not base.asked


def test_a_wrong_line_of_prompts_is_named_before_anything_is_sent(base: Script, tmp_path: Path, run: Run) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a"}\n{"question": "b"}\n')
    ended = run("quality", base.url, base.url, "--prompts", str(path))
    assert ended.code == 2
    assert f"{path}, line 2" in ended.err
    assert not base.asked


def test_a_harness_that_fails_does_not_lose_the_comparison(
    base: Script, candidate: Script, prompts: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy.hide_harness(monkeypatch)
    program = prompts.parent / "lm_eval"
    program.write_text("#!/bin/sh\necho no such task\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(prompts.parent), prepend=":")
    ended = run("quality", base.url, candidate.url, *common(prompts), "--tasks", "nonsense", "--json")
    assert ended.code == 4
    document = json.loads(ended.out)
    assert len(document["prompts"]) == 12
    assert "lm_eval ended with code 3" in document["notes"][-1]
    assert "no such task" in document["notes"][-1]


def test_a_harness_that_cannot_be_started_does_not_lose_the_comparison(
    base: Script, candidate: Script, prompts: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy.hide_harness(monkeypatch)
    program = prompts.parent / "lm_eval"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(prompts.parent), prepend=":")
    ended = run("quality", base.url, candidate.url, *common(prompts), "--tasks", "t", "--json")
    assert ended.code == 4
    document = json.loads(ended.out)
    assert len(document["prompts"]) == 12
    assert "there are no scores of standard tasks" in document["notes"][-1]


def test_a_recording_that_was_not_written_is_said(
    base: Script, candidate: Script, prompts: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_client: RecordingClient, path: Path, _endpoint: Endpoint) -> None:
        raise InputError(f"cannot write {path}: No space left on device; choose another place")

    monkeypatch.setattr(RecordingClient, "write", full)
    ended = run("quality", base.url, candidate.url, *common(prompts), "--record", str(prompts.parent / "base.gz"))
    assert ended.code == 4
    assert ended.out.startswith("The candidate differs")
    assert "the recording was not written: cannot write" in ended.err


def test_ctrl_c_does_not_wait_for_requests_under_way(base: Script, prompts: Path) -> None:
    under_way, release = threading.Event(), threading.Event()
    pages = toy.vllm(toy.Toy(EXACT))
    whole = pages["/v1/completions"]

    def completions(asked: dict[str, Any]) -> Any:
        if asked["prompt"][-1] == ord("C"):
            under_way.set()
            release.wait(60)
        return whole(asked)

    pages["/v1/completions"] = completions
    with serve(pages) as slow:
        code = "import sys; from servewise.cli import main; main(sys.argv[1:])"
        command = [sys.executable, "-c", code, "quality", base.url, slow.url, *common(prompts)]
        with subprocess.Popen([*command, "--concurrency", "1"], stdout=subprocess.PIPE, text=True) as process:
            try:
                assert under_way.wait(60)
                process.send_signal(signal.SIGINT)
                said, _ = process.communicate(timeout=30)
            finally:
                release.set()
    assert process.returncode == 130
    assert "2 of 12 compared" in said
    (folder,) = (prompts.parent / "runs").iterdir()
    assert len(json.loads((folder / "quality.json").read_text())["prompts"]) == 2


def test_a_server_with_several_models_says_which_option_chooses(base: Script, prompts: Path, run: Run) -> None:
    pages = toy.vllm(toy.Toy(EXACT))
    pages["/v1/models"] = {"data": [{"id": "one", "owned_by": "vllm"}, {"id": "two", "owned_by": "vllm"}]}
    with serve(pages) as several:
        ended = run("quality", base.url, several.url, *common(prompts))
        assert ended.code == 2
        assert "--candidate-model" in ended.err
        assert run("quality", base.url, several.url, *common(prompts), "--candidate-model", "two").code == 0
