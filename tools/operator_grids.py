"""Grids of GEMM and expert times as ratios to their forms, and how engines differ from the fastest of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from operator_tables import SYSTEMS, Table, columns, error_of, fastest, log_interp, monotone, newest_tables, read_tables
from servewise.perf.operator_forms import Rates, experts_form_s, from_codes, gemm_form_s, neighbour_log_ratio, to_codes

Array = NDArray[np.float64]
Grids = dict[str, NDArray[Any]]

GEMM_M = (
    *(1, 2, 4, 8, 12, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 384, 512, 768, 1024, 1280, 1536, 1792),
    *(2048, 2560, 3072, 4096, 8192, 16384),
)
GEMM_N = (
    *(128, 256, 512, 768, 1024, 1536, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192, 10240, 12288, 16384),
    65536,
)
GEMM_K = (*GEMM_N[:-1], 51200)
TILE_ROWS = 128
"""Rows from which on a tile's end is blended with what follows it."""
MAIN_MEMORY_FRAC = 0.92
"""Highest share of the bandwidth that GEMMs far larger than the last-level cache reach in the tables."""
WEIGHT_BYTES = {
    "bf16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0,
    "int8": 1.0,
    "nvfp4": 0.5625,
    "int4": 0.52,
    "mxfp4": 0.53125,
    "mxfp4_mxfp8": 0.53125,
}
"""Bytes of a stored weight with its scales."""
GEMM_PRECISION = {
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "nvfp4": "nvfp4",
    "sq": "int8",
    "int4_wo": "int4",
}
MOE_PRECISION = {
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "nvfp4": "nvfp4",
    "int4_wo": "int4",
    "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4_mxfp8",
}
MOE_TOKENS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096, 8192, 16384)
MODEL_SHAPE = ["hidden_size", "inter_size", "topk", "num_experts"]
MOE_SHAPE = [*MODEL_SHAPE, "moe_tp_size", "moe_ep_size"]
EXPERT_KEYS = ["precision", *MOE_SHAPE, "num_tokens"]
MOE_SPLITS = ((1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (1, 4), (1, 8), (1, 16), (2, 2), (2, 4), (4, 2), (2, 8))
"""Tensor and expert parallel sizes that are kept."""
MOE_DISTRIBUTIONS = ("power_law_1.01", "power_law_1.2", "balanced")
"""Skews of the router, the preferred first: one that is mild but not even."""
SIBLINGS = {"h200_sxm": "h100_sxm", "gb200": "b200_sxm", "gb300": "b300_sxm"}
"""GPUs with the same chip as another, at least its power and its memory bandwidth: no kernel takes longer on them.
Where a table says otherwise, the benchmark ran a kernel that had not been tuned for the shape (Llama 4 Scout's fp8
experts on H200 in TensorRT-LLM: four times the time on H100)."""
SLOWEST = 3.0
"""A shape takes at most so many times what the other models' shapes predict for it. Slower curves are of kernels
that no engine would choose; nine of ten shapes are within 1.7 times."""
M_EDGES = (16, 64, 256, 2048)
TOKEN_EDGES = (8, 64, 512, 4096)
"""Ends of the size classes within which an engine's ratio to the fastest is one figure."""
MIN_GEMM_ROWS, MIN_CURVE_POINTS, MIN_RATIO_ROWS = 3000, 8, 40


def gemm_points(tables: list[Table], dtype: str) -> pl.DataFrame:
    """Fastest time of every (m, n, k) of a data type over engines and kernels.

    Kernels of TensorRT's own engine were timed from outside: they lose what their smallest GEMM takes more than
    the smallest of bf16.
    """
    keys = ["m", "n", "k"]
    rows = [t.rows.filter(pl.col("gemm_dtype") == dtype) for t in tables]
    if all(r["kernel_source"].str.starts_with("trt_flow").all() for r in rows):
        floor = min(t.rows.filter(pl.col("gemm_dtype") == "bfloat16")["latency"].min() for t in tables)
        rows = [r.with_columns(pl.col("latency") - max(0.0, r["latency"].min() - floor)) for r in rows if len(r)]
    return fastest(rows, keys) if rows else tables[0].rows.head(0)


def gemm_grid(points: pl.DataFrame, weight_bytes: float, bandwidth: float) -> Array:
    """Grid of ln(us) over (GEMM_N, GEMM_K, GEMM_M) from rows (m, n, k, latency in ms)."""
    grid = np.full((len(GEMM_N), len(GEMM_K), len(GEMM_M)), np.nan)
    wanted = points.filter(pl.col("n").is_in(GEMM_N) & pl.col("k").is_in(GEMM_K)).sort("n", "k", "m")
    for (n, k), part in wanted.group_by("n", "k", maintain_order=True):
        m, ms = columns(part, "m", "latency")
        if len(m) >= MIN_CURVE_POINTS:
            curve = log_interp(np.asarray(GEMM_M, float), m, monotone(blended(m, ms) * 1e3))
            grid[GEMM_N.index(n), GEMM_K.index(k)] = curve
    fill_holes(grid)
    size = np.log(np.multiply.outer(np.asarray(GEMM_N, float), np.asarray(GEMM_K, float)))
    floor = size + np.log(1e6 * weight_bytes / (MAIN_MEMORY_FRAC * bandwidth))
    return np.asarray(np.log(monotone(np.exp(np.maximum(grid, floor[..., None])))))


def blended(m: Array, ms: Array) -> Array:
    """Times with the jumps after full tiles spread: where m and m + 1 were measured, both take the mean.

    A step's number of tokens lands anywhere between two tiles; a curve through full tiles alone is too fast.
    """
    out = ms.copy()
    for i in np.flatnonzero((np.diff(m) == 1) & (m[:-1] >= TILE_ROWS)):
        out[i] = out[i + 1] = np.sqrt(ms[i] * ms[i + 1])
    return out


def fill_holes(grid: Array) -> None:
    """Fill unmeasured (n, k) by interpolation over ln(k), then over ln(n)."""
    for axis, sizes in ((1, GEMM_K), (0, GEMM_N)):
        x = np.log(np.asarray(sizes, float))
        lines = np.moveaxis(grid, axis, -1)
        for index in np.ndindex(lines.shape[:-1]):
            known = ~np.isnan(lines[index])
            if known.sum() >= 4 and not known.all():
                line = np.interp(x, x[known], lines[index][known])
                grown = np.maximum(x - x[known][-1], 0.0)
                lines[index][:] = np.where(known, lines[index], line + grown)


def gemm_us(grid: Array, m: Array, n: Array, k: Array) -> Array:
    """Times read from a grid by ln-interpolation [us]."""
    where = []
    for sizes, values in ((n, GEMM_N), (k, GEMM_K), (m, GEMM_M)):
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


def gemm_form(precision: str, peaks: dict[str, float]) -> Array:
    """ln(us) of the roofline over the grid."""
    n, k, m = np.meshgrid(*(np.asarray(a, float) for a in (GEMM_N, GEMM_K, GEMM_M)), indexing="ij")
    rates = Rates(flops_per_s=peaks[precision], bytes_per_s=peaks["mem_bw"])
    return np.log(1e6 * gemm_form_s(m, n, k, WEIGHT_BYTES[precision], rates))


def derive_gemm(systems: Path, gpu: str, peaks: dict[str, float], grids: Grids) -> dict[str, Any]:
    """Dense GEMM grids of a GPU, one a precision; their errors over all table rows, and engines' ratios."""
    tables = newest_tables(systems, gpu, "gemm", "gemm_perf.parquet")
    error, engines = {}, {}
    for dtype, precision in GEMM_PRECISION.items():
        points = gemm_points(tables, dtype)
        if len(points) < MIN_GEMM_ROWS:
            continue
        form = gemm_form(precision, peaks)
        codes = to_codes(gemm_grid(points, WEIGHT_BYTES[precision], peaks["mem_bw"]) - form)
        grids[f"gemm/{gpu}/{precision}"] = codes
        error[precision] = gemm_error(from_codes(codes) + form, points, precision, peaks["mem_bw"])
        for table in tables:
            own = table.rows.filter(pl.col("gemm_dtype") == dtype)
            found = gemm_ratio(own, points)
            if found is not None:
                engines.setdefault(table.engine, {}).setdefault(table.version, {})[precision] = found
    return {"tables": [t.label for t in tables], "error": error, "engines": engines}


def gemm_error(grid: Array, points: pl.DataFrame, precision: str, bandwidth: float) -> dict[str, Any]:
    """Error over all rows within the grid, and over those of 16 to 512 rows (against the main-memory floor)."""
    inside = points.filter((pl.col("n") >= 256) & (pl.col("k") >= 256) & (pl.col("m") <= GEMM_M[-1]))
    m, n, k, ms = columns(inside, "m", "n", "k", "latency")
    floor = n * k * WEIGHT_BYTES[precision] / (MAIN_MEMORY_FRAC * bandwidth)
    measured = np.maximum(ms * 1e-3, floor)
    predicted = 1e-6 * gemm_us(grid, m, n, k)
    middle = (m >= 16) & (m <= 512) & (n >= 1024) & (k >= 1024)
    return {**error_of(predicted, measured), "middle": error_of(predicted[middle], measured[middle])}


def gemm_ratio(own: pl.DataFrame, best: pl.DataFrame) -> dict[str, Any] | None:
    """How an engine's table differs from the fastest: own = launch + ratio(m) * fastest.

    The launch is what small GEMMs take more, a figure that CUDA graphs hide in serving.
    """
    keys = ["m", "n", "k"]
    own = fastest([own], keys).join(best.rename({"latency": "best"}), on=keys).sort(keys)
    own = own.filter((pl.col("n") >= 1024) & (pl.col("k") >= 1024))
    if len(own) < MIN_RATIO_ROWS:
        return None
    m, ms, best_ms = columns(own, "m", "latency", "best")
    small = m <= M_EDGES[0]
    quick = small & (best_ms <= np.quantile(best_ms[small], 0.3))
    launch = max(0.0, float(np.median((ms - best_ms)[quick])))
    ratio = np.maximum((ms - launch) / best_ms, 1.0)
    return {"launch_us": round(1e3 * launch, 2), "ratio": by_class(m, ratio, M_EDGES)}


def by_class(size: Array, ratio: Array, edges: tuple[int, ...]) -> list[float]:
    """Median ratio of each size class; 1 where there is too little to say."""
    which = np.searchsorted(np.asarray(edges, float), size)
    parts = [ratio[which == c] for c in range(len(edges) + 1)]
    return [round(float(np.median(p)), 3) if len(p) >= MIN_RATIO_ROWS // 4 else 1.0 for p in parts]


@cache
def ungated_shapes(systems: Path) -> pl.DataFrame:
    """Shapes of models whose experts have no gate: those that TensorRT-LLM ran in its kernels for that, anywhere.

    The other engines' tables do not say so; two matrices instead of three would pass for fast kernels.
    """
    frames = [
        t.rows.filter(pl.col("kernel_source").str.contains("nongated")).select(MODEL_SHAPE)
        for gpu in SYSTEMS
        for t in read_tables(systems, gpu, "moe", "trtllm", "moe_perf.parquet")
    ]
    return pl.concat(frames).unique().sort(MODEL_SHAPE)


def expert_tables(systems: Path, gpu: str) -> list[Table]:
    """Tables of routed experts with a gate, of every engine and version."""
    found = []
    ungated = ungated_shapes(systems)
    for engine in ("vllm", "sglang", "trtllm"):
        for t in read_tables(systems, gpu, "moe", engine, "moe_perf.parquet"):
            rows = t.rows.filter(pl.col("hidden_size") >= 2048).join(ungated, on=MODEL_SHAPE, how="anti")
            splits = pl.struct("moe_tp_size", "moe_ep_size").is_in(
                [{"moe_tp_size": a, "moe_ep_size": b} for a, b in MOE_SPLITS]
            )
            rows = rows.filter(splits & pl.col("moe_dtype").is_in(list(MOE_PRECISION)))
            rows = rows.with_columns(pl.col("moe_dtype").replace(MOE_PRECISION).alias("precision"))
            found.append(Table(engine=engine, version=t.version, rows=skew(rows)))
    return found


def skew(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of the preferred token distribution that was measured in full, for every shape."""
    order = {d: i for i, d in enumerate(MOE_DISTRIBUTIONS)}
    rank = pl.col("distribution").replace_strict(order, default=len(order), return_dtype=pl.Int64).alias("rank")
    rows = rows.with_columns(rank).filter(pl.col("rank") < len(order))
    keys = ["precision", *MOE_SHAPE]
    counts = rows.group_by([*keys, "rank"]).agg(pl.col("num_tokens").n_unique().alias("count"))
    chosen = counts.filter(pl.col("count") >= MIN_CURVE_POINTS).group_by(keys).agg(pl.col("rank").min())
    return rows.join(chosen, on=[*keys, "rank"], how="inner")


def newest_rows(tables: list[Table]) -> pl.DataFrame:
    """Rows of one engine: of every shape and precision those of the newest version that measured it."""
    keys = ["precision", *MOE_SHAPE]
    kept: list[pl.DataFrame] = []
    for t in tables:
        seen = pl.concat([k.select(keys).unique() for k in kept]) if kept else None
        kept.append(t.rows.select([*keys, "num_tokens", "latency"]))
        if seen is not None:
            kept[-1] = kept[-1].join(seen, on=keys, how="anti")
    return pl.concat(kept)


def derive_experts(systems: Path, gpu: str, peaks: dict[str, float], grids: Grids) -> dict[str, Any]:
    """Curves of every measured shape and split as ratios to the form; engines' ratios to the fastest."""
    tables = expert_tables(systems, gpu)
    best = fastest_experts(tables)
    if gpu in SIBLINGS:
        other = fastest_experts(expert_tables(systems, SIBLINGS[gpu]))
        known = best.select(EXPERT_KEYS[:-1]).unique()
        best = fastest([best, other.join(known, on=EXPERT_KEYS[:-1], how="semi")], EXPERT_KEYS)
    error = {}
    for (precision,), part in best.group_by("precision", maintain_order=True):
        shapes, curves = expert_curves(part)
        rates = Rates(flops_per_s=peaks[str(precision)], bytes_per_s=peaks["mem_bw"])
        form = np.log(1e6 * experts_form_s(np.asarray(MOE_TOKENS, float), shapes, WEIGHT_BYTES[str(precision)], rates))
        predicted = left_out(shapes, curves - form)
        error[str(precision)] = left_out_error(shapes, predicted, curves - form)
        grids[f"moe/{gpu}/{precision}"] = to_codes(np.fmin(curves - form, predicted + np.log(SLOWEST)))
        grids[f"moe_shapes/{gpu}/{precision}"] = shapes.T.astype(np.int32)
    return {
        "tables": [t.label for t in tables],
        "error": error,
        "engines": expert_ratios(tables, best),
    }


def fastest_experts(tables: list[Table]) -> pl.DataFrame:
    """The fastest engine's time of every shape, split and number of tokens."""
    by_engine = [[t for t in tables if t.engine == e] for e in ("vllm", "sglang", "trtllm")]
    return fastest([newest_rows(group) for group in by_engine if group], EXPERT_KEYS)


def expert_curves(part: pl.DataFrame) -> tuple[Array, Array]:
    """Shapes, and their ln(us) over MOE_TOKENS."""
    shapes, curves = [], []
    for key, piece in part.sort([*MOE_SHAPE, "num_tokens"]).group_by(MOE_SHAPE, maintain_order=True):
        tokens, ms = columns(piece, "num_tokens", "latency")
        if len(tokens) >= MIN_CURVE_POINTS:
            shapes.append(key)
            curves.append(log_interp(np.asarray(MOE_TOKENS, float), tokens, monotone(ms * 1e3)))
    return np.asarray(shapes, float), np.asarray(curves)


def left_out(shapes: Array, ratios: Array) -> Array:
    """ln-ratios of every shape as the shapes of other models predict them; NaN where there is no other model."""
    tokens = np.asarray(MOE_TOKENS, float)
    models, which = np.unique(shapes[:, :4], axis=0, return_inverse=True)
    predicted = np.full_like(ratios, np.nan)
    if len(models) > 1:
        for i, shape in enumerate(shapes):
            others = which != which[i]
            predicted[i], _ = neighbour_log_ratio(tokens, shape, shapes[others], ratios[others])
    return predicted


def left_out_error(shapes: Array, predicted: Array, ratios: Array) -> dict[str, Any]:
    """Error for every shape (with all its splits) when predicted from the shapes of other models."""
    num_models = len(np.unique(shapes[:, :4], axis=0))
    if num_models < 2:
        return {"shapes": 1, "median": 0.0, "p90": 0.0, "points": 0}
    ratio = np.exp(predicted - ratios).ravel()
    return {"shapes": num_models, **error_of(ratio, np.ones_like(ratio))}


def expert_ratios(tables: list[Table], best: pl.DataFrame) -> dict[str, Any]:
    """Median ratio of each engine and version to the fastest by size class, without and with EP."""
    keys = EXPERT_KEYS
    best = best.rename({"latency": "best"})
    out: dict[str, Any] = {}
    for t in tables:
        joined = fastest([t.rows], keys).join(best, on=keys)
        for (precision,), part in joined.group_by("precision", maintain_order=True):
            ratios = []
            for split in (pl.col("moe_ep_size") == 1, pl.col("moe_ep_size") > 1):
                tokens, ms, best_ms = columns(part.filter(split), "num_tokens", "latency", "best")
                ratios.append(by_class(tokens, np.maximum(ms / best_ms, 1.0), TOKEN_EDGES))
            if len(part) >= MIN_RATIO_ROWS:
                out.setdefault(t.engine, {}).setdefault(t.version, {})[str(precision)] = ratios
    return out
