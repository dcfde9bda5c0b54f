"""``servewise init``: from options, from a person's answers, and never over a file."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from servewise.api import uses
from servewise.cli import init
from servewise.cli.init import GPUS, LOSS_PCT, MAX_GPUS
from servewise.config import load_service
from servewise.types import Budget

Run = Callable[..., Any]


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A terminal at which somebody types these lines."""

    def types_in(*lines: str) -> None:
        monkeypatch.setattr("servewise.cli.init.is_terminal", lambda: True)
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))

    return types_in


def test_every_answer_can_be_an_option(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    options = ["--use", "rag", "--model", "llama-3.1-8b", "--model", "Qwen2.5-7B", "--rate-rps", "2", "--ttft-s", "3"]
    options += ["--tpot-s", "0.05", "--attainment", "0.9", "--loss-pct", "2", "--effort", "low", "--gpu", "L40S"]
    ended = run("init", path, *options, "--max-gpus", "4", "--usd-per-h", "20")
    assert ended.code == 0, ended.err
    assert ended.out == f"{path}\n"
    service = load_service(path)
    assert service.name == "mine"
    assert service.models == ("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen2.5-7B-Instruct")
    assert (service.promise.ttft_s, service.promise.tpot_s, service.promise.attainment) == (3, 0.05, 0.9)
    assert service.traffic.synthesis is not None
    assert service.traffic.synthesis.arrivals.rate_rps == 2
    assert (service.min_recovery_pct, service.max_effort) == (98, "low")
    assert service.hardware == ("L40S-48GB",)
    assert service.budget == Budget(max_gpus=4, usd_per_h=20)


@pytest.mark.parametrize("use", uses())
def test_yes_takes_what_is_proposed(run: Run, tmp_path: Path, use: str) -> None:
    path = tmp_path / f"{use}.yaml"
    assert run("init", path, "--use", use, "--yes").code == 0
    service = load_service(path)
    assert service.hardware == GPUS
    assert service.min_recovery_pct == 100 - LOSS_PCT
    assert service.budget.max_gpus == MAX_GPUS


def test_a_person_is_asked_each_question_and_enter_takes_what_is_proposed(
    run: Run, person: Callable[..., None], tmp_path: Path
) -> None:
    path = tmp_path / "asked.yaml"
    # use, model, rate, TTFT, TPOT, attainment, loss, effort, GPUs, how many
    person("chat", "", "2.5", "0.8", "", "", "3", "high", "L40S-48GB, H100-SXM-80GB", "")
    ended = run("init", path)
    assert ended.code == 0, ended.err
    service = load_service(path)
    assert service.models == (uses()["chat"].model,)
    assert service.traffic.rate_rps == 2.5
    assert (service.promise.ttft_s, service.promise.tpot_s) == (0.8, uses()["chat"].promise["tpot_s"].value)
    assert (service.min_recovery_pct, service.max_effort) == (97, "high")
    assert service.hardware == ("L40S-48GB", "H100-SXM-80GB")
    assert service.budget.max_gpus == MAX_GPUS
    assert ended.out == f"{path}\n"
    for question in ("What is served?", "1. What do you promise?", "2. How much quality", "3. What can your team run?"):
        assert question in ended.err
    assert uses()["chat"].promise["ttft_s"].why in ended.err


def test_a_wrong_answer_is_explained_and_asked_again(run: Run, person: Callable[..., None], tmp_path: Path) -> None:
    path = tmp_path / "asked.yaml"
    person("chatt", "chat", "Llama-3.1-8", "llama-3.1-8b", "-1", "1", *[""] * 7)
    ended = run("init", path)
    assert ended.code == 0, ended.err
    assert "unknown use 'chatt'; did you mean chat" in ended.err
    assert "meta-llama/Llama-3.1-8B-Instruct" in ended.err
    assert "-1 is not a number above 0" in ended.err


def test_without_a_terminal_what_is_missing_is_named(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "service.yaml"
    ended = run("init", path, "--use", "chat", "--model", "llama-3.1-8b")
    assert ended.code == 2
    assert "stdin is no terminal, so nothing can be asked; give --rate-rps, or --yes" in ended.error
    assert not path.exists()


def test_nothing_is_overwritten(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "service.yaml"
    path.write_text("mine")
    ended = run("init", path, "--yes")
    assert ended.code == 2
    assert "exists already and is not overwritten" in ended.error
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--use", "chatt"], "unknown use 'chatt'; did you mean chat"),
        (["--model", "llama-3.1-8"], "unknown model 'llama-3.1-8'; did you mean"),
        (["--gpu", "H100"], "ambiguous"),
        (["--use", "offline", "--rate-rps", "1"], "all there at once"),
        (["--use", "chat", "--requests", "5"], "the size of an offline job"),
        (["--name", "a\nb"], "do not print"),
    ],
)
def test_bad_options_are_explained(run: Run, tmp_path: Path, options: list[str], expected: str) -> None:
    ended = run("init", tmp_path / "service.yaml", "--yes", *options)
    assert ended.code == 2
    assert expected in ended.error
    assert list(tmp_path.iterdir()) == []


def test_a_trace_of_the_users_own_is_found_from_the_file(run: Run, tmp_path: Path) -> None:
    trace = tmp_path / "a: b #1.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n")
    (tmp_path / "services").mkdir()
    path = tmp_path / "services" / "own.yaml"
    assert run("init", path, "--use", "chat", "--yes", "--trace", trace).code == 0
    service = load_service(path)
    assert service.traffic.trace is not None
    assert service.traffic.trace.samefile(trace)


def test_the_written_file_plans(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "code.yaml"
    options = ["--use", "code", "--model", "Qwen2.5-1.5B", "--gpu", "L40S", "--rate-rps", "0.05", "--effort", "low"]
    assert run("init", path, *options, "--max-gpus", "1", "--loss-pct", "0", "--yes").code == 0
    ended = run("plan", path, "--json", out=tmp_path / "runs")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["promise"]["e2e_s"] == uses()["code"].promise["e2e_s"].value


def test_the_help_names_every_use() -> None:
    (option,) = (p for p in init.init.params if p.name == "use")
    text = getattr(option, "help", "")
    assert all(name in text for name in uses())
