"""Coefficients of attention kernels: fitted for shapes of heads, looked up for the nearest one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servewise.perf.operator_data import array, document, measured_version
from servewise.perf.operator_forms import Rates
from servewise.types import AttentionKind, KvPrecision

__all__ = ["Attention", "AttentionFits", "HeadShape", "PrefillAttention"]

Array = NDArray[np.float64]

PARAM_STEP = 1.0 / 64.0
"""Resolution of the ln of a stored coefficient."""
LATENT_DIM = 576
"""Width that marks latent attention among the shapes: DeepSeek-V3's 512 + 64."""
DISTANCE = np.array([1.0, 1.5, 3.0, 1.0])
"""How much ln(heads), ln(kv heads), ln(head size) and ln(window) count when the nearest shape is sought: a
kernel's tiles depend on the head size first, then on how many rows share a key."""
ENGINE_ORDER = ("vllm", "sglang", "trtllm")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape:
    """Heads of one GPU; ``window_tokens`` 0 attends to everything."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window_tokens: int = 0


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

    A pair costs ``2 * heads * (key size + value size)`` FLOP, a token moves
    ``2 * (heads + kv heads) * (key size + value size)`` bytes.

    Parameters
    ----------
    launch_s : float [s]
    flops_per_s, bytes_per_s : float
        Rates the kernel reaches.
    """

    launch_s: float
    flops_per_s: float
    bytes_per_s: float
    extra_tokens: float = 0.0
    exp_dims: float = 0.0


class AttentionFits:
    """Attention of one engine on one measured GPU.

    Parameters
    ----------
    system, engine, version : str
        Table names; the newest version that is not newer is taken.
    notes : dict of str to str
        Receives what was not measured, by topic.
    """

    def __init__(self, system: str, engine: str, version: str, notes: dict[str, str]) -> None:
        self.system, self.notes = system, notes
        measured = document()["gpus"][system]["attention"]
        self.engine = engine if engine in measured else next(e for e in ENGINE_ORDER if e in measured)
        if self.engine != engine:
            notes["attention_engine"] = f"transferred from {self.engine}: {engine} was not measured on {system}"
        self.version = measured_version(measured[self.engine], version)
        self._errors = measured[self.engine][self.version]
        self._asked: dict[str, None] = {}

    @property
    def tables(self) -> list[str]:
        """Engine and version of the tables."""
        return [f"{self.engine} {self.version}"]

    def errors(self) -> list[str]:
        """Errors of the forms that were used, in words."""
        return [
            f"{phase} form within {100 * self._errors[phase]['median']:.0f}% (median) and "
            f"{100 * self._errors[phase]['p90']:.0f}% (p90) of the table"
            for phase in self._asked
        ]

    def decode(self, kind: AttentionKind, kv: KvPrecision, heads: HeadShape, peak: Rates) -> Attention:
        """Decode coefficients of a shape."""
        q = self._nearest("decode", kind, kv, heads)
        return Attention(
            launch_s=1e-6 * q[0],
            row_head_s=1e-9 * q[2],
            bytes_per_s=peak.bytes_per_s * q[1],
            flops_per_s=peak.flops_per_s * q[5],
            extra_tokens=q[3],
            norm=q[4],
        )

    def prefill(self, kind: AttentionKind, kv: KvPrecision, heads: HeadShape, peak: Rates) -> PrefillAttention:
        """Prefill coefficients of a shape."""
        q = self._nearest("prefill", kind, kv, heads)
        return PrefillAttention(
            launch_s=1e-6 * q[0],
            flops_per_s=peak.flops_per_s * q[1],
            bytes_per_s=peak.bytes_per_s * q[2],
        )

    def _nearest(self, phase: str, kind: AttentionKind, kv: KvPrecision, heads: HeadShape) -> list[float]:
        """Coefficients of the nearest measured shape; KV precision and window count before everything else."""
        self._asked[phase] = None
        name = f"{phase}/{self.system}/{self.engine}/{self.version}"
        shapes = array(f"{name}/shapes").T.astype(np.float64)
        latent, width = shapes[:, 2] == LATENT_DIM, {"bf16": 2, "fp8": 1}[kv]
        wanted = heads
        if kind == "mla" and latent.any():
            wanted = HeadShape(num_heads=heads.num_heads, num_kv_heads=1, head_dim=LATENT_DIM)
            usable = latent
        else:
            usable = ~latent
            if kind == "mla":
                self.notes["attention_latent"] = (
                    f"transferred: latent attention of {self.engine} was not measured on {self.system}: "
                    "rates of grouped-query kernels"
                )
        usable = self._narrow(usable, shapes[:, 4] == width, f"{kv} KV cache", "attention_kv")
        windowed = (shapes[:, 3] > 0) == (wanted.window_tokens > 0)
        usable = self._narrow(usable, windowed, "sliding windows", "attention_window")
        target = np.array([wanted.num_heads, wanted.num_kv_heads, wanted.head_dim, max(wanted.window_tokens, 1)])
        rows = np.flatnonzero(usable)
        known = np.maximum(shapes[rows, :4], 1.0)
        distance = np.abs((np.log(known) - np.log(target)) * DISTANCE).sum(axis=1)
        best = rows[np.argmin(distance)]
        if kind == "gqa" and shapes[best, 2] != heads.head_dim:
            self.notes["attention_head_size"] = (
                f"attention with heads of {heads.head_dim} was not measured on {self.system} with {self.engine}: "
                f"rates of heads of {shapes[best, 2]:.0f}"
            )
        q = np.exp(array(f"{name}/params")[:, best].astype(np.float64) * PARAM_STEP)
        return [float(x) for x in q]

    def _narrow(self, usable: NDArray[np.bool_], wanted: NDArray[np.bool_], what: str, topic: str) -> NDArray[np.bool_]:
        """Keep the rows that have a property, if any has it; otherwise say that none was measured."""
        if (usable & wanted).any():
            return usable & wanted
        self.notes[topic] = f"transferred: no {what} measured with {self.engine} {self.version} on {self.system}"
        return usable
