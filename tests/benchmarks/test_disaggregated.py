"""The benchmark of prefill and decode apart: what it reads and what it sets aside."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks.disaggregated import (
    Prediction,
    best_ratio_frac,
    deployment_of,
    disaggregated_section,
    evaluate,
    first_only,
    measured_frac,
    outputs_of,
    read_runs,
    summary,
)
from servewise.catalog.facts import read_facts

COLUMNS = ("url_or_repo_path", "n_gpus", "tp", "isl", "osl", "concurrency_or_rate", "metric", "value", "unit", "notes")
VALUES = {"requests_per_s": 5.0, "output_tokens_per_s": 3000.0, "ttft_mean": 100.0, "tpot_mean": 9.0}


def write(path: Path, *runs: tuple[str, str, int, str]) -> Path:
    """A table of runs (ratio, tp, concurrency, time) with the same figures."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for ratio, tp, concurrency, time in runs:
            name = f"repo:results.csv#{ratio.lower()}_conc{concurrency}_in2048_out2048_20250914_{time}.json"
            for metric, value in VALUES.items():
                unit = "ms" if "mean" in metric else "per s"
                row = (name, "8.0", tp, 2048, 2048, f"concurrency={concurrency}", metric, value, unit)
                writer.writerow((*row, f"{ratio};num_prompts=40"))
    return path


def test_runs_are_read_and_those_of_unknown_size_set_aside(tmp_path: Path) -> None:
    path = write(
        tmp_path / "runs.csv",
        ("1P3D", "2.0", 64, "020001"),
        ("1P3D", "2.0", 128, "010001"),
        ("1P3D", "2.0", 32, "030001"),
        ("1P1D", "", 32, "040001"),
    )
    runs, num_aside = read_runs(path)
    assert num_aside == 1
    assert [(run.concurrency, run.is_first) for run in runs] == [(128, True), (32, False), (64, False)]
    run = runs[0]
    assert (run.num_prefill, run.num_decode, run.tensor_parallel_size, run.num_prompts) == (1, 3, 2, 40)
    assert run.mean_output_tokens == 600.0
    assert run.measured == pytest.approx({"ttft_mean": 0.1, "tpot_mean": 0.009, "output_tokens_per_s": 3000.0})
    deployment = deployment_of(run)
    assert deployment.num_gpus == 8
    assert deployment.disaggregation is not None
    assert deployment.disaggregation.link.kind == "nvlink"


def test_outputs_have_the_published_mean_and_limit(tmp_path: Path) -> None:
    runs, _ = read_runs(write(tmp_path / "runs.csv", ("2P2D", "2.0", 64, "020001")))
    outputs = outputs_of(runs[0])
    assert outputs.mean() == pytest.approx(600.0, rel=0.01)
    assert 1 <= outputs.min() < outputs.max() <= 2048


def test_predictions_and_their_page(tmp_path: Path) -> None:
    path = write(
        tmp_path / "runs.csv", *((f"{x}P{4 - x}D", "2.0", c, f"0{x}000{c % 7}") for x in (1, 3) for c in (8, 16))
    )
    predictions = evaluate(read_runs(path)[0])
    assert len(predictions) == 4
    assert [prediction.is_repeated for prediction in predictions].count(True) == 2
    assert len(first_only(predictions)) == 2
    assert all(0.001 < prediction.predicted["tpot_mean"] < 0.1 for prediction in predictions)
    found = summary(predictions)
    assert found["n"] == 4
    assert 0.0 <= best_ratio_frac(predictions) <= 1.0
    page = disaggregated_section(path)
    assert "| 1:3 | 2 |" in page
    assert "| all, without repeated prompts | 2 |" in page


def test_errors_are_relative_and_signed(tmp_path: Path) -> None:
    runs, _ = read_runs(write(tmp_path / "runs.csv", ("2P2D", "2.0", 64, "020001")))
    predicted = {"ttft_mean": 0.05, "tpot_mean": 0.018, "output_tokens_per_s": 3300.0}
    found = summary([Prediction(run=runs[0], predicted=predicted, is_repeated=False)])
    assert found["ttft_mean_bias_pct"] == -50.0
    assert found["tpot_mean_bias_pct"] == 100.0
    assert found["output_tokens_per_s_median_ape_pct"] == 10.0


@pytest.mark.shared
def test_shipped_errors_of_groups_are_the_benchmarks(shared_dir: Path) -> None:
    first = first_only(evaluate(read_runs(shared_dir / "data/measured/dstack_pd_ratio.csv")[0]))
    shipped = read_facts("perf/group_errors.csv")["groups"]
    assert float(shipped["num_runs"].value) == len(first)
    for name in ("tpot", "ttft"):
        found = measured_frac(first, f"{name}_mean")
        # what the kernel and the step times change since then must be shipped anew
        assert found == pytest.approx([float(shipped[f"{name}_{end}"].value) for end in ("low", "high")], rel=0.01)
