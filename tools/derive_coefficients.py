"""Derive the step model's operator coefficients from measured operator tables.

    python tools/derive_coefficients.py SYSTEMS_DIR OUT_DIR [gpu ...]

SYSTEMS_DIR is ``aiconfigurator_core/systems`` of the PyPI wheel ``aiconfigurator-core==0.12.0`` (Apache-2.0,
NVIDIA): operator times by GPU, operator, engine and version. Only operator tables are read, never serving
results. Needs scipy and polars. Written are

- ``operators.npz``: thinned grids of ln(time in us): dense GEMMs over (m, n, k), fused experts of known
  shapes over (tensor parallel size, tokens), all-reduce over (number of GPUs, bytes);
- ``operators.json``: fits of physical forms (attention, experts of unknown shape) with their errors, and the
  table versions used.

GEMMs, experts and all-reduce take the fastest engine at each point, because single tables hold slow paths and
launch artefacts; attention takes vLLM's own kernels. GEMMs never read weights faster than main memory can:
the benchmark's matrices may sit in the last-level cache, a served model's do not. Every grid is made monotone
along each axis.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from operator_fits import (
    L2_BYTES,
    WEIGHT_BYTES,
    columns,
    fit_decode,
    fit_experts,
    fit_prefill,
    grouped_decode_rows,
    grouped_prefill_rows,
    latent_decode_rows,
    latent_prefill_rows,
)
from operator_grids import GEMM_K, GEMM_M, GEMM_N, gemm_grid, grid_error, log_interp, monotone

Array = NDArray[np.float64]

ENGINES = ("vllm", "sglang", "trtllm")
GEMM_PRECISION = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4", "sq": "int8"}
MOE_PRECISION = {
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "nvfp4": "nvfp4",
    "int4_wo": "int4",
    "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4",
}
MOE_TOKENS = (
    1,
    2,
    4,
    8,
    16,
    32,
    48,
    64,
    96,
    128,
    192,
    256,
    384,
    512,
    768,
    1024,
    1536,
    2048,
    4096,
    8192,
    16384,
)
MOE_TP = (1, 2, 4, 8)
MOE_SHAPE = ["precision", "hidden_size", "inter_size", "topk", "num_experts"]
MOE_DISTRIBUTIONS = ("power_law_1.01", "power_law_1.2", "balanced")
ALL_REDUCE_GPUS = (2, 4, 8)


def version_key(path: Path) -> tuple[int, ...]:
    """Sort key of a version folder: its numbers in order."""
    return tuple(int(x) for x in re.findall(r"\d+", path.name))


def folders(systems: Path, gpu: str, op: str, engine: str, file: str) -> list[Path]:
    """Version folders that hold a file, newest first."""
    found = sorted((systems / "data" / gpu / op / engine).glob("*"), key=version_key, reverse=True)
    return [f for f in found if (f / file).is_file()]


def read_table(systems: Path, gpu: str, op: str, engine: str, file: str) -> tuple[pl.DataFrame, str] | None:
    """Read the newest table of an operator and engine; None when there is none."""
    found = folders(systems, gpu, op, engine, file)
    if not found:
        return None
    return pl.read_parquet(found[0] / file).filter(pl.col("latency") > 0), f"{engine} {found[0].name}"


def read_experts(systems: Path, gpu: str, engine: str) -> tuple[pl.DataFrame, str] | None:
    """Fused-expert rows of an engine, each data type from the newest version that measured it."""
    frames: list[pl.DataFrame] = []
    seen: set[str] = set()
    used: list[str] = []
    for folder in folders(systems, gpu, "moe", engine, "moe_perf.parquet"):
        frame = pl.read_parquet(folder / "moe_perf.parquet").filter(pl.col("latency") > 0)
        frame = frame.filter(~pl.col("moe_dtype").is_in(list(seen)))
        if len(frame):
            seen |= set(frame["moe_dtype"].unique().to_list())
            frames.append(frame)
            used.append(folder.name)
    return (pl.concat(frames, how="diagonal_relaxed"), f"{engine} {'+'.join(used)}") if frames else None


def fastest(frames: list[pl.DataFrame], keys: list[str]) -> pl.DataFrame:
    """Pointwise minimum over engines."""
    return pl.concat([f.select([*keys, "latency"]) for f in frames]).group_by(keys).agg(pl.col("latency").min())


def derive_gemm(systems: Path, gpu: str, bandwidth: float, grids: dict[str, Array]) -> dict[str, Any]:
    """Dense GEMM grids of a GPU, one a precision."""
    found = [t for e in ENGINES if (t := read_table(systems, gpu, "gemm", e, "gemm_perf.parquet"))]
    rows = fastest([f for f, _ in found], ["gemm_dtype", "m", "n", "k"])
    error = {}
    for dtype, precision in GEMM_PRECISION.items():
        points = rows.filter(pl.col("gemm_dtype") == dtype)
        if len(points) < 3000:
            continue
        grid = gemm_grid(points, WEIGHT_BYTES[precision], bandwidth)
        grids[f"gemm/{gpu}/{precision}"] = grid
        error[precision] = grid_error(grid, points)
    return {"tables": [v for _, v in found], "error": error}


def expert_rows(systems: Path, gpu: str) -> tuple[pl.DataFrame, list[str]]:
    """Fused-expert rows without expert parallelism, fastest engine, most skewed common token distribution."""
    found = [t for e in ENGINES if (t := read_experts(systems, gpu, e))]
    keep = (
        ~pl.col("kernel_source").str.contains("nongated")
        & (pl.col("moe_ep_size") == 1)
        & pl.col("moe_tp_size").is_in(MOE_TP)
    )
    frames = [
        f.filter(keep).with_columns(pl.col("moe_dtype").replace(MOE_PRECISION).alias("precision")) for f, _ in found
    ]
    shape = [*MOE_SHAPE, "moe_tp_size"]
    rows = fastest(frames, [*shape, "num_tokens", "distribution"])
    order = {d: i for i, d in enumerate(MOE_DISTRIBUTIONS)}
    rank = pl.col("distribution").replace_strict(order, default=len(order), return_dtype=pl.Int64).alias("rank")
    rows = rows.with_columns(rank).filter(pl.col("rank") < len(order))
    counts = rows.group_by([*shape, "rank"]).agg(pl.col("num_tokens").n_unique().alias("count"))
    chosen = counts.filter(pl.col("count") >= 8).group_by(shape).agg(pl.col("rank").min())
    return rows.join(chosen, on=[*shape, "rank"], how="inner"), [v for _, v in found]


def expert_curves(gpu: str, rows: pl.DataFrame, grids: dict[str, Array]) -> None:
    """Curves of ln(us) over (MOE_TP, MOE_TOKENS) of every measured shape; NaN where nothing was measured."""
    for key, part in rows.filter(pl.col("hidden_size") >= 2048).group_by(MOE_SHAPE):
        curves = np.full((len(MOE_TP), len(MOE_TOKENS)), np.nan)
        for (tp,), piece in part.group_by("moe_tp_size"):
            curve = columns(piece.sort("num_tokens"), tokens="num_tokens", ms="latency")
            ys = monotone(curve["ms"] * 1e3, 0)
            curves[MOE_TP.index(tp)] = log_interp(np.asarray(MOE_TOKENS, float), curve["tokens"], ys)
        grids[f"moe/{gpu}/{'/'.join(str(k) for k in key)}"] = curves


def derive_all_reduce(systems: Path, gpu: str, grids: dict[str, Array]) -> list[str]:
    """All-reduce curves of ln(us) by number of GPUs over message bytes, the fastest library at each size."""
    found = [t for e in ENGINES if (t := read_table(systems, gpu, "comm", e, "custom_allreduce_perf.parquet"))]
    frames = [f.filter(~pl.col("backend").str.contains("eager")) if "backend" in f.columns else f for f, _ in found]
    nccl = read_table(systems, gpu, "comm", "nccl", "nccl_perf.parquet")
    if nccl is not None:
        found.append(nccl)
        frames.append(nccl[0].filter((pl.col("op_name") == "all_reduce") & (pl.col("nccl_dtype") == "half")))
    rows = fastest(frames, ["num_gpus", "message_size"])
    sizes = np.array(sorted(rows["message_size"].unique().to_list()), float)
    curves = np.full((len(ALL_REDUCE_GPUS), len(sizes)), np.nan)
    for i, num in enumerate(ALL_REDUCE_GPUS):
        curve = columns(rows.filter(pl.col("num_gpus") == num).sort("message_size"), size="message_size", ms="latency")
        if len(curve["size"]):
            curves[i] = log_interp(sizes, curve["size"], monotone(curve["ms"] * 1e3, 0))
    grids[f"all_reduce/{gpu}"] = curves
    grids["all_reduce_bytes"] = 2.0 * sizes  # the tables count 16-bit elements
    return [v for _, v in found]


def read_peaks(systems: Path, gpu: str) -> dict[str, float]:
    """Peak rates the tables' authors list: FLOP/s by precision, bytes/s as ``mem_bw`` and ``link_bw``."""
    text = (systems / f"{gpu}.yaml").read_text()
    value = {k: float(v) for k, v in re.findall(r"^  (\w+): ([0-9.e+]+)", text, re.M)}
    bf16 = value["bfloat16_tc_flops"]
    fp8 = value.get("fp8_tc_flops", bf16)
    fp4 = value.get("fp4_tc_flops", fp8)
    flops = {"bf16": bf16, "fp8": fp8, "fp8_block": fp8, "nvfp4": fp4, "int4": bf16, "mxfp4": bf16}
    int8 = value.get("int8_tc_flops", fp8)
    return {**flops, "int8": int8, "mem_bw": value["mem_bw"], "link_bw": value["intra_node_bw"]}


def derive_attention(systems: Path, gpu: str, peaks: dict[str, float], grids: dict[str, Array]) -> dict[str, Any]:
    """Fits of vLLM's attention kernels by KV precision: grouped-query, and latent where it was measured."""
    out: dict[str, Any] = {"attention_tables": []}
    gemms = {p: g for p in ("bf16", "fp8_block") if (g := grids.get(f"gemm/{gpu}/{p}")) is not None}
    kinds = (
        ("decode_attention", "attention", "generation_attention_perf.parquet"),
        ("prefill_attention", "attention", "context_attention_perf.parquet"),
        ("latent_decode_attention", "mla", "mla_generation_module_perf.parquet"),
        ("latent_prefill_attention", "mla", "mla_context_module_perf.parquet"),
    )
    for name, op, file in kinds:
        table = read_table(systems, gpu, op, "vllm", file)
        if table is None:
            continue
        out["attention_tables"].append(table[1])
        out[name] = {}
        for dtype, kv in (("bfloat16", "bf16"), ("fp8", "fp8")):
            frame = table[0].filter(pl.col("kv_cache_dtype") == dtype)
            if name == "decode_attention":
                rows = grouped_decode_rows(frame, kv)
            elif name == "prefill_attention":
                rows = grouped_prefill_rows(frame)
            elif name == "latent_decode_attention":
                rows = latent_decode_rows(frame, kv, gemms)
            else:
                rows = latent_prefill_rows(frame, gemms)
            if len(rows["ms"]) < 300:
                continue
            bandwidth = peaks["mem_bw"]
            if "decode" in name:
                out[name][kv] = fit_decode(rows, peaks["bf16"], bandwidth, L2_BYTES[gpu])
            else:
                out[name][kv] = fit_prefill(rows, peaks["bf16"], bandwidth)
    out["attention_tables"] = sorted(set(out["attention_tables"]))
    return {name: fits for name, fits in out.items() if fits}


def derive_gpu(systems: Path, gpu: str, grids: dict[str, Array]) -> dict[str, Any]:
    """Grids (added to ``grids``) and fits of one GPU."""
    peaks = read_peaks(systems, gpu)
    bandwidth = peaks["mem_bw"]
    experts, expert_tables = expert_rows(systems, gpu)
    expert_curves(gpu, experts, grids)
    return {
        "peaks": peaks,
        "gemm": derive_gemm(systems, gpu, bandwidth, grids),
        **derive_attention(systems, gpu, peaks, grids),
        "moe": fit_experts(experts, peaks, bandwidth),
        "moe_tables": expert_tables,
        "all_reduce_tables": derive_all_reduce(systems, gpu, grids),
    }


def main(systems: Path, out: Path, gpus: tuple[str, ...]) -> None:
    """Derive everything and write both files."""
    axes = {"gemm_m": GEMM_M, "gemm_n": GEMM_N, "gemm_k": GEMM_K, "moe_tokens": MOE_TOKENS}
    grids: dict[str, Array] = {}
    fits = {}
    for gpu in gpus:
        fits[gpu] = derive_gpu(systems, gpu, grids)
        print(gpu, json.dumps(fits[gpu]), flush=True)
    arrays: dict[str, Any] = {k: np.asarray(v, np.float32) for k, v in axes.items()}
    arrays |= {k: v.astype(np.float16 if "/" in k else np.float32) for k, v in grids.items()}
    np.savez_compressed(out / "operators.npz", **arrays)
    document = {"source": "PyPI aiconfigurator-core 0.12.0, systems/data (Apache-2.0, NVIDIA)", "gpus": fits}
    (out / "operators.json").write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), tuple(sys.argv[3:]) or tuple(L2_BYTES))
