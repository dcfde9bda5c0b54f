"""What GPUs without tables, and engines without tables, reach of peak rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from servewise.catalog import Fact, read_facts
from servewise.perf.operator_data import FAMILY
from servewise.types import EngineName, GpuSpec, Provenance

__all__ = ["GgufKernels", "Transfer", "gguf_kernels", "transfer_of"]

RATES = "perf/rates.csv"
FLOPS_PER_S = {"TFLOP/s": 1e12}
WATTS = {"W": 1.0}
SHARE = {"-": 1.0}
POWER_EXPONENT = 0.75
"""Power of the watts per peak FLOP with which sustained arithmetic falls on a board of the same architecture. By board
and matrix benchmark (rates.csv): H100 PCIe 0.54, H100 NVL 0.90; A100 PCIe, whose prompts TensorRT-LLM computes at 0.77
to 0.80 of the SXM board's rate (perf-overview 0.14): 0.86. Between a clock that follows power (1) and one whose voltage
falls with it (1/3)."""
VENDOR_BANDWIDTH: Mapping[str, float] = {"amd": 0.9, "apple": 0.8}
"""By vendor, the share of bandwidth that its GPUs reach relative to the NVIDIA GPU whose efficiencies they borrow.
Assumed: M2 Ultra reaches about 550 of 800 GB/s in llama.cpp (discussion 4167, from memory); AMD's is a guess."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """How a GPU differs from the measured one whose efficiencies it borrows.

    Parameters
    ----------
    compute_frac, bandwidth_frac : float
        Share of its peaks that it reaches, relative to the share that the measured GPU reaches of its own.
    note : str
        Where the shares come from.
    """

    compute_frac: float
    bandwidth_frac: float
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufKernels:
    """What an engine's kernels for GGUF blocks reach: matrix products and experts of the bf16 peak, experts of the
    bandwidth."""

    matrix_compute_frac: float
    expert_compute_frac: float
    expert_bandwidth_frac: float
    provenance: Provenance


def value_of(entity: str, field: str, units: Mapping[str, float]) -> float | None:
    """One figure of the table, or None where it has none."""
    fact: Fact | None = read_facts(RATES).get(entity, {}).get(field)
    return None if fact is None else fact.number(units, f"{RATES}: {entity} {field}")


def transfer_of(gpu: GpuSpec, system: str, peak_flops_per_s: float) -> Transfer:
    """Compare a GPU with the measured one that stands for it.

    The bf16 rates that both reach in a matrix benchmark, as shares of their peaks, give the ratio; a GPU of the same
    architecture that has fewer watts for each FLOP of its peak sustains no more than its power allows. Without either
    figure the peaks alone count.

    Parameters
    ----------
    gpu : GpuSpec
    system : str
        Name of the measured GPU.
    peak_flops_per_s : float [FLOP/s]
        bf16 peak of the measured GPU.
    """
    peak = gpu.peak_flops_per_s["bf16"]
    here, there = value_of(gpu.name, "achieved_bf16", FLOPS_PER_S), value_of(system, "achieved_bf16", FLOPS_PER_S)
    ratio, notes = 1.0, []
    if here is not None and there is not None:
        ratio = (here / peak) / (there / peak_flops_per_s)
        notes.append(f"arithmetic at {ratio:.2f} of that by achieved matrix rates ({here / 1e12:.0f} TFLOP/s in bf16)")
    watts = value_of(system, "tdp", WATTS)
    if watts is not None and system in FAMILY.get(gpu.architecture, ()):
        allowed = ((gpu.tdp_w / peak) / (watts / peak_flops_per_s)) ** POWER_EXPONENT
        if allowed < ratio:
            ratio, notes = allowed, [f"arithmetic at {allowed:.2f} of that by board power ({gpu.tdp_w:.0f} W)"]
    if not notes:
        notes.append("no achieved matrix rate known: arithmetic by peak rates alone")
    # codes that live in the same memory are read and written with what they protect
    codes = [value_of(name, "inline_ecc_frac", SHARE) or 0.0 for name in (gpu.name, system)]
    bandwidth = VENDOR_BANDWIDTH.get(gpu.vendor, 1.0) * (1.0 - codes[0]) / (1.0 - codes[1])
    if codes[0] != codes[1]:
        notes.append(f"bandwidth at {bandwidth:.2f} of that by error correction codes in the same memory")
    return Transfer(compute_frac=ratio, bandwidth_frac=bandwidth, note=", ".join(notes))


@cache
def gguf_kernels(engine: EngineName) -> GgufKernels | None:
    """Efficiency of an engine's kernels for GGUF types; None for an engine that has none."""
    facts = read_facts(RATES).get(engine)
    if facts is None:
        return None

    def share(field: str) -> float:
        return facts[field].number(SHARE, f"{RATES}: {engine} {field}")

    return GgufKernels(
        matrix_compute_frac=share("matrix_compute_frac"),
        expert_compute_frac=share("expert_compute_frac"),
        expert_bandwidth_frac=share("expert_bandwidth_frac"),
        provenance=facts["matrix_compute_frac"].provenance,
    )
