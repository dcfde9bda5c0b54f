"""Standard tasks: the harness is called as it wants to be, and its scores are set side by side."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.quality.toy import hide_harness

from servewise.errors import InputError, MeasurementError
from servewise.quality.tasks import HarnessResult, TaskRun, find_harness, read_scores, run_tasks
from servewise.types import Endpoint

BASE = Endpoint(
    base_url="http://localhost:1", api="openai-chat", model="big,base_url=http://evil.example", engine="vllm"
)
CANDIDATE = Endpoint(base_url="http://localhost:2", api="openai-completions", model="small", engine="vllm")

HARNESS = """#!{python}
import json, os, pathlib, sys
asked = dict(argument.lstrip("-").split("=", 1) for argument in sys.argv[1:] if "=" in argument)
model = json.loads(asked["model_args"])
with open({log!r}, "a") as log:
    log.write(json.dumps([sys.argv[1:], os.environ.get("OPENAI_API_KEY")]) + "\\n")
if {code}:
    sys.exit("wrong: the key is " + os.environ["OPENAI_API_KEY"])
score = 0.8 if model["base_url"].startswith("http://localhost:1/") else 0.6
folder = pathlib.Path(asked["output_path"]) / "model"
folder.mkdir()
results = {{"t": {{"alias": "t", "sample_len": 8, "acc,none": score, "acc_stderr,none": 0.02, "ppl,none": 9.0}}}}
document = {{"results": results, "higher_is_better": {{"t": {{"acc": True, "ppl": False}}}}}}
document["n-samples"] = {{"t": {{"original": 500, "effective": 400}}}}
(folder / "results_2026-11-30.json").write_text(json.dumps(document))
with (folder / "samples_t_2026-11-30.jsonl").open("w") as samples:
    for i in range(10):
        row = {{"doc_id": i, "filter": "none", "metrics": ["acc"], "acc": float(i < 10 * score)}}
        samples.write(json.dumps(row) + "\\n")
"""


def told(_stage: str, _done: int, _total: int) -> None:
    pass


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, *, code: int = 0) -> Path:
    """A stand-in for the harness on the path; what it was asked goes to the file."""
    hide_harness(monkeypatch)
    log = folder / "log"
    program = folder / "lm_eval"
    program.write_text(HARNESS.format(python=sys.executable, log=str(log), code=code))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return log


def calls(log: Path) -> list[tuple[list[str], str]]:
    return [tuple(json.loads(line)) for line in log.read_text().splitlines()]


def test_both_servers_are_asked_and_stand_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = install(tmp_path, monkeypatch)
    asked = TaskRun(names=("t",), folder=tmp_path, limit=400, concurrency=2)
    accuracy, perplexity = run_tasks((BASE, CANDIDATE), (None, "secret"), asked, progress=told)
    assert (accuracy.metric, accuracy.num_samples, accuracy.higher_is_better) == ("acc", 400, True)
    assert (accuracy.base.score, accuracy.candidate.score) == (0.8, 0.6)
    assert accuracy.recovery_pct.value == pytest.approx(75.0)
    # six questions are right for both, two for the base alone, two for neither
    error = math.sqrt(10.0 / 9.0 * (6 * 0.25**2 + 2 * 0.75**2)) / 8.0
    assert accuracy.recovery_pct.high - 75.0 == pytest.approx(100.0 * 2.2622 * error, rel=1e-3)
    assert accuracy.recovery_pct.num_samples == 10
    assert not perplexity.higher_is_better
    assert math.isnan(perplexity.recovery_pct.value)
    first, second = calls(log)
    for name in ("--tasks=t", "--limit=400", f"--include_path={tmp_path}"):
        assert name in first[0]
    assert "--model=local-chat-completions" in first[0]
    assert "--apply_chat_template" in first[0]
    assert "--model=local-completions" in second[0]
    assert "--apply_chat_template" not in second[0]


def test_a_name_from_a_server_cannot_lead_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = install(tmp_path, monkeypatch)
    run_tasks((BASE, CANDIDATE), (None, None), TaskRun(names=("t",)), progress=told)
    (arguments, _), _ = calls(log)
    model: dict[str, Any] = json.loads(next(one for one in arguments if one.startswith("--model_args="))[13:])
    assert model["base_url"] == "http://localhost:1/v1/chat/completions"
    assert model["model"] == BASE.model


def test_each_key_goes_to_its_server_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = install(tmp_path, monkeypatch)
    monkeypatch.setenv("OPENAI_API_KEY", "somebody-elses")
    run_tasks((BASE, CANDIDATE), (None, "secret"), TaskRun(names=("t",)), progress=told)
    (arguments, first_key), (more_arguments, second_key) = calls(log)
    assert (first_key, second_key) == ("none", "secret")
    assert "secret" not in " ".join(arguments + more_arguments)


def test_a_harness_that_fails_is_quoted_without_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, code=1)
    with pytest.raises(MeasurementError, match=r"ended with code 1 on http://localhost:1: wrong: the key is \*\*\*"):
        run_tasks((BASE, CANDIDATE), ("secret", None), TaskRun(names=("t",)), progress=told)


def test_a_key_that_the_cut_goes_through_is_not_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, code=1)
    with pytest.raises(MeasurementError) as error:
        run_tasks((BASE, CANDIDATE), ("secret" * 200, None), TaskRun(names=("t",)), progress=told)
    assert "secret" not in str(error.value)


def test_without_the_harness_the_way_to_get_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    hide_harness(monkeypatch)
    with pytest.raises(InputError, match=r"pip install 'servewise\[eval\]'"):
        find_harness()


@pytest.mark.parametrize("name", ["", "-x", "a b", "a;b", "../a", "--model=hf"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(InputError, match="is no name of a task"):
        TaskRun(names=(name,))


@pytest.mark.parametrize("wrong", [{}, {"results": []}, {"results": {"t": 3}}, {"results": {"t": {"acc,none": "N/A"}}}])
def test_results_that_hold_no_score(wrong: dict[str, Any]) -> None:
    good = {"results": {"t": {"acc,none": 0.5}}}
    with pytest.raises(MeasurementError, match="no score of any task to both servers"):
        read_scores(result(good), result(wrong))


def result(document: dict[str, Any], scores: dict[int, float] | None = None) -> HarnessResult:
    return HarnessResult(document=document, questions={("t", "acc,none"): scores or {}})


def scored(score: float, stderr: float | str) -> dict[str, Any]:
    return {"results": {"t": {"acc,none": score, "acc_stderr,none": stderr}}}


def test_a_base_that_scored_nothing_has_no_recovery() -> None:
    nothing, some = result(scored(0.0, "N/A")), result(scored(0.5, "N/A"))
    assert math.isnan(read_scores(nothing, some)[0].recovery_pct.value)
    found = read_scores(some, nothing)[0].recovery_pct
    assert found.value == 0.0
    assert math.isnan(found.low)


def test_without_single_questions_both_scores_are_taken_as_independent() -> None:
    found = read_scores(result(scored(0.8, 0.02)), result(scored(0.6, 0.02)))[0].recovery_pct
    reach = 100.0 * 1.959964 * math.hypot(0.02, 0.75 * 0.02) / 0.8
    assert (found.low, found.high) == pytest.approx((75.0 - reach, 75.0 + reach))
    assert found.num_samples == 0


def test_questions_are_paired_only_where_their_mean_is_the_score() -> None:
    scores = {0: 1.0, 1: 0.0, 2: 1.0, 3: 1.0}
    paired = read_scores(result(scored(0.75, 0.2), scores), result(scored(0.75, 0.2), scores))[0].recovery_pct
    assert (paired.value, paired.low, paired.high, paired.num_samples) == (100.0, 100.0, 100.0, 4)
    other = read_scores(result(scored(0.8, 0.2), scores), result(scored(0.75, 0.2), scores))[0].recovery_pct
    assert other.num_samples == 0
    fewer = read_scores(result(scored(0.75, 0.2), scores), result(scored(0.5, 0.2), {0: 1.0, 1: 0.0}))[0].recovery_pct
    assert fewer.num_samples == 0
