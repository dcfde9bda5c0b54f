"""Physical forms fitted to operator tables: decode attention, prefill attention, experts of unknown shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.optimize import least_squares

from operator_grids import gemm_us

Array = NDArray[np.float64]
Rows = dict[str, Array]
Form = Callable[[Array, Rows], Array]
Bounds = dict[str, tuple[float, float, float]]

L2_BYTES = {
    "a100_sxm": 40e6,
    "h100_sxm": 50e6,
    "h200_sxm": 50e6,
    "b200_sxm": 126e6,
    "b300_sxm": 126e6,
    "gb200": 126e6,
    "l40s": 96e6,
    "rtx_pro_6000_server": 128e6,
}
"""Last-level cache by GPU, from NVIDIA's architecture white papers: a microbenchmark that fits in it reads
faster than a model whose weights and KV cache do not."""

WEIGHT_BYTES = {
    "bf16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0,
    "int8": 1.0,
    "nvfp4": 0.5625,
    "int4": 0.53,
    "mxfp4": 0.53125,
}
"""Bytes of a stored weight with its scales."""
KV_BYTES = {"bf16": 2, "fp8": 1}
LATENT_HIDDEN, LATENT_Q_RANK, LATENT_DIM = 7168, 1536, 576
LATENT_NOPE, LATENT_ROPE, LATENT_VALUE = 128, 64, 128
"""Shapes of DeepSeek-V3's attention, whose module was measured (its config.json)."""


def columns(frame: pl.DataFrame, **names: str) -> Rows:
    """Columns as float arrays under short names."""
    return {short: frame[name].to_numpy().astype(float) for short, name in names.items()}


def fit(form: Form, rows: Rows, bounds: Bounds) -> dict[str, Any]:
    """Fit positive parameters in log space with a robust log-error loss on up to 6,000 rows.

    ``bounds`` gives (low, start, high) by parameter name; ``rows["ms"]`` is the measured time. Returns the
    parameters rounded to four digits, and the fit's error over all rows.
    """
    low, start, high = (np.log([b[i] for b in bounds.values()]) for i in range(3))
    chosen = np.random.default_rng(0).permutation(len(rows["ms"]))[:6000]
    sample = {k: v[chosen] for k, v in rows.items()}
    target = np.log(sample["ms"] * 1e-3)
    runs = [
        least_squares(
            lambda q: np.log(form(np.exp(q), sample)) - target,
            np.clip(x0, low + 1e-6, high - 1e-6),
            bounds=(low, high),
            loss="soft_l1",
            f_scale=0.15,
            max_nfev=100,
        )
        for x0 in (start, 0.5 * (low + high))
    ]
    params = np.exp(min(runs, key=lambda r: r.cost).x)
    error = np.abs(form(params, rows) / (rows["ms"] * 1e-3) - 1)
    return {
        **{name: float(f"{p:.4g}") for name, p in zip(bounds, params, strict=True)},
        "error": {
            "median": round(float(np.median(error)), 4),
            "p90": round(float(np.quantile(error, 0.9)), 4),
            "points": len(error),
        },
    }


def full_attention(frame: pl.DataFrame) -> pl.DataFrame:
    """Rows of usual head sizes without a sliding window; key-value heads filled in where 0 means all."""
    keep = pl.col("head_dim").is_in([64, 128, 256]) & (pl.col("num_heads") >= pl.col("num_key_value_heads"))
    frame = frame.filter(keep & (pl.col("attn_dtype") == "bfloat16"))
    if "window_size" in frame.columns:
        frame = frame.filter(pl.col("window_size") == 0)
    kv = pl.when(pl.col("num_key_value_heads") == 0).then("num_heads").otherwise("num_key_value_heads")
    return frame.with_columns(kv.alias("kv"))


def grouped_decode_rows(frame: pl.DataFrame, kv: str) -> Rows:
    """Decode attention of multi-head and grouped-query models, as :func:`fit_decode` reads it."""
    frame = full_attention(frame).filter((pl.col("step") <= 140000) & (pl.col("batch_size") <= 1024))
    r = columns(frame, b="batch_size", h="num_heads", kv="kv", d="head_dim", s="step", ms="latency")
    return {
        "ms": r["ms"],
        "context": r["s"] + 1,
        "row_heads": r["b"] * r["h"],
        "bytes": 2 * KV_BYTES[kv] * r["b"] * r["kv"] * r["d"],
        "flops": 4 * r["b"] * r["h"] * r["d"],
        "base_s": np.zeros_like(r["ms"]),
    }


def grouped_prefill_rows(frame: pl.DataFrame) -> Rows:
    """Prefill attention of multi-head and grouped-query models, as :func:`fit_prefill` reads it."""
    frame = full_attention(frame)
    long = (pl.col("isl") >= 512) & (pl.col("batch_size") * pl.col("isl") <= 65536)
    frame = frame.filter(long & (pl.col("num_heads") >= 4))
    if "step" in frame.columns:
        frame = frame.filter(pl.col("step") == 0)
    r = columns(frame, b="batch_size", h="num_heads", kv="kv", d="head_dim", s="isl", ms="latency")
    return {
        "ms": r["ms"],
        "context": r["s"],
        "rows": r["b"] * r["s"],
        "bytes": 2 * r["d"] * (2 * r["h"] + 2 * r["kv"]),
        "flops": 4 * r["h"] * r["d"],
        "flops_per_dim": 4 * r["h"],
        "base_s": np.zeros_like(r["ms"]),
    }


def latent_rows(frame: pl.DataFrame, gemms: dict[str, Array], length: str) -> tuple[Rows, Array]:
    """Rows of DeepSeek-V3's attention module, and what its projections take of each by the GEMM grids [s]."""
    parts, bases = [], []
    for dtype, precision in (("bfloat16", "bf16"), ("fp8_block", "fp8_block")):
        if precision not in gemms:
            continue
        part = frame.filter((pl.col("gemm_type") == dtype) & (pl.col("num_heads") >= 8))
        r = columns(part, b="batch_size", h="num_heads", s=length)
        m = r["b"] if length == "step" else r["b"] * r["s"]
        one = np.ones_like(m)
        shapes = (
            (one * (LATENT_Q_RANK + LATENT_DIM), one * LATENT_HIDDEN),
            (r["h"] * (LATENT_NOPE + LATENT_ROPE), one * LATENT_Q_RANK),
            (r["h"] * (LATENT_NOPE + LATENT_VALUE), one * (LATENT_DIM - LATENT_ROPE)),
            (one * LATENT_HIDDEN, r["h"] * LATENT_VALUE),
        )
        bases.append(sum(gemm_us(gemms[precision], m, n, k) for n, k in shapes) * 1e-6)
        parts.append(part)
    joined = pl.concat(parts)
    return columns(joined, b="batch_size", h="num_heads", s=length, ms="latency"), np.concatenate(bases)


def latent_decode_rows(frame: pl.DataFrame, kv: str, gemms: dict[str, Array]) -> Rows:
    """Decode attention of DeepSeek-V3, as :func:`fit_decode` reads it."""
    r, base = latent_rows(frame.filter(pl.col("batch_size") <= 1024), gemms, "step")
    return {
        "ms": r["ms"],
        "context": r["s"],
        "row_heads": r["b"] * r["h"],
        "bytes": KV_BYTES[kv] * r["b"] * LATENT_DIM,
        "flops": 2 * r["b"] * r["h"] * (2 * LATENT_DIM - LATENT_ROPE),
        "base_s": base,
    }


def latent_prefill_rows(frame: pl.DataFrame, gemms: dict[str, Array]) -> Rows:
    """Prefill attention of DeepSeek-V3, as :func:`fit_prefill` reads it."""
    long = (pl.col("isl") >= 512) & (pl.col("batch_size") * pl.col("isl") <= 65536) & (pl.col("step") == 0)
    r, base = latent_rows(frame.filter(long), gemms, "isl")
    dims = LATENT_NOPE + LATENT_ROPE + LATENT_VALUE
    return {
        "ms": r["ms"],
        "context": r["s"],
        "rows": r["b"] * r["s"],
        "bytes": 2 * 2 * r["h"] * dims,
        "flops": 2 * r["h"] * dims,
        "flops_per_dim": np.zeros_like(r["h"]),
        "base_s": base,
    }


def fit_decode(rows: Rows, peak: float, bandwidth: float, l2_bytes: float) -> dict[str, Any]:
    """Launch + work per row and head + p-norm of KV reading and arithmetic.

    Rows whose KV cache has about the size of the last-level cache are left out; smaller ones get a bandwidth
    of their own that is then not used, because a model's whole KV cache never stays there.
    """
    read = rows["bytes"] * rows["context"]
    keep = (read < 0.7 * l2_bytes) | (read > 2 * l2_bytes)
    rows = {k: v[keep] for k, v in rows.items()}
    rows["cached"] = (read < 0.7 * l2_bytes)[keep].astype(float)

    def form(q: Array, r: Rows) -> Array:
        speed = np.where(r["cached"] > 0, q[6], 1.0)
        read = r["bytes"] * (r["context"] + q[3]) / (bandwidth * q[1] * speed)
        math = r["flops"] * r["context"] / (peak * q[5])
        work = r["base_s"] + 1e-6 * q[0] + 1e-9 * q[2] * r["row_heads"]
        return np.asarray(work + (read ** q[4] + math ** q[4]) ** (1 / q[4]))

    bounds: Bounds = {
        "launch_us": (1, 5, 150),
        "bandwidth_frac": (0.1, 0.75, 0.97),
        "row_head_ns": (0.001, 0.5, 20),
        "extra_tokens": (0.1, 32, 600),
        "norm": (1, 2, 8),
        "compute_frac": (0.01, 0.3, 1),
        "cached_speedup": (1, 1.2, 4),
    }
    return fit(form, rows, bounds)


def fit_prefill(rows: Rows, peak: float, bandwidth: float) -> dict[str, Any]:
    """Launch + arithmetic by attention pairs + reading and writing rows.

    The exponentials of a pair do not shrink with the head's size: they count as ``exp_dims`` more dimensions.
    """

    def form(q: Array, r: Rows) -> Array:
        math = 0.5 * (r["flops"] + q[4] * r["flops_per_dim"]) * r["rows"] * (r["context"] + q[2])
        math = math / (peak * q[1])
        move = r["bytes"] * r["rows"] / (bandwidth * q[3])
        return np.asarray(r["base_s"] + 1e-6 * q[0] + math + move)

    bounds: Bounds = {
        "launch_us": (1, 6, 150),
        "compute_frac": (0.05, 0.6, 1),
        "extra_tokens": (1, 100, 2000),
        "bandwidth_frac": (0.02, 0.6, 1),
        "exp_dims": (0.01, 10, 100),
    }
    out = fit(form, rows, bounds)
    if not rows["flops_per_dim"].any():
        del out["exp_dims"]
    return out


def fit_experts(rows: pl.DataFrame, peaks: dict[str, float], bandwidth: float) -> dict[str, dict[str, Any]]:
    """Launch + work per routed token + p-norm of arithmetic and of reading the experts that are hit."""
    out = {}
    for precision, width in WEIGHT_BYTES.items():
        part = rows.filter(pl.col("precision") == precision)
        if len(part) < 150:
            continue
        data = columns(
            part,
            t="num_tokens",
            h="hidden_size",
            i="inter_size",
            k="topk",
            e="num_experts",
            tp="moe_tp_size",
            ms="latency",
        )

        def form(q: Array, r: Rows, width: float = width, peak: float = peaks[precision]) -> Array:
            inner = r["i"] / r["tp"]
            routed = r["t"] * r["k"]
            hit = np.maximum(r["e"] * (1 - np.exp(-q[5] * routed / r["e"])), 1.0)
            math = 6 * r["h"] * inner * (routed + q[3] * hit) / (peak * q[1])
            moved = hit * 3 * r["h"] * inner * width + routed * (2 * r["h"] + 3 * inner) * 2
            read = moved / (bandwidth * q[2])
            work = 1e-6 * q[0] + 1e-9 * q[6] * routed
            return np.asarray(work + (math ** q[4] + read ** q[4]) ** (1 / q[4]))

        out[precision] = fit(
            form,
            data,
            {
                "launch_us": (2, 15, 150),
                "compute_frac": (0.05, 0.5, 1),
                "bandwidth_frac": (0.1, 0.7, 1),
                "pad_rows": (0.01, 16, 200),
                "norm": (1, 2, 8),
                "spread": (0.2, 0.7, 1.2),
                "routed_ns": (0.001, 1, 50),
            },
        )
    return out
