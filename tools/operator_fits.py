"""Attention kernels as fitted forms, one a shape of heads: decode and prefill, full, windowed and latent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.optimize import least_squares, nnls

from operator_grids import GEMM_M, Grids, gemm_form, gemm_us
from operator_tables import ENGINES, L2_BYTES, Table, columns, error_of, read_tables
from servewise.perf.operator_forms import DecodeRows, Rates, decode_attention_s, from_codes

Array = NDArray[np.float64]

HEAD_DIMS = (64, 128, 256)
LATENT_HIDDEN, LATENT_Q_RANK, LATENT_DIM = 7168, 1536, 576
LATENT_NOPE, LATENT_ROPE, LATENT_VALUE = 128, 64, 128
"""Shapes of DeepSeek-V3's attention, which was measured (its config.json)."""
KV_BYTES = {"bfloat16": 2, "fp8": 1}
PARAM_STEP = 1.0 / 64.0
"""Resolution of the ln of a stored coefficient."""
DECODE_BOUNDS = np.log([[1, 200], [0.03, 1.0], [1e-3, 20], [0.1, 1000], [1, 8], [5e-3, 1], [1, 4]])
"""Launch [us], bandwidth share, work of a row and head [ns], extra context [tokens], norm, compute share, and
how much faster a KV cache is read that fits in the last-level cache (fitted, never shipped)."""
DECODE_START = np.log([8, 0.8, 0.1, 60, 3, 0.1, 1.3])
PRIOR_WEIGHT = 0.01
"""Pull of one shape's coefficients to those of all shapes with its kind of cache and window, in units of
ln(time) per ln(coefficient)."""
MIN_ROWS = 20
LOADED_WEIGHT = 3.0
"""How much more a row counts whose KV cache is at least three times the last-level cache, as under load: there are
few of them, and an error of theirs is an error of the whole step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Rows of one kernel and shape of heads; ``heads, kv_heads, head_dim, window, kv_bytes`` is its key."""

    key: tuple[int, int, int, int, int]
    batch: Array
    length: Array
    seconds: Array
    base_s: Array


Item = tuple[Shape, DecodeRows, Array, Array, Array]
"""A shape's rows, which of them the last-level cache holds, which count, and how much."""


def kernel_shapes(tables: list[Table], length: str) -> Iterator[Shape]:
    """Rows of an engine's grouped-query kernels by shape, the fastest kernel or arithmetic at each point."""
    frame = tables[0].rows
    if "window_size" not in frame.columns:
        frame = frame.with_columns(pl.lit(0).alias("window_size"))
    keep = pl.col("head_dim").is_in(HEAD_DIMS) & (pl.col("num_heads") >= pl.col("num_key_value_heads"))
    frame = frame.filter(keep & pl.col("kv_cache_dtype").is_in(list(KV_BYTES)) & (pl.col("batch_size") <= 1024))
    keys = ["num_heads", "num_key_value_heads", "head_dim", "window_size", "kv_cache_dtype"]
    frame = frame.group_by([*keys, "batch_size", length]).agg(pl.col("latency").min())
    for key, part in frame.sort([*keys, "batch_size", length]).group_by(keys, maintain_order=True):
        b, s, ms = columns(part, "batch_size", length, "latency")
        h, kv, d, w, dtype = key
        yield Shape(
            key=(int(h), int(kv), int(d), int(w), KV_BYTES[str(dtype)]),
            batch=b,
            length=s,
            seconds=ms * 1e-3,
            base_s=np.zeros_like(b),
        )


def latent_shapes(tables: list[Table], length: str, gemms: dict[str, Array]) -> Iterator[Shape]:
    """Rows of DeepSeek-V3's attention by heads: of the kernel alone, or of the module less its projections."""
    if not tables:
        return
    frame = tables[0].rows.filter((pl.col("num_heads") >= 8) & (pl.col("batch_size") <= 1024))
    frame = frame.filter(pl.col("kv_cache_dtype").is_in(list(KV_BYTES)))
    module = "gemm_type" in frame.columns
    if length == "isl" and "step" in frame.columns:
        frame = frame.filter(pl.col("step") == 0)
    if module:
        known = {"bf16": "bfloat16", "fp8_block": "fp8_block"}
        frame = frame.filter(pl.col("gemm_type").is_in([known[p] for p in gemms if p in known]))
    keys = ["num_heads", "kv_cache_dtype"]
    point = ["batch_size", length, *(["gemm_type"] if module else [])]
    frame = frame.group_by([*keys, *point]).agg(pl.col("latency").min())
    for (h, dtype), part in frame.sort([*keys, *point]).group_by(keys, maintain_order=True):
        b, s, ms = columns(part, "batch_size", length, "latency")
        base = np.zeros_like(b)
        if module:
            rows = b if length == "step" else b * s
            for name, grid in gemms.items():
                of = (part["gemm_type"] == {"bf16": "bfloat16"}.get(name, name)).to_numpy()
                base[of] = projections_s(grid, rows[of], float(str(h)))
        key = (int(str(h)), 1, LATENT_DIM, 0, KV_BYTES[str(dtype)])
        yield Shape(key=key, batch=b, length=s, seconds=ms * 1e-3, base_s=base)


def projections_s(grid: Array, rows: Array, heads: float) -> Array:
    """Time of the projections in DeepSeek-V3's attention module by a GEMM grid [s]."""
    shapes = (
        (LATENT_Q_RANK + LATENT_DIM, LATENT_HIDDEN),
        (heads * (LATENT_NOPE + LATENT_ROPE), LATENT_Q_RANK),
        (heads * (LATENT_NOPE + LATENT_VALUE), LATENT_DIM - LATENT_ROPE),
        (LATENT_HIDDEN, heads * LATENT_VALUE),
    )
    one = np.ones_like(rows)
    m = np.minimum(rows, GEMM_M[-1])
    grown = rows / m
    return np.asarray(1e-6 * grown * sum(gemm_us(grid, m, n * one, k * one) for n, k in shapes))


def decode_rows(shape: Shape) -> DecodeRows:
    """A shape's rows as the form reads them."""
    h, kv, d, window, width = shape.key
    context = shape.length + 1
    seen = np.minimum(context, window) if window else context
    latent = d == LATENT_DIM
    return DecodeRows(
        context_tokens=shape.batch * seen,
        num_rows=shape.batch,
        num_heads=h,
        bytes_per_token=width * d if latent else 2.0 * width * kv * d,
        flops_per_token=2.0 * h * (2 * d - LATENT_ROPE) if latent else 4.0 * h * d,
    )


def decode_form(q: Array, rows: DecodeRows, peak: Rates, cached: Array) -> Array:
    """The decode form with its own bandwidth for what the last-level cache holds [s]."""
    main = decode_attention_s(q, rows, peak)
    if not cached.any():
        return main
    quick = q.copy()
    quick[1] = q[1] * q[6]
    return np.where(cached, decode_attention_s(quick, rows, peak), main)


def fit_decode(shapes: list[Shape], peak: Rates, l2_bytes: float) -> tuple[Array, Array, dict[str, Any]]:
    """Coefficients of every shape, ln, and the error over all rows.

    Rows whose KV cache has about the size of the last-level cache are left out; smaller ones get a bandwidth
    of their own that is then not used, because a model's whole KV cache never stays there.
    """
    data = []
    for shape in shapes:
        rows = decode_rows(shape)
        read = rows.bytes_per_token * rows.context_tokens
        keep = (read < 0.7 * l2_bytes) | (read > 2 * l2_bytes)
        keep &= (shape.seconds > shape.base_s) & (shape.batch * shape.length > 32)
        loaded = np.where(read > 3 * l2_bytes, LOADED_WEIGHT, 1.0)
        data.append((shape, rows, read < 0.7 * l2_bytes, keep, loaded))

    def residual(q: Array, item: Item) -> Array:
        shape, rows, cached, keep, _ = item
        time = shape.base_s + decode_form(np.exp(q), rows, peak, cached)
        return np.asarray((np.log(time) - np.log(shape.seconds))[keep])

    low, high = DECODE_BOUNDS.T
    data = [item for item in data if item[3].sum() >= MIN_ROWS]

    def solve(items: list[Item], start: Array, prior: float) -> Array:
        def target(q: Array) -> Array:
            pull = prior * (q - start) if prior else np.zeros(0)
            return np.concatenate([*(residual(q, i) * i[4][i[3]] for i in items), pull])

        found = least_squares(target, start, bounds=(low, high), loss="soft_l1", f_scale=0.1, max_nfev=60)
        return np.clip(found.x, low + 1e-9, high - 1e-9)

    def family(item: Item) -> tuple[bool, bool, int]:
        _, _, dim, window, width = item[0].key
        return dim == LATENT_DIM, window > 0, width

    pooled = {}
    for name in sorted({family(item) for item in data}):
        members = [item for item in data if family(item) == name]
        pooled[name] = solve(members[:: max(1, len(members) // 12)], DECODE_START, 0.0)
    keys, params, errors = [], [], []
    for item in data:
        weight = PRIOR_WEIGHT * np.sqrt(item[3].sum())
        q = np.rint(solve([item], pooled[family(item)], weight) / PARAM_STEP) * PARAM_STEP
        keys.append(item[0].key)
        params.append(q[:6])
        errors.append(np.exp(residual(q, item)))
    ratio = np.concatenate(errors)
    return np.asarray(keys), np.asarray(params), error_of(ratio, np.ones_like(ratio))


def prefill_work(shape: Shape) -> tuple[Array, Array, float, float]:
    """Prompt tokens, attention pairs, bytes a token moves, and flops of a pair on one GPU."""
    h, kv, d, window, _ = shape.key
    s = shape.length
    pairs = s * (s + 1) / 2
    if window:
        w = np.minimum(s, window)
        pairs = w * (w + 1) / 2 + (s - w) * w
    latent = d == LATENT_DIM
    dims = LATENT_NOPE + LATENT_ROPE + LATENT_VALUE if latent else 2 * d
    heads = 2 * h if latent else h + kv
    return shape.batch * s, shape.batch * pairs, 2.0 * heads * dims, 2.0 * h * dims


def fit_prefill(shapes: list[Shape], peak: Rates) -> tuple[Array, Array, dict[str, Any]]:
    """Launch [us], compute share and bandwidth share of every shape, ln, and the error over all rows.

    Non-negative least squares on relative errors, repeated with the weights of a robust loss.
    """
    keys, params, errors = [], [], []
    for shape in shapes:
        tokens, pairs, moved, flops = prefill_work(shape)
        net = shape.seconds - shape.base_s
        keep = (shape.length >= 64) & (tokens <= 65536) & (net > 0.05 * shape.seconds)
        if keep.sum() < MIN_ROWS or shape.length[keep].max() < 2048:
            continue
        columns_s = np.stack(
            [np.full_like(tokens, 1e-6), pairs * flops / peak.flops_per_s, tokens * moved / peak.bytes_per_s], axis=1
        )[keep]
        target, total, base = net[keep], shape.seconds[keep], shape.base_s[keep]
        weight = np.ones_like(target)
        for _ in range(6):
            scale = (weight / total)[:, None]
            q, _ = nnls(columns_s * scale, target * scale[:, 0])
            off = np.abs(columns_s @ q - target) / total
            weight = 1 / np.sqrt(1 + (off / 0.1) ** 2) ** 0.5
        share = np.array([max(q[0], 1.0), 1 / np.clip(q[1], 0.2, 200), 1 / np.clip(q[2], 0.05, 200)])
        share = np.exp(np.rint(np.log(share) / PARAM_STEP) * PARAM_STEP)
        keys.append(shape.key)
        params.append(np.log(share))
        errors.append((base + columns_s @ np.array([share[0], 1 / share[1], 1 / share[2]])) / total)
    ratio = np.concatenate(errors)
    return np.asarray(keys), np.asarray(params), error_of(ratio, np.ones_like(ratio))


def derive_attention(systems: Path, gpu: str, peaks: dict[str, float], grids: Grids) -> dict[str, Any]:
    """Fits of every engine's and version's kernels, added to ``grids``; their errors."""
    peak = Rates(flops_per_s=peaks["bf16"], bytes_per_s=peaks["mem_bw"])
    gemms = {
        p: from_codes(grids[f"gemm/{gpu}/{p}"]) + gemm_form(p, peaks)
        for p in ("bf16", "fp8_block")
        if f"gemm/{gpu}/{p}" in grids
    }
    out: dict[str, Any] = {}
    for engine in ENGINES:
        found = {
            "decode": read_tables(systems, gpu, "attention", engine, "generation_attention_perf.parquet"),
            "prefill": read_tables(systems, gpu, "attention", engine, "context_attention_perf.parquet"),
        }
        for phase, length in (("decode", "step"), ("prefill", "isl")):
            for table in found[phase]:
                shapes = list(kernel_shapes([table], length))
                shapes += list(latent_shapes(latent_tables(systems, gpu, engine, phase), length, gemms))
                fitted = fit_decode(shapes, peak, L2_BYTES[gpu]) if phase == "decode" else fit_prefill(shapes, peak)
                name = f"{phase}/{gpu}/{engine}/{table.version}"
                grids[f"{name}/shapes"] = fitted[0].T.astype(np.int16)
                grids[f"{name}/params"] = np.rint(fitted[1].T / PARAM_STEP).astype(np.int16)
                out.setdefault(engine, {}).setdefault(table.version, {})[phase] = fitted[2]
    return out


def latent_tables(systems: Path, gpu: str, engine: str, phase: str) -> list[Table]:
    """Tables of latent attention: the module where it was measured, else the kernel."""
    word = {"decode": "generation", "prefill": "context"}[phase]
    for file in (f"mla_{word}_module_perf.parquet", f"{word}_mla_perf.parquet"):
        found = read_tables(systems, gpu, "mla", engine, file)
        if found:
            return found
    return []
