"""Files of serving rows that the tests write."""

from __future__ import annotations

import csv
from pathlib import Path

from benchmarks.serving_rows import Placed, ServingRow, place, read_rows

COLUMNS = (
    "model",
    "gpu_system",
    "engine",
    "engine_version",
    "precision",
    "gemm_quant_mode",
    "moe_quant_mode",
    "isl",
    "osl",
    "batch_size_field",
    "concurrency_from_source",
    "tp_size",
    "pp_size",
    "attention_dp_size",
    "moe_tp_size",
    "moe_ep_size",
    "ttft_mean_ms",
    "tpot_mean_ms",
    "date",
)
BASE = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "gpu_system": "h100_sxm",
    "engine": "vllm",
    "engine_version": "0.12.0",
    "precision": "unstated",
    "isl": "512",
    "osl": "128",
    "batch_size_field": "8",
    "concurrency_from_source": "8",
    "tp_size": "1",
    "pp_size": "1",
    "attention_dp_size": "1",
    "moe_tp_size": "1",
    "moe_ep_size": "1",
    "ttft_mean_ms": "60.5",
    "tpot_mean_ms": "8.25",
}


def cells(**changes: str) -> dict[str, str]:
    """Cells of a row that can be placed, with changes."""
    return {**dict.fromkeys(COLUMNS, ""), **BASE, **changes}


def table(path: Path, *rows: dict[str, str], without: tuple[str, ...] = ()) -> Path:
    """Write rows, leaving columns out."""
    columns = [column for column in COLUMNS if column not in without]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


def serving_row(number: int = 2, **changes: str) -> ServingRow:
    """A row as it is read."""
    known = cells(**changes)
    return ServingRow(
        number=number, cells=known, ttft_ms=float(known["ttft_mean_ms"]), tpot_ms=float(known["tpot_mean_ms"])
    )


def placed_row(number: int = 2, **changes: str) -> Placed:
    """A row with its deployment and client; an assertion error tells why it cannot be placed."""
    placed, unplaced = place([serving_row(number, **changes)])
    assert placed, unplaced[0].reason
    return placed[0]


def reason(**changes: str) -> str:
    """Why a row cannot be placed."""
    placed, unplaced = place([serving_row(**changes)])
    assert not placed
    return unplaced[0].reason


def read(path: Path, *rows: dict[str, str]) -> tuple[ServingRow, ...]:
    """Write rows and read them."""
    return read_rows(table(path, *rows))
