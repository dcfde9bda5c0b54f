"""The accuracy page: every figure is computed from the rows, every table has both lines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from serving_table import placed_row, serving_row

from benchmarks.accuracy_page import ServingResults, cells, exclusion_table, load_label, serving_section, unplaced_lines
from benchmarks.fidelity import both_lines
from benchmarks.serving_fit import Predicted, Prepared, prepare
from benchmarks.serving_rows import Unplaced, exclusions
from benchmarks.serving_validation import GROUPINGS, HeldOut, groups_of

SLOWER = {
    "group": 1.10,
    "deployment": 1.20,
    "model": 1.30,
    "gpu": 1.40,
    "engine": 1.50,
}
"""Predictions are taken to be too slow by a tenth for each step further from what was measured."""


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    rows = [
        placed_row(2 + i, batch_size_field=load, concurrency_from_source=load, **server)
        for i, (load, server) in enumerate(
            [
                ("1", {}),
                ("8", {}),
                ("64", {"gpu_system": "h200_sxm"}),
                ("200", {"engine": "sglang", "engine_version": "0.5.1"}),
                ("64", {"engine": "sglang", "engine_version": "0.5.1", "model": "Qwen/Qwen3-32B", "precision": "fp8"}),
            ]
        )
    ]
    aside = replace(rows[1], excluded=frozenset({"ttft"}))
    return prepare([rows[0], aside, *rows[2:]])


def predicted(prepared: Prepared, factor: float) -> Predicted:
    saturated = np.zeros(len(prepared.rows), np.bool_)
    saturated[3] = True
    return Predicted(times_ms=factor * np.exp(prepared.measured), saturated=saturated)


@pytest.fixture(scope="module")
def results(prepared: Prepared) -> ServingResults:
    return ServingResults(
        prepared=prepared,
        unplaced=(
            Unplaced(row=serving_row(9, engine="tgi"), reason="engine 'tgi' is not simulated"),
            Unplaced(row=serving_row(10, engine="tgi"), reason="engine 'tgi' is not simulated"),
        ),
        shipped=predicted(prepared, 1.05),
        held_out={
            name: HeldOut(grouping=name, groups=groups_of(prepared, name), predicted=predicted(prepared, SLOWER[name]))
            for name in GROUPINGS
        },
    )


def line(text: str, start: str) -> list[str]:
    (found,) = [row for row in text.splitlines() if row.startswith(f"| {start} |")]
    return [cell.strip() for cell in found.strip("|").split("|")][1:]


def test_a_line_by_hand(prepared: Prepared) -> None:
    """Predictions off by -10, 0, +10, +20 and +40%: median size 10, p90 32, bias 10."""
    factor = np.array([0.9, 1.0, 1.1, 1.2, 1.4])[:, None]
    found = Predicted(times_ms=factor * np.exp(prepared.measured), saturated=np.zeros(5, np.bool_))
    everything = np.ones(5, np.bool_)
    assert cells(prepared, found, everything, kept=False) == "5 | 10.0 | 32.0 | +10.0 | 10.0 | 32.0 | +10.0 |"
    # one TTFT is set aside: sizes 10, 10, 20, 40, signed -10, 10, 20, 40
    assert cells(prepared, found, everything, kept=True) == "5 / 4 | 10.0 | 32.0 | +10.0 | 15.0 | 34.0 | +15.0 |"
    only = np.array([False, True, False, False, False])
    assert cells(prepared, found, only, kept=True) == "1 / 0 | 0.0 | 0.0 | +0.0 | - | - | - |"


def test_every_prediction_has_two_lines(results: ServingResults) -> None:
    text = serving_section(results)
    expected = {
        "as shipped (fitted to these rows)": "5.0",
        "without the row's model x engine x GPU x precision": "10.0",
        "the same at one parallelism": "20.0",
        "without the row's model": "30.0",
        "without the row's GPU": "40.0",
        "without the row's engine": "50.0",
    }
    for name, error in expected.items():
        assert line(text, f"{name}, every row") == ["5", error, error, f"+{error}", error, error, f"+{error}"]
        assert line(text, f"{name}, without exclusions")[0] == "5 / 4"
    assert "AIConfigurator 0.12.0 on the rows that it covers (855 with TPOT, 676 with TTFT)" in text


def test_the_page_and_the_benchmark_agree(results: ServingResults) -> None:
    summary = both_lines(results.prepared, results.held_out["group"].predicted)
    found = line(serving_section(results), "without the row's model x engine x GPU x precision, without exclusions")
    assert float(found[1]) == summary["kept"]["tpot"]["median_ape_pct"]
    assert float(found[4]) == summary["kept"]["ttft"]["median_ape_pct"]


def test_errors_by_engine_gpu_model_and_load_count_every_row_once(results: ServingResults) -> None:
    text = serving_section(results)
    for title in ("engine", "GPU", "model", "load"):
        part = text.split(f"### By {title}\n")[1].split("\n#")[0]
        counts = [int(row.split("|")[2]) for row in part.splitlines() if ", every row |" in row]
        assert sum(counts) == len(results.prepared.rows)
        assert len(counts) == {"engine": 2, "GPU": 2, "model": 2, "load": 4}[title]
    assert line(text, "H200-SXM-141GB, every row") == ["1", "10.0", "10.0", "+10.0", "10.0", "10.0", "+10.0"]


def test_loads_are_told_apart() -> None:
    def label(load: str) -> str:
        return load_label(placed_row(batch_size_field=load, concurrency_from_source=load)).strip()

    assert [label(load) for load in ("1", "4", "5", "128", "129")] == [
        "1 to   4 requests at once",
        "1 to   4 requests at once",
        "5 to   8 requests at once",
        "65 to 128 requests at once",
        "129 requests or more",
    ]


def test_calibration_says_how_many_rows_intervals_hold(results: ServingResults) -> None:
    """Every prediction is off by the same tenth: intervals have no width."""
    text = serving_section(results)
    part = text.split("## How sure")[1].split("\n## ")[0]
    classes = [[cell.strip() for cell in row.split("|")] for row in part.splitlines() if "TPOT" in row or "TTFT" in row]
    counts = {(row[1], row[2]): int(row[3]) for row in classes}
    assert counts["all engines", "TPOT"] == 4
    assert counts["all engines, saturated", "TPOT"] == 1
    assert counts["vllm", "TTFT"] == 2
    assert ("vllm, saturated", "TPOT") not in counts
    assert {row[5] for row in classes} == {"0%"}


def test_what_is_left_out_is_said(results: ServingResults) -> None:
    text = serving_section(results)
    assert "- 2 rows: engine 'tgi' is not simulated\n" in text
    assert unplaced_lines(()) == "- none\n"
    table = exclusion_table()
    assert table in text
    assert table.count("\n") == 2 + len(exclusions())
    for rule in exclusions():
        assert rule.reason in table
    assert "| `num_gpus > 8` | TPOT and TTFT |" in table
    assert "| `engine = trtllm and model = meta-llama/Llama-3.1-8B-Instruct` | TTFT |" in table
