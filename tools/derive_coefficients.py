"""Derive the step model's operator coefficients from measured operator tables.

    python tools/derive_coefficients.py SYSTEMS_DIR OUT_DIR [gpu ...]

SYSTEMS_DIR is ``aiconfigurator_core/systems`` of the PyPI wheel ``aiconfigurator-core==0.12.0`` (Apache-2.0,
NVIDIA): operator times by GPU, operator, engine and version. Only operator tables are read, never serving
results. Needs scipy and polars; takes about five minutes on one core. The same input gives the same bytes.
Written are

- ``operators.npz``: times of dense GEMMs over (n, k, m) and of fused experts over (shape, tokens), each as
  8-bit ln-ratios to a roofline (:mod:`servewise.perf.operator_forms`); coefficients of attention kernels by
  engine, version and shape of heads; ln(us) of collectives over (number of GPUs, message size);
- ``operators.json``: peak rates, table versions, errors of the forms, and how engines' GEMMs and experts differ
  from the fastest engine by precision and size.

GEMMs, experts and all-reduce take the fastest engine at each point. GEMMs never read weights faster than main
memory can: the benchmark's matrices may sit in the last-level cache, a served model's do not. Every curve is
made monotone.
"""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from operator_fits import derive_attention
from operator_grids import GEMM_K, GEMM_M, GEMM_N, MOE_TOKENS, Grids, derive_experts, derive_gemm
from operator_links import ELEMENTS, NUM_GPUS, derive_links
from operator_tables import SYSTEMS, read_peaks


def derive_gpu(systems: Path, gpu: str, grids: Grids) -> dict[str, Any]:
    """Grids (added to ``grids``) and fits of one GPU."""
    peaks = read_peaks(systems, gpu)
    return {
        "peaks": peaks,
        "gemm": derive_gemm(systems, gpu, peaks, grids),
        "moe": derive_experts(systems, gpu, peaks, grids),
        "attention": derive_attention(systems, gpu, peaks, grids),
        "all_reduce": {"tables": derive_links(systems, gpu, grids)},
    }


def write_arrays(path: Path, arrays: Grids) -> None:
    """Write an npz whose bytes depend on the arrays alone."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(arrays):
            entry = zipfile.ZipInfo(f"{name}.npy")
            entry.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(entry, "w") as file:
                np.lib.format.write_array(file, np.ascontiguousarray(arrays[name]), allow_pickle=False)


def main(systems: Path, out: Path, gpus: tuple[str, ...]) -> None:
    """Derive everything and write both files."""
    axes = {"gemm_m": GEMM_M, "gemm_n": GEMM_N, "gemm_k": GEMM_K, "moe_tokens": MOE_TOKENS}
    axes |= {"link_gpus": NUM_GPUS, "link_bytes": tuple(2 * e for e in ELEMENTS)}
    grids: Grids = {name: np.asarray(axis, np.float32) for name, axis in axes.items()}
    fits = {}
    for gpu in gpus:
        fits[gpu] = derive_gpu(systems, gpu, grids)
        print(gpu, json.dumps(fits[gpu]), flush=True)
    write_arrays(out / "operators.npz", grids)
    document = {"source": "PyPI aiconfigurator-core 0.12.0, systems/data (Apache-2.0, NVIDIA)", "gpus": fits}
    (out / "operators.json").write_text(json.dumps(document, indent=None, separators=(",", ":"), sort_keys=True) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), tuple(sys.argv[3:]) or SYSTEMS)
