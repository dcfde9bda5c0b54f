"""vLLM's defaults, validity, flags and capture sizes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from servewise.catalog import get_gpu, get_model
from servewise.engines import facts, vllm
from servewise.errors import InputError
from servewise.types import Deployment, Parallelism, Precision

LLAMA = get_model("meta-llama/Llama-3.1-70B-Instruct")
H100 = get_gpu("H100-SXM-80GB")


def deployment(**changes: object) -> Deployment:
    params = vllm.default_params("0.33.0", H100, LLAMA)
    base = Deployment(
        model=LLAMA,
        gpu=H100,
        engine="vllm",
        engine_version="0.33.0",
        precision=Precision(weights="fp8", kv="fp8"),
        parallelism=Parallelism(tensor_parallel_size=4),
        params=params,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gpu", "tokens", "seqs"),
    [
        ("H100-SXM-80GB", 8192, 1024),
        ("H200-SXM-141GB", 8192, 1024),
        ("B200-SXM-180GB", 16384, 1024),
        ("A100-SXM-80GB", 2048, 256),
        ("L40S-48GB", 2048, 256),
    ],
)
def test_defaults_follow_the_memory_class(gpu: str, tokens: int, seqs: int) -> None:
    params = vllm.default_params("0.33.0", get_gpu(gpu), LLAMA)
    assert (params.max_num_batched_tokens, params.max_num_seqs) == (tokens, seqs)
    assert params.gpu_memory_utilization == 0.92
    assert params.max_model_len == LLAMA.max_context_tokens


def test_defaults_change_with_the_version() -> None:
    old, new = (vllm.default_params(v, H100, LLAMA) for v in ("0.12.1", "0.33.0"))
    assert (old.gpu_memory_utilization, new.gpu_memory_utilization) == (0.90, 0.92)
    assert (old.async_scheduling, new.async_scheduling) == (False, True)
    assert (old.scheduler_reserve_full_isl, new.scheduler_reserve_full_isl) == (False, True)
    assert vllm.memory_profile("0.16.0").logits_bytes_per_entry > vllm.memory_profile("0.17.0").logits_bytes_per_entry
    assert vllm.defaults("0.33.1rc2") == vllm.defaults(vllm.default_version())


@pytest.mark.parametrize("version", ["0.6.4", "latest", ""])
def test_unknown_versions_are_refused(version: str) -> None:
    with pytest.raises(InputError, match=r"vLLM"):
        vllm.default_params(version, H100, LLAMA)


def test_every_range_names_its_sources() -> None:
    for table in ("range", "profile"):
        rows = facts.document("vllm")[table]
        assert all(facts.cited("vllm", row["source"]).source for row in rows)
        since = [vllm.version_key(row["from"]) for row in rows]
        assert since == sorted(since)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("max_num_seqs", 0, "max_num_seqs"),
        ("max_num_batched_tokens", 512, "below max_num_seqs"),
        ("max_model_len", 200_000, "exceeds"),
        ("gpu_memory_utilization", 1.2, "gpu_memory_utilization"),
        ("block_size_tokens", 24, "power of two"),
        ("enable_chunked_prefill", False, "chunked prefill"),
        ("scheduling_policy", "lifo", "fcfs or priority"),
        ("watermark", 1.0, r"watermark is 1.0; it must be in \[0, 1\)"),
        ("long_prefill_token_threshold", -1, "0 \\(no cap\\)"),
        ("long_prefill_token_threshold", 131_073, "up to max_model_len 131072"),
    ],
)
def test_parameters_that_vllm_refuses(field: str, value: object, message: str) -> None:
    params = replace(vllm.default_params("0.33.0", H100, LLAMA), **{field: value})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=message):
        vllm.validate(params, LLAMA)


def test_launch_arguments() -> None:
    args = vllm.launch(deployment()).args
    assert args == [
        *("vllm", "serve", "meta-llama/Llama-3.1-70B-Instruct", "--tensor-parallel-size", "4"),
        *("--max-num-seqs", "1024", "--max-num-batched-tokens", "8192", "--max-model-len", "131072"),
        *("--gpu-memory-utilization", "0.92", "--quantization", "fp8", "--kv-cache-dtype", "fp8"),
    ]
    params = replace(deployment().params, enable_prefix_caching=False, block_size_tokens=32)
    changed = vllm.launch(deployment(params=params)).args
    assert changed[-3:] == ["--block-size", "32", "--no-enable-prefix-caching"]
    params = replace(
        deployment().params, scheduling_policy="priority", watermark=0.01, long_prefill_token_threshold=512
    )
    assert vllm.launch(deployment(params=params)).args[-6:] == [
        *("--scheduling-policy", "priority", "--watermark", "0.01", "--long-prefill-token-threshold", "512"),
    ]


def test_a_quantized_checkpoint_needs_no_flag_and_is_announced() -> None:
    wanted = deployment(precision=Precision(weights="int4"))
    assert "--quantization" not in vllm.launch(wanted).args
    assert vllm.needs_quantized_checkpoint(LLAMA, "int4")
    assert not vllm.needs_quantized_checkpoint(LLAMA, "fp8")
    assert not vllm.needs_quantized_checkpoint(LLAMA, "bf16")


@pytest.mark.parametrize("name", ["", "--trust-remote-code", "a\nb"])
def test_model_names_that_could_act_as_options_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="model name"):
        vllm.launch(deployment(model=replace(LLAMA, name=name)))


def test_a_hostile_model_name_stays_one_argument() -> None:
    name = "x/y; rm -rf $(HOME) `id`"
    args = vllm.launch(deployment(model=replace(LLAMA, name=name))).args
    assert args[2] == name


@pytest.mark.shared
def test_every_flag_exists_in_vllm(shared_dir: Path) -> None:
    text = (shared_dir / "engines" / "help" / "vllm-0.32-serve.txt").read_text()
    known = set(re.findall(r"--[a-z0-9][a-z0-9-]*", text))
    flipped = replace(
        deployment().params,
        block_size_tokens=32,
        enable_prefix_caching=False,
        async_scheduling=False,
        scheduler_reserve_full_isl=False,
        scheduling_policy="priority",
        watermark=0.01,
        long_prefill_token_threshold=512,
    )
    used = {a for a in vllm.launch(deployment(params=flipped)).args if a.startswith("--")}
    unchunked = replace(deployment().params, enable_chunked_prefill=False, max_model_len=8192)
    used |= {a for a in vllm.launch(deployment(params=unchunked)).args if a.startswith("--")}
    assert len(used) == 15
    assert used <= known


def test_capture_sizes() -> None:
    params = vllm.default_params("0.33.0", H100, LLAMA)
    sizes = vllm.capture_sizes(params, H100)
    assert sizes[:5] == (1, 2, 4, 8, 16)
    assert sizes[-1] == 512
    assert len(sizes) == 51
    few = vllm.capture_sizes(replace(params, max_num_seqs=20), H100)
    assert few == (1, 2, 4, 8, 16, 20, 24, 32, 40)
    assert vllm.capture_sizes(params, get_gpu("B200-SXM-180GB"))[-1] == 1024


def test_tensor_parallel_sizes_divide_the_model() -> None:
    assert vllm.supported_tensor_parallel_sizes(LLAMA, H100) == (1, 2, 4, 8)
    qwen7 = get_model("Qwen/Qwen2.5-7B-Instruct")
    assert vllm.supported_tensor_parallel_sizes(qwen7, H100) == (1, 2, 4)
    wide = get_model("Qwen/Qwen3-235B-A22B")
    assert vllm.supported_tensor_parallel_sizes(wide, H100, "bf16") == (1, 2, 4, 8)
    assert vllm.supported_tensor_parallel_sizes(wide, H100, "fp8_block") == (1, 2, 4)
