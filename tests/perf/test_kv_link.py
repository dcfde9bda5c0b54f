"""What crosses between prefill and decode instances, and how fast."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from perf_deployments import deploy

from servewise.catalog import get_gpu
from servewise.errors import InputError
from servewise.perf import kv_link, kv_transfer_bytes, kv_transfer_bytes_per_token, memory, step_model
from servewise.types import Deployment, Disaggregation, InstancePool, Parallelism

LLAMA_8B, DEEPSEEK, GPT_OSS = "meta-llama/Llama-3.1-8B-Instruct", "deepseek-ai/DeepSeek-V3", "openai/gpt-oss-120b"


def test_bytes_of_a_token() -> None:
    # 32 layers, 8 key-value heads of 128, keys and values, 2 bytes
    assert kv_transfer_bytes_per_token(deploy(LLAMA_8B)) == 32 * 8 * 128 * 2 * 2
    assert kv_transfer_bytes_per_token(deploy(LLAMA_8B, kv="fp8")) == 32 * 8 * 128 * 2
    # one copy, however it is spread
    assert kv_transfer_bytes_per_token(deploy(LLAMA_8B, tp=4)) == 32 * 8 * 128 * 2 * 2
    # MLA: one latent of 512 and 64 of rope
    assert kv_transfer_bytes_per_token(deploy(DEEPSEEK, weights="fp8_block", tp=8)) == 61 * (512 + 64) * 2


def test_bytes_of_prompts_are_whole_blocks_and_no_more_than_a_window() -> None:
    tokens = np.array([1, 16, 17, 1000])
    per_token = kv_transfer_bytes_per_token(deploy(LLAMA_8B))
    np.testing.assert_array_equal(kv_transfer_bytes(deploy(LLAMA_8B), tokens), per_token * np.array([16, 16, 32, 1008]))
    # gpt-oss: 18 of 36 layers see 128 tokens
    sliding = deploy(GPT_OSS, weights="mxfp4")
    layer = kv_transfer_bytes_per_token(sliding) / 36
    np.testing.assert_allclose(
        kv_transfer_bytes(sliding, np.array([100, 1600])), layer * np.array([36 * 112, 18 * 1600 + 18 * 128])
    )


def test_links() -> None:
    h100 = deploy(LLAMA_8B)
    inside = kv_link(h100, h100, 2, 6)
    assert inside.kind == "nvlink"
    assert inside.bytes_per_s == 17.6e9  # measured, below the share of 450 GB/s
    outside = kv_link(h100, h100, 2, 7)
    assert outside.kind == "network"
    assert outside.bytes_per_s == pytest.approx(0.72 * 50e9)
    assert outside.latency_s == 0.5e-3
    other = kv_link(h100, deploy(LLAMA_8B, gpu="A100-SXM-80GB"), 1, 1)
    assert other.kind == "network"
    assert other.bytes_per_s == pytest.approx(0.72 * 25e9)  # the slower side's port
    assert {origin.kind for origin in outside.provenance.values()} == {"derived"}


@pytest.mark.parametrize(
    ("model", "weights", "tp", "lanes"),
    [(LLAMA_8B, "bf16", (2, 2), 2), (LLAMA_8B, "bf16", (1, 4), 1), (DEEPSEEK, "fp8_block", (8, 8), 1)],
)
def test_gpus_that_hold_different_parts_send_side_by_side(
    model: str, weights: str, tp: tuple[int, int], lanes: int
) -> None:
    prefill, decode = (deploy(model, weights=weights, tp=size) for size in tp)  # type: ignore[arg-type]
    assert kv_link(prefill, decode, 4, 8).bytes_per_s == pytest.approx(0.72 * 50e9 * lanes)


def test_memory_and_time_are_those_of_a_pool() -> None:
    alone = deploy(LLAMA_8B)
    pool = InstancePool(gpu=alone.gpu, parallelism=alone.parallelism, params=alone.params, num_instances=1)
    slow = dataclasses.replace(pool, gpu=get_gpu("L40S-48GB"), parallelism=Parallelism(tensor_parallel_size=2))
    link = kv_link(alone, alone, 1, 1)
    apart: Deployment = dataclasses.replace(alone, disaggregation=Disaggregation(prefill=slow, decode=pool, link=link))
    assert apart.num_gpus == 3
    for ask in (memory, step_model):
        with pytest.raises(InputError, match=r"ask for deployment.pool\('prefill'\) or 'decode'"):
            ask(apart)
    assert memory(apart.pool("decode")).num_kv_blocks == memory(alone).num_kv_blocks
    assert memory(apart.pool("prefill")).mem_bytes == get_gpu("L40S-48GB").mem_bytes
