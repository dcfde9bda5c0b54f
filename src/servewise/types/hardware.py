"""GPUs and what renting them costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from servewise.types.provenance import Provenance

__all__ = ["DESCRIBED", "GpuOffer", "GpuSpec", "PriceKind"]

DESCRIBED = "described"
"""Vendor and architecture of a device that the user described and that no table knows."""
PriceKind = Literal["on_demand", "spot", "reserved"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One GPU model. Specifications only: efficiencies belong to the step model.

    Parameters
    ----------
    name : str
        Canonical name, e.g. ``H100-SXM-80GB``.
    vendor : str
        ``nvidia``, ``amd``, ``intel``, ``apple``; ``described`` for a device that the user described.
    architecture : str
        ``ampere``, ``ada``, ``hopper``, ``blackwell``, ``cdna3`` ...
    compute_capability : float
        CUDA compute capability, 9.0 for Hopper; 0 when it has none.
    mem_bytes : int [bytes]
        What the driver reports, not what the box says.
    mem_bw_bytes_per_s : float [bytes/s]
    peak_flops_per_s : mapping of str to float [FLOP/s]
        Dense matrix peak by compute type (``bf16``, ``fp8``, ``int8``, ``fp4``); a type it lacks is absent.
    link_bytes_per_s : float [bytes/s]
        Scale-up bandwidth to other GPUs of a node, per GPU and direction (NVLink, or PCIe without it).
    link_kind : str
        ``nvlink``, ``pcie``, ``xgmi``, ``roce`` (Gaudi) or ``thunderbolt`` (Apple).
    link_gpus : int
        GPUs that this link joins: a node's, or those of a rack whose switches join its nodes.
    nic_bytes_per_s : float [bytes/s]
        A GPU's share of its node's network to other nodes, per direction.
    nic_latency_s : float [s]
        From the start of a small message between GPUs of two nodes to its arrival.
    gpus_per_node : int
    tdp_w : float [W]
    provenance : mapping of str to Provenance
        Origin of every field above that is a figure.
    """

    name: str
    vendor: str
    architecture: str
    compute_capability: float
    mem_bytes: int
    mem_bw_bytes_per_s: float
    peak_flops_per_s: Mapping[str, float]
    link_bytes_per_s: float
    link_kind: str
    link_gpus: int
    nic_bytes_per_s: float
    nic_latency_s: float
    gpus_per_node: int
    tdp_w: float
    provenance: Mapping[str, Provenance]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuOffer:
    """A node one can rent.

    Parameters
    ----------
    gpu : str
        Canonical GPU name.
    num_gpus : int
        GPUs of the node.
    usd_per_gpu_h : float [$/h]
    kind : PriceKind
    provider : str
    date : str
        ISO date of the price.
    provenance : Provenance
    """

    gpu: str
    num_gpus: int
    usd_per_gpu_h: float
    kind: PriceKind
    provider: str
    date: str
    provenance: Provenance
