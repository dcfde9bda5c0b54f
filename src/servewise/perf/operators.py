"""Time of single operators on one GPU, from measured tables or transferred from the nearest measured GPU."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from servewise.perf.layout import Experts, bytes_per_weight, compute_type
from servewise.types import AttentionKind, GpuSpec, KvPrecision, Provenance, WeightPrecision

__all__ = ["Attention", "Operators", "PrefillAttention", "overheads"]

Array = NDArray[np.float64]

MEASURED = {
    "A100-SXM-80GB": "a100_sxm",
    "B200": "b200_sxm",
    "B300": "b300_sxm",
    "GB200": "gb200",
    "H100-SXM": "h100_sxm",
    "H200": "h200_sxm",
    "L40S": "l40s",
    "RTX-PRO-6000": "rtx_pro_6000_server",
}
"""Table names by the beginning of a GPU's canonical name."""
BANDWIDTH_TOLERANCE = 0.08
"""A GPU whose memory bandwidth differs more than this from the table's is another product of that name."""
FAMILY = {
    "ampere": "a100_sxm",
    "ada": "l40s",
    "hopper": "h100_sxm",
    "blackwell": "b200_sxm",
    "blackwell-rtx": "rtx_pro_6000_server",
}
"""Measured GPU that stands for an architecture."""
UNKNOWN_FAMILY = "h100_sxm"
"""Measured GPU that stands for an architecture of which none was measured."""
PCIE_SYSTEM = "l40s"
"""Measured GPU whose all-reduce stands for GPUs linked by PCIe."""
GEMM_FALLBACK: dict[WeightPrecision, tuple[WeightPrecision, ...]] = {
    "bf16": (),
    "fp8": ("bf16",),
    "fp8_block": ("fp8", "bf16"),
    "int8": ("fp8", "bf16"),
    "int4": ("bf16",),
    "nvfp4": ("bf16",),
    "mxfp4": ("bf16",),
}
"""Precisions whose measured GEMMs stand in, nearest first."""
EXPERT_FALLBACK: dict[WeightPrecision, tuple[WeightPrecision, ...]] = {
    "bf16": (),
    "fp8": ("fp8_block", "bf16"),
    "fp8_block": ("fp8", "bf16"),
    "int8": ("fp8", "fp8_block", "bf16"),
    "int4": ("bf16",),
    "nvfp4": ("mxfp4", "int4", "bf16"),
    "mxfp4": ("int4", "bf16"),
}
LAUNCH_S = 3e-6
"""Part of a small GEMM's time that no GPU rate changes [s]; assumed: the shortest GEMMs of all tables."""
ROOF_NORM = 3.0
"""Sharpness of the roofline used to transfer times; assumed, between a sum (1) and a maximum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Decode attention of one layer: launch, work per row and head, KV reading and arithmetic.

    Parameters
    ----------
    launch_s, row_head_s : float [s]
    bytes_per_s, flops_per_s : float
        Rates the kernel reaches.
    extra_tokens : float [tokens]
        Context that every row costs beyond its own.
    norm : float
        How reading and arithmetic combine: their p-norm.
    """

    launch_s: float
    row_head_s: float
    bytes_per_s: float
    flops_per_s: float
    extra_tokens: float
    norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillAttention:
    """Prefill attention of one layer: launch, arithmetic by attention pairs, reading and writing of rows.

    Parameters
    ----------
    launch_s : float [s]
    flops_per_s, bytes_per_s : float
        Rates the kernel reaches.
    extra_tokens : float [tokens]
        Context that every token costs beyond its own.
    exp_dims : float
        Exponentials of a pair and head, as dimensions of arithmetic.
    """

    launch_s: float
    flops_per_s: float
    bytes_per_s: float
    extra_tokens: float
    exp_dims: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Peak rates that a roofline needs."""

    flops_per_s: float
    bytes_per_s: float


@cache
def grids() -> Mapping[str, Array]:
    """Measured grids, ln(us), as float64."""
    with (
        resources.files("servewise.data").joinpath("perf/operators.npz").open("rb") as file,
        np.load(file, allow_pickle=False) as archive,
    ):
        return {name: archive[name].astype(np.float64) for name in archive.files}


@cache
def fits() -> Mapping[str, Any]:
    """Fitted forms and table versions."""
    text = resources.files("servewise.data").joinpath("perf/operators.json").read_text(encoding="utf-8")
    document: Mapping[str, Any] = json.loads(text)
    return document


@cache
def overheads() -> Mapping[str, Any]:
    """Overheads by engine and assumed constants."""
    text = resources.files("servewise.data").joinpath("perf/overheads.json").read_text(encoding="utf-8")
    document: Mapping[str, Any] = json.loads(text)
    return document


def roof_s(m: Array, n: Array, k: Array, weight_bytes: float, rates: Rates) -> Array:
    """Roofline time of a GEMM with a launch, for ratios between GPUs or precisions [s]."""
    math = 2.0 * m * n * k / rates.flops_per_s
    move = (n * k * weight_bytes + 2.0 * (m * k + m * n)) / rates.bytes_per_s
    return np.asarray(LAUNCH_S + (math**ROOF_NORM + move**ROOF_NORM) ** (1 / ROOF_NORM))


class Operators:
    """Operator times on one GPU.

    Parameters
    ----------
    gpu : GpuSpec
    """

    def __init__(self, gpu: GpuSpec) -> None:
        self.gpu = gpu
        self.system, self.exact = nearest_system(gpu)
        self._fits: Mapping[str, Any] = fits()["gpus"][self.system]
        peaks = self._fits["peaks"]
        self.mem_bw = float(peaks["mem_bw"]) if self.exact else gpu.mem_bw_bytes_per_s
        self.notes: dict[str, str] = {}
        self._lattices: dict[WeightPrecision, Array] = {}
        self._fit_errors: dict[str, Mapping[str, float]] = {}
        if not self.exact:
            self.notes["gpu"] = (
                f"operator times transferred from {self.system} by the ratio of peak rates: {gpu.name} was not measured"
            )

    def rates(self, precision: WeightPrecision, *, unpacking: bool = True) -> Rates:
        """Peak rates of this GPU for a precision; weight-only precisions lose a part to unpacking, unless the
        efficiency they are multiplied by was measured with it."""
        kind = compute_type(self.gpu, precision)
        peak = self.gpu.peak_flops_per_s[kind]
        if unpacking and precision != "bf16" and kind == "bf16":
            peak *= float(overheads()["assumed"]["weight_only_compute_frac"])
        return Rates(flops_per_s=peak, bytes_per_s=self.mem_bw)

    def measured_rates(self, precision: WeightPrecision) -> Rates:
        """Peak rates of the measured GPU for a precision it was measured in."""
        peaks = self._fits["peaks"]
        return Rates(flops_per_s=float(peaks[precision]), bytes_per_s=float(peaks["mem_bw"]))

    def lattice(self, precision: WeightPrecision) -> Array:
        """ln(us) of GEMMs over (m, n, k) of the measured grid, for this GPU and precision, monotone."""
        if precision not in self._lattices:
            self._lattices[precision] = self._build_lattice(precision)
        return self._lattices[precision]

    def _build_lattice(self, precision: WeightPrecision) -> Array:
        tables = grids()
        native = precision == "bf16" or compute_type(self.gpu, precision) != "bf16"
        choices = (precision, *GEMM_FALLBACK[precision]) if native else ("bf16",)
        base = next(p for p in choices if f"gemm/{self.system}/{p}" in tables)
        values = tables[f"gemm/{self.system}/{base}"]
        if base != precision:
            how = "computed in bf16 after unpacking" if not native or base == "bf16" else f"from {base}"
            self.notes[f"gemm_{precision}"] = (
                f"{precision} GEMMs were not measured on {self.system}: bytes of {precision} weights, {how}"
            )
        if self.exact and base == precision:
            return values
        m, n, k = np.meshgrid(tables["gemm_m"], tables["gemm_n"], tables["gemm_k"], indexing="ij")
        here = roof_s(m, n, k, bytes_per_weight(precision), self.rates(precision))
        there = roof_s(m, n, k, bytes_per_weight(base), self.measured_rates(base))
        values = values + np.log(here / there)
        for axis in range(3):
            values = np.maximum.accumulate(values, axis=axis)
        return np.asarray(values)

    def gemm_s(self, m: Array, n: int, k: int, precision: WeightPrecision) -> Array:
        """Time of multiplying ``m`` rows by an ``n`` x ``k`` weight matrix [s].

        Interpolates ln(time) over ln(size); beyond the grid time grows in proportion to each size.
        """
        tables, values = grids(), self.lattice(precision)
        j, a, more_n = bracket(tables["gemm_n"], n)
        i, b, more_k = bracket(tables["gemm_k"], k)
        curve = (1 - b) * ((1 - a) * values[:, j, i] + a * values[:, j + 1, i])
        curve = curve + b * ((1 - a) * values[:, j, i + 1] + a * values[:, j + 1, i + 1])
        return curve_s(m, tables["gemm_m"], curve + more_n + more_k)

    def experts_s(self, m: Array, experts: Experts) -> Array:
        """Time of one layer's routed experts for ``m`` tokens [s].

        Taken from the measured curve of this shape, in this precision or the nearest measured one scaled by
        the fitted form; from the fitted form alone where the shape was not measured.
        """
        tables, tokens = grids(), grids()["moe_tokens"]
        shape = (experts.hidden_size, experts.intermediate_size, experts.top_k, experts.num_experts)
        row = {1: 0, 2: 1, 4: 2, 8: 3}.get(experts.tensor_parallel_size)
        for base in (experts.precision, *EXPERT_FALLBACK[experts.precision]):
            curves = tables.get(f"moe/{self.system}/{base}/{'/'.join(map(str, shape))}")
            if curves is None or row is None or np.isnan(curves[row]).any():
                continue
            if self.exact and base == experts.precision:
                return curve_s(m, tokens, curves[row])
            if base != experts.precision:
                self.notes["moe_precision"] = (
                    f"{experts.precision} experts {shape} were not measured on {self.system}: from {base}"
                )
            rates = self.rates(experts.precision, unpacking=base != experts.precision)
            here = self._expert_form(experts, base, rates, tokens)
            measured = replace(experts, precision=base)
            there = self._expert_form(measured, base, self.measured_rates(base), tokens)
            return curve_s(m, tokens, np.maximum.accumulate(curves[row] + np.log(here / there)))
        self.notes["moe_shape"] = f"experts {shape} were not measured on {self.system}: fitted form"
        rates = self.rates(experts.precision, unpacking=experts.precision not in self._fits["moe"])
        return self._expert_form(experts, experts.precision, rates, m)

    def _expert_form(self, experts: Experts, fitted_as: WeightPrecision, rates: Rates, m: Array) -> Array:
        """Fitted form with the efficiencies of ``fitted_as`` (or the nearest fitted precision) [s]."""
        fitted = self._fits["moe"]
        choices: tuple[WeightPrecision, ...] = (fitted_as, *EXPERT_FALLBACK[fitted_as])
        q = fitted[next(p for p in choices if p in fitted)]
        hidden, inner = experts.hidden_size, experts.intermediate_size / experts.tensor_parallel_size
        routed = m * experts.top_k
        hit = np.maximum(experts.num_experts * (1 - np.exp(-q["spread"] * routed / experts.num_experts)), 1.0)
        flops = 2 * experts.num_matrices * hidden * inner * (routed + q["pad_rows"] * hit)
        weights = hit * experts.num_matrices * hidden * inner * bytes_per_weight(experts.precision)
        math = flops / (rates.flops_per_s * q["compute_frac"])
        move = (weights + 2 * routed * (2 * hidden + 3 * inner)) / (rates.bytes_per_s * q["bandwidth_frac"])
        work = 1e-6 * q["launch_us"] + 1e-9 * q["routed_ns"] * routed
        return np.asarray(work + (math ** q["norm"] + move ** q["norm"]) ** (1 / q["norm"]))

    def all_reduce_s(self, num_bytes: Array, num_gpus: int) -> Array:
        """Time of an all-reduce of a message over ``num_gpus`` GPUs of a node [s]; 0 for one GPU."""
        if num_gpus == 1:
            return np.zeros_like(num_bytes)
        tables = grids()
        system, ratio = self._link()
        row = min(2, (num_gpus - 1).bit_length() - 1)
        curve = tables[f"all_reduce/{system}"][row]
        if np.isnan(curve).any():
            curve = tables[f"all_reduce/{FAMILY['blackwell']}"][row]
        first = np.exp(curve[0])
        curve = np.log(first + (np.exp(curve) - first) * ratio)
        grown = 1.0 if num_gpus <= 8 else (2 * (num_gpus - 1) / num_gpus) / 1.75
        return grown * curve_s(num_bytes, tables["all_reduce_bytes"], curve)

    def _link(self) -> tuple[str, float]:
        """Measured system whose links are like this GPU's, and how much slower these are."""
        if self.exact:
            return self.system, 1.0
        system, slow = self.system, self.gpu.link_kind == "pcie"
        if slow != (system in (PCIE_SYSTEM, "rtx_pro_6000_server")):
            system = PCIE_SYSTEM if slow else UNKNOWN_FAMILY
        measured = float(fits()["gpus"][system]["peaks"]["link_bw"])
        return system, measured / self.gpu.link_bytes_per_s

    def attention_fit(self, phase: str, kind: AttentionKind, kv: KvPrecision) -> Mapping[str, Any]:
        """Fitted coefficients of ``decode`` or ``prefill`` attention, of the nearest kind measured."""
        name = f"{phase}_attention" if kind == "gqa" else f"latent_{phase}_attention"
        fitted = self._fits.get(name)
        if fitted is None:
            self.notes["attention_latent"] = (
                f"latent attention was not measured on {self.system}: rates of grouped-query kernels"
            )
            fitted = self._fits[f"{phase}_attention"]
        if kv not in fitted:
            self.notes["attention_kv"] = f"{kv} KV cache was not measured on {self.system}: rates of bf16"
        chosen: Mapping[str, Any] = fitted.get(kv, fitted["bf16"])
        self._fit_errors[phase] = chosen["error"]
        return chosen

    def decode_attention(self, kind: AttentionKind, kv: KvPrecision) -> Attention:
        """Coefficients of decode attention."""
        q = self.attention_fit("decode", kind, kv)
        return Attention(
            launch_s=1e-6 * q["launch_us"],
            row_head_s=1e-9 * q["row_head_ns"],
            bytes_per_s=self.mem_bw * q["bandwidth_frac"],
            flops_per_s=self.bf16_peak() * q["compute_frac"],
            extra_tokens=q["extra_tokens"],
            norm=q["norm"],
        )

    def prefill_attention(self, kind: AttentionKind, kv: KvPrecision) -> PrefillAttention:
        """Coefficients of prefill attention."""
        q = self.attention_fit("prefill", kind, kv)
        return PrefillAttention(
            launch_s=1e-6 * q["launch_us"],
            flops_per_s=self.bf16_peak() * q["compute_frac"],
            bytes_per_s=self.mem_bw * q["bandwidth_frac"],
            extra_tokens=q["extra_tokens"],
            exp_dims=q["exp_dims"] if kind == "gqa" else 0.0,
        )

    def bf16_peak(self) -> float:
        """bf16 matrix peak [FLOP/s]: the tables' figure where this GPU was measured."""
        return float(self._fits["peaks"]["bf16"]) if self.exact else self.gpu.peak_flops_per_s["bf16"]

    def provenance(self, part: str) -> Provenance:
        """Origin of ``gemm``, ``attention``, ``moe`` or ``all_reduce`` times."""
        keys = {
            "gemm": "gemm",
            "attention": "attention_tables",
            "moe": "moe_tables",
            "all_reduce": "all_reduce_tables",
        }
        tables = self._fits[keys[part]]
        tables = tables["tables"] if part == "gemm" else tables
        notes = [v for k, v in self.notes.items() if k == "gpu" or k.startswith(part)]
        if part == "attention":
            notes += [
                f"{name} form fitted with {100 * e['median']:.0f}% median and {100 * e['p90']:.0f}% p90 error"
                for name, e in self._fit_errors.items()
            ]
        return Provenance(
            kind="derived" if notes else "measured",
            source=f"{fits()['source']}: {self.system} ({', '.join(tables)})",
            note="; ".join(notes) or "thinned and interpolated",
        )


def nearest_system(gpu: GpuSpec) -> tuple[str, bool]:
    """Measured system for a GPU, and whether it is that GPU itself."""
    for prefix, system in MEASURED.items():
        if gpu.name.upper().startswith(prefix):
            measured = float(fits()["gpus"][system]["peaks"]["mem_bw"])
            if abs(gpu.mem_bw_bytes_per_s / measured - 1) <= BANDWIDTH_TOLERANCE:
                return system, True
    return FAMILY.get(gpu.architecture, UNKNOWN_FAMILY), False


def bracket(axis: Array, size: float) -> tuple[int, float, float]:
    """Index, weight of the next point, and ln of what exceeds the axis, for ln-interpolation."""
    x = np.log(np.clip(size, axis[0], axis[-1]))
    logs = np.log(axis)
    i = int(np.clip(np.searchsorted(logs, x, side="right") - 1, 0, len(axis) - 2))
    return i, float((x - logs[i]) / (logs[i + 1] - logs[i])), max(0.0, float(np.log(size / axis[-1])))


def curve_s(x: Array, axis: Array, curve: Array) -> Array:
    """Interpolate ln(us) over ln(x) and return seconds; beyond the axis time grows in proportion."""
    logs = np.log(np.maximum(x, axis[0]))
    value = np.interp(logs, np.log(axis), curve) + np.maximum(logs - np.log(axis[-1]), 0.0)
    return np.asarray(1e-6 * np.exp(value))
