"""Deriving operator coefficients: known kernels, timed by formula, are recovered from their tables."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from operator_fits import Shape, decode_rows, fit_decode, fit_prefill, prefill_work
from operator_grids import (
    GEMM_K,
    GEMM_M,
    GEMM_N,
    MOE_PRECISION,
    MOE_SHAPE,
    MOE_TOKENS,
    SIBLINGS,
    SLOWEST,
    blended,
    derive_experts,
    gemm_grid,
    gemm_ratio,
    gemm_us,
)
from operator_tables import monotone
from servewise.perf.operator_forms import Rates, decode_attention_s, experts_form_s, from_codes, gemm_form_s

PEAK = Rates(flops_per_s=1e15, bytes_per_s=4e12)
HEADS = (16, 2, 128, 0, 2)


def test_monotone_keeps_what_rises_and_averages_what_falls() -> None:
    rising = np.array([1.0, 2.0, 2.0, 5.0])
    np.testing.assert_allclose(monotone(rising), rising)
    np.testing.assert_allclose(monotone(np.array([1.0, 4.0, 1.0, 5.0])), [1.0, 2.0, 2.0, 5.0])


def test_tile_ends_are_blended_with_what_follows() -> None:
    m, ms = np.array([64.0, 65.0, 128.0, 129.0, 256.0]), np.array([1.0, 4.0, 4.0, 9.0, 9.0])
    np.testing.assert_allclose(blended(m, ms), [1.0, 4.0, 6.0, 6.0, 9.0])


def gemm_table(slower: float, launch_ms: float) -> pl.DataFrame:
    """Rows (m, n, k, latency) of a roofline kernel on a grid that lacks some of the shapes."""
    rows = [
        (m, n, k, slower * 1e3 * float(gemm_form_s(m, n, k, 2.0, PEAK)) + launch_ms)
        for m in (1, 2, 16, 64, 256, 1024, 4096, 8192, 16384)
        for n in GEMM_N[::2]
        for k in GEMM_K
        if (n, k) != (GEMM_N[4], GEMM_K[4])
    ]
    return pl.DataFrame(rows, schema=["m", "n", "k", "latency"], orient="row")


def test_a_gemm_grid_gives_back_the_kernel_it_was_measured_on() -> None:
    grid = gemm_grid(gemm_table(1.5, 0.0), 2.0, PEAK.bytes_per_s)
    assert grid.shape == (len(GEMM_N), len(GEMM_K), len(GEMM_M))
    m, n, k = np.array([1.0, 64.0, 3000.0]), np.array([4096.0, 8192.0, 12288.0]), np.array([4096.0, 7168.0, 5120.0])
    np.testing.assert_allclose(gemm_us(grid, m, n, k), 1.5e6 * gemm_form_s(m, n, k, 2.0, PEAK), rtol=0.06)


def test_an_engine_is_split_into_launch_and_ratio() -> None:
    found = gemm_ratio(gemm_table(1.2, 0.005), gemm_table(1.0, 0.0))
    assert found is not None
    assert found["launch_us"] == pytest.approx(5.0 + 0.2 * 3.5, abs=1.0)
    assert found["ratio"][-1] == pytest.approx(1.2, abs=0.02)


def attention_grid() -> tuple[np.ndarray, np.ndarray]:
    batch, length = np.meshgrid([1.0, 4, 16, 64, 256], [127.0, 511, 2047, 8191, 32767], indexing="ij")
    return batch.ravel(), length.ravel()


def test_decode_coefficients_are_recovered() -> None:
    batch, length = attention_grid()
    blank = Shape(key=HEADS, batch=batch, length=length, seconds=np.ones_like(batch), base_s=np.zeros_like(batch))
    true = np.array([9.0, 0.8, 0.3, 100.0, 3.0, 0.2])
    time_s = decode_attention_s(true, decode_rows(blank), PEAK)
    shape = Shape(key=HEADS, batch=batch, length=length, seconds=time_s, base_s=np.zeros_like(batch))
    keys, params, error = fit_decode([shape], PEAK, l2_bytes=1.0)
    assert tuple(keys[0]) == HEADS
    assert error["p90"] < 0.02
    assert np.exp(params[0][0]) == pytest.approx(9.0, rel=0.1)
    assert np.exp(params[0][1]) == pytest.approx(0.8, rel=0.1)


def test_prefill_coefficients_are_recovered_within_a_window() -> None:
    key = (16, 2, 128, 1024, 2)
    batch, length = np.meshgrid([1.0, 2, 4, 8], [64.0, 256, 1024, 2048, 4096, 8192], indexing="ij")
    blank = Shape(
        key=key, batch=batch.ravel(), length=length.ravel(), seconds=batch.ravel(), base_s=np.zeros(batch.size)
    )
    tokens, pairs, moved, flops = prefill_work(blank)
    assert pairs[5] == 1024 * 1025 / 2 + (8192 - 1024) * 1024
    time_s = 7e-6 + pairs * flops / (0.5 * PEAK.flops_per_s) + tokens * moved / (0.3 * PEAK.bytes_per_s)
    shape = Shape(key=key, batch=blank.batch, length=blank.length, seconds=time_s, base_s=blank.base_s)
    _, params, error = fit_prefill([shape], PEAK)
    np.testing.assert_allclose(np.exp(params[0]), [7.0, 0.5, 0.3], rtol=0.02)
    assert error["p90"] < 0.02


def test_caches_as_large_as_under_load_weigh_more() -> None:
    """A kernel that no form follows: the fit gives up small caches rather than large ones."""
    batch, length = attention_grid()
    blank = Shape(key=HEADS, batch=batch, length=length, seconds=np.ones_like(batch), base_s=np.zeros_like(batch))
    rows = decode_rows(blank)
    true = np.array([9.0, 0.9, 0.01, 60.0, 8.0, 1.0])
    bent = decode_attention_s(true, rows, PEAK) * (1 + 0.4 * (batch * length < 3e5))
    shape = Shape(key=HEADS, batch=batch, length=length, seconds=bent, base_s=np.zeros_like(batch))
    _, params, _ = fit_decode([shape], PEAK, l2_bytes=50e6)
    predicted = decode_attention_s(np.exp(params[0]), rows, PEAK)
    loaded = rows.bytes_per_token * rows.context_tokens > 1e9
    assert loaded.sum() >= 3
    np.testing.assert_allclose(predicted[loaded], bent[loaded], rtol=0.04)


SHAPES = ((4096, 1536, 8, 128), (5120, 8192, 1, 16), (2048, 768, 8, 128), (7168, 2048, 8, 256), (6144, 2560, 8, 160))
EXPERT_PEAKS = {"bf16": 1e15, "mem_bw": 4e12}


def expert_system(folder: Path, gpu: str, slower: dict[tuple[int, ...], float]) -> None:
    """A table of roofline kernels, twice the form, some shapes slower by a factor."""
    rows = []
    for sizes in SHAPES:
        shape, tokens = np.array([*sizes, 1, 1], float), np.asarray(MOE_TOKENS, float)
        time_s = (
            2 * slower.get(sizes, 1.0) * experts_form_s(tokens, shape, 2.0, Rates(flops_per_s=1e15, bytes_per_s=4e12))
        )
        rows += [(*sizes, 1, 1, int(n), 1e3 * t) for n, t in zip(tokens, time_s, strict=True)]
    frame = pl.DataFrame(rows, schema=[*MOE_SHAPE, "num_tokens", "latency"], orient="row")
    dtype = next(k for k, v in MOE_PRECISION.items() if v == "bf16")
    frame = frame.with_columns(
        pl.lit(dtype).alias("moe_dtype"),
        pl.lit("power_law_1.01").alias("distribution"),
        pl.lit("any").alias("kernel_source"),
    )
    target = folder / "data" / gpu / "moe" / "trtllm" / "1.0.0"
    target.mkdir(parents=True)
    frame.write_parquet(target / "moe_perf.parquet")


def ratios_of(grids: dict[str, np.ndarray], gpu: str) -> dict[tuple[int, ...], np.ndarray]:
    shapes = grids[f"moe_shapes/{gpu}/bf16"].T[:, :4]
    curves = np.exp(from_codes(grids[f"moe/{gpu}/bf16"]))
    return {tuple(int(x) for x in s): c for s, c in zip(shapes, curves, strict=True)}


def test_kernels_that_were_not_tuned_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the same chip as a faster table, and against what other shapes reach of the roofline."""
    monkeypatch.setattr(
        "operator_grids.ungated_shapes", lambda _: pl.DataFrame(schema=dict.fromkeys(MOE_SHAPE[:4], pl.Int64))
    )
    gpu, twin = "h200_sxm", SIBLINGS["h200_sxm"]
    expert_system(tmp_path, gpu, {SHAPES[1]: 2.5, SHAPES[2]: 20.0})
    expert_system(tmp_path, twin, {SHAPES[2]: 20.0})
    grids: dict[str, np.ndarray] = {}
    for name in (gpu, twin):
        derive_experts(tmp_path, name, EXPERT_PEAKS, grids)
    h200, h100 = ratios_of(grids, gpu), ratios_of(grids, twin)
    for found in (h200, h100):
        np.testing.assert_allclose(found[SHAPES[0]], 2.0, rtol=0.03)
        np.testing.assert_allclose(found[SHAPES[1]], 2.0, rtol=0.03)
        assert np.all(found[SHAPES[2]] < 1.05 * SLOWEST * 2.0)
        assert np.all(found[SHAPES[2]] > 0.9 * SLOWEST * 2.0)
