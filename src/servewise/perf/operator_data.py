"""Reading the shipped operator data: arrays, fits, table versions and the measured GPU nearest to a GPU."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servewise.types import EngineName, GpuSpec

__all__ = [
    "ENGINE_TABLES",
    "FAMILY",
    "array",
    "array_names",
    "document",
    "has_array",
    "measured_version",
    "nearest_system",
]

ENGINE_TABLES: Mapping[EngineName, str] = {
    "vllm": "vllm",
    "sglang": "sglang",
    "tensorrt-llm": "trtllm",
    "llama.cpp": "vllm",
    "tgi": "vllm",
}
"""Whose tables describe an engine. llama.cpp and TGI have none: vLLM's stand in, labelled transferred."""
MEASURED = {
    "A100-SXM-80GB": "a100_sxm",
    "ARC-B60": "b60",
    "ARC-PRO-B60": "b60",
    "B200": "b200_sxm",
    "B300": "b300_sxm",
    "GB200": "gb200",
    "GB300": "gb300",
    "H100-SXM": "h100_sxm",
    "H200": "h200_sxm",
    "L40S": "l40s",
    "RTX-PRO-6000": "rtx_pro_6000_server",
}
"""Table names by the beginning of a GPU's canonical name."""
BANDWIDTH_TOLERANCE = 0.08
"""A GPU whose memory bandwidth differs more than this from the table's is another product of that name."""
FAMILY = {
    "ampere": ("a100_sxm",),
    "ada": ("l40s",),
    "hopper": ("h100_sxm", "h200_sxm"),
    "blackwell": ("b200_sxm", "b300_sxm", "gb200", "gb300"),
    "blackwell-rtx": ("rtx_pro_6000_server",),
    "xe2": ("b60",),
}
"""Measured GPUs of an architecture; the one with the nearest bandwidth stands for another GPU of it."""
UNKNOWN_FAMILY = ("h100_sxm",)
"""Stands for an architecture of which none was measured."""


@cache
def _archive() -> Any:
    data = resources.files("servewise.data").joinpath("perf/operators.npz").read_bytes()
    return np.load(io.BytesIO(data), allow_pickle=False)


@cache
def array_names() -> frozenset[str]:
    """Names of all arrays."""
    return frozenset(_archive().files)


def has_array(name: str) -> bool:
    """Whether an array exists."""
    return name in array_names()


@cache
def array(name: str) -> NDArray[Any]:
    """One array, read on first use and not to be written to."""
    values: NDArray[Any] = _archive()[name]
    if values.dtype.kind == "f":
        values = values.astype(np.float64)
    values.flags.writeable = False
    return values


@cache
def document() -> Mapping[str, Any]:
    """Peak rates, table versions, engines' ratios and errors of the forms."""
    text = resources.files("servewise.data").joinpath("perf/operators.json").read_text(encoding="utf-8")
    content: Mapping[str, Any] = json.loads(text)
    return content


def version_key(version: str) -> tuple[int, ...]:
    """Sort key of a version: its numbers in order."""
    return tuple(int(x) for x in re.findall(r"\d+", version))


def measured_version(versions: Iterable[str], wanted: str) -> str:
    """The newest measured version that is not newer than ``wanted``, else the oldest; "" takes the newest."""
    known = sorted(versions, key=version_key)
    if not wanted:
        return known[-1]
    older = [v for v in known if version_key(v) <= version_key(wanted)]
    return older[-1] if older else known[0]


def nearest_system(gpu: GpuSpec) -> tuple[str, bool]:
    """Measured system for a GPU, and whether it is that GPU itself."""
    peaks = {name: float(fit["peaks"]["mem_bw"]) for name, fit in document()["gpus"].items()}
    for prefix, system in MEASURED.items():
        near = abs(gpu.mem_bw_bytes_per_s / peaks[system] - 1) <= BANDWIDTH_TOLERANCE
        if gpu.name.upper().startswith(prefix) and near:
            return system, True
    family = FAMILY.get(gpu.architecture, UNKNOWN_FAMILY)
    return min(family, key=lambda s: (abs(np.log(gpu.mem_bw_bytes_per_s / peaks[s])), s)), False
