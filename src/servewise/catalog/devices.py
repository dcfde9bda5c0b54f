"""Devices that the user describes: enough for memory; how fast they are a calibration has to say."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import Any

from servewise.errors import InputError
from servewise.types import DESCRIBED, GpuOffer, GpuSpec, PriceKind, Provenance
from servewise.units import GB, GIB

__all__ = ["DEVICE_SUFFIX", "device_offer", "read_device"]

DEVICE_SUFFIX = ".toml"
"""What names a device's file, and not a GPU of the catalog."""
MAX_FILE_BYTES = 64 << 10
MAX_NAME_CHARS = 200
FIELDS: Mapping[str, tuple[float, bool]] = {
    "memory_gib": (GIB, True),
    "bandwidth_gb_per_s": (GB, True),
    "bf16_tflops": (1e12, True),
    "usd_per_h": (1.0, False),
}
"""SI value of a unit, and whether the field is required."""


def read_device(path: str | Path) -> GpuSpec:
    """Read a device that the user describes, as a GPU of its own vendor and architecture, ``described``.

    Parameters
    ----------
    path : str or Path
        TOML with ``name``, ``memory_gib`` (what engines may use), ``bandwidth_gb_per_s``, ``bf16_tflops`` and
        optionally ``usd_per_h``.

    Raises
    ------
    InputError
        When the file cannot be read, or a field is missing, unknown or no number above 0.
    """
    values = _values(Path(path))
    origin = Provenance(kind="assumed", source=f"assumed: described by the user in {Path(path).name}")
    return GpuSpec(
        name=str(values["name"]),
        vendor=DESCRIBED,
        architecture=DESCRIBED,
        compute_capability=0.0,
        mem_bytes=int(values["memory_gib"]),
        mem_bw_bytes_per_s=values["bandwidth_gb_per_s"],
        peak_flops_per_s=MappingProxyType({"bf16": values["bf16_tflops"]}),
        # alone in its node: it has no links that anything could be divided over
        link_bytes_per_s=values["bandwidth_gb_per_s"],
        link_kind="pcie",
        link_gpus=1,
        nic_bytes_per_s=values["bandwidth_gb_per_s"],
        nic_latency_s=0.0,
        gpus_per_node=1,
        tdp_w=0.0,
        provenance=MappingProxyType(dict.fromkeys(("mem_bytes", "mem_bw_bytes_per_s", "peak_flops_per_s"), origin)),
    )


def device_offer(path: str | Path, kind: PriceKind) -> GpuOffer | None:
    """The price of a described device, where its file has one."""
    values = _values(Path(path))
    if "usd_per_h" not in values:
        return None
    return GpuOffer(
        gpu=str(values["name"]),
        num_gpus=1,
        usd_per_gpu_h=values["usd_per_h"],
        kind=kind,
        provider="user",
        date=date.today().isoformat(),
        provenance=Provenance(kind="spec", source=f"given by the user in {Path(path).name}"),
    )


def _values(path: Path) -> dict[str, Any]:
    """Checked fields in SI units."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give a file that describes a device") from None
    if len(raw) > MAX_FILE_BYTES:
        raise InputError(f"{path}: larger than {MAX_FILE_BYTES} bytes, so it does not describe a device")
    try:
        document = tomllib.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not TOML ({error}); write lines such as 'memory_gib = 64'") from None
    unknown = [key for key in document if key not in (*FIELDS, "name")]
    if unknown:
        raise InputError(f"{path}: unknown field {unknown[0]!r}; allowed: name, {', '.join(FIELDS)}")
    name = document.get("name")
    if not isinstance(name, str) or not 0 < len(name.strip()) <= MAX_NAME_CHARS:
        raise InputError(f"{path}: name is {name!r:.60}, must be a text of 1 to {MAX_NAME_CHARS} characters")
    out: dict[str, Any] = {"name": name.strip()}
    for field, (unit, required) in FIELDS.items():
        value = document.get(field)
        if value is None and not required:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise InputError(f"{path}: {field} is {value!r:.60}, must be a number above 0")
        out[field] = value * unit
    return out
