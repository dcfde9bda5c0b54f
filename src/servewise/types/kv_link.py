"""The link between prefill and decode instances."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from servewise.types.provenance import Provenance

__all__ = ["KvLink"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLink:
    """What the KV cache crosses between two instances.

    Parameters
    ----------
    kind : str
        ``nvlink``, ``xgmi``, ``pcie``, ... within a node, ``network`` between nodes.
    bytes_per_s : float [bytes/s]
        Of all GPUs of an instance that send parts of one request.
    latency_s : float [s]
        From the last byte sent until the request is ready, control messages included.
    provenance : mapping of str to Provenance
        Origin of both figures.
    """

    kind: str
    bytes_per_s: float
    latency_s: float
    provenance: Mapping[str, Provenance]
