"""The throughput benchmark: reading, placing, static batches by hand, what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from published_figures import ENGINE, MLPERF, QUEUED, STATIC, row_of, write

from benchmarks import throughput, throughput_trtllm
from benchmarks.throughput_builds import DEFAULT_LIMITS, built_limits
from benchmarks.throughput_names import place_gpu, place_model
from benchmarks.throughput_rows import Row, foreign_class, read_rows
from benchmarks.throughput_runs import replaying_every_size, static_batch
from servewise.catalog import get_gpu, get_model
from servewise.errors import InputError
from servewise.perf import StepFormula, memory
from servewise.types import Precision


def test_reads_counts_lengths_and_units(tmp_path: Path) -> None:
    row = row_of(tmp_path, {**STATIC, "metric": "ttft", "unit": "ms", "value": "5.9", "ep": ""})
    assert (row.line, row.num_gpus, row.tp, row.ep, row.batch) == (2, 1, 1, 0, 2)
    assert (row.input_tokens, row.output_tokens) == (128, 3)
    assert row.value == pytest.approx(0.0059)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("source,model\na,b\n", encoding="utf-8")
    with pytest.raises(InputError, match="url_or_repo_path"):
        read_rows(path)


def test_rows_without_a_value_count_against_coverage(tmp_path: Path) -> None:
    good, bad, wrong = STATIC, {**STATIC, "value": "-3"}, {**STATIC, "unit": "tokens/min"}
    report = throughput.evaluate(write(tmp_path / "f.csv", good, bad, wrong))
    assert len(report.placed) == 1
    assert report.coverage_frac == pytest.approx(1 / 3)
    assert [text.split(":")[0] for text in report.unreadable] == ["line 3", "line 4"]


@pytest.mark.parametrize(
    ("metric", "model", "expected"),
    [
        ("output_tokens_per_s", "llama2-70b-99", ""),
        ("tpot_p99", "llama2-70b-99", ""),
        ("samples_per_s", "resnet50", "workload of another kind: vision"),
        ("samples_per_s", "stable-diffusion-xl", "workload of another kind: image generation"),
        ("energy_j", "llama2-70b-99", "metric 'energy_j'"),
    ],
)
def test_what_is_of_this_kind(metric: str, model: str, expected: str) -> None:
    assert foreign_class(metric, model) == expected


def test_servers_without_accelerators_are_counted_apart(tmp_path: Path) -> None:
    report = throughput.evaluate(write(tmp_path / "f.csv", STATIC, {**STATIC, "gpu": "", "n_gpus": "0.0"}))
    assert report.foreign == {"server without an accelerator": 1}
    assert report.coverage_frac == 1.0
    assert any("not of this kind: 1 rows, server without" in line for line in throughput.report_lines(report))


@pytest.mark.parametrize(
    ("published", "meant"),
    [
        ("LLaMA v3.3 70B", "meta-llama/Llama-3.3-70B-Instruct"),
        ("Llama 3.1 405B", "meta-llama/Llama-3.1-405B-Instruct"),
        ("Mixtral 8x22B", "mistralai/Mixtral-8x22B-Instruct-v0.1"),
        ("Qwen3 235B A22B", "Qwen/Qwen3-235B-A22B"),
        ("qwen3moe 30B.A3B Q8_0", "Qwen/Qwen3-30B-A3B"),
        ("gpt-oss 120B MXFP4 MoE", "openai/gpt-oss-120b"),
        ("Deepseek R1 0528", "deepseek-ai/DeepSeek-R1"),
        ("GPT-J 6B", "EleutherAI/gpt-j-6b"),
    ],
)
def test_published_model_names(published: str, meant: str) -> None:
    assert place_model(published).name == meant


def test_llama_2_is_what_an_unnumbered_llama_means() -> None:
    assert place_model("LLaMA 70B").vocab_size == 32000
    assert place_model("LLaMA v3 70B").vocab_size == 128256


@pytest.mark.parametrize(
    ("published", "meant"),
    [
        ("H100 80GB HBM3", "H100-SXM-80GB"),
        ("NVIDIA H100-PCIe-80GB", "H100-PCIe-80GB"),
        ("A100-PCIE-80GB", "A100-PCIe-80GB"),
        ("GB200-192GB", "GB200-186GB"),
        ("RTX PRO 6000 Blackwell Server", "RTX-PRO-6000-96GB"),
        ("AMD Instinct MI300X-NPS1-SPX-192GB-750W", "MI300X-192GB"),
        ("NVIDIA H200-SXM-141GB-CTS", "H200-SXM-141GB"),
        ("NVIDIA H100-NVL-94GB", "H100-NVL-94GB"),
        ("NVIDIA GH200 Grace Hopper Superchip 144GB", "GH200-144GB"),
        ("DGX Spark GB10", "GB10-128GB"),
        ("AMD Instinct MI325X-256GB", "MI325X-256GB"),
        ("NVIDIA L4", "L4-24GB"),
        ("NVIDIA L40S", "L40S-48GB"),
        ("Intel Gaudi 3", "GAUDI3-128GB"),
        ("Apple M2 Ultra", "M2-ULTRA-192GB"),
    ],
)
def test_published_gpu_names(published: str, meant: str) -> None:
    assert place_gpu(published).name == meant


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": "Grok 9"}, "model not in the catalog: Grok 9"),
        ({"model": "nemotron 120B.A12B"}, "hybrid with state-space layers"),
        ({"gpu": ""}, "hardware unknown"),
        ({"gpu": "Wafer 3"}, "hardware not in the catalog: Wafer 3"),
        ({"precision": "INT3"}, "precision not known: 'INT3'"),
        ({"notes": "speculative decoding, draft 4"}, "speculative decoding"),
        ({"engine": "Abacus"}, "engine 'Abacus'"),
        ({"tp": "2.0"}, "TP2 x PP1 is not 1 GPUs"),
        ({"engine_version": "latest"}, "version not named"),
    ],
)
def test_unplaceable_rows_are_named_with_their_reason(tmp_path: Path, change: dict[str, str], reason: str) -> None:
    report = throughput.evaluate(write(tmp_path / "f.csv", STATIC, {**STATIC, **change}))
    assert len(report.placed) == 1
    assert [row.line for row, _ in report.unplaced] == [3]
    assert reason in report.unplaced[0][1]
    assert any(reason in line for line in throughput.report_lines(report))


def test_static_batch_by_hand(tmp_path: Path) -> None:
    """Two prompts of 128 tokens in one step, then two decode steps at contexts of 129 and 130 tokens a row."""
    row = row_of(tmp_path, STATIC)
    deployment, built = throughput_trtllm.place(row)
    formula = throughput_trtllm.formula_of(deployment, built)
    one = np.ones(1)
    pairs = 2 * (128 * 129 / 2)
    prefill = formula.mixed_step_s(0 * one, 0 * one, 256 * one, pairs * one, 2 * one)
    decode = sum(formula.decode_step_s(2 * one, 2 * context * one) for context in (129, 130))
    assert throughput.predict(row) == pytest.approx(2 * 3 / float(prefill[0] + decode[0]), rel=1e-12)
    ttft = row_of(tmp_path, {**STATIC, "metric": "ttft", "unit": "ms", "osl": "1"})
    assert throughput.predict(ttft) == pytest.approx(float(prefill[0]), rel=1e-12)


def test_per_gpu_figures_are_divided_by_the_gpus(tmp_path: Path) -> None:
    two = {**STATIC, "n_gpus": "2.0", "tp": "2.0"}
    whole = row_of(tmp_path, {**two, "metric": "output_tokens_per_s", "unit": "tokens/s"})
    share = row_of(tmp_path, two)
    assert throughput.predict(whole) == pytest.approx(2 * throughput.predict(share), rel=1e-12)


def test_chunks_split_prompts_without_changing_what_is_attended_to(tmp_path: Path) -> None:
    deployment, _ = throughput_trtllm.place(row_of(tmp_path, STATIC))
    formula = replaying_every_size(StepFormula(deployment), 512)
    fixed, _, per_pair = formula.prefill_attention_s()
    whole = static_batch(formula, batch=1, input_tokens=256, output_tokens=0)
    cut = static_batch(formula, batch=1, input_tokens=256, output_tokens=0, chunk=256)
    assert cut.prefill_s == pytest.approx(whole.prefill_s, rel=1e-12)
    deep = static_batch(formula, batch=1, input_tokens=256, output_tokens=0, cached_tokens=1000)
    assert deep.prefill_s - whole.prefill_s == pytest.approx(per_pair * 256 * 1000, rel=1e-9)
    assert fixed >= 0


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [((128, 128), 30000), ((2048, 128), 3000), ((2048, 2048), 1500), ((8192, 1024), 1500), ((1024, 32768), 1000)],
)
def test_requests_of_the_overviews(lengths: tuple[int, int], expected: int) -> None:
    assert throughput_trtllm.num_requests(*lengths) == expected


def test_heuristic_batch_limits(tmp_path: Path) -> None:
    """Llama-3.1-8B FP8 on H200: weights 8.03 GB, FP8 cache 65,536 bytes a token, 2,000 tokens a request."""
    row = row_of(tmp_path, {**QUEUED, "isl": "1000", "osl": "1000"})
    model, gpu = get_model("meta-llama/Llama-3.1-8B-Instruct"), get_gpu("H200-SXM-141GB")
    found = throughput_trtllm.tuned_settings(model, gpu, Precision(weights="fp8", kv="fp8"), 1, row, 0.95)
    fits = (gpu.mem_bytes - 8.03e9) * 0.95 / (65536 * 2000)
    assert 1024 < fits < 1280
    assert found.max_batch_size == 1280
    assert found.max_num_tokens == 256 * int(np.ceil(2 * fits / 256))


def test_batches_are_padded_up_to_the_largest_that_runs(tmp_path: Path) -> None:
    deployment, built = throughput_trtllm.place(row_of(tmp_path, {**QUEUED, "isl": "1000", "osl": "1000"}))
    most = deployment.max_rows
    assert 384 < most < 1024
    sizes = throughput_trtllm.graph_sizes(deployment)
    assert sizes[-2:] == (512, most) if most > 512 else sizes[-1] == most
    formula = throughput_trtllm.formula_of(deployment, built)
    assert formula.padded(np.array([3.0, 300.0, most - 1.0])).tolist() == [4.0, 384.0, most]


@pytest.mark.parametrize(
    ("model", "tp", "longest", "expected"),
    [
        ("meta-llama/Meta-Llama-3-70B-Instruct", 2, 2176, (256, 1024)),
        ("meta-llama/Meta-Llama-3-70B-Instruct", 2, 4096, (2048, 1024)),
        ("meta-llama/Llama-3.1-70B-Instruct", 8, 2000, (8192, 16384)),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", 8, 2000, (8192, 8192)),
        ("meta-llama/Llama-3.1-405B-Instruct", 8, 2000, DEFAULT_LIMITS),
    ],
)
def test_listed_build_limits(model: str, tp: int, longest: int, expected: tuple[int, int]) -> None:
    assert built_limits(model, tp, longest) == expected


def test_decoder_buffers_of_a_built_engine_take_cache(tmp_path: Path) -> None:
    """Llama-3-70B at TP2 is built for 256 rows, and for 2,048 when requests have 4,096 tokens."""
    base = {**STATIC, "model": "LLaMA v3 70B", "gpu": "H100 80GB HBM3", "n_gpus": "2", "tp": "2"}
    queued = {**base, "engine_version": "0.14.0", "concurrency_or_rate": "offline(all queued)"}
    lost = []
    for lengths in (("1000", "1000"), ("2048", "2048")):
        row = row_of(tmp_path, {**queued, "isl": lengths[0], "osl": lengths[1]})
        deployment, built = throughput_trtllm.place(row)
        full, left = memory(deployment), throughput_trtllm.memory_of(deployment, built)
        assert throughput_trtllm.memory_of(deployment, False) == full
        lost.append((full.num_kv_blocks - left.num_kv_blocks) * full.block_size_tokens * full.kv_bytes_per_token)
    assert lost[1] / lost[0] == pytest.approx(2048 / 256, rel=0.05)
    assert lost[1] == pytest.approx(0.9 * 16 * 2048 * 128256, rel=0.02)


def test_experts_run_attention_data_parallel_under_the_pytorch_backend(tmp_path: Path) -> None:
    moe = {**QUEUED, "model": "Qwen3-30B-A3B", "precision": "FP4", "gpu": "B200-180GB", "n_gpus": "4", "tp": "4"}
    new, _ = throughput_trtllm.place(row_of(tmp_path, moe))
    assert (new.parallelism.data_parallel_size, new.parallelism.tensor_parallel_size) == (4, 1)
    old, _ = throughput_trtllm.place(row_of(tmp_path, {**moe, "engine": ENGINE, "engine_version": "0.14.0"}))
    assert (old.parallelism.data_parallel_size, old.parallelism.tensor_parallel_size) == (1, 4)


def test_precision_of_a_model_published_quantized(tmp_path: Path) -> None:
    gptoss = {**QUEUED, "model": "GPT-OSS 20B"}
    hopper, _ = throughput_trtllm.place(row_of(tmp_path, gptoss))
    assert hopper.precision == Precision(weights="mxfp4", kv="bf16")
    blackwell, _ = throughput_trtllm.place(row_of(tmp_path, {**gptoss, "precision": "FP4", "gpu": "B200-180GB"}))
    assert blackwell.precision == Precision(weights="mxfp4", kv="fp8")


def test_weight_only_precision_keeps_the_cache(tmp_path: Path) -> None:
    awq = row_of(tmp_path, {**STATIC, "precision": "INT4-AWQ (W4A16)", "engine_version": "0.15"})
    assert throughput_trtllm.place(awq)[0].precision == Precision(weights="int4", kv="bf16")


def test_a_faster_gpu_gives_more(tmp_path: Path) -> None:
    base = {**QUEUED, "isl": "2048", "osl": "128"}
    slow = throughput.predict(row_of(tmp_path, {**base, "gpu": "A100-SXM4-80GB", "precision": "FP16"}))
    fast = throughput.predict(row_of(tmp_path, base))
    assert fast > slow > 0


def test_summary_keys_and_the_last_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    halves = [{**STATIC, "value": str(v), "concurrency_or_rate": f"static batch={b}"} for v, b in ((1, 1), (2e6, 64))]
    throughput.main(["--data", str(write(tmp_path / "f.csv", STATIC, *halves))])
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(last) == {"n", "median_ape_pct", "spearman", "above_frac", "coverage_frac"}
    assert last["n"] == 3
    assert last["coverage_frac"] == 1.0
    # one value far below what the GPU does, one far above
    assert last["above_frac"] in (pytest.approx(1 / 3, abs=1e-3), pytest.approx(2 / 3, abs=1e-3))


def test_latency_under_load_is_placed_but_not_in_the_json_line(tmp_path: Path) -> None:
    server = {**MLPERF, "concurrency_or_rate": "target_qps=8.0", "notes": "scenario=Server", "unit": "ms"}
    report = throughput.evaluate(write(tmp_path / "f.csv", {**server, "metric": "tpot_mean", "value": "100"}))
    assert report.summary()["n"] == 0
    assert report.coverage_frac == 1.0
    assert any("latency under load" in line for line in throughput.report_lines(report))


def test_ranks_agree_or_disagree() -> None:
    def placed(*pairs: tuple[float, float]) -> list[throughput.Placed]:
        rows = [Row(**{**vars_of_row(), "value": value}) for _, value in pairs]
        return [throughput.Placed(row=r, predicted=p) for r, (p, _) in zip(rows, pairs, strict=True)]

    assert throughput.spearman(placed((1, 10), (2, 20), (3, 30))) == 1.0
    assert throughput.spearman(placed((3, 10), (2, 20), (1, 30))) == -1.0
    assert throughput.spearman(placed((1, 10), (2, 20))) is None
    assert throughput.median_ape(placed((1.1, 1), (0.7, 1), (2, 1))) == pytest.approx(0.3)


def vars_of_row() -> dict[str, object]:
    """Fields of a row of which nothing is known."""
    texts = dict.fromkeys(
        ("source", "path", "engine", "version", "model", "precision", "gpu", "load", "metric", "notes"), ""
    )
    numbers = dict.fromkeys(("num_gpus", "tp", "pp", "ep", "input_tokens", "output_tokens"), 0)
    return {"line": 2, **texts, **numbers}


@pytest.mark.shared
def test_every_row_of_the_overviews_is_placed(shared_dir: Path) -> None:
    rows, foreign, unreadable = read_rows(shared_dir / "data" / "measured" / "trtllm_perf_overview.csv")
    assert (foreign, unreadable) == ({}, [])
    for row in rows:
        throughput_trtllm.place(row)


def test_equal_values_share_their_rank() -> None:
    assert throughput.mean_ranks([3.0, 1.0, 3.0, 2.0]).tolist() == [3.5, 1.0, 3.5, 2.0]
