"""Weights, KV cache and vLLM's memory budget."""

from __future__ import annotations

from dataclasses import replace

import pytest
from perf_deployments import deploy

from servewise import perf
from servewise.catalog import get_model, list_models, param_counts
from servewise.errors import InputError
from servewise.types import Parallelism, WeightPrecision
from servewise.units import GIB


@pytest.mark.parametrize("name", list_models())
def test_bf16_weights_are_two_bytes_a_parameter(name: str) -> None:
    spec = get_model(name)
    expected = 2 * param_counts(spec).total
    if spec.attention == "mla":
        nope = spec.head_dim - spec.qk_rope_head_dim
        expected += 2 * spec.num_layers * spec.num_heads * (nope + spec.v_head_dim) * spec.kv_lora_rank
    assert perf.weights_bytes(spec, "bf16", Parallelism()) == pytest.approx(expected, rel=2e-3)


def test_published_checkpoint_sizes() -> None:
    llama = get_model("meta-llama/Llama-3.1-70B-Instruct")
    assert perf.weights_bytes(llama, "bf16", Parallelism()) / GIB == pytest.approx(131.4, abs=0.1)
    gpt_oss = get_model("openai/gpt-oss-120b")
    assert perf.weights_bytes(gpt_oss, "mxfp4", Parallelism()) / GIB == pytest.approx(60.8, rel=0.02)


def test_embedding_and_head_stay_in_bf16() -> None:
    llama = get_model("meta-llama/Llama-3.1-8B-Instruct")
    counts = param_counts(llama)
    kept = 2 * (counts.embedding + counts.lm_head + counts.norms)
    linear = counts.attention + counts.dense_mlp
    assert perf.weights_bytes(llama, "fp8", Parallelism()) == pytest.approx(kept + linear, rel=1e-3)
    assert perf.weights_bytes(llama, "int4", Parallelism()) == pytest.approx(
        kept + linear * (0.5 + 2.5 / 128), rel=1e-3
    )


@pytest.mark.parametrize("weights", ["bf16", "fp8", "fp8_block", "int8", "int4", "nvfp4", "mxfp4"])
def test_shards_sum_to_the_whole_or_a_little_more(weights: WeightPrecision) -> None:
    for name in ("meta-llama/Llama-3.1-70B-Instruct", "Qwen/Qwen3-235B-A22B"):
        spec = get_model(name)
        whole = perf.weights_bytes(spec, weights, Parallelism())
        sums = [tp * perf.weights_bytes(spec, weights, Parallelism(tensor_parallel_size=tp)) for tp in (1, 2, 4, 8)]
        assert sums == sorted(sums)
        assert sums[-1] < 1.03 * whole


def test_tied_embeddings_are_held_once() -> None:
    spec = get_model("meta-llama/Llama-3.2-1B-Instruct")
    assert spec.tie_word_embeddings
    untied = replace(spec, tie_word_embeddings=False)
    extra = perf.weights_bytes(untied, "bf16", Parallelism()) - perf.weights_bytes(spec, "bf16", Parallelism())
    assert extra == pytest.approx(2 * spec.vocab_size * spec.hidden_size, rel=1e-3)


@pytest.mark.parametrize(
    ("model", "tp", "kv", "expected"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", 1, "bf16", 327680),
        ("meta-llama/Llama-3.1-70B-Instruct", 8, "bf16", 40960),
        ("meta-llama/Llama-3.1-70B-Instruct", 8, "fp8", 20480),
        ("Qwen/Qwen3-235B-A22B", 4, "bf16", 94 * 2 * 128 * 2),
        ("Qwen/Qwen3-235B-A22B", 8, "bf16", 94 * 2 * 128 * 2),
        ("deepseek-ai/DeepSeek-V3", 8, "bf16", 61 * 576 * 2),
    ],
)
def test_kv_bytes_per_token(model: str, tp: int, kv: str, expected: int) -> None:
    layout = perf.kv_layout(deploy(model, tp=tp, kv=kv))  # type: ignore[arg-type]
    assert layout.bytes_of_request(1000) == pytest.approx(1000 * expected)


def test_hybrid_models_pad_their_layers_to_equal_groups() -> None:
    layout = perf.kv_layout(deploy("google/gemma-3-27b-it"))
    assert (layout.num_full_groups, layout.num_sliding_groups) == (1, 6)
    assert layout.bytes_of_request(500) == 500 * 560 * 1024  # inside the window: 62 layers padded to 70
    full = layout.bytes_per_token_and_group
    assert layout.bytes_of_request(8192) == full * (8192 + 6 * 1024)


def test_budget_adds_up_and_one_block_is_withheld() -> None:
    report = perf.memory(deploy(tp=4))
    assert report.fits
    assert report.reason == ""
    parts = report.weights_bytes + report.activation_bytes + report.non_torch_bytes + report.graph_bytes
    assert report.budget_bytes - parts == report.kv_bytes
    per_block = report.kv_bytes_per_token * report.block_size_tokens
    assert report.num_kv_blocks == report.kv_bytes // per_block - 1
    assert set(report.provenance) >= {"mem", "budget", "weights", "activation", "non_torch", "graph", "kv"}


def test_graphs_are_counted_since_0_21() -> None:
    assert perf.memory(deploy(tp=4, version="0.20.0")).graph_bytes == 0
    assert perf.memory(deploy(tp=4, version="0.21.0")).graph_bytes > 0


def test_more_of_anything_leaves_less_kv() -> None:
    base = perf.memory(deploy(tp=4)).kv_bytes
    assert perf.memory(deploy(tp=4, max_num_batched_tokens=32768)).kv_bytes < base
    assert perf.memory(deploy(tp=4, max_num_seqs=2048)).kv_bytes < base
    assert perf.memory(deploy(tp=4, gpu_memory_utilization=0.8)).kv_bytes < base
    assert perf.memory(deploy(tp=4, weights="fp8")).kv_bytes > base


def test_refusals_say_what_and_by_how_much() -> None:
    weights = perf.memory(deploy(tp=1))
    assert (weights.fits, weights.num_kv_blocks, weights.kv_capacity_tokens) == (False, 0, 0)
    assert weights.reason == "weights 131.4 GiB > 72.9 GiB usable on H100-SXM-80GB at TP1"
    tight = perf.memory(deploy("Qwen/Qwen3-14B", "RTX-5090-32GB"))
    assert not tight.fits
    assert "leave no KV cache" in tight.reason
    long = perf.memory(deploy("meta-llama/Llama-3.1-8B-Instruct", "L4-24GB", max_model_len=131072))
    assert not long.fits
    assert "max_model_len 131072" in long.reason


def test_largest_model_len_is_the_edge() -> None:
    for name, gpu, share in (
        ("meta-llama/Llama-3.1-8B-Instruct", "L4-24GB", 0.92),
        ("google/gemma-3-27b-it", "H100-SXM-80GB", 0.83),
    ):
        wanted = deploy(name, gpu, gpu_memory_utilization=share)
        longest = perf.largest_model_len(wanted)
        assert 0 < longest < wanted.model.max_context_tokens
        edge = replace(wanted, params=replace(wanted.params, max_model_len=longest))
        beyond = replace(wanted, params=replace(wanted.params, max_model_len=longest + 64))
        assert perf.memory(edge).fits
        assert not perf.memory(beyond).fits
    assert perf.largest_model_len(deploy(tp=1)) == 0


@pytest.mark.parametrize(
    "parallelism",
    [{"pipeline_parallel_size": 81}, {"data_parallel_size": 2}, {"expert_parallel_size": 2}],
)
def test_parallelism_that_makes_no_sense_is_refused(parallelism: dict[str, int]) -> None:
    """More stages than the 80 layers; ranks and groups that share experts a dense model has not."""
    wanted = replace(deploy(), parallelism=Parallelism(**parallelism))
    with pytest.raises(InputError, match=next(iter(parallelism))):
        perf.memory(wanted)


def test_activation_of_long_steps_follows_the_forward_pass() -> None:
    """Llama-3.1-8B on RTX 3090, 20,000 and 29,000 tokens: 17.06 and 17.98 GiB peak - 14.99 of weights
    (https://github.com/vllm-project/vllm/issues/10517, read 2026-11-29)."""
    for tokens, expected_gib in ((20000, 2.07), (29000, 2.99)):
        name = "meta-llama/Llama-3.1-8B-Instruct"
        wanted = deploy(name, "RTX-4090-24GB", max_num_batched_tokens=tokens)
        assert perf.memory(wanted).activation_bytes / GIB == pytest.approx(expected_gib, rel=0.01)
