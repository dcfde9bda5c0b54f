"""Serving rows: on which deployments, clients and settings they are placed, and why not."""

from __future__ import annotations

import numpy as np
import pytest
from serving_table import placed_row, reason, serving_row

from benchmarks.places import find_gpu, find_model, weight_precision
from benchmarks.serving_rows import parallelism_of, place, version_of
from benchmarks.serving_sources import Client, named_client, requests_of
from servewise.catalog import get_model
from servewise.errors import UnknownNameError
from servewise.types import Parallelism, SglangParams, TrtllmParams, VllmParams

LLAMA_70B = "meta-llama/Llama-3.1-70B"
INFERENCEX = {"date": "2025-10-29", "engine_version": "", "isl": "1024", "osl": "1024"}


# ---------------------------------------------------------------------------------------------------------- placement


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("meta-llama/Llama-3.1-70B", "meta-llama/Llama-3.1-70B-Instruct"),
        ("nvidia/Qwen3-32B-NVFP4", "Qwen/Qwen3-32B"),
        ("Qwen/Qwen3-235B-A22B-FP8", "Qwen/Qwen3-235B-A22B"),
        ("nvidia/Llama-3.1-8B-Instruct-FP8", "meta-llama/Llama-3.1-8B-Instruct"),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "Qwen/Qwen2.5-7B-Instruct"),
        ("meta-llama/Llama-3.1-8B-Instruct-FP8-KV", "meta-llama/Llama-3.1-8B-Instruct"),
        ("openai/gpt-oss-120b", "openai/gpt-oss-120b"),
    ],
)
def test_models_by_alias_and_quantized_copy(name: str, model: str) -> None:
    assert find_model(name).name == model


def test_an_unknown_model_is_named_as_it_was_written() -> None:
    with pytest.raises(UnknownNameError, match="nobody/Nothing-9B-FP8"):
        find_model("nobody/Nothing-9B-FP8")


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("h100_sxm", "H100-SXM-80GB"),
        ("H200_SXM", "H200-SXM-141GB"),
        ("b200_sxm", "B200-SXM-180GB"),
        ("gb200", "GB200-186GB"),
        (" rtx_pro_6000_server", "RTX-PRO-6000-96GB"),
        ("l40s", "L40S-48GB"),
    ],
)
def test_gpus_by_alias(name: str, gpu: str) -> None:
    assert find_gpu(name).name == gpu


@pytest.mark.parametrize(
    ("stated", "model", "weights"),
    [
        ("", "meta-llama/Llama-3.1-8B-Instruct", "bf16"),
        ("unstated", "meta-llama/Llama-3.1-8B-Instruct", "bf16"),
        ("FP8", "meta-llama/Llama-3.1-8B-Instruct", "fp8"),
        ("fp8_block", "meta-llama/Llama-3.1-8B-Instruct", "fp8_block"),
        ("fp8", "nvidia/Llama-3.1-8B-Instruct-FP8", "fp8"),
        ("fp8", "Qwen/Qwen3-235B-A22B-FP8", "fp8_block"),
        ("fp8", "Qwen/Qwen3-235B-A22B", "fp8"),
        ("fp4", "nvidia/Qwen3-32B-NVFP4", "nvfp4"),
        ("int4_wo", "Qwen/Qwen3-32B", "int4"),
        # gpt-oss is published in mxfp4 only
        ("fp8", "openai/gpt-oss-120b", "mxfp4"),
        ("unstated", "openai/gpt-oss-120b", "mxfp4"),
    ],
)
def test_precisions(stated: str, model: str, weights: str) -> None:
    assert weight_precision(stated, find_model(model), model) == weights


def test_the_precision_of_matrices_goes_before_that_of_the_row() -> None:
    assert placed_row(gemm_quant_mode="fp8", precision="unstated").deployment.precision.weights == "fp8"
    assert placed_row(gemm_quant_mode="", precision="fp8").deployment.precision.weights == "fp8"


@pytest.mark.parametrize(
    ("stated", "date", "engine", "version"),
    [
        ("0.12.0", "2026-05-01", "vllm", "0.12.0"),
        ("v0.9.1", "", "vllm", "v0.9.1"),
        ("", "2026-03-27", "vllm", "0.17.0"),
        ("", "2026-02-28", "vllm", "0.12.0"),
        ("", "2025-12-01", "vllm", "0.12.0"),
        ("", "2025-11-30", "vllm", "0.11.0"),
        ("", "", "vllm", "0.11.0"),
        ("gpt-oss-dev", "2025-12-15", "tensorrt-llm", "1.1.0"),
        ("", "2026-02-05", "tensorrt-llm", "1.2.0"),
        ("", "2026-02-05", "sglang", "0.5.1"),
    ],
)
def test_versions_by_date(stated: str, date: str, engine: str, version: str) -> None:
    assert version_of(serving_row(engine_version=stated, date=date), engine) == version  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        # tp, ranks, moe tp, moe ep -> data parallel, expert parallel
        (("4", "1", "4", "1"), (1, 1)),
        (("4", "1", "2", "2"), (1, 2)),
        (("4", "", "1", "4"), (1, 4)),
        (("1", "4", "2", "2"), (4, 2)),
        # layouts that do not match their GPUs
        (("4", "1", "2", "4"), (1, 1)),
        (("1", "4", "1", "2"), (4, 1)),
    ],
)
def test_expert_layouts(sizes: tuple[str, str, str, str], expected: tuple[int, int]) -> None:
    names = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
    found = parallelism_of(serving_row(**dict(zip(names, sizes, strict=True))))
    ranks, experts = expected
    assert found == Parallelism(
        tensor_parallel_size=int(sizes[0]), data_parallel_size=ranks, expert_parallel_size=experts
    )


@pytest.mark.parametrize(
    ("sizes", "load", "expected", "concurrency"),
    [
        # tp, ranks, moe tp, moe ep
        (("4", "1", "2", "2"), "16", Parallelism(tensor_parallel_size=2, expert_parallel_size=2), 16),
        (("16", "1", "4", "4"), "16", Parallelism(tensor_parallel_size=4, expert_parallel_size=4), 16),
        (("1", "4", "2", "2"), "64", Parallelism(data_parallel_size=2, expert_parallel_size=2), 32),
        # stated as they ran
        (("1", "4", "1", "4"), "64", Parallelism(data_parallel_size=4, expert_parallel_size=4), 16),
        (("8", "1", "8", "1"), "16", Parallelism(tensor_parallel_size=8), 16),
    ],
)
def test_inferencex_gpus_that_were_counted_twice(
    sizes: tuple[str, str, str, str], load: str, expected: Parallelism, concurrency: int
) -> None:
    names = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
    layout = dict(zip(names, sizes, strict=True))
    rank_load = str(int(load) // int(sizes[1]))
    run = {"model": "openai/gpt-oss-120b", "engine": "trtllm", "precision": "fp4", "gpu_system": "h200_sxm"}
    found = placed_row(**INFERENCEX, **run, **layout, batch_size_field=rank_load, concurrency_from_source=load)
    assert found.deployment.parallelism == expected
    assert (found.client.concurrency, found.excluded) == (concurrency, set())
    # another source's rows mean what they say
    other = placed_row(**run, **{**layout, "tp_size": sizes[0].replace("16", "4")}, isl="1000")
    assert other.deployment.num_gpus == int(sizes[0].replace("16", "4")) * int(sizes[1])


def test_a_layout_that_does_not_match_is_set_aside() -> None:
    moe = {"model": "Qwen/Qwen3-235B-A22B-FP8", "engine": "trtllm", "precision": "fp8", "tp_size": "4"}
    assert placed_row(**moe, moe_tp_size="2", moe_ep_size="2").excluded == set()
    assert placed_row(**moe, moe_tp_size="2", moe_ep_size="4").excluded == {"ttft", "tpot"}
    dense = placed_row(tp_size="4")
    assert dense.excluded == set()
    assert dense.deployment.num_gpus == 4


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"engine": "tgi"}, "engine 'tgi' is not simulated; known: vllm, sglang, trtllm"),
        ({"model": "nobody/Nothing-9B"}, "nobody/Nothing-9B"),
        ({"gpu_system": "tpu_v5"}, "tpu_v5"),
        ({"gpu_system": "h100"}, "H100-PCIe-80GB"),  # several GPUs have that name
        ({"precision": "fp3"}, "precision 'fp3' is not known"),
        ({"model": LLAMA_70B, "precision": "unstated"}, "does not fit: weights"),
        ({"tp_size": "12"}, "tensor_parallel_size 12 is neither within one node of H100-SXM-80GB"),
        ({"attention_dp_size": "2"}, "data_parallel_size 2"),
        ({"batch_size_field": "", "concurrency_from_source": ""}, "neither a batch size nor a concurrency"),
    ],
)
def test_rows_that_cannot_be_placed_say_why(changes: dict[str, str], said: str) -> None:
    assert said in reason(**changes)


def test_no_row_gets_lost() -> None:
    rows = [serving_row(2), serving_row(3, engine="tgi"), serving_row(4, tpot_mean_ms="9")]
    placed, unplaced = place(rows)
    assert [row.row.number for row in placed] == [2, 4]
    assert [row.row.number for row in unplaced] == [3]


def test_the_catalog_has_what_the_rules_of_precision_rest_on() -> None:
    assert get_model("openai/gpt-oss-120b").native_precision == "mxfp4"
    assert get_model("Qwen/Qwen3-235B-A22B").native_precision == "bf16"


# ------------------------------------------------------------------------------------------------ clients and servers


def test_whose_client_it_was() -> None:
    own = named_client("2025-10-29", 8192, 1024, 16)
    assert (own.source, own.shortest_frac, own.concurrency) == ("InferenceX", 0.8, 16)
    assert named_client("", 8192, 1024, 16).source == "AIConfigurator"
    assert named_client("2025-10-29", 4000, 1000, 16).source == "AIConfigurator"
    assert named_client("2025-10-29", 8192, 8192, 16).shortest_frac == 1.0


def test_lengths_of_inferencex() -> None:
    """``benchmark_serving.py --random-range-ratio 0.8 --num-prompts 10*CONC``."""
    sent = requests_of(named_client("2025-10-29", 8192, 1024, 64))
    assert len(sent.input_tokens) == 640
    assert 6553 <= sent.input_tokens.min() < 6600
    assert 8140 < sent.input_tokens.max() <= 8192
    assert 819 <= sent.output_tokens.min() < 830
    assert 1014 < sent.output_tokens.max() <= 1024
    # uniform: mean in the middle, within 4 standard errors
    assert sent.input_tokens.mean() == pytest.approx(0.9 * 8192, abs=4 * 0.2 * 8192 / np.sqrt(12 * 640))
    assert np.array_equal(sent.max_tokens, sent.output_tokens)
    assert abs(np.corrcoef(sent.input_tokens, sent.output_tokens)[0, 1]) < 0.2


def test_lengths_of_the_other_client() -> None:
    sent = requests_of(named_client("", 4096, 128, 8))
    assert len(sent.input_tokens) == 1000
    assert set(sent.input_tokens.tolist()) == {4096}
    assert set(sent.output_tokens.tolist()) == {128}
    assert len(requests_of(named_client("", 128, 128, 1500)).input_tokens) == 1500
    assert set(requests_of(named_client("", 1, 1, 1)).output_tokens.tolist()) == {1}


def test_requests_are_the_same_every_time_and_at_every_load() -> None:
    def lengths(client: Client) -> list[tuple[int, int]]:
        sent = requests_of(client)
        return list(zip(sent.input_tokens.tolist(), sent.output_tokens.tolist(), strict=True))

    client = named_client("2025-10-29", 1024, 1024, 8)
    assert lengths(client) == lengths(client)
    assert lengths(client) != lengths(named_client("2025-10-29", 1024, 8192, 8))
    assert len(set(lengths(client))) > 70


def test_a_rank_gets_its_share_of_the_load() -> None:
    moe = {
        "model": "openai/gpt-oss-120b",
        "engine": "trtllm",
        "gpu_system": "b200_sxm",
        "tp_size": "1",
        "attention_dp_size": "4",
        "moe_tp_size": "1",
        "moe_ep_size": "4",
        "concurrency_from_source": "64",
        **INFERENCEX,
    }
    stated, derived = placed_row(**moe, batch_size_field="16"), placed_row(**moe, batch_size_field="")
    assert stated.client == derived.client
    assert stated.client.concurrency == 16
    assert stated.excluded == derived.excluded == set()
    params = stated.deployment.params
    assert isinstance(params, TrtllmParams)
    # attention_dp_config.enable_balance: prompts wait until every rank has one
    assert (params.batch_wait_timeout_iters, params.batch_wait_max_tokens_ratio) == (50, 1.0)
    assert (params.max_num_tokens, params.cuda_graph_max_batch_size) == (20000, 16)


def test_vllm_of_inferencex() -> None:
    hopper = placed_row(**INFERENCEX, model=LLAMA_70B, precision="fp8", tp_size="2").deployment
    assert isinstance(hopper.params, VllmParams)
    assert hopper.params.async_scheduling
    assert (hopper.params.max_num_batched_tokens, hopper.params.max_num_seqs) == (8192, 8)
    assert (hopper.params.max_model_len, hopper.params.cudagraph_mode) == (2304, "FULL_AND_PIECEWISE")
    assert not hopper.params.enable_prefix_caching
    assert (hopper.precision.weights, hopper.precision.kv) == ("fp8", "bf16")
    blackwell = placed_row(**INFERENCEX, model=LLAMA_70B, precision="fp8", gpu_system="b200_sxm").deployment
    assert isinstance(blackwell.params, VllmParams)
    assert (blackwell.params.max_num_seqs, blackwell.params.cudagraph_mode) == (512, "FULL_DECODE_ONLY")
    assert blackwell.precision.kv == "fp8"
    moe = placed_row(**INFERENCEX, model="openai/gpt-oss-120b", precision="fp4").deployment
    assert (moe.precision.weights, moe.precision.kv) == ("mxfp4", "bf16")


def test_vllm_of_the_other_client() -> None:
    found = placed_row(isl="4096", osl="1024").deployment
    assert isinstance(found.params, VllmParams)
    assert not found.params.async_scheduling
    assert (found.params.max_num_batched_tokens, found.params.max_model_len) == (2048, 5376)
    assert found.precision.kv == "bf16"


def test_tensorrt_llm_of_inferencex_waits_for_prompts() -> None:
    def params_of(**changes: str) -> TrtllmParams:
        row = {**INFERENCEX, "model": LLAMA_70B, "precision": "fp8", "engine": "trtllm", "tp_size": "4", **changes}
        found = placed_row(**row).deployment
        assert found.precision.kv == "fp8"
        assert isinstance(found.params, TrtllmParams)
        return found.params

    assert (params_of().batch_wait_timeout_iters, params_of().batch_wait_max_tokens_ratio) == (20, 0.9)
    assert (params_of().max_num_tokens, params_of().cuda_graph_max_batch_size) == (16384, 1024)
    assert params_of().cuda_graph_padding
    assert params_of(tp_size="8").batch_wait_timeout_iters == 0
    assert params_of(isl="8192").batch_wait_timeout_iters == 0


def test_tensorrt_llm_of_the_other_client() -> None:
    row = {"engine": "trtllm", "engine_version": "1.0.0rc3", "isl": "4096"}
    found = placed_row(**row).deployment
    assert isinstance(found.params, TrtllmParams)
    assert (found.params.max_num_tokens, found.params.batch_wait_timeout_iters) == (4104, 0)
    # per-tensor fp8 and nvfp4 checkpoints come with KV scales, block fp8 and bf16 do not
    assert found.precision.kv == "bf16"
    assert placed_row(**row, precision="fp8").deployment.precision.kv == "fp8"
    assert placed_row(**row, precision="fp8_block").deployment.precision.kv == "bf16"
    short = placed_row(engine="trtllm", isl="128").deployment.params
    assert isinstance(short, TrtllmParams)
    assert short.max_num_tokens == 2048


def test_kv_precision_of_gpt_oss_follows_the_gpu() -> None:
    row = {**INFERENCEX, "model": "openai/gpt-oss-120b", "engine": "trtllm", "precision": "fp4"}
    assert placed_row(**row, gpu_system="b200_sxm").deployment.precision.kv == "fp8"
    assert placed_row(**row, gpu_system="h200_sxm").deployment.precision.kv == "bf16"


def test_sglang_keeps_its_defaults() -> None:
    found = placed_row(engine="sglang", engine_version="0.5.1.post1").deployment
    assert isinstance(found.params, SglangParams)
    assert found.params.context_length == 512 + 128 + 256
    assert found.engine_version == "0.5.1.post1"
