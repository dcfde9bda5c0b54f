"""The derived table follows from the collection, and its rules do what they say."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest

from servewise.catalog import read_facts
from servewise.types import TaskKind

TOOLS = Path(__file__).resolve().parents[2] / "tools"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load("derive_quality")


def row(**change: str) -> dict[str, str]:
    base = {
        "source": "x",
        "model": "Llama-3.1-8B",
        "scheme": "FP8",
        "benchmark": "MMLU",
        "baseline": "68.0",
        "quantized": "67.0",
        "recovery_pct": "98.53",
        "note": "",
    }
    return base | change


def test_what_counts(tool: ModuleType) -> None:
    assert tool.counts(row())
    assert tool.counts(row(baseline="0.68"))
    assert not tool.counts(row(scheme="q4_K_M"))
    assert not tool.counts(row(benchmark="wikitext2 PPL (lower better)"))
    assert not tool.counts(row(benchmark="GPQA-Diamond"))
    assert not tool.counts(row(benchmark="AIME 2025", note="one run"))
    assert tool.counts(row(benchmark="AIME 2025", note="mean of 8 runs"))
    assert not tool.counts(row(benchmark="HumanEval+"))
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


def test_task_kinds(tool: ModuleType) -> None:
    assert set(tool.TASKS) == set(get_args(TaskKind))
    benchmarks = ("MMLU-Pro", "arc_easy", "gsm8k strict", "MATH-500", "HumanEval", "RULER 128K vt", "IFEval", "Average")
    kinds = ["knowledge", "knowledge", "math", "math", "code", "long-context", "chat", None]
    assert [tool.task_of(benchmark) for benchmark in benchmarks] == kinds
    with pytest.raises(SystemExit, match="no task kind known"):
        tool.task_of("mystery")


def test_few_results_make_no_cell_of_their_own(tool: ModuleType) -> None:
    few = [row(benchmark="HumanEval")] * 4 + [row(benchmark="GSM8K")] * 5
    assert {cells[0] for cells in tool.derive(few)} == {
        f"fp8/{kind}/{size}" for kind in ("math", "any") for size in ("medium", "any")
    }


def test_transcribed_results_are_sane_and_follow_from_their_scores(tool: ModuleType) -> None:
    for result in tool.read(tool.PUBLISHED):
        assert result["source"].startswith(("https://huggingface.co/RedHatAI/", "https://github.com/UnicomAI/")), result
        assert result["scheme"] in tool.SCHEME_OF, result
        assert result["note"], result
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", result["accessed"]), result
        assert tool.size_b(result["model"]) > 0
        tool.task_of(result["benchmark"])
        baseline, recovery = float(result["baseline"]), float(result["recovery_pct"])
        assert 0 < baseline <= 100, result
        assert 75 < recovery < 125, result
        if result["quantized"]:
            rounding = 100 * 0.05 * 2 / baseline + 0.1
            assert 100 * float(result["quantized"]) / baseline == pytest.approx(recovery, abs=rounding), result


def test_no_result_is_transcribed_twice(tool: ModuleType) -> None:
    results = [tuple(result.values()) for result in tool.read(tool.PUBLISHED)]
    assert len(set(results)) == len(results)


def test_shipped_table_is_sane() -> None:
    for entity, fields in read_facts("quality/recovery.csv").items():
        low, typical, high = (float(fields[f].value) for f in ("low", "typical", "high"))
        assert 70 < low <= typical <= high <= 100, entity
        assert {fields[f].unit for f in ("low", "typical", "high")} == {"%"}, entity
        assert int(fields["num_results"].value) >= (5 if not entity.endswith("/any/any") else 3), entity
        assert 1 <= int(fields["num_models"].value) <= int(fields["num_results"].value), entity
        assert all(fact.provenance.source for fact in fields.values()), entity


@pytest.mark.shared
def test_shipped_table_is_what_the_tool_writes(
    tool: ModuleType, shared_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tool.OUT.read_bytes()
    monkeypatch.setattr(tool, "OUT", tmp_path / "recovery.csv")
    monkeypatch.setattr("sys.argv", ["derive_quality.py", str(shared_dir / "data" / "quality.csv")])
    tool.main()
    assert tool.OUT.read_bytes() == shipped


def test_the_page_shows_the_shipped_table() -> None:
    writer = load("write_quality")
    assert writer.PAGE.read_text(encoding="utf-8") == writer.page()
