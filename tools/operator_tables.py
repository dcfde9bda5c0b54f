"""Reading the measured operator tables: newest version of every engine, best of engines, peak rates."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

Array = NDArray[np.float64]

ENGINES = ("vllm", "sglang", "trtllm")
SYSTEMS = (
    "b200_sxm",
    "b300_sxm",
    "gb200",
    "gb300",
    "h100_sxm",
    "h200_sxm",
    "a100_sxm",
    "l40s",
    "rtx_pro_6000_server",
    "b60",
)
L2_BYTES = {
    "a100_sxm": 40e6,
    "h100_sxm": 50e6,
    "h200_sxm": 50e6,
    "b200_sxm": 126e6,
    "b300_sxm": 126e6,
    "gb200": 126e6,
    "gb300": 126e6,
    "l40s": 96e6,
    "rtx_pro_6000_server": 128e6,
    "b60": 18e6,
}
"""Last-level cache by GPU, from the vendors' architecture papers: a microbenchmark that fits in it reads
faster than a model whose weights and KV cache do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One operator table: rows with a positive time, its engine and version."""

    engine: str
    version: str
    rows: pl.DataFrame

    @property
    def label(self) -> str:
        """Engine and version as provenance names them."""
        return f"{self.engine} {self.version}"


def version_key(version: str) -> tuple[int, ...]:
    """Sort key of a version: its numbers in order."""
    return tuple(int(x) for x in re.findall(r"\d+", version))


def read_tables(systems: Path, gpu: str, op: str, engine: str, file: str) -> list[Table]:
    """Every version of an operator's table, newest first."""
    folders = (systems / "data" / gpu / op / engine).glob("*")
    found = sorted((f for f in folders if (f / file).is_file()), key=lambda f: version_key(f.name), reverse=True)
    return [
        Table(engine=engine, version=f.name, rows=pl.read_parquet(f / file).filter(pl.col("latency") > 0))
        for f in found
    ]


def newest_tables(systems: Path, gpu: str, op: str, file: str) -> list[Table]:
    """The newest table of each engine that has one."""
    return [tables[0] for e in ENGINES if (tables := read_tables(systems, gpu, op, e, file))]


def fastest(frames: list[pl.DataFrame], keys: list[str]) -> pl.DataFrame:
    """Pointwise minimum, in order of the keys."""
    joined = pl.concat([f.select([*keys, "latency"]) for f in frames])
    return joined.group_by(keys).agg(pl.col("latency").min()).sort(keys)


def columns(frame: pl.DataFrame, *names: str) -> list[Array]:
    """Columns as float arrays."""
    return [frame[name].to_numpy().astype(float) for name in names]


def read_peaks(systems: Path, gpu: str) -> dict[str, float]:
    """Peak rates the tables' authors list: FLOP/s by precision, bytes/s as ``mem_bw`` and ``link_bw``."""
    text = (systems / f"{gpu}.yaml").read_text()
    value = {k: float(v) for k, v in re.findall(r"^  (\w+): ([0-9.e+]+)", text, re.M)}
    bf16 = value["bfloat16_tc_flops"]
    fp8 = value.get("fp8_tc_flops", bf16)
    fp4 = value.get("fp4_tc_flops", fp8)
    return {
        "bf16": bf16,
        "fp8": fp8,
        "fp8_block": fp8,
        "int8": max(value.get("int8_tc_flops", fp8), bf16),
        "int4": bf16,
        "nvfp4": fp4,
        "mxfp4": bf16,
        "mxfp4_mxfp8": fp8,
        "mem_bw": value["mem_bw"],
        "link_bw": value["intra_node_bw"],
    }


def monotone(values: Array) -> Array:
    """Make positive values non-decreasing along the last axis: isotonic regression of their logarithms."""
    lines = np.log(values).reshape(-1, values.shape[-1])
    return np.exp(np.stack([isotonic_regression(line).x for line in lines])).reshape(values.shape)


def log_interp(x: Array, xs: Array, ys: Array) -> Array:
    """Interpolate ln(ys) over ln(xs); beyond the last point time grows in proportion to x."""
    out = np.interp(np.log(x), np.log(xs), np.log(ys))
    return np.asarray(out + np.maximum(np.log(x / xs[-1]), 0.0))


def error_of(predicted: Array, measured: Array) -> dict[str, float]:
    """Median and p90 of the relative error, its signed median, and the number of rows."""
    ratio = predicted / measured - 1
    median, p90 = np.quantile(np.abs(ratio), [0.5, 0.9])
    return {
        "median": round(float(median), 4),
        "p90": round(float(p90), 4),
        "bias": round(float(np.median(ratio)), 4),
        "points": len(ratio),
    }
