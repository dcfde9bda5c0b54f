"""Time of single operators on one GPU, from measured tables or transferred from the nearest measured GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from servewise.perf.layout import Experts, bytes_per_weight, compute_type
from servewise.perf.operator_attention import Attention, AttentionFits, HeadShape, PrefillAttention
from servewise.perf.operator_data import (
    ENGINE_TABLES,
    FAMILY,
    array,
    document,
    has_array,
    measured_version,
    nearest_system,
)
from servewise.perf.operator_forms import (
    Rates,
    experts_floor_s,
    experts_form_s,
    from_codes,
    gemm_form_s,
    neighbour_log_ratio,
)
from servewise.perf.operator_links import Collective, Links
from servewise.perf.operator_rates import gguf_kernels, transfer_of
from servewise.perf.overheads import assumed
from servewise.types import AttentionKind, EngineName, GpuSpec, KvPrecision, Provenance, WeightPrecision

__all__ = ["Attention", "Operators", "PrefillAttention", "Tables", "nearest_system"]

Array = NDArray[np.float64]
Tables = Literal["best", "own", "launched"]
"""``best``: GEMMs, experts and all-reduce of the fastest engine at each size. ``own``: of the engine itself,
without what its small GEMMs take more to launch. ``launched``: with that, too."""

GEMM_FALLBACK: dict[WeightPrecision, tuple[WeightPrecision, ...]] = {
    "bf16": (),
    "fp8": ("bf16",),
    "fp8_block": ("fp8", "bf16"),
    "int8": ("fp8", "bf16"),
    "int4": ("bf16",),
    "nvfp4": ("bf16",),
    "mxfp4": ("bf16",),
    "q8_0": ("int8", "fp8", "bf16"),
    "q4_0": ("int4", "bf16"),
    "q4_k_m": ("int4", "bf16"),
}
"""Precisions whose measured GEMMs stand in, nearest first; any other format is unpacked to bf16."""
EXPERT_FALLBACK: dict[WeightPrecision, tuple[WeightPrecision, ...]] = {
    "bf16": (),
    "fp8": ("fp8_block", "bf16"),
    "fp8_block": ("fp8", "bf16"),
    "int8": ("fp8", "fp8_block", "bf16"),
    "int4": ("bf16",),
    "nvfp4": ("mxfp4", "int4", "bf16"),
    "mxfp4": ("int4", "bf16"),
    "q8_0": ("int8", "fp8", "bf16"),
    "q4_0": ("mxfp4", "int4", "bf16"),
    "q4_k_m": ("mxfp4", "int4", "bf16"),
}
M_CLASSES = (4.0, 32.0, 128.0, 700.0, 6000.0)
TOKEN_CLASSES = (3.0, 24.0, 180.0, 1450.0, 9000.0)
"""Middle of the size classes for which an engine's ratio to the fastest is known."""


class Operators:
    """Operator times on one GPU.

    Parameters
    ----------
    gpu : GpuSpec
    engine : EngineName
        Whose attention kernels (and with ``tables="own"`` whose GEMMs, experts and all-reduce) are meant.
    engine_version : str
        The newest table that is not newer is taken; "" takes the newest.
    tables : Tables
    """

    def __init__(
        self, gpu: GpuSpec, engine: EngineName = "vllm", engine_version: str = "", tables: Tables = "best"
    ) -> None:
        self.gpu, self.engine, self.tables = gpu, engine, tables
        self.system, self.exact = nearest_system(gpu)
        self._fits: Mapping[str, Any] = document()["gpus"][self.system]
        peaks = self._fits["peaks"]
        transfer = transfer_of(gpu, self.system, float(peaks["bf16"]))
        self._compute_frac = 1.0 if self.exact else transfer.compute_frac
        self.mem_bw = float(peaks["mem_bw"]) if self.exact else gpu.mem_bw_bytes_per_s * transfer.bandwidth_frac
        self._gguf = gguf_kernels(engine)
        self.notes: dict[str, str] = {}
        self._version = engine_version
        self._lattices: dict[WeightPrecision, Array] = {}
        self._links = Links(gpu, self.system, self.exact, None if tables == "best" else ENGINE_TABLES[engine])
        self._attention = AttentionFits(self.system, ENGINE_TABLES[engine], engine_version, self.notes)
        if not self.exact:
            stranger = "" if gpu.architecture in FAMILY else f", nor any {gpu.architecture} GPU: expect large errors"
            self.notes["gpu"] = (
                f"transferred from {self.system} by the ratio of peak rates: {gpu.name} was not measured{stranger}; "
                f"{transfer.note}"
            )
        if self._gguf is not None:
            self.notes["engine"] = (
                "transferred from vLLM's kernels, held to the rates of llama.cpp's: "
                f"{self._gguf.provenance.source} ({self._gguf.provenance.note})"
            )

    def rates(self, precision: WeightPrecision, *, unpacking: bool = True) -> Rates:
        """Peak rates of this GPU for a precision; weight-only precisions lose a part to unpacking, unless the
        efficiency they are multiplied by was measured with it."""
        kind = compute_type(self.gpu, precision)
        peak = self.gpu.peak_flops_per_s[kind] * self._compute_frac
        if unpacking and precision != "bf16" and kind == "bf16":
            peak *= assumed().weight_only_compute_frac
        return Rates(flops_per_s=peak, bytes_per_s=self.mem_bw)

    def measured_rates(self, key: str) -> Rates:
        """Peak rates of the measured GPU for a precision as the tables name it."""
        peaks = self._fits["peaks"]
        return Rates(flops_per_s=float(peaks[key]), bytes_per_s=float(peaks["mem_bw"]))

    def lattice(self, precision: WeightPrecision) -> Array:
        """ln(us) of GEMMs over (n, k, m) of the measured grid, for this GPU and precision, never falling with m."""
        if precision not in self._lattices:
            self._lattices[precision] = self._build_lattice(precision)
        return self._lattices[precision]

    def _build_lattice(self, precision: WeightPrecision) -> Array:
        native = precision == "bf16" or compute_type(self.gpu, precision) != "bf16"
        measured = has_array(f"gemm/{self.system}/{precision}")
        choices = (precision, *GEMM_FALLBACK.get(precision, ("bf16",))) if native or measured else ("bf16",)
        base = next(p for p in choices if has_array(f"gemm/{self.system}/{p}"))
        if base != precision:
            how = "computed in bf16 after unpacking" if not native or base == "bf16" else f"from {base}"
            self.notes[f"gemm_{precision}"] = (
                f"transferred: {precision} GEMMs were not measured on {self.system}: "
                f"bytes of {precision} weights, {how}"
            )
        rates = self.rates(precision, unpacking=base != precision)
        if self.exact and base == precision:
            rates = self.measured_rates(base)
        n, k, m = np.meshgrid(array("gemm_n"), array("gemm_k"), array("gemm_m"), indexing="ij")
        values = np.log(1e6 * gemm_form_s(m, n, k, bytes_per_weight(precision), rates))
        values = values + from_codes(array(f"gemm/{self.system}/{base}"))
        own = self._own("gemm", base)
        if own is not None:
            ratio = np.interp(np.log(array("gemm_m")), np.log(M_CLASSES), np.log(own["ratio"]))
            launch = float(own["launch_us"]) if self.tables == "launched" else 0.0
            values = np.log(np.exp(values + ratio) + launch)
        return np.asarray(np.maximum.accumulate(values, axis=-1))

    def _own(self, part: str, precision: str) -> Any:
        """How the engine's own table of a precision differs from the fastest; None when that is not asked."""
        by_version = self._fits[part]["engines"].get(ENGINE_TABLES[self.engine], {})
        known = [v for v, fitted in by_version.items() if precision in fitted]
        if self.tables == "best" or not known:
            return None
        return by_version[measured_version(known, self._version)][precision]

    def gemm_s(self, m: Array, n: int, k: int, precision: WeightPrecision) -> Array:
        """Time of multiplying ``m`` rows by an ``n`` x ``k`` weight matrix [s].

        Interpolates ln(time) over ln(size); beyond the grid time grows in proportion to each size. llama.cpp's
        products of quantized blocks are no faster than its kernels' share of the bf16 peak.
        """
        values = self.lattice(precision)
        j, a, more_n = bracket(array("gemm_n"), n)
        i, b, more_k = bracket(array("gemm_k"), k)
        curve = (1 - b) * ((1 - a) * values[j, i] + a * values[j + 1, i])
        curve = curve + b * ((1 - a) * values[j, i + 1] + a * values[j + 1, i + 1])
        time = curve_s(m, array("gemm_m"), curve + more_n + more_k)
        if self._gguf is None or precision == "bf16":
            return time
        peak = self._gguf.matrix_compute_frac * self.gpu.peak_flops_per_s["bf16"]
        return np.maximum(time, 2.0 * m * n * k / peak)

    def experts_s(self, m: Array, experts: Experts) -> Array:
        """Time of one layer's routed experts on the busiest GPU for ``m`` tokens of all GPUs together [s].

        The curve of this shape where it was measured, otherwise what the nearest measured shapes reach of a
        roofline; in this precision or the nearest measured one. With expert parallelism a GPU holds its share
        of the experts. Tokens spread over experts by a power law with exponent 1.01, mildly skewed. Never faster than
        the roofline. llama.cpp's kernels for quantized blocks take what their own shares of the rates give.
        """
        tokens, base = array("moe_tokens"), self._expert_table(experts.precision)
        parallel = getattr(experts, "expert_parallel_size", 1)
        sizes = (experts.hidden_size, experts.intermediate_size, experts.top_k, experts.num_experts)
        shape = np.array([*sizes, experts.tensor_parallel_size, parallel], np.float64)
        shapes = array(f"moe_shapes/{self.system}/{base}").T.astype(np.float64)
        ratio, measured = neighbour_log_ratio(tokens, shape, shapes, from_codes(array(f"moe/{self.system}/{base}")))
        rates = self._expert_rates(experts.precision, base)
        form = experts_form_s(tokens, shape, bytes_per_weight(experts.precision), rates, experts.num_matrices)
        own = self._own("moe", base)
        if own is not None:
            ratio = ratio + np.interp(np.log(tokens), np.log(TOKEN_CLASSES), np.log(own[int(parallel > 1)]))
        self._note_experts(experts, base, measured, parallel)
        floor = experts_floor_s(tokens, shape, bytes_per_weight(experts.precision), rates, experts.num_matrices)
        if self._gguf is not None and experts.precision != "bf16":
            rates = Rates(
                flops_per_s=self._gguf.expert_compute_frac * self.gpu.peak_flops_per_s["bf16"],
                bytes_per_s=self._gguf.expert_bandwidth_frac * self.gpu.mem_bw_bytes_per_s,
            )
            time = experts_form_s(tokens, shape, bytes_per_weight(experts.precision), rates, experts.num_matrices)
        else:
            time = np.maximum(form * np.exp(ratio), floor)
        return curve_s(m, tokens, np.maximum.accumulate(np.log(1e6 * time)))

    def _expert_table(self, precision: WeightPrecision) -> str:
        """Measured precision to use; Blackwell multiplies mxfp4 weights by mxfp8 activations."""
        names: list[str] = [precision, *EXPERT_FALLBACK.get(precision, ("bf16",))]
        if precision == "mxfp4" and self.gpu.architecture.startswith("blackwell"):
            names.insert(0, "mxfp4_mxfp8")
        return next(p for p in names if has_array(f"moe/{self.system}/{p}"))

    def _expert_rates(self, precision: WeightPrecision, base: str) -> Rates:
        """Peak rates of experts: the tables' where measured, else this GPU's in the type it computes in."""
        if base == "mxfp4_mxfp8":
            return self.measured_rates(base) if self.exact else self.rates("fp8")
        if self.exact and base == precision:
            return self.measured_rates(base)
        return self.rates(precision, unpacking=base != precision)

    def _note_experts(self, experts: Experts, base: str, measured: bool, parallel: int) -> None:
        if base not in (experts.precision, "mxfp4_mxfp8"):
            self.notes["moe_precision"] = (
                f"transferred: {experts.precision} experts were not measured on {self.system}: from {base}"
            )
        if not measured:
            error = self._fits["moe"]["error"][base]
            sizes = (experts.hidden_size, experts.intermediate_size, experts.top_k, experts.num_experts)
            self.notes["moe_shape"] = (
                f"experts {sizes} at TP {experts.tensor_parallel_size}, EP {parallel} were not measured in {base} "
                f"on {self.system}: from the nearest shapes, whose error when left out is "
                f"{100 * error['median']:.0f}% (median) and {100 * error['p90']:.0f}% (p90)"
            )

    def all_reduce_s(self, num_bytes: Array, num_gpus: int) -> Array:
        """Time of an all-reduce of a message over ``num_gpus`` GPUs [s]; 0 for one GPU."""
        return self.collective_s("all_reduce", num_bytes, num_gpus)

    def collective_s(self, kind: Collective, num_bytes: Array, num_gpus: int, nodes: int = 1) -> Array:
        """Time of a collective [s]; 0 for one GPU.

        Parameters
        ----------
        kind : Collective
            ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all``.
        num_bytes : float64 array [bytes]
            The whole message: reduced, gathered, before it is scattered, or what one GPU sends to all.
        num_gpus : int
        nodes : int
            That they are spread over, evenly; more when they do not fit.
        """
        time, notes = self._links.time_s(kind, num_bytes, num_gpus, nodes)
        self.notes.update(notes)
        return time

    def send_s(self, num_bytes: Array, *, between: bool) -> Array:
        """Time of sending a message from one GPU to another [s], ``between`` nodes or within one."""
        time, notes = self._links.send_s(num_bytes, between=between)
        self.notes.update(notes)
        return time

    def decode_attention(
        self,
        kind: AttentionKind,
        kv: KvPrecision,
        *,
        num_heads: int = 32,
        num_kv_heads: int = 8,
        head_dim: int = 128,
        window_tokens: int = 0,
    ) -> Attention:
        """Coefficients of decode attention for the heads of one GPU, full or within a window."""
        heads = HeadShape(
            num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, window_tokens=window_tokens
        )
        return self._attention.decode(kind, kv, heads, Rates(flops_per_s=self.bf16_peak(), bytes_per_s=self.mem_bw))

    def prefill_attention(
        self,
        kind: AttentionKind,
        kv: KvPrecision,
        *,
        num_heads: int = 32,
        num_kv_heads: int = 8,
        head_dim: int = 128,
        window_tokens: int = 0,
    ) -> PrefillAttention:
        """Coefficients of prefill attention for the heads of one GPU, full or within a window."""
        heads = HeadShape(
            num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, window_tokens=window_tokens
        )
        return self._attention.prefill(kind, kv, heads, Rates(flops_per_s=self.bf16_peak(), bytes_per_s=self.mem_bw))

    def bf16_peak(self) -> float:
        """bf16 matrix peak [FLOP/s]: the tables' figure where this GPU was measured."""
        if self.exact:
            return float(self._fits["peaks"]["bf16"])
        return self.gpu.peak_flops_per_s["bf16"] * self._compute_frac

    def provenance(self, part: str) -> Provenance:
        """Origin of ``gemm``, ``attention``, ``moe`` or ``all_reduce`` times."""
        notes = [v for k, v in self.notes.items() if k in ("gpu", "engine") or k.startswith(part)]
        measured = not notes
        if part == "attention":
            tables, errors = self._attention.tables, self._attention.errors()
        else:
            tables, errors = self._fits[part]["tables"], self._table_errors(part)
        return Provenance(
            kind="measured" if measured and part != "attention" else "derived",
            source=f"{document()['source']}: {self.system} ({', '.join(tables)})",
            note="; ".join([*notes, *errors]) or "thinned and interpolated",
        )

    def _table_errors(self, part: str) -> list[str]:
        """Errors of the stored grids against the tables, in words."""
        if part != "gemm":
            return []
        error = self._fits["gemm"]["error"]
        return [
            f"{p} grid within {100 * error[p]['median']:.0f}% (median) and {100 * error[p]['p90']:.0f}% (p90) "
            "of the table"
            for p in self._lattices
            if p in error
        ]


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
