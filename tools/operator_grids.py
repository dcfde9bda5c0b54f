"""Thinned grids of operator times: building, repairing and reading them."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

Array = NDArray[np.float64]

GEMM_M = (1, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192, 16384)
GEMM_N = (128, 256, 512, 1024, 1536, 2048, 3072, 4096, 5120, 6144, 8192, 10240, 12288, 16384, 65536)
GEMM_K = (128, 256, 512, 1024, 1536, 2048, 3072, 4096, 5120, 6144, 8192, 10240, 12288, 16384, 51200)
MAIN_MEMORY_FRAC = 0.92
"""Highest share of the bandwidth that GEMMs far larger than the last-level cache reach in the tables."""


def monotone(values: Array, axis: int) -> Array:
    """Make values non-decreasing along an axis: the mean of the lowest and highest monotone envelopes."""
    upper = np.maximum.accumulate(values, axis=axis)
    lower = np.flip(np.minimum.accumulate(np.flip(values, axis), axis=axis), axis)
    return np.asarray(0.5 * (upper + lower))


def log_interp(x: Array, xs: Array, ys: Array) -> Array:
    """Interpolate ln(ys) over ln(xs); beyond the last point time grows in proportion to x."""
    out = np.interp(np.log(x), np.log(xs), np.log(ys))
    return np.asarray(out + np.maximum(np.log(x / xs[-1]), 0.0))


def gemm_grid(points: pl.DataFrame, weight_bytes: float, bandwidth: float) -> Array:
    """Grid of ln(us) over (GEMM_M, GEMM_N, GEMM_K) from rows (m, n, k, latency in ms)."""
    grid = np.full((len(GEMM_M), len(GEMM_N), len(GEMM_K)), np.nan)
    m_axis = np.asarray(GEMM_M, float)
    wanted = points.filter(pl.col("n").is_in(GEMM_N) & pl.col("k").is_in(GEMM_K))
    for (n, k), part in wanted.group_by("n", "k"):
        rows = part.sort("m")
        if len(rows) < 8:
            continue
        ys = monotone(rows["latency"].to_numpy() * 1e3, 0)
        grid[:, GEMM_N.index(n), GEMM_K.index(k)] = log_interp(m_axis, rows["m"].to_numpy().astype(float), ys)
    measured = np.argwhere(~np.isnan(grid[0]))
    size = np.log(np.multiply.outer(np.asarray(GEMM_N, float), np.asarray(GEMM_K, float)))
    for j, i in np.argwhere(np.isnan(grid[0])):
        near_j, near_i = min(measured, key=lambda q: abs(q[0] - j) + abs(q[1] - i))
        grid[:, j, i] = grid[:, near_j, near_i] + max(0.0, size[j, i] - size[near_j, near_i])
    floor = size + np.log(1e6 * weight_bytes / (MAIN_MEMORY_FRAC * bandwidth))
    grid = np.maximum(grid, floor[None])
    for axis in range(3):
        grid = monotone(grid, axis)
    return grid


def gemm_us(grid: Array, m: Array, n: Array, k: Array) -> Array:
    """Times read from a grid by ln-interpolation [us]; sizes beyond the grid extend its last piece."""
    where = []
    for sizes, values in ((m, GEMM_M), (n, GEMM_N), (k, GEMM_K)):
        axis, x = np.log(np.asarray(values, float)), np.log(sizes)
        i = np.clip(np.searchsorted(axis, x) - 1, 0, len(axis) - 2)
        where.append((i, (x - axis[i]) / (axis[i + 1] - axis[i])))
    total = np.zeros(len(m))
    for corner in range(8):
        bits = [(corner >> d) & 1 for d in range(3)]
        weight = np.ones(len(m))
        for (_, f), b in zip(where, bits, strict=True):
            weight = weight * (f if b else 1 - f)
        total += weight * grid[where[0][0] + bits[0], where[1][0] + bits[1], where[2][0] + bits[2]]
    return np.asarray(np.exp(total))


def grid_error(grid: Array, points: pl.DataFrame) -> dict[str, float]:
    """Median and p90 relative error of the thinned grid against up to 4,000 table rows inside it."""
    rows = points.filter((pl.col("n") >= 256) & (pl.col("k") >= 256) & (pl.col("m") <= 16384))
    rows = rows.sample(min(4000, len(rows)), seed=0)
    m, n, k, ms = (rows[c].to_numpy().astype(float) for c in ("m", "n", "k", "latency"))
    error = np.abs(gemm_us(grid, m, n, k) / (ms * 1e3) - 1)
    median, p90 = np.quantile(error, [0.5, 0.9])
    return {"median": round(float(median), 4), "p90": round(float(p90), 4), "points": len(rows)}
