"""The fidelity benchmark: one JSON line, every row named, shipped overheads used as they are shipped."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving_table import cells, table
from tools import fit_overheads

from benchmarks import serving_shipped
from benchmarks.fidelity import errors, main
from benchmarks.serving_fit import NAMES, fit_rows, linearize, prepare
from benchmarks.serving_rows import place, read_rows
from benchmarks.serving_shipped import overheads_document, shipped_overheads, validation_document, widened
from benchmarks.serving_validation import hold_out
from servewise.perf.overheads import Overheads, overhead_document, overheads_of

KEYS = {"all", "kept", "coverage_frac", "interval90_hit_frac", "interval_width_median_pct"}
EXTRAS = {"interval_by_figure"}
FIGURE_KEYS = {"n", "median_ape_pct", "p90_ape_pct", "bias_pct"}
TRTLLM = {"engine": "trtllm", "engine_version": "1.0.0rc3"}


def few_rows(path: Path) -> Path:
    """Two groups with an excluded row, and two rows that cannot be placed."""
    return table(
        path,
        cells(),
        cells(batch_size_field="32", concurrency_from_source="32", ttft_mean_ms="200", tpot_mean_ms="9.5"),
        cells(engine="tgi", tpot_mean_ms="20"),
        cells(**TRTLLM, ttft_mean_ms="50", tpot_mean_ms="7.5"),
        cells(**TRTLLM, batch_size_field="16", concurrency_from_source="32", tpot_mean_ms="8"),
        cells(model="nobody/Nothing-9B", tpot_mean_ms="30"),
    )


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[dict[str, Any], list[str]]:
    assert main(list(arguments)) == 0
    lines = capsys.readouterr().out.splitlines()

    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is not JSON")

    summary: dict[str, Any] = json.loads(lines[-1], parse_constant=refuse)
    return summary, lines[:-1]


def check_keys(summary: Mapping[str, Any]) -> None:
    assert set(summary) == KEYS | EXTRAS
    for line in ("all", "kept"):
        assert set(summary[line]) == {"tpot", "ttft"}
        assert all(set(summary[line][figure]) == FIGURE_KEYS for figure in ("tpot", "ttft"))
    for entry in summary["interval_by_figure"].values():
        assert set(entry) == {"hit_frac", "width_median_pct", "score_pct"}


def test_shipped_overheads_on_a_small_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary, said = run(capsys, "--data", str(few_rows(tmp_path / "runs.csv")), "--no-fit", "--rows")
    check_keys(summary)
    assert summary["coverage_frac"] == round(4 / 6, 4)
    assert summary["all"]["tpot"]["n"] == summary["all"]["ttft"]["n"] == 4
    # TTFT of TensorRT-LLM with this model is set aside, and everything of the row with two loads
    assert (summary["kept"]["tpot"]["n"], summary["kept"]["ttft"]["n"]) == (3, 2)
    text = "\n".join(said)
    assert "line 4 not placed: engine 'tgi' is not simulated" in text
    assert "line 7 not placed: " in text
    assert "nobody/Nothing-9B" in text
    assert "set aside, ttft: 1 rows, lines 5" in text
    assert "set aside, tpot and ttft: 1 rows, lines 6" in text
    for number in (2, 3, 5, 6):
        assert f"line {number}: " in text
    assert 0.0 <= summary["interval90_hit_frac"] <= 1.0
    assert summary["interval_width_median_pct"] > 0


def test_no_fit_uses_what_is_shipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(few_rows(tmp_path / "runs.csv"))
    usual, _ = run(capsys, "--data", path, "--no-fit")
    monkeypatch.setattr("benchmarks.fidelity.fit_rows", None)  # it is not called
    slower: dict[str, Any] = json.loads(json.dumps(overhead_document()))
    for level in slower["levels"].values():
        level["values"]["step_ms"] += 50.0
    monkeypatch.setattr("servewise.perf.overheads.overhead_document", lambda: slower)
    moved, _ = run(capsys, "--data", path, "--no-fit")
    assert moved["all"]["tpot"]["bias_pct"] > usual["all"]["tpot"]["bias_pct"] + 300
    # the file's own times change its errors, not its predictions
    rows = [cells(tpot_mean_ms="4.125"), cells(tp_size="2")]
    monkeypatch.undo()
    half, _ = run(capsys, "--data", str(table(tmp_path / "half.csv", rows[0])), "--no-fit")
    whole, _ = run(capsys, "--data", str(table(tmp_path / "whole.csv", cells())), "--no-fit")
    assert 1 + half["all"]["tpot"]["bias_pct"] / 100 == pytest.approx(
        2 * (1 + whole["all"]["tpot"]["bias_pct"] / 100), rel=1e-3
    )


def test_a_fit_leaves_groups_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        cells(**server, batch_size_field=load, concurrency_from_source=load, osl="32", tpot_mean_ms=f"{7 + i + j / 8}")
        for i, server in enumerate(
            (
                {},
                {"gpu_system": "h200_sxm", "engine": "sglang", "engine_version": "0.5.1"},
                {"precision": "fp8", "model": "Qwen/Qwen3-32B"},
            )
        )
        for j, load in enumerate(("2", "8"))
    ]
    path = str(table(tmp_path / "runs.csv", *rows))
    for unseen, groups in ((None, 3), ("model", 2), ("gpu", 2)):
        summary, said = run(capsys, "--data", path, *(("--unseen", unseen) if unseen else ()))
        check_keys(summary)
        assert summary["coverage_frac"] == 1.0
        assert summary["kept"] == summary["all"]
        assert any(f"left out {groups} times" in line for line in said)


def test_figures_that_are_all_set_aside_have_no_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = table(tmp_path / "runs.csv", cells(concurrency_from_source=""))
    summary, _ = run(capsys, "--data", str(path), "--no-fit")
    assert summary["all"]["tpot"]["n"] == 1
    assert summary["kept"]["tpot"] == {"n": 0, "median_ape_pct": None, "p90_ape_pct": None, "bias_pct": None}
    assert summary["interval90_hit_frac"] is None
    assert summary["interval_by_figure"] == {}


@pytest.mark.parametrize(
    ("rows", "arguments", "said"),
    [
        ([cells(engine="tgi")], ["--no-fit"], "none of 1 rows can be placed"),
        ([cells(), cells(tp_size="2")], [], "every row has the same group"),
        ([cells(tpot_mean_ms="-1")], ["--no-fit"], "runs.csv, line 2"),
    ],
)
def test_files_that_cannot_be_used_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: list[dict[str, str]], arguments: list[str], said: str
) -> None:
    assert main(["--data", str(table(tmp_path / "runs.csv", *rows)), *arguments]) == 2
    assert said in capsys.readouterr().err


def test_nothing_is_unseen_without_a_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--data", str(tmp_path), "--no-fit", "--unseen", "gpu"])
    assert "--unseen leaves rows out of a fit" in capsys.readouterr().err


def test_it_runs_as_a_module(tmp_path: Path) -> None:
    missing = subprocess.run(
        [sys.executable, "-m", "benchmarks.fidelity", "--data", str(tmp_path / "none.csv"), "--no-fit"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert missing.returncode == 2
    assert "none.csv" in missing.stderr
    assert "Traceback" not in missing.stderr


def test_errors_by_hand() -> None:
    found = errors(np.array([110.0, 95.0, 100.0, 140.0]), np.array([100.0, 100.0, 100.0, 100.0]))
    assert found == {"n": 4, "median_ape_pct": 7.5, "p90_ape_pct": 31.0, "bias_pct": 5.0}


# ---------------------------------------------------------------------------------------------------- what is shipped


def test_what_is_shipped_predicts_as_the_fit_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """overheads.json gives every deployment the overheads of the fit, to four digits, and a covariance of its size."""
    placed, _ = place(
        read_rows(
            table(
                tmp_path / "runs.csv",
                cells(osl="32"),
                cells(osl="32", precision="fp8", tpot_mean_ms="4"),
                cells(osl="32", **TRTLLM, tpot_mean_ms="7"),
            )
        )
    )
    prepared = prepare(placed)
    fit = fit_rows(prepared, range(3), num_steps=1)
    linear = linearize(prepared, fit, range(3))
    held_out = {
        name: hold_out(prepared, fit, linear, "deployment") for name in ("deployment", "model", "gpu", "engine")
    }
    document = overheads_document(prepared, fit, held_out, overhead_document())
    assert json.loads(json.dumps(document)) == document
    for entry in document["levels"].values():
        assert [len(row) for row in entry["covariance"]] == list(range(1, len(NAMES) + 1))
    monkeypatch.setattr("servewise.perf.overheads.overhead_document", lambda: document)
    for p, cell, kernel in zip(prepared.rows, prepared.cells, prepared.kernels, strict=True):
        shipped, fitted = overheads_of(p.deployment)[0], fit.overheads(cell, kernel)
        for name in NAMES:
            assert getattr(shipped, name) == pytest.approx(getattr(fitted, name), rel=1e-3), name
    assert shipped_overheads(prepared)[prepared.cells[1], prepared.kernels[1]] == overheads_of(placed[1].deployment)[0]
    # an engine without a cell of its own has what its engine, or all of them, were given
    assert document["levels"]["vllm"]["values"] != document["levels"]["tensorrt-llm"]["values"]
    # too few runs for an interval of any class, but every deployment is listed with its errors
    known = validation_document(prepared, held_out)
    assert known["classes"] == {}
    assert [run["num_runs"] for run in known["runs"]] == [1, 1, 1]
    assert {run["engine"] for run in known["runs"]} == {"vllm", "tensorrt-llm"}


def test_the_tool_writes_what_is_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both files, readable by the package; what was assumed by hand stays as it is."""
    runs = table(
        tmp_path / "runs.csv",
        cells(osl="16"),
        cells(osl="16", gpu_system="h200_sxm", tpot_mean_ms="6"),
        cells(osl="16", engine="sglang", engine_version="0.5.1", tpot_mean_ms="7"),
        cells(osl="16", model="Qwen/Qwen3-8B", tpot_mean_ms="5"),
    )
    assumed = {"source": "assumed: by hand", "elementwise_bandwidth_frac": 0.75}
    known = {"assumed": assumed, "version_ranges": {"sglang": ["0"]}}
    (tmp_path / "overheads.json").write_text(json.dumps(known), encoding="utf-8")
    monkeypatch.setattr("benchmarks.serving_fit.fit_rows.__defaults__", (None, 1))
    fit_overheads.main(runs, tmp_path)
    written = json.loads((tmp_path / "overheads.json").read_text(encoding="utf-8"))
    assert set(written) == set(overhead_document())
    assert (written["assumed"], written["version_ranges"]) == (assumed, known["version_ranges"])
    assert set(written["levels"]) == {
        "shared",
        "sglang",
        "sglang from 0 on hopper",
        "vllm",
        "vllm synchronous on hopper",
    }
    runs_by_engine = Counter(
        run["engine"] for run in json.loads((tmp_path / "validation.json").read_text(encoding="utf-8"))["runs"]
    )
    assert runs_by_engine == {"vllm": 3, "sglang": 1}


@pytest.mark.parametrize("document", [{}, {"a": 1, "b": [1.5, {"c": "x"}], "d": {"e": [[1], [2, 3]], "f": None}}])
def test_lines_of_json(document: dict[str, Any]) -> None:
    assert json.loads(fit_overheads.one_line_entries(document)) == document


def test_an_interval_is_widened_on_both_sides() -> None:
    low, high = widened([0.9, 1.2])
    added = 1.645 * serving_shipped.TRANSFER_ERROR
    assert low == pytest.approx(np.exp(-np.hypot(np.log(0.9), added)), rel=1e-3)
    assert high == pytest.approx(np.exp(np.hypot(np.log(1.2), added)), rel=1e-3)


# -------------------------------------------------------------------------------------------------------- the real file


@pytest.mark.shared
def test_shipped_overheads_on_the_public_rows(shared_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = shared_dir / "data/measured/silicon_serving.csv"
    summary, said = run(capsys, "--data", str(path), "--no-fit", "--rows")
    check_keys(summary)
    limits = {
        ("kept", "tpot"): (7, 20),
        ("kept", "ttft"): (15, 60),
        ("all", "tpot"): (8, 30),
        ("all", "ttft"): (19, np.inf),
    }
    for (line, figure), (median, p90) in limits.items():
        assert summary[line][figure]["median_ape_pct"] <= median, (line, figure)
        assert summary[line][figure]["p90_ape_pct"] <= p90, (line, figure)
    assert summary["coverage_frac"] >= 0.9
    assert summary["interval90_hit_frac"] >= 0.85
    text = "\n".join(said)
    named = {line.split(":")[0].split()[1] for line in text.splitlines() if line.startswith("line ")}
    assert named == {str(number) for number in range(2, 1142)}
    unplaced = sum(" not placed: " in line for line in said if line.startswith("line "))
    assert unplaced == round((1 - summary["coverage_frac"]) * 1140)


def test_every_overhead_has_a_prior_and_a_shipped_value() -> None:
    for level in overhead_document()["levels"].values():
        assert set(level["values"]) == set(NAMES) == set(Overheads.__slots__)
