"""What the commands print, where, and with which exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_plan
import pytest

from servewise.errors import (
    CatalogError,
    InfeasibleError,
    InputError,
    MeasurementError,
    OutOfRangeError,
    SimulationError,
)

Run = Callable[..., Any]


def test_plan_prints_the_answer_on_stdout_and_the_rest_on_stderr(api: Any, run: Run, service_file: Path) -> None:
    ended = run("plan", str(service_file), "--out", "somewhere", "--threads", "3", "--quick")
    assert ended.code == 0
    assert ended.out.splitlines()[0].startswith("support-chatbot: 4 x H100-SXM-80GB: 1 replica, TP4, fp8 weights")
    assert max(len(line) for line in ended.out.splitlines()) <= 100
    assert ended.err.splitlines() == [
        "note: plan.json and plan.html are in somewhere/run-1",
    ]
    (call,) = api.calls
    assert call["service"].models == ("openai/gpt-oss-20b",)
    assert (call["out_dir"], call["threads"], call["with_what_if"]) == (Path("somewhere"), 3, False)


def test_runs_go_to_runs_and_threads_are_left_to_the_planner(api: Any, run: Run, service_file: Path) -> None:
    run("plan", str(service_file))
    (call,) = api.calls
    assert (call["out_dir"], call["threads"], call["with_what_if"]) == (Path("runs"), None, True)


def test_json_is_one_document_and_nothing_else(api: Any, run: Run, service_file: Path) -> None:  # noqa: ARG001
    ended = run("plan", str(service_file), "--json")
    assert json.loads(ended.out)["schema"] == "servewise.plan/1"
    assert ended.code == 0


def test_explain_adds_the_parts_of_the_numbers(api: Any, run: Run, service_file: Path) -> None:
    api.plan_found = fake_plan.judged(20, fake_plan.MARGIN)
    plain, explained = run("plan", str(service_file)), run("plan", str(service_file), "--explain")
    assert "keeps the promise: at risk (20 of 32 draws" in plain.out
    for part in ("What the numbers consist of", "Where the coefficients come from", "Nearest public runs"):
        assert part not in plain.out
        assert part in explained.out
    assert max(map(len, explained.out.splitlines())) <= 100
    assert explained.code == 0


def test_explain_without_a_winner_has_nothing_to_add(api: Any, run: Run, service_file: Path) -> None:
    api.plan_found = fake_plan.plan_without_winner()
    ended = run("plan", str(service_file), "--explain")
    assert ended.code == 3
    assert ended.out == run("plan", str(service_file)).out


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_without_a_winner_the_code_is_3_and_the_nearest_is_named(
    api: Any, run: Run, service_file: Path, options: tuple[str, ...]
) -> None:
    api.plan_found = fake_plan.plan_without_winner()
    ended = run("plan", str(service_file), *options)
    assert ended.code == 3
    assert ended.err.splitlines()[-1] == (
        "error: no deployment keeps the promise; nearest: 32 x H100-SXM-80GB: 4 replicas, TP8, fp8 weights,"
        " bf16 KV, vllm 0.11.0: attainment 0.942 < 0.99 (TTFT p99 1.80 s, TPOT p99 61 ms, E2E p99 21.00 s)"
    )
    if options:
        assert json.loads(ended.out)["winner"] is None
    else:
        assert "no deployment keeps the promise" in ended.out
        assert "attainment 0.942 < 0.99" in ended.out


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("x is wrong"), 2),
        (CatalogError("x is wrong"), 2),
        (OutOfRangeError("x is wrong"), 2),
        (InfeasibleError("x is wrong"), 3),
        (MeasurementError("x is wrong"), 4),
        (SimulationError("x is wrong"), 1),
    ],
)
def test_each_error_has_its_code(api: Any, run: Run, service_file: Path, error: Exception, code: int) -> None:
    api.raises = error
    ended = run("plan", str(service_file))
    assert (ended.code, ended.out) == (code, "")
    assert ended.err.splitlines()[-1] == "error: x is wrong"


def test_an_unexpected_error_asks_for_a_report_and_debug_shows_the_trace(
    api: Any, run: Run, service_file: Path
) -> None:
    api.raises = KeyError("tp")
    ended = run("plan", str(service_file))
    assert ended.code == 1
    assert "Traceback" not in ended.err
    assert ended.err.splitlines()[-1].startswith("error: unexpected KeyError: 'tp'; please report this as a bug;")
    traced = run("--debug", "plan", str(service_file))
    assert "Traceback" in traced.err
    assert "in plan" in traced.err


def test_interruption_ends_with_130(api: Any, run: Run, service_file: Path) -> None:
    api.raises = KeyboardInterrupt()
    ended = run("plan", str(service_file))
    assert (ended.code, ended.out) == (130, "")
    assert ended.err.splitlines()[-1] == "error: interrupted"
    api.raises = KeyboardInterrupt("what was found until then is in runs/1")
    assert run("plan", str(service_file)).err.splitlines()[-1] == (
        "error: interrupted; what was found until then is in runs/1"
    )


def test_a_full_disk_is_a_sentence(api: Any, run: Run, service_file: Path) -> None:
    api.raises = OSError(28, "No space left on device", "runs/x")
    ended = run("plan", str(service_file))
    assert (ended.code, ended.err.splitlines()[-1]) == (2, "error: runs/x: No space left on device")


def test_control_characters_in_messages_are_shown(api: Any, run: Run, service_file: Path) -> None:
    api.raises = InputError("no model '\x1b[31mred\u202e'\nsecond line")
    ended = run("plan", str(service_file))
    assert ended.err.splitlines()[-1] == "error: no model '\\x1b[31mred\\u202e' second line"


def test_wrong_service_files_are_input_errors(api: Any, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "service.yaml"
    path.write_text("modle: x\n")
    ended = run("plan", str(path))
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == f"error: {path}, line 1: modle: unknown key; did you mean model?\n"
    assert run("plan", str(tmp_path / "missing.yaml")).code == 2
    assert api.calls == []


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("plam",), "No such command 'plam'."),
        (("plan",), "Missing argument 'SERVICE.yaml'. (see 'servewise plan --help')"),
        (("plan", "a.yaml", "--threads", "0"), "Invalid value for '--threads': 0 is not in the range"),
        (("plan", "a.yaml", "--jsn"), "No such option"),
        (("traffic", "show", "x", "--rate-rps", "0"), "Invalid value for '--rate-rps'"),
        (
            ("traffic", "show", "x", "--columns", "input_tokens"),
            "Invalid value for --columns: 'input_tokens' is not",
        ),
    ],
)
def test_wrong_command_lines_exit_with_2(api: Any, run: Run, args: tuple[str, ...], message: str) -> None:
    ended = run(*args)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("error: ")
    assert message in ended.err
    assert api.calls == []


@pytest.mark.parametrize("args", [(), ("traffic",), ("catalog",)])
def test_a_group_alone_shows_its_help(run: Run, args: tuple[str, ...]) -> None:
    ended = run(*args)
    assert ended.code == 2
    assert ended.err.startswith("Usage: servewise")


def test_traffic_show_passes_its_options_on(api: Any, run: Run) -> None:
    ended = run(
        "traffic",
        "show",
        "t.csv",
        "--format",
        "csv",
        "--columns",
        "arrival_s=t",
        "--columns",
        "input_tokens=a=b",
        "--rate-rps",
        "2.5",
    )
    assert ended.code == 0
    assert api.calls == [
        {
            "source": "t.csv",
            "format": "csv",
            "columns": {"arrival_s": "t", "input_tokens": "a=b"},
            "rate_rps": 2.5,
        }
    ]
    assert "19,366" in ended.out


def test_traffic_show_as_json(api: Any, run: Run) -> None:
    ended = run("traffic", "show", "azure-code-2023", "--json")
    document = json.loads(ended.out)
    assert (document["num_requests"], document["peak_rate_rps"], document["input"]["p99"]) == (
        19366,
        None,
        30.0,
    )
    assert api.calls == [{"source": "azure-code-2023", "format": None, "columns": None, "rate_rps": None}]


def test_lists(api: Any, run: Run) -> None:  # noqa: ARG001
    assert run("traffic", "list").out == "azure-code-2023\nazure-conversation-2023\n"
    assert json.loads(run("traffic", "list", "--json").out) == ["azure-code-2023", "azure-conversation-2023"]
    models = run("catalog", "models")
    assert [line.split() for line in models.out.splitlines() if line.startswith(("model", "org", "x"))] == [
        ["model", "params_b", "layers"],
        ["org/m-8B", "8.03", "32"],
        ["x", "-", "1"],
    ]
    assert json.loads(run("catalog", "models", "--json").out)[1] == {
        "model": "x",
        "params_b": None,
        "layers": 1,
    }
    assert "H100-SXM-80GB" in run("catalog", "gpus").out
