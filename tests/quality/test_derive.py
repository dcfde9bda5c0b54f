"""The derived table follows from the collection, and its rules do what they say."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from servewise.catalog import read_facts

TOOL = Path(__file__).resolve().parents[2] / "tools" / "derive_quality.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("derive_quality", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(**change: str) -> dict[str, str]:
    base = {
        "source": "x",
        "model": "Llama-3.1-8B",
        "scheme": "FP8",
        "benchmark": "MMLU",
        "baseline": "68.0",
        "quantized": "67.0",
        "recovery_pct": "98.53",
    }
    return base | change


def test_what_counts(tool: ModuleType) -> None:
    assert tool.counts(row())
    assert tool.counts(row(baseline="0.68"))
    assert not tool.counts(row(scheme="q4_K_M"))
    assert not tool.counts(row(benchmark="wikitext2 PPL (lower better)"))
    assert not tool.counts(row(benchmark="GPQA-Diamond"))
    assert not tool.counts(row(baseline="25.5"))
    assert not tool.counts(row(recovery_pct="107.8"))
    assert not tool.counts(row(source="NVIDIA/TensorRT-LLM", quantized="68.0", recovery_pct="100.0"))


def test_sizes(tool: ModuleType) -> None:
    assert [tool.size_class(m) for m in ("Qwen2-0.5B-Instruct", "Qwen3-8B", "Qwen3-32B")] == [
        "small",
        "medium",
        "large",
    ]
    assert tool.size_class("microsoft/phi-4") == "medium"
    with pytest.raises(SystemExit, match="no size known"):
        tool.size_class("mystery")


def test_percentiles(tool: ModuleType) -> None:
    assert tool.percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert tool.percentile([7.0], 0.1) == 7.0


def test_shipped_table_is_sane() -> None:
    for entity, fields in read_facts("quality/recovery.csv").items():
        low, typical, high = (float(fields[f].value) for f in ("low", "typical", "high"))
        assert 70 < low <= typical <= high <= 100, entity
        assert int(fields["num_results"].value) >= (5 if not entity.endswith("/any") else 3)


@pytest.mark.shared
def test_shipped_table_is_what_the_tool_derives(tool: ModuleType, shared_dir: Path) -> None:
    with (shared_dir / "data" / "quality.csv").open(newline="", encoding="utf-8") as stream:
        derived = tool.derive(list(csv.DictReader(stream)))
    with tool.OUT.open(newline="", encoding="utf-8") as stream:
        shipped = [tuple(cells) for cells in csv.reader(stream)]
    assert shipped[1:] == derived
