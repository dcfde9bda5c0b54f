"""The built-in GPUs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from servewise.catalog.devices import DEVICE_SUFFIX, read_device
from servewise.catalog.facts import Fact, read_facts
from servewise.catalog.names import AliasTable
from servewise.errors import CatalogError
from servewise.types import GpuSpec, Provenance
from servewise.units import GB, GIB, MIB

__all__ = ["get_gpu", "list_gpus"]

GPUS = "catalog/gpus.csv"
BYTES = {"GiB": float(GIB), "MiB": float(MIB)}
GPUS_UNIT = {"GPUs": 1.0}
BYTES_PER_S = {"GB/s": float(GB)}
SECONDS = {"us": 1e-6}
FLOPS_PER_S = {"TFLOP/s": 1e12}
PEAK_PREFIX = "peak_"


def list_gpus() -> tuple[str, ...]:
    """Canonical names of the built-in GPUs, in the order of the catalog."""
    return tuple(read_facts(GPUS))


def get_gpu(name: str) -> GpuSpec:
    """Find a GPU.

    Parameters
    ----------
    name : str
        Canonical name or alias; case does not matter. Or the path of a file that describes a device.

    Returns
    -------
    GpuSpec
        Memory as an engine sees it [bytes], bandwidth per direction [bytes/s], dense peaks [FLOP/s].

    Raises
    ------
    InputError
        When the name stands for several GPUs (``H100``), listing them.
    UnknownNameError
        When no GPU has that name.
    """
    if name.endswith(DEVICE_SUFFIX):
        return read_device(name)
    return built_in(alias_table().resolve(name))


@cache
def alias_table() -> AliasTable:
    """Names and aliases of the built-in GPUs."""
    return AliasTable("GPU", {name: json.loads(fields["aliases"].value) for name, fields in read_facts(GPUS).items()})


@cache
def built_in(name: str) -> GpuSpec:
    """Build the spec of a GPU from its facts."""
    fields = read_facts(GPUS)[name]
    provenance: dict[str, Provenance] = {}

    def fact(field: str, spec_field: str) -> Fact:
        if field not in fields:
            raise CatalogError(f"{GPUS}: {name} lacks {field}")
        provenance[spec_field] = fields[field].provenance
        return fields[field]

    def number(field: str, spec_field: str, units: Mapping[str, float]) -> float:
        return fact(field, spec_field).number(units, f"{GPUS}: {name} {field}")

    peaks = {
        field.removeprefix(PEAK_PREFIX): number(field, "peak_flops_per_s", FLOPS_PER_S)
        for field in fields
        if field.startswith(PEAK_PREFIX)
    }
    return GpuSpec(
        name=name,
        vendor=fact("vendor", "vendor").value,
        architecture=fact("architecture", "architecture").value,
        compute_capability=number("compute_capability", "compute_capability", {"-": 1.0}),
        mem_bytes=int(number("mem", "mem_bytes", BYTES)),
        mem_bw_bytes_per_s=number("mem_bw", "mem_bw_bytes_per_s", BYTES_PER_S),
        peak_flops_per_s=MappingProxyType(peaks),
        link_bytes_per_s=number("link", "link_bytes_per_s", BYTES_PER_S),
        link_kind=fact("link_kind", "link_kind").value,
        link_gpus=int(number("link_gpus" if "link_gpus" in fields else "gpus_per_node", "link_gpus", GPUS_UNIT)),
        nic_bytes_per_s=number("nic", "nic_bytes_per_s", BYTES_PER_S),
        nic_latency_s=number("nic_latency", "nic_latency_s", SECONDS),
        gpus_per_node=int(number("gpus_per_node", "gpus_per_node", GPUS_UNIT)),
        tdp_w=number("tdp", "tdp_w", {"W": 1.0}),
        provenance=MappingProxyType(provenance),
    )
