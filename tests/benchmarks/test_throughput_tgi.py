"""TGI's published runs: which are placed, what their clients are, and how the page shows them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks import throughput, throughput_tgi
from benchmarks.throughput_rows import COLUMNS, Row, Unplaceable, read_rows

DSTACK = {
    "source": "dstack benchmarks TGI vs vLLM MI300X",
    "url_or_repo_path": "dstackai/benchmarks@06c957a:amd/tgi_vs_vllm/tgi/data/result_tgi_short.csv",
    "engine": "tgi",
    "model": "Llama-3.1-8B",
    "gpu": "H100",
    "n_gpus": "1.0",
    "tp": "1.0",
    "isl": "80",
    "osl": "57",
    "concurrency_or_rate": "4 requests",
    "metric": "ttft_mean",
    "value": "100",
    "unit": "ms",
}
V3 = {
    "source": "TGI v3 docs",
    "engine": "TGI v3",
    "engine_version": "3.0",
    "model": "Llama 3.1 8b",
    "gpu": "L4",
    "n_gpus": "1.0",
    "concurrency_or_rate": "10 requests at once",
    "metric": "makespan",
    "value": "53",
    "unit": "s",
    "notes": "2nd run; Long test* - L4 - 8B",
}


def write(path: Path, *records: dict[str, str]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows({name: record.get(name, "") for name in COLUMNS} for record in records)
    return path


def row(path: Path, record: dict[str, str]) -> Row:
    return read_rows(write(path / "row.csv", record))[0][0]


def test_requests_that_come_at_once(tmp_path: Path) -> None:
    """The first one runs alone, the other three together: their time to first token is two forwards."""
    figures = {
        metric: throughput_tgi.predict(row(tmp_path, {**DSTACK, "metric": metric, "unit": unit}))
        for metric, unit in (
            ("ttft_mean", "ms"),
            ("ttft_p99", "ms"),
            ("tpot_mean", "ms"),
            ("output_tokens_per_s", "tokens/s"),
        )
    }
    one = throughput_tgi.predict(row(tmp_path, {**DSTACK, "concurrency_or_rate": "1 requests"}))
    assert figures["ttft_p99"] > 1.3 * one
    assert one < figures["ttft_mean"] < figures["ttft_p99"]
    assert 0.001 < figures["tpot_mean"] < 0.1
    assert figures["output_tokens_per_s"] < 4 / figures["tpot_mean"]


def test_a_second_run_finds_its_prompts_where_they_fit(tmp_path: Path) -> None:
    first, second = (
        throughput_tgi.predict(row(tmp_path, {**V3, "gpu": "H100", "notes": f"{which} run; Long test"}))
        for which in ("1st", "2nd")
    )
    assert second < 0.5 * first
    full = [
        throughput_tgi.predict(row(tmp_path, {**V3, "notes": f"{which} run; Long test"})) for which in ("1st", "2nd")
    ]
    assert full[1] == pytest.approx(full[0], rel=0.1)  # an L4 holds three of ten prompts


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({**DSTACK, "url_or_repo_path": "x/result_tgi_QPS_high.csv"}, "rate that the source does not state"),
        ({**DSTACK, "concurrency_or_rate": ""}, "the load is not stated"),
        ({**DSTACK, "metric": "ttft_p50"}, "no prediction of ttft_p50"),
        ({**V3, "metric": "ttft_mean"}, "in this source are not described"),
        ({**V3, "model": "Llama 3.1 70b"}, "KV|weights|max_total_tokens|fit"),
        ({**V3, "n_gpus": "3.0"}, "does not divide"),
    ],
)
def test_rows_without_a_prediction_say_why(tmp_path: Path, record: dict[str, str], reason: str) -> None:
    with pytest.raises(Unplaceable, match=reason):
        throughput_tgi.predict(row(tmp_path, record))


def test_the_time_of_a_whole_run_counts(tmp_path: Path) -> None:
    report = throughput.evaluate(write(tmp_path / "f.csv", V3, {**V3, "engine": "vLLM"}))
    summary = report.summary()
    assert (summary["n"], summary["coverage_frac"]) == (1, 0.5)
    assert summary["median_ape_pct"] is not None


def test_the_page_shows_rows_and_reasons(tmp_path: Path) -> None:
    write(tmp_path / "dstack_tgi_vs_vllm_mi300x.csv", DSTACK, {**DSTACK, "url_or_repo_path": "QPS"})
    write(tmp_path / "tgi_v3.csv", V3, {**V3, "engine": "vLLM"})
    text = throughput_tgi.accuracy_section(tmp_path)
    assert "| dstack_tgi_vs_vllm_mi300x | ttft_mean on 1 H100 | 1 |" in text
    assert "| tgi_v3 | makespan on 1 L4 | 1 |" in text
    assert "- 1 rows: requests came at a rate" in text
