"""The throughput benchmark: what MLPerf and llama.cpp ran."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from published_figures import MLPERF, STATIC, row_of

from benchmarks import throughput, throughput_llamacpp, throughput_mlperf, throughput_trtllm
from benchmarks.throughput_names import place_model
from benchmarks.throughput_rows import Unplaceable
from benchmarks.throughput_runs import replaying_every_size, with_beams
from servewise.catalog import get_gpu, get_model
from servewise.engines import trtllm
from servewise.perf import StepFormula, tabulate
from servewise.types import Deployment, GpuSpec, Parallelism, Precision


def test_beams_cost_rows(tmp_path: Path) -> None:
    """A request of four beams takes what four requests of its context take, and no network."""
    deployment, _ = throughput_trtllm.place(row_of(tmp_path, STATIC))
    table = tabulate(replaying_every_size(StepFormula(deployment), 512))
    beamed = with_beams(table, 4)
    assert beamed.max_rows == table.max_rows // 4
    for n, context in ((1, 300.0), (7, 2100.0)):
        for k in range(len(table.context_knots)):
            one = table.attention_base_s[4 * n, k] + table.attention_slope_s[4 * n, k] * 4 * context
            assert beamed.attention_base_s[n, k] + beamed.attention_slope_s[n, k] * context == pytest.approx(one)
        assert beamed.decode_fixed_s[n] == table.decode_fixed_s[4 * n]
        assert beamed.sample_s[n] > table.sample_s[4 * n]


def test_boards_of_four_have_a_third_of_the_links_between_two() -> None:
    gpu = get_gpu("H100-SXM-80GB")
    pair, all_four = Parallelism(tensor_parallel_size=2), Parallelism(tensor_parallel_size=4)
    assert throughput_mlperf.on_its_board(gpu, 8, pair) is gpu
    assert throughput_mlperf.on_its_board(gpu, 4, all_four) is gpu
    board = throughput_mlperf.on_its_board(gpu, 4, pair)
    assert board.link_bytes_per_s == pytest.approx(gpu.link_bytes_per_s / 3)
    params = trtllm.default_params(trtllm.default_version(), gpu, get_model("meta-llama/Llama-3.1-70B-Instruct"))

    def all_reduce_s(on: GpuSpec) -> float:
        deployment = Deployment(
            model=get_model("meta-llama/Llama-3.1-70B-Instruct"),
            gpu=on,
            engine="tensorrt-llm",
            engine_version=trtllm.default_version(),
            precision=Precision(),
            parallelism=pair,
            params=params,
        )
        return float(StepFormula(deployment).token_parts(np.array([4096.0])).all_reduce[0])

    assert 1.5 * all_reduce_s(gpu) < all_reduce_s(board) < 3.5 * all_reduce_s(gpu)


def test_h100_nvl_are_bridged_in_pairs() -> None:
    gpu = get_gpu("H100-NVL-94GB")
    pair = throughput_mlperf.on_its_board(gpu, 8, Parallelism(tensor_parallel_size=2))
    assert (pair.link_kind, pair.link_bytes_per_s) == ("nvlink", 300e9)
    for size in (1, 4):
        assert throughput_mlperf.on_its_board(gpu, 8, Parallelism(tensor_parallel_size=size)) is gpu


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"url_or_repo_path": "closed/NVIDIA/results/H200-SXM-141GBx8_TRT_MaxQ/x"}, "power cap"),
        ({"url_or_repo_path": "open/NVIDIA/results/H200-SXM-141GBx1_TRT_DepthPruned/x"}, "altered model"),
        ({"url_or_repo_path": "open/X/results/GO_2xRTX4090-reference-cpu-pytorch/x"}, "reference harness"),
        ({"gpu": ""}, "hardware unknown"),
        ({"model": "palm-99"}, "model not in the catalog"),
        ({"model": "llama-3.1-8b"}, "data set of the workload not known"),
        ({"metric": "ttft_p99", "unit": "ms"}, "offline run"),
    ],
)
def test_mlperf_systems_that_are_not_predicted(tmp_path: Path, change: dict[str, str], reason: str) -> None:
    with pytest.raises(Unplaceable, match=reason):
        throughput.predict(row_of(tmp_path, {**MLPERF, **change}))


def test_mlperf_copies_leave_half_of_the_memory_to_the_cache() -> None:
    model = place_model("llama-2-70b")
    for name, size in (("H200-SXM-141GB", 1), ("H100-SXM-80GB", 2), ("L40S-48GB", 4)):
        gpu = get_gpu(name)
        found = throughput_mlperf.parallelism_of(model, gpu, throughput_mlperf.precision_of(gpu), 8)
        assert found.tensor_parallel_size == size, name


def test_mlperf_lengths_keep_their_means() -> None:
    lengths = throughput_mlperf.lengths_of("llama2-70b-99.9")
    inputs, outputs = lengths.draw(20000)
    assert inputs.mean() == pytest.approx(lengths.mean_input, rel=0.01)
    assert outputs.mean() == pytest.approx(lengths.mean_output, rel=0.01)
    assert outputs.max() <= lengths.max_output


def test_mlperf_server_sends_no_more_than_its_rate(tmp_path: Path) -> None:
    server = {**MLPERF, "concurrency_or_rate": "target_qps=8.0", "notes": "scenario=Server", "metric": "samples_per_s"}
    rate = throughput.predict(row_of(tmp_path, {**server, "unit": "samples/s"}))
    offline = throughput.predict(row_of(tmp_path, {**MLPERF, "metric": "samples_per_s", "unit": "samples/s"}))
    assert 0.9 * 8.0 < rate <= 8.0 < offline
    fast, slow = (
        throughput.predict(row_of(tmp_path, {**server, "metric": f"tpot_{p}", "unit": "ms"})) for p in ("p50", "p99")
    )
    assert 0 < fast < slow


def test_llamacpp_file_types(tmp_path: Path) -> None:
    record = {**STATIC, "engine": "llama.cpp", "metric": "decode_tokens_per_s", "unit": "tokens/s"}
    row = row_of(tmp_path, {**record, "model": "ggml-org/gpt-oss-20b-GGUF", "precision": "GGUF default (see file)"})
    assert throughput_llamacpp.file_type(row, place_model(row.model)) == "mxfp4"
    for name, weights in (("qwen2 7B Q8_0", "q8_0"), ("gemma3 4B Q4_0", "q4_0"), ("qwen2 7B Q4_K - Medium", "q4_k_m")):
        named = row_of(tmp_path, {**record, "model": name, "precision": name})
        assert throughput_llamacpp.file_type(named, place_model("qwen2 7B")) == weights
    odd = row_of(tmp_path, {**record, "model": "qwen2 7B Q5_K", "precision": "qwen2 7B Q5_K"})
    with pytest.raises(Unplaceable, match="precision not modelled: q5_k"):
        throughput_llamacpp.file_type(odd, place_model("qwen2 7B"))


def test_llamacpp_decode_reads_the_weights_at_every_step(tmp_path: Path) -> None:
    record = {
        **STATIC,
        "engine": "llama.cpp",
        "model": "gpt-oss 20B MXFP4 MoE",
        "precision": "gpt-oss 20B MXFP4 MoE",
        "gpu": "RTX-4090",
        "isl": "",
        "osl": "32",
        "concurrency_or_rate": "batch=1",
        "metric": "decode_tokens_per_s",
        "unit": "tokens/s",
        "notes": "context depth=0",
    }
    shallow = throughput.predict(row_of(tmp_path, record))
    deep = throughput.predict(row_of(tmp_path, {**record, "notes": "context depth=32768"}))
    assert shallow > deep > 0
    # 3.6e9 active parameters of at least half a byte each
    assert shallow < get_gpu("RTX-4090-24GB").mem_bw_bytes_per_s / (3.0e9 * 0.5)
