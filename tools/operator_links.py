"""Collectives between GPUs: all-reduce of each engine, and NCCL's collectives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from operator_grids import Grids
from operator_tables import ENGINES, Table, columns, fastest, log_interp, monotone, read_tables

Array = NDArray[np.float64]

NUM_GPUS = (2, 4, 8, 16)
ELEMENTS = tuple(2**i for i in range(7, 30, 1))
"""Message sizes kept, in the tables' unit, 16-bit elements."""
KINDS = {"all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter"} | {
    "alltoall": "all_to_all"
}


def derive_links(systems: Path, gpu: str, grids: Grids) -> list[str]:
    """Curves of ln(us) over (NUM_GPUS, ELEMENTS); NaN where nothing was measured.

    ``all_reduce/GPU/ENGINE`` is the faster of an engine's own kernel (with CUDA graphs) and NCCL at each size,
    ``all_reduce/GPU/best`` the fastest of all; the other kinds are NCCL's (oneCCL's on Intel).
    """
    library = read_tables(systems, gpu, "comm", "nccl", "nccl_perf.parquet")
    library = library or read_tables(systems, gpu, "comm", "oneccl", "oneccl_perf.parquet")
    half = [t.rows.filter(pl.col("nccl_dtype") == "half") for t in library]
    used = [t.label for t in library]
    for name, kind in KINDS.items():
        if kind != "all_reduce":
            curves = link_curves(per_count([h.filter(pl.col("op_name") == name) for h in half]))
            if not np.isnan(curves).all():
                grids[f"{kind}/{gpu}"] = curves
    common = [h.filter(pl.col("op_name") == "all_reduce") for h in half]
    every = list(common)
    for engine in ENGINES:
        tables = read_tables(systems, gpu, "comm", engine, "custom_allreduce_perf.parquet")
        own = per_count([graphed(t) for t in tables])
        if len(own):
            grids[f"all_reduce/{gpu}/{engine}"] = link_curves(merged([own, per_count(common)]))
            every.append(own)
            used.append(tables[0].label)
    grids[f"all_reduce/{gpu}/best"] = link_curves(merged([per_count([f]) for f in every]))
    return used


def graphed(table: Table) -> pl.DataFrame:
    """Rows of an engine's kernel as CUDA graphs replay it, where that was measured."""
    rows = table.rows
    if "backend" in rows.columns:
        eager = pl.col("backend").str.contains("eager")
        rows = rows.filter(~eager) if len(rows.filter(~eager)) else rows
    return rows


def per_count(frames: list[pl.DataFrame]) -> pl.DataFrame:
    """For every number of GPUs the rows of the first (newest) frame that has it."""
    keys = ["num_gpus", "message_size"]
    kept: list[pl.DataFrame] = []
    seen: set[int] = set()
    for frame in frames:
        rows = frame.filter(~pl.col("num_gpus").is_in(sorted(seen)))
        if len(rows):
            kept.append(fastest([rows], keys))
            seen |= set(rows["num_gpus"].to_list())
    return pl.concat(kept) if kept else pl.DataFrame(schema={"num_gpus": pl.Int64, "message_size": pl.Int64})


def merged(frames: list[pl.DataFrame]) -> pl.DataFrame:
    """Pointwise minimum of those frames that have rows."""
    return fastest([f for f in frames if len(f)], ["num_gpus", "message_size"])


def link_curves(rows: pl.DataFrame) -> NDArray[np.float16]:
    """ln(us) over (NUM_GPUS, ELEMENTS)."""
    curves = np.full((len(NUM_GPUS), len(ELEMENTS)), np.nan)
    for i, num in enumerate(NUM_GPUS):
        part = rows.filter(pl.col("num_gpus") == num).sort("message_size")
        if len(part) >= 4:
            size, ms = columns(part, "message_size", "latency")
            curves[i] = log_interp(np.asarray(ELEMENTS, float), size, monotone(ms * 1e3))
    return curves.astype(np.float16)
