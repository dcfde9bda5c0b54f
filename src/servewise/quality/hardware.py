"""Precisions that no engine in question runs on a GPU, with the reason of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from servewise.catalog import unsupported_precisions
from servewise.quality.choices import is_obtainable
from servewise.types import GpuSpec, ModelSpec, WeightPrecision

__all__ = ["not_run"]


def not_run(models: Sequence[ModelSpec], gpus: Sequence[GpuSpec], engines: Sequence[str]) -> tuple[str, ...]:
    """What hardware and engines rule out of the precisions that the models can be had in.

    Returns
    -------
    tuple of str
        GPUs and formats that share their reasons together, e.g. ``nvfp4 weights on A100-SXM-80GB: sglang: ...``.
    """
    wanted = [f"{w} weights" for w in get_args(WeightPrecision) if any(is_obtainable(model, w) for model in models)]
    wanted.append("fp8 KV cache")
    together: dict[tuple[tuple[str, str], ...], dict[str, list[str]]] = {}
    for gpu in gpus:
        refused = {engine: unsupported_precisions(gpu, engine) for engine in engines}
        for part in wanted:
            if all(part in reasons for reasons in refused.values()):
                why = tuple((engine, reasons[part]) for engine, reasons in refused.items())
                together.setdefault(why, {}).setdefault(gpu.name, []).append(part)
    found = []
    for why, by_gpu in together.items():
        same: dict[tuple[str, ...], list[str]] = {}
        for gpu_name, parts in by_gpu.items():
            same.setdefault(tuple(parts), []).append(gpu_name)
        reasons = "; ".join(f"{engine}: {text}" for engine, text in why)
        found += [f"{_listed(parts)} on {', '.join(names)}: {reasons}" for parts, names in same.items()]
    return tuple(found)


def _listed(parts: Sequence[str]) -> str:
    """``nvfp4, mxfp4 weights``."""
    *before, last = parts
    return ", ".join([*(part.removesuffix(" weights") for part in before), last])
