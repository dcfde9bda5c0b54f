"""Operator times: stored grids, lookups, transfers between GPUs, engines and precisions, and what is said of them."""

from __future__ import annotations

import time
from dataclasses import replace
from importlib import resources
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from servewise.catalog import get_gpu, list_gpus
from servewise.perf.layout import Experts
from servewise.perf.operator_data import array, array_names, document, measured_version, nearest_system
from servewise.perf.operator_forms import CODE_STEP, from_codes, neighbour_log_ratio, to_codes
from servewise.perf.operators import Operators
from servewise.types import EngineName, WeightPrecision

Array = NDArray[np.float64]

PRECISIONS: tuple[WeightPrecision, ...] = get_args(WeightPrecision)
ENGINES: tuple[EngineName, ...] = ("vllm", "sglang", "tensorrt-llm", "llama.cpp")
ONE, MANY = np.array([1.0]), np.array([8192.0])
SIZES = np.unique(np.rint(np.geomspace(1, 20_000, 200)))
QWEN3_235B = Experts(
    hidden_size=4096,
    intermediate_size=1536,
    top_k=8,
    num_experts=128,
    tensor_parallel_size=4,
    num_layers=94,
    precision="fp8_block",
    gated=True,
)


def test_shipped_data_stays_small() -> None:
    folder = resources.files("servewise.data").joinpath("perf")
    sizes = {f.name: len(f.read_bytes()) for f in folder.iterdir() if f.is_file()}
    assert {"operators.npz", "operators.json", "overheads.json"} <= set(sizes)
    assert sum(sizes.values()) < 500_000


def test_every_gpu_with_tables_has_every_operator() -> None:
    for system, fit in document()["gpus"].items():
        assert {f"gemm/{system}/bf16", f"moe/{system}/bf16", f"all_reduce/{system}/best"} <= array_names()
        for engine, versions in fit["attention"].items():
            for version in versions:
                assert f"decode/{system}/{engine}/{version}/params" in array_names()
                assert f"prefill/{system}/{engine}/{version}/params" in array_names()
    assert len(document()["gpus"]) == 10


@given(st.lists(st.floats(-1.7, 4.3), min_size=2, max_size=40))
def test_codes_keep_ratios_to_half_a_step(ratios: list[float]) -> None:
    values = np.array(ratios)
    assert np.max(np.abs(from_codes(to_codes(values)) - values)) <= 0.5 * CODE_STEP + 1e-9


@pytest.mark.parametrize("gpu", list_gpus())
@pytest.mark.parametrize("weights", PRECISIONS)
def test_gemms_of_every_gpu_and_precision_never_fall_with_rows(gpu: str, weights: WeightPrecision) -> None:
    operators = Operators(get_gpu(gpu))
    for n, k in ((1280, 8192), (10240, 8192), (151936, 5120), (5120, 3200)):
        time_s = operators.gemm_s(SIZES, n, k, weights)
        assert np.all(np.isfinite(time_s))
        assert np.all(np.diff(time_s) >= 0)
        assert time_s[-1] > 5 * time_s[0]


def test_gemms_never_beat_the_memory_or_the_arithmetic_of_the_gpu() -> None:
    for gpu in list_gpus():
        card = get_gpu(gpu)
        operators = Operators(card)
        for m in (1.0, 64.0, 4096.0):
            time_s = operators.gemm_s(np.array([m]), 8192, 8192, "bf16")[0]
            assert time_s > 2 * 8192 * 8192 / card.mem_bw_bytes_per_s
            # GeForce cards clock higher than their specified peaks
            clock = 1.15 if gpu.startswith("RTX-") else 1.0
            assert time_s > 2 * m * 8192 * 8192 / (clock * card.peak_flops_per_s["bf16"])


@pytest.mark.parametrize("gpu", ["A100-SXM-80GB", "H100-SXM-80GB", "L40S-48GB", "MI300X-192GB"])
def test_weight_only_precisions_speed_up_reading_but_not_computing(gpu: str) -> None:
    operators = Operators(get_gpu(gpu))
    assert operators.gemm_s(ONE, 8192, 8192, "int4") < 0.6 * operators.gemm_s(ONE, 8192, 8192, "bf16")
    assert operators.gemm_s(MANY, 8192, 8192, "int4") >= operators.gemm_s(MANY, 8192, 8192, "bf16")


def test_fp8_on_a_gpu_without_fp8_is_weight_only() -> None:
    a100, h100 = (Operators(get_gpu(g)) for g in ("A100-SXM-80GB", "H100-SXM-80GB"))
    assert a100.gemm_s(MANY, 8192, 8192, "fp8") >= a100.gemm_s(MANY, 8192, 8192, "bf16")
    assert h100.gemm_s(MANY, 8192, 8192, "fp8") < 0.75 * h100.gemm_s(MANY, 8192, 8192, "bf16")
    assert "unpacking" in a100.notes["gemm_fp8"]
    assert not h100.notes


@pytest.mark.parametrize("gpu", list_gpus())
@pytest.mark.parametrize("weights", PRECISIONS)
def test_experts_never_fall_with_tokens_and_shrink_with_parallelism(gpu: str, weights: WeightPrecision) -> None:
    operators = Operators(get_gpu(gpu))
    layer = replace(QWEN3_235B, precision=weights)
    split = [operators.experts_s(SIZES, replace(layer, tensor_parallel_size=tp)) for tp in (1, 8)]
    for time_s in split:
        assert np.all(np.isfinite(time_s))
        assert np.all(np.diff(time_s) >= 0)
    assert split[1][-1] < split[0][-1]


def test_expert_parallelism_divides_the_experts() -> None:
    shape = np.array([4096, 1536, 8, 128, 1, 1], float)
    halves = np.array([4096, 1536, 8, 128, 1, 2], float)
    shapes = array("moe_shapes/h200_sxm/fp8_block").T.astype(float)
    curves = from_codes(array("moe/h200_sxm/fp8_block"))
    for wanted in (shape, halves):
        _, measured = neighbour_log_ratio(array("moe_tokens"), wanted, shapes, curves)
        assert measured


def test_an_unmeasured_shape_follows_its_neighbours() -> None:
    operators = Operators(get_gpu("H200-SXM-141GB"))
    near = replace(QWEN3_235B, intermediate_size=1600)
    known, other = operators.experts_s(SIZES, QWEN3_235B), operators.experts_s(SIZES, near)
    assert "moe_shape" in operators.notes
    assert "%" in operators.notes["moe_shape"]
    assert np.max(np.abs(other / known - 1)) < 0.4
    assert np.median(np.abs(other / known - 1)) < 0.15


def test_collectives_grow_with_bytes_and_vanish_on_one_gpu() -> None:
    sizes = np.geomspace(1e3, 1e9, 50)
    for gpu in list_gpus():
        operators = Operators(get_gpu(gpu))
        for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
            two, eight = operators.collective_s(kind, sizes, 2), operators.collective_s(kind, sizes, 8)
            assert np.all(np.diff(two) >= 0)
            assert np.all(np.isfinite(eight))
            assert eight[-1] > two[-1]
            assert not operators.collective_s(kind, sizes, 1).any()


def test_collectives_across_nodes_are_slower_and_said_to_be_transferred() -> None:
    operators = Operators(get_gpu("H100-SXM-80GB"))
    size = np.array([1e6, 1e8])
    inside = operators.all_reduce_s(size, 8)
    assert not operators.provenance("all_reduce").note.startswith("transferred")
    assert np.all(operators.all_reduce_s(size, 16) > inside)
    assert operators.provenance("all_reduce").note.startswith("transferred")


def test_attention_rates_stay_below_the_memory_and_follow_the_engine() -> None:
    for gpu in list_gpus():
        card = get_gpu(gpu)
        for engine in ENGINES:
            operators = Operators(card, engine)
            for heads, kv_heads, dim in ((8, 1, 128), (16, 2, 128), (32, 32, 64)):
                decode = operators.decode_attention("gqa", "bf16", num_heads=heads, num_kv_heads=kv_heads, head_dim=dim)
                prefill = operators.prefill_attention(
                    "gqa", "bf16", num_heads=heads, num_kv_heads=kv_heads, head_dim=dim
                )
                assert 0.1 * card.mem_bw_bytes_per_s < decode.bytes_per_s <= 1.01 * card.mem_bw_bytes_per_s
                assert 0 < prefill.flops_per_s < 1.1 * card.peak_flops_per_s["bf16"]
                assert 0 < decode.launch_s < 2e-4
                assert decode.norm >= 1
    h200 = get_gpu("H200-SXM-141GB")
    assert Operators(h200, "vllm").decode_attention("gqa", "bf16") != Operators(h200, "sglang").decode_attention(
        "gqa", "bf16"
    )


def test_windows_are_fitted_on_windowed_kernels() -> None:
    operators = Operators(get_gpu("H200-SXM-141GB"))
    full = operators.decode_attention("gqa", "bf16", num_heads=16, num_kv_heads=2, head_dim=64)
    window = operators.decode_attention("gqa", "bf16", num_heads=16, num_kv_heads=2, head_dim=64, window_tokens=128)
    assert full != window
    assert "attention_window" not in operators.notes


def test_latent_attention_has_its_own_coefficients() -> None:
    operators = Operators(get_gpu("H200-SXM-141GB"))
    latent = operators.decode_attention("mla", "bf16", num_heads=16)
    assert latent != operators.decode_attention("gqa", "bf16", num_heads=16)
    assert "attention_latent" not in operators.notes


@pytest.mark.parametrize(
    ("wanted", "found"), [("", "0.24.0"), ("0.12.0", "0.19.0"), ("0.23.1", "0.22.0"), ("1.0", "0.24.0")]
)
def test_version_of_a_table(wanted: str, found: str) -> None:
    assert measured_version(["0.24.0", "0.19.0", "0.22.0"], wanted) == found


def test_own_tables_are_never_faster_than_the_fastest() -> None:
    h200 = get_gpu("H200-SXM-141GB")
    for engine in ENGINES[:3]:
        best, own, launched = (Operators(h200, engine, tables=t) for t in ("best", "own", "launched"))
        for weights in ("bf16", "fp8", "fp8_block"):
            times = [o.gemm_s(SIZES, 5120, 8192, weights) for o in (best, own, launched)]
            assert np.all(times[1] >= 0.999 * times[0])
            assert np.all(times[2] >= 0.999 * times[1])
        assert np.all(own.experts_s(SIZES, QWEN3_235B) >= 0.999 * best.experts_s(SIZES, QWEN3_235B))


def test_gpus_without_tables_say_that_they_are_transferred() -> None:
    for gpu in list_gpus():
        operators = Operators(get_gpu(gpu))
        operators.gemm_s(ONE, 4096, 4096, "bf16")
        note = operators.provenance("gemm").note
        assert note.startswith("transferred") != operators.exact
        assert operators.system in operators.provenance("gemm").source
    assert not nearest_system(get_gpu("H100-PCIe-80GB"))[1]
    assert nearest_system(get_gpu("RTX-4090-24GB")) == ("l40s", False)
    assert nearest_system(get_gpu("A100-SXM-80GB")) == ("a100_sxm", True)


def test_an_architecture_that_nobody_measured_is_called_a_stranger() -> None:
    card = replace(get_gpu("H100-SXM-80GB"), name="GAUDI-3-128GB", architecture="gaudi3", vendor="intel")
    operators = Operators(card)
    assert np.isfinite(operators.gemm_s(SIZES, 4096, 4096, "fp8")).all()
    note = operators.provenance("gemm").note
    assert note.startswith("transferred")
    assert "large errors" in note


def test_provenance_names_engine_version_and_error() -> None:
    operators = Operators(get_gpu("B200-SXM-180GB"), "vllm", "0.23.0")
    operators.decode_attention("gqa", "bf16", num_heads=8, num_kv_heads=1, head_dim=128)
    attention = operators.provenance("attention")
    assert "vllm 0.22.0" in attention.source
    assert "decode form within" in attention.note
    operators.gemm_s(ONE, 4096, 4096, "fp8")
    assert operators.provenance("gemm").kind == "measured"
    assert "fp8 grid within" in operators.provenance("gemm").note
    assert "vllm 0.24.0" in operators.provenance("gemm").source


def test_building_and_reading_is_fast() -> None:
    Operators(get_gpu("H200-SXM-141GB")).gemm_s(ONE, 4096, 4096, "bf16")
    best = np.inf
    for _ in range(5):
        start = time.perf_counter()
        operators = Operators(get_gpu("H200-SXM-141GB"))
        for n, k in ((10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672)):
            operators.gemm_s(SIZES, n, k, "fp8")
        operators.experts_s(SIZES, QWEN3_235B)
        operators.decode_attention("gqa", "fp8", num_heads=8, num_kv_heads=1, head_dim=128)
        operators.all_reduce_s(SIZES, 8)
        best = min(best, time.perf_counter() - start)
    assert best < 0.025
