"""TGI's defaults by version, GPU and model, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from servewise import engines
from servewise.catalog import get_gpu, get_model
from servewise.engines import facts, tgi
from servewise.errors import InputError
from servewise.types import Deployment, Parallelism, Precision, TgiParams

LLAMA = get_model("meta-llama/Llama-3.1-8B-Instruct")
V3 = get_model("deepseek-ai/DeepSeek-V3")
H100 = get_gpu("H100-SXM-80GB")
L4 = get_gpu("L4-24GB")
DEFAULTS = tgi.default_params("3.3.5", H100, LLAMA)


def deployment(params: TgiParams = DEFAULTS, **changes: object) -> Deployment:
    usual: dict[str, object] = {
        "model": LLAMA,
        "gpu": H100,
        "engine": "tgi",
        "engine_version": "3.3.5",
        "precision": Precision(),
        "parallelism": Parallelism(),
        "params": params,
    }
    return Deployment(**usual | changes)  # type: ignore[arg-type]


def test_every_table_names_its_sources() -> None:
    document = facts.document("tgi")
    for row in document["range"]:
        assert tgi.provenance(row["from"]).source
    assert facts.range_of("tgi", tgi.default_version()) == document["range"][-1]
    assert tgi.host_time()[2].kind == "assumed"
    assert tgi.library_gib(H100, 2)[1].kind == "assumed"


def test_defaults_of_version_3() -> None:
    assert (DEFAULTS.max_concurrent_requests, DEFAULTS.cuda_graphs) == (128, (1, 2, 4, 8, 16, 32))
    assert (DEFAULTS.block_size_tokens, DEFAULTS.prefix_caching, DEFAULTS.prefill_chunking) == (1, True, True)
    assert (DEFAULTS.max_total_tokens, DEFAULTS.waiting_served_ratio, DEFAULTS.max_waiting_tokens) == (131072, 0.3, 20)


def test_a_forward_takes_what_the_gpus_compute_in_a_second() -> None:
    """Llama-3.1-8B: 2 x 32 x 4096 x ((32 + 8) x 256 + 3 x 14336) = 13.96 GFLOP a token; an L4 has 121 TFLOP/s."""
    one = tgi.max_batch_prefill_tokens(L4, LLAMA, Parallelism())
    assert one == int(121e12 / (2 * 32 * 4096 * (40 * 256 + 3 * 14336))) == 8668
    assert tgi.max_batch_prefill_tokens(L4, LLAMA, Parallelism(tensor_parallel_size=4)) == 34673
    short = replace(LLAMA, max_context_tokens=4000)
    assert tgi.max_batch_prefill_tokens(L4, short, Parallelism()) == 4000


@pytest.mark.parametrize(
    ("gpu", "model"),
    [
        (get_gpu("MI300X-192GB"), LLAMA),
        (H100, replace(LLAMA, vision_num_params=10**9)),
        (replace(H100, peak_flops_per_s={"bf16": 1e12}), LLAMA),
    ],
)
def test_where_the_launcher_does_not_know_it_takes_4096(gpu: object, model: object) -> None:
    assert tgi.max_batch_prefill_tokens(gpu, model, Parallelism()) == 4096  # type: ignore[arg-type]


def test_what_beside_the_weights_fits_is_the_limit() -> None:
    """80 GB less 13.96 GB of weights as the launcher counts them, 131,072 bytes a token."""
    tight = replace(H100, mem_bytes=int(14e9 + 1e9))
    flops = 2 * 32 * 4096 * (40 * 256 + 3 * 14336)
    assert tgi.max_batch_prefill_tokens(tight, LLAMA, Parallelism()) == int((15e9 - flops) / 131072)


def test_before_version_3_prompts_were_whole_and_short() -> None:
    old = tgi.default_params("2.3.0", H100, LLAMA)
    assert (old.max_total_tokens, old.max_batch_prefill_tokens) == (4096, 4145)
    assert not old.prefill_chunking
    tgi.validate(old, LLAMA)
    with pytest.raises(InputError, match="older than"):
        tgi.default_params("1.4", H100, LLAMA)


def test_attention_decides_blocks_and_prefix_cache() -> None:
    assert tgi.attention(H100, LLAMA) == "flashinfer"
    odd = tgi.default_params("3.3.5", H100, replace(LLAMA, head_dim=80))
    assert (odd.block_size_tokens, odd.prefix_caching) == (256, False)
    assert tgi.attention(H100, V3) == "flashdecoding"
    amd = tgi.default_params("3.3.5", get_gpu("MI300X-192GB"), LLAMA)
    assert (amd.block_size_tokens, amd.prefix_caching) == (16, False)


def test_captured_sizes_pad_decode_steps_only() -> None:
    served = deployment(replace(DEFAULTS, cuda_graphs=(8, 1, 4)))
    assert engines.capture_sizes(served) == (1, 4, 8)
    assert engines.pads_to_captured_sizes(served)
    assert not engines.replays_graphs_with_prompts(served)


def test_shards_need_whole_key_value_heads() -> None:
    assert tgi.supported_tensor_parallel_sizes(LLAMA, H100) == (1, 2, 4, 8)
    assert tgi.supported_tensor_parallel_sizes(replace(LLAMA, num_kv_heads=2), H100) == (1, 2)
    assert tgi.supported_tensor_parallel_sizes(replace(LLAMA, num_kv_heads=1), H100) == (1, 2, 4, 8)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("max_concurrent_requests", 0, "at least 1"),
        ("max_batch_prefill_tokens", 0, "at least 1"),
        ("max_total_tokens", 0, "at least 1"),
        ("max_total_tokens", 10**9, "exceeds"),
        ("cuda_memory_fraction", 0.0, r"in \(0, 1\]"),
        ("wiggle_room", 1.0, r"in \(0, 1\)"),
        ("block_size_tokens", 8, "1 .flashinfer., 256 .flashdecoding., 16 .paged."),
        ("block_size_tokens", 16, "paged attention has no prefix cache"),
        ("prefill_chunking", False, "must reach the longest prompt, 131071 tokens"),
        ("cuda_graphs", (0, 4), "at least 1"),
        ("waiting_served_ratio", -0.1, "0 or more"),
    ],
)
def test_parameters_that_tgi_refuses(field: str, value: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        tgi.validate(replace(DEFAULTS, **{field: value}), LLAMA)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parallelism": Parallelism(pipeline_parallel_size=2)}, "pipeline_parallel_size is 2; TGI has only tensor"),
        ({"parallelism": Parallelism(tensor_parallel_size=3)}, "tensor_parallel_size 3 does not divide"),
        ({"precision": Precision(weights="nvfp4")}, "no weights in nvfp4"),
        ({"precision": Precision(kv="fp8"), "params": replace(DEFAULTS, block_size_tokens=256)}, "needs flashinfer"),
    ],
)
def test_deployments_that_tgi_refuses(changes: dict[str, object], message: str) -> None:
    tgi.require_supported(deployment(precision=Precision(weights="fp8", kv="fp8")))
    with pytest.raises(InputError, match=message):
        tgi.require_supported(deployment(**changes))
