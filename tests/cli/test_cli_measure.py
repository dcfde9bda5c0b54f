"""``servewise measure``: the verdict first, exit codes, JSON, and bad input ruled out before anything is sent."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.measure import servers
from tests.measure.server import Page, Script, serve

from servewise.measure import trust
from servewise.store import read_measurement

Run = Callable[..., Any]
SHORT = ("--input-tokens", "30:40", "--output-tokens", "4", "--requests", "6")


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAX_LAG_KERNEL_S", "MAX_LAG_USER_S", "MAX_STALL_S", "MAX_SEND_LAG_S"):
        monkeypatch.setattr(trust, name, math.inf)
    for name in ("MIN_RATE_FRAC", "MIN_HELD_FRAC"):
        monkeypatch.setattr(trust, name, 0.0)


@pytest.fixture
def server(unhurried: None) -> Iterator[Script]:  # noqa: ARG001 (its effect)
    with serve(servers.measurable()) as script:
        yield script


def test_the_verdict_comes_first_and_the_run_is_kept(server: Script, run: Run, tmp_path: Path) -> None:
    promise = "ttft_s=60,tpot_s=60,attainment=0.9"
    ended = run(
        "measure", server.url, "--concurrency", "2", *SHORT, "--promise", promise, "--out", str(tmp_path), "--seed", "5"
    )
    assert ended.code == 0
    lines = ended.out.splitlines()
    assert lines[0] == "The numbers can be trusted."
    assert max(map(len, lines)) <= 100
    assert "(vllm 0.32.0, openai-chat)" in ended.out
    for name in ("TTFT", "TPOT", "ITL", "E2E", "throughput", "kept by", "goodput", "The server's own metrics"):
        assert name in ended.out
    (folder,) = tmp_path.iterdir()
    assert f"the measurement is in {folder}" in ended.err
    assert read_measurement(folder).load_words.endswith("seed 5")


def test_json_is_the_document_that_is_kept_and_nothing_else(server: Script, run: Run, tmp_path: Path) -> None:
    ended = run("measure", server.url, "--rate", "50", *SHORT, "--out", str(tmp_path), "--json")
    assert ended.code == 0
    (folder,) = tmp_path.iterdir()
    assert json.loads(ended.out) == json.loads((folder / "measurement.json").read_text())


def test_numbers_that_cannot_be_trusted_are_said_to_be_so(unhurried: None, run: Run, tmp_path: Path) -> None:  # noqa: ARG001
    pages = servers.measurable()
    chat = pages["/v1/chat/completions"]

    def failing(asked: dict[str, Any]) -> Any:
        return (500, {}, b"\x1b[31mbroken") if asked.get("stream") else chat(asked)  # type: ignore[operator]

    with serve(pages | {"/v1/chat/completions": failing}) as script:
        ended = run("measure", script.url, "--concurrency", "1", *SHORT, "--out", str(tmp_path))
    assert ended.code == 4
    assert ended.out.startswith("NOT TRUSTWORTHY: these are not the server's numbers\n  - 6 of 6 requests failed")
    assert "\x1b" not in ended.out + ended.err
    assert "error: the numbers cannot be trusted" in ended.err


def test_names_that_the_server_gives_are_shown_not_obeyed(unhurried: None, run: Run, tmp_path: Path) -> None:  # noqa: ARG001
    pages: dict[str, Page] = servers.measurable() | {"/v1/models": servers.models("vllm", "\x1b]0;evil\x07[red]m")}
    with serve(pages) as script:
        ended = run("measure", script.url, "--concurrency", "1", *SHORT, "--out", str(tmp_path))
    assert ended.code == 0
    assert "\x1b" not in ended.out
    assert "\\x1b]0;evil\\x07[red]m" in ended.out


def test_a_sweep_shows_every_load(server: Script, run: Run, tmp_path: Path) -> None:
    ended = run("measure", server.url, "--sweep", "concurrency=1,3", *SHORT, "--out", str(tmp_path))
    assert ended.code == 0
    rows = [line.split() for line in ended.out.splitlines() if line.rstrip().endswith(" yes")]
    assert [row[0] for row in rows] == ["1", "3"]
    found = run("measure", server.url, "--sweep", "rate=40", *SHORT, "--out", str(tmp_path), "--json")
    document = json.loads(found.out)
    assert (document["schema"], document["kind"], document["edge"]) == ("servewise.sweep-result/1", "rate", None)
    assert document["points"][0]["num_requests"] == 6


def test_the_highest_load_is_told_with_its_runs(server: Script, run: Run, tmp_path: Path) -> None:
    limits = ("--promise", "e2e_s=0.000001")
    ended = run(
        "measure",
        server.url,
        "--find-max",
        "concurrency",
        "--concurrency",
        "2",
        *SHORT,
        *limits,
        "--out",
        str(tmp_path),
    )
    assert ended.code == 0
    text = " ".join(ended.out.split())
    assert text.startswith("No load keeps the promise: 1 breaks the promise, and is the lowest load to try")


def test_a_service_file_is_replayed_with_its_promise(server: Script, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "service.yaml"
    path.write_text(
        "model: openai/gpt-oss-20b\npromise: {ttft_s: 60}\nhardware: [H100-SXM-80GB]\nengines: [vllm]\n"
        "traffic: {synthesis: {num_requests: 5, arrivals: {rate_rps: 100}, input_tokens: {fixed: 30},"
        " output_tokens: {fixed: 3}}}\n"
    )
    ended = run("measure", server.url, "--replay", str(path), "--out", str(tmp_path / "runs"))
    assert ended.code == 0
    assert "TTFT <= 60.00 s for 99% of requests" in ended.out
    assert "replay of synthetic" in ended.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "what load?"),
        (("--rate", "1", "--concurrency", "1"), "either a concurrency"),
        (("--rate", "1", "--promise", "ttf_s=1"), "did you mean ttft_s"),
        (("--find-max", "rate"), "--find-max needs a promise"),
        (("--sweep", "rate=1", "--find-max", "rate"), "give one of them"),
        (("--sweep", "rate=a"), "is not KIND=A,B"),
        (("--sweep", "concurrency=1.5"), "is not KIND=A,B"),
        (("--rate", "1", "--input-tokens", "9:3"), "--input-tokens '9:3'"),
        (("--rate", "1", "--key-env", "NO_SUCH_KEY"), "'NO_SUCH_KEY' is not set"),
        (("--rate", "1", "--resume", "."), "--resume goes on with"),
        (("--rate", "1", "--ramp-to", "5", "--requests", "3"), "a ramp goes"),
        (("--rate", "0"), "0 is not in the range"),
        (("--replay", "no-such-profile"), "no-such-profile"),
        (("--rate", "1", "--no-stream", "--promise", "tpot_s=1"), "promise e2e_s"),
    ],
)
def test_bad_input_is_refused_before_anything_is_sent(
    server: Script, run: Run, options: tuple[str, ...], message: str
) -> None:
    ended = run("measure", server.url, *options)
    assert ended.code == 2
    assert message in ended.err
    assert not any(asked.get("stream") for _, _, _, asked in server.asked)


def test_another_machine_gets_no_load_unasked(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-secret")
    ended = run("measure", "http://192.0.2.1:8000", "--rate", "1", "--key-env", "SOME_KEY")
    assert ended.code == 2
    assert "is another machine; the key would travel unencrypted; add --yes" in ended.err
    assert "sk-secret" not in ended.err


def test_a_server_that_is_not_there_is_a_failed_measurement(run: Run) -> None:
    with serve({}) as script:
        url = script.url
    ended = run("measure", url, "--rate", "1")
    assert ended.code == 4
    assert "is the server running?" in ended.err
