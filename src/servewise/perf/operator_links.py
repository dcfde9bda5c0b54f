"""Collectives between the GPUs of a replica."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from servewise.perf.operator_data import array, document, has_array
from servewise.types import GpuSpec

__all__ = ["Collective", "Links"]

Array = NDArray[np.float64]
Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]

NVLINK_SYSTEM, PCIE_SYSTEM, HOST_SYSTEM = "h100_sxm", "rtx_pro_6000_server", "l40s"
"""Measured GPUs whose collectives stand for GPUs linked by a switch, by PCIe, and by PCIe where four GPUs or more copy
through the host's memory."""
PEER_GPUS = 2
"""GPUs up to which the machine with L40S copied from GPU to GPU (20 GB/s on the bus; 2 to 5 beyond)."""
GEFORCE = ("RTX-3", "RTX-4", "RTX-5")
"""Beginnings of the names of GPUs whose driver does not copy from GPU to GPU."""
NIC_FRAC = 0.94
"""Share of a network port that reaches the GPUs: 46 to 48 of 50 GB/s (NVIDIA/nccl-tests issue 290, a maintainer)."""
PCIE_SYSTEMS = ("l40s", "rtx_pro_6000_server", "b60")


class Links:
    """Collective times of one GPU.

    Parameters
    ----------
    gpu : GpuSpec
    system : str
        Nearest measured GPU.
    exact : bool
        Whether it is this GPU.
    engine : str or None
        Whose all-reduce is meant; None takes the fastest.
    """

    def __init__(self, gpu: GpuSpec, system: str, exact: bool, engine: str | None) -> None:
        self.gpu, self.engine = gpu, engine
        if not exact and gpu.link_kind == "pcie":
            system = HOST_SYSTEM if gpu.name.startswith(GEFORCE) else PCIE_SYSTEM
        elif not exact and system in PCIE_SYSTEMS:
            system = NVLINK_SYSTEM
        self.system, self.exact = system, exact

    def time_s(self, kind: Collective, num_bytes: Array, num_gpus: int, nodes: int) -> tuple[Array, dict[str, str]]:
        """Time [s] over at least so many nodes, and notes on what was not measured."""
        if num_gpus == 1:
            return np.zeros_like(num_bytes), {}
        inside = min(-(-num_gpus // nodes), self.gpu.link_gpus)
        nodes = -(-num_gpus // inside)
        if nodes == 1:
            return self._measured(kind, num_bytes, inside)
        time, notes = self._between(kind, num_bytes, inside, nodes)
        notes["all_reduce_nodes"] = (
            f"transferred: collectives across {nodes} nodes were not measured: a node's share of them plus the "
            f"network's at {self.gpu.nic_bytes_per_s / 1e9:g} GB/s a GPU"
        )
        return time, notes

    def _between(self, kind: Collective, num_bytes: Array, inside: int, nodes: int) -> tuple[Array, dict[str, str]]:
        """Collective of ``nodes`` times ``inside`` GPUs: within the nodes, and among the GPUs of one place in each.

        An all-reduce scatters within the node, reduces each GPU's shard over the network and gathers again. Over the
        network a GPU exchanges with others in halves, so that messages need as many starts as halves.
        """
        starts = math.ceil(math.log2(nodes))
        away = (nodes - 1) / nodes
        if kind == "all_to_all":
            near, notes = self._within("all_to_all", num_bytes / nodes, inside)
            return np.maximum(near, self._network_s(away * num_bytes, 1)), notes
        if kind == "all_reduce":
            scattered, notes = self._within("reduce_scatter", num_bytes, inside)
            gathered, more = self._within("all_gather", num_bytes, inside)
            between = self._network_s(2.0 * away * num_bytes / inside, 2 * starts)
            return scattered + between + gathered, {**notes, **more}
        near, notes = self._within(kind, num_bytes, inside)
        return near + self._network_s(away * num_bytes / inside, starts), notes

    def _within(self, kind: Collective, num_bytes: Array, inside: int) -> tuple[Array, dict[str, str]]:
        return self._measured(kind, num_bytes, inside) if inside > 1 else (np.zeros_like(num_bytes), {})

    def _network_s(self, num_bytes: Array, starts: int) -> Array:
        """One GPU's messages over the network [s]."""
        return np.asarray(starts * self.gpu.nic_latency_s + num_bytes / (NIC_FRAC * self.gpu.nic_bytes_per_s))

    def send_s(self, num_bytes: Array, *, between: bool) -> tuple[Array, dict[str, str]]:
        """Time of a message to one GPU [s], and notes: over the network, or what two GPUs take that swap it."""
        if between or self.gpu.link_gpus == 1:
            return self._network_s(num_bytes, 1), {}
        return self._measured("all_gather", 2.0 * num_bytes, 2)

    def _source(self, num_gpus: int) -> tuple[str, float, dict[str, str]]:
        """Measured GPU whose curves count for so many GPUs, how much faster its links are, and why another's count.

        The machine with L40S copied through the host from four GPUs on. Servers with peer-to-peer copies reach what
        RTX PRO 6000's do of their links: TensorRT-LLM's published rates imply 14 GB/s on the bus for four and eight
        L40S (perf-overview 0.14), RTX PRO 6000's curves on PCIe 4.0 14 and 12.
        """
        system, notes = self.system, {}
        if self.exact and system == HOST_SYSTEM and num_gpus > PEER_GPUS:
            system = PCIE_SYSTEM
            notes["all_reduce_peers"] = (
                f"transferred from {PCIE_SYSTEM} by link bandwidth: the measured machine with {self.system} copies "
                "through the host; a machine without copies from GPU to GPU takes 3 to 7 times as long"
            )
        elif self.exact:
            return system, 1.0, notes
        return system, float(document()["gpus"][system]["peaks"]["link_bw"]) / self.gpu.link_bytes_per_s, notes

    def _measured(self, kind: Collective, num_bytes: Array, num_gpus: int) -> tuple[Array, dict[str, str]]:
        """Time within a node; numbers of GPUs that were not measured scale from the nearest."""
        system, slower, notes = self._source(num_gpus)
        curves, counts = self._curves(kind, system), array("link_gpus")
        known = [i for i in range(len(counts)) if not np.isnan(curves[i]).any()]
        row = min(known, key=lambda i: abs(np.log(counts[i] / num_gpus)))
        measured = float(counts[row])
        curve = np.exp(np.maximum.accumulate(curves[row]))
        first = curve[0]
        curve = first + (curve - first) * slower
        if measured != num_gpus:
            curve = curve * ((num_gpus - 1) / num_gpus) / ((measured - 1) / measured)
            notes["all_reduce_count"] = (
                f"extrapolated: collectives of {num_gpus} GPUs were not measured on {system}: "
                f"from {measured:.0f} in proportion to what each GPU sends"
            )
        axis = array("link_bytes")
        logs = np.log(np.maximum(num_bytes, axis[0]))
        value = np.interp(logs, np.log(axis), np.log(curve)) + np.maximum(logs - np.log(axis[-1]), 0.0)
        return np.asarray(1e-6 * np.exp(value)), notes

    def _curves(self, kind: Collective, system: str) -> Array:
        """ln(us) over (GPUs, bytes) of a measured GPU; the PCIe GPU's where it lacks the kind."""
        if kind == "all_reduce":
            own = f"all_reduce/{system}/{self.engine}"
            return array(own if has_array(own) else f"all_reduce/{system}/best")
        name = f"{kind}/{system}"
        return array(name if has_array(name) else f"{kind}/{PCIE_SYSTEM}")
