"""The memory benchmark: which rows it places, what it compares, what it names."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

from benchmarks.memory import Compared, compare, error_frac, read_rows, run
from benchmarks.memory_rows import UnplacedError, find_model, find_version, place
from servewise.errors import InputError
from servewise.types import Parallelism, SglangParams

COLUMNS = [
    "id",
    "thread_url",
    "date",
    "engine",
    "engine_version",
    "model",
    "weights_precision",
    "gpu",
    "gpu_mem_gib",
    "num_gpus",
    "tp",
    "pp",
    "dp",
    "mem_fraction",
    "max_model_len",
    "kv_dtype",
    "max_num_batched_tokens",
    "max_num_seqs",
    "enforce_eager",
    "reported_kv_tokens",
    "reported_kv_gib",
    "reported_max_concurrency",
    "reported_weights_gib",
    "reported_graph_gib",
    "other",
    "notes",
    "source_kind",
    "inferred_fields",
    "sanity",
]
BASE = {
    "id": "a1",
    "engine": "vllm",
    "engine_version": "0.19.0",
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "weights_precision": "bf16",
    "gpu": "H100 80GB",
    "gpu_mem_gib": "79.19",
    "num_gpus": "1",
    "tp": "1",
    "pp": "1",
    "dp": "1",
    "mem_fraction": "0.95",
    "max_model_len": "8192.0",
    "kv_dtype": "auto",
    "max_num_batched_tokens": "8192.0",
    "max_num_seqs": "1024.0",
    "reported_kv_tokens": "476000.0",
    "reported_kv_gib": "58.11",
    "reported_weights_gib": "14.99",
    "sanity": "ok",
}


def row(**changes: str) -> dict[str, str]:
    return {**dict.fromkeys(COLUMNS, ""), **BASE, **changes}


def table(path: Path, *rows: dict[str, str]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_a_table_is_summarised_and_every_exception_named(tmp_path: Path) -> None:
    path = table(
        tmp_path / "logs.csv",
        row(),
        row(id="a2", reported_kv_tokens="600000.0"),
        row(id="a3", model="nobody/unknown-7B"),
        row(id="a4", engine="tgi"),
        row(id="a5", sanity="odd"),
    )
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", "--data", str(path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).resolve().parents[2],
    )
    lines = done.stdout.splitlines()
    summary = json.loads(lines[-1])
    assert set(summary) == {"n", "median_ape_pct", "within_10pct_frac", "coverage_frac", "misses"}
    assert (summary["n"], summary["within_10pct_frac"], summary["coverage_frac"]) == (2, 0.5, 0.5)
    named = {miss["row"]: miss["reason"] for miss in summary["misses"]}
    assert set(named) == {"a2", "a3", "a4"}
    assert "not in the catalog" in named["a3"]
    assert "'tgi' is not modelled" in named["a4"]
    assert any(line.startswith("with measured weights") for line in lines)


def test_measured_weights_are_no_input_of_the_headline() -> None:
    usual, wrong = compare(row()), compare(row(reported_weights_gib="30"))
    assert usual.predicted == wrong.predicted
    assert usual.with_measured_weights is not None
    assert wrong.with_measured_weights is not None
    assert wrong.with_measured_weights < usual.with_measured_weights
    assert abs(error_frac(usual.predicted, usual.reported)) < 0.01


def test_what_is_compared() -> None:
    assert compare(row()).unit == "tokens"
    assert compare(row(reported_kv_tokens="")).unit == "GiB"
    hybrid = {"model": "google/gemma-3-12b-it", "reported_kv_gib": "45"}
    assert compare(row(**hybrid)).unit == "GiB"
    assert compare(row(**hybrid | {"reported_kv_gib": ""})).unit == "printed tokens"
    assert compare(row(**hybrid, engine_version="0.8.5")).unit == "tokens"
    with pytest.raises(UnplacedError, match="neither tokens nor GiB"):
        compare(row(reported_kv_tokens="", reported_kv_gib=""))


def test_llama_cpp_allocates_the_cells_it_was_told() -> None:
    cells = row(engine="llama.cpp", engine_version="b9000", weights_precision="Q6_K", gpu_mem_gib="24")
    assert compare(cells).predicted == 8192
    in_bytes = compare({**cells, "reported_kv_tokens": "", "kv_dtype": "q8_0"})
    assert (in_bytes.unit, in_bytes.predicted) == ("GiB", 34 / 64)


def test_a_predicted_refusal_is_no_error() -> None:
    big = row(model="Llama-3.1-70B", reported_kv_tokens="0.0")
    refused = compare(big)
    assert (refused.predicted, error_frac(refused.predicted, refused.reported)) == (0.0, 0.0)
    assert error_frac(5.0, 0.0) == 1.0


def test_fp32_takes_twice_the_bytes() -> None:
    half, full = compare(row()), compare(row(weights_precision="fp32"))
    assert 0.3 < full.predicted / half.predicted < 0.5


@pytest.mark.parametrize(
    ("text", "engine", "version"),
    [
        ("0.6.4.post1+dev", "vllm", "0.6.4"),
        ("0.17-0.19", "vllm", "0.17.0"),
        ("0.8.3+dev (V0)", "vllm", "0.7.3"),
        ("0.28 nightly 0bfc7a15d", "vllm", "0.28.0"),
        ("0.5.3 (PR)", "sglang", "0.5.4"),
        ("0.5.x", "sglang", "0.5.23"),
        ("", "sglang", "0.5.23"),
        ("b2824", "llama.cpp", "b2824"),
    ],
)
def test_versions(text: str, engine: str, version: str) -> None:
    assert find_version(text, engine) == version  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("RedHatAI/Qwen2.5-7B-Instruct-FP8-dynamic", "Qwen/Qwen2.5-7B-Instruct"),
        ("neuralmagic/Mistral-Small-24B-Instruct-2501-quantized.w8a8", "mistralai/Mistral-Small-24B-Instruct-2501"),
        ("deepseek-ai/DeepSeek-R1 (4-bit AWQ/GPTQ)", "deepseek-ai/DeepSeek-R1"),
        ("casperhansen/llama-3-70b-instruct-awq", "meta-llama/Meta-Llama-3-70B-Instruct"),
        ("unsloth/Llama-3.3-70B-Instruct-bnb-4bit", "meta-llama/Llama-3.3-70B-Instruct"),
        ("Qwen3-30B-A3B-Q4_K_M", "Qwen/Qwen3-30B-A3B"),
    ],
)
def test_names_with_vendors_and_quantization(name: str, model: str) -> None:
    assert find_model(name).name == model


def test_precision_comes_from_the_row_then_the_name_then_the_checkpoint() -> None:
    def weights(**changes: str) -> str:
        return place(row(**changes)).deployment.precision.weights

    assert weights(weights_precision="awq int4") == "int4"
    assert weights(weights_precision="", model="meta-llama/Llama-3.1-8B-Instruct-FP8") == "fp8"
    assert weights(weights_precision="", model="deepseek-ai/DeepSeek-V3") == "fp8_block"
    assert weights(weights_precision="fp8", model="deepseek-ai/DeepSeek-V3") == "fp8_block"
    with pytest.raises(UnplacedError, match="not modelled"):
        weights(weights_precision="fp3")
    with pytest.raises(UnplacedError, match="KV cache"):
        place(row(kv_dtype="turboquant"))


def test_data_parallel_attention_is_read_as_each_engine_counts_it() -> None:
    sglang = row(
        engine="sglang",
        engine_version="0.5.3",
        model="deepseek-ai/DeepSeek-V3",
        weights_precision="fp8",
        gpu="B200",
        gpu_mem_gib="178.4",
        num_gpus="8",
        tp="8",
        dp="8",
        mem_fraction="0.8",
    )
    assert place(sglang).deployment.parallelism == Parallelism(data_parallel_size=8)
    beside = row(model="deepseek-ai/DeepSeek-V3", num_gpus="16", tp="8", dp="2")
    assert place(beside).deployment.parallelism == Parallelism(tensor_parallel_size=8, data_parallel_size=2)
    assert place(row(num_gpus="4", tp="2", dp="2")).deployment.parallelism == Parallelism(tensor_parallel_size=2)


def test_memory_that_sglang_found_free_has_no_context_in_it() -> None:
    logged = row(
        engine="sglang", engine_version="0.5.7", other="avail_after_load=60.00", inferred_fields="mem,engine_version"
    )
    plain = {**logged, "other": ""}
    difference = place(logged).deployment.gpu.mem_bytes - place(plain).deployment.gpu.mem_bytes
    assert difference == pytest.approx(0.5 * 2**30)
    assert isinstance(place(logged).deployment.params, SglangParams)


def test_cards_that_the_catalog_lacks_need_memory() -> None:
    assert place(row(gpu="RTX 3080 Ti", gpu_mem_gib="11.6")).deployment.gpu.link_kind == "pcie"
    assert place(row(gpu="MI355X 288GB", gpu_mem_gib="287")).deployment.gpu.vendor == "amd"
    with pytest.raises(UnplacedError, match="gives no memory"):
        place(row(gpu="RTX 3080 Ti", gpu_mem_gib=""))


def test_hybrids_are_compared_in_gib_only() -> None:
    hybrid = {"model": "Qwen/Qwen3.8-27B", "engine_version": "0.28.0", "max_model_len": "32768", "mem_fraction": "0.92"}
    assert compare(row(**hybrid, reported_kv_gib="14")).unit == "GiB"
    with pytest.raises(UnplacedError, match="not described"):
        compare(row(**hybrid | {"reported_kv_gib": ""}))


def test_a_table_of_another_form_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(InputError, match="lacks the columns id, engine"):
        read_rows(path)


def test_a_cell_that_is_no_number_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = run(table(tmp_path / "logs.csv", row(gpu_mem_gib="eighty"), row(id="a2")))
    assert summary["n"] == 1
    assert "gpu_mem_gib 'eighty' is no number" in capsys.readouterr().out


@pytest.fixture(scope="module")
def logs(shared_dir: Path) -> dict[str, tuple[str, Compared]]:
    """Rows of the development data that are placed, with their threads."""
    placed = {}
    for line in read_rows(shared_dir / "data" / "kvlogs.csv"):
        if line["sanity"] == "ok":
            try:
                placed[line["id"]] = (line["thread_url"], compare(line))
            except UnplacedError:
                continue
    return placed


@pytest.mark.shared
def test_targets_hold_on_the_development_data(shared_dir: Path) -> None:
    summary = run(shared_dir / "data" / "kvlogs.csv")
    assert isinstance(summary["n"], int)
    assert summary["n"] >= 39
    assert summary["coverage_frac"] >= 0.9  # type: ignore[operator]
    assert summary["median_ape_pct"] <= 2.0  # type: ignore[operator]
    assert summary["within_10pct_frac"] >= 0.95  # type: ignore[operator]


@pytest.mark.shared
def test_threads_that_no_constant_was_taken_from_hold_too(logs: dict[str, tuple[str, Compared]]) -> None:
    """The 19 rows of one thread set vLLM's constants since 0.15; the others are held to the target without them."""
    errors = {True: [], False: []}  # type: dict[bool, list[float]]
    for url, done in logs.values():
        errors["llm-d-planner" in url].append(abs(error_frac(done.predicted, done.reported)))
    assert len(errors[True]) >= 19
    assert median(errors[True]) < 0.003
    assert max(errors[True]) < 0.04
    assert len(errors[False]) >= 20
    assert median(errors[False]) < 0.03
