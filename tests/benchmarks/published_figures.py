"""Files of published figures for the throughput benchmark's tests."""

from __future__ import annotations

import csv
from pathlib import Path

from benchmarks.throughput_rows import COLUMNS, Row, read_rows

ENGINE, PYTORCH = "TensorRT-LLM (engine backend)", "TensorRT-LLM (PyTorch backend)"
STATIC = {
    "source": "TensorRT-LLM perf-overview",
    "engine": ENGINE,
    "engine_version": "0.9.0",
    "model": "LLaMA v3.1 8B",
    "precision": "FP16",
    "gpu": "A100-SXM4-80GB",
    "n_gpus": "1.0",
    "tp": "1.0",
    "pp": "1.0",
    "isl": "128",
    "osl": "3",
    "concurrency_or_rate": "static batch=2",
    "metric": "output_tokens_per_s_per_gpu",
    "value": "100",
    "unit": "tokens/s/gpu",
}
QUEUED = {
    **STATIC,
    "engine": PYTORCH,
    "engine_version": "1.0",
    "precision": "FP8",
    "gpu": "H100-SXM-80GB",
    "osl": "128",
    "concurrency_or_rate": "offline(all queued)",
    "metric": "output_tokens_per_s",
    "unit": "tokens/s",
}
MLPERF = {
    "source": "MLPerf Inference v4.1",
    "url_or_repo_path": "closed/NVIDIA/results/H200-SXM-141GBx8_TRT/llama2-70b-99/Offline",
    "engine": "TensorRT-LLM",
    "engine_version": "TensorRT 10.2.0, CUDA 12.4",
    "model": "llama2-70b-99",
    "gpu": "NVIDIA H200-SXM-141GB",
    "n_gpus": "8.0",
    "concurrency_or_rate": "offline(all queued)",
    "metric": "output_tokens_per_s",
    "value": "31302.7",
    "unit": "tokens/s",
    "notes": "division=closed;submitter=NVIDIA;scenario=Offline",
}


def write(path: Path, *records: dict[str, str]) -> Path:
    """A file of published figures."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(records)
    return path


def row_of(tmp_path: Path, record: dict[str, str]) -> Row:
    """The only row of a file."""
    rows, foreign, unreadable = read_rows(write(tmp_path / "one.csv", record))
    assert (len(rows), foreign, unreadable) == (1, {}, [])
    return rows[0]
