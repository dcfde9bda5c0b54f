"""The parts a GPU's memory is cut into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from servewise.types import Provenance

__all__ = ["MemoryParts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryParts:
    """Memory of one GPU without its KV cache [bytes].

    Parameters
    ----------
    budget_bytes : int
        What the engine may use, KV cache included.
    weights_bytes, activation_bytes, non_torch_bytes, graph_bytes : int
    provenance : mapping of str to Provenance
        Origin of ``activation``, ``non_torch`` and ``graph``; of ``budget`` where it is not the version's defaults.
    """

    budget_bytes: int
    weights_bytes: int
    activation_bytes: int
    non_torch_bytes: int
    graph_bytes: int
    provenance: Mapping[str, Provenance]

    @property
    def kv_bytes(self) -> int:
        """What is left for the KV cache [bytes]; negative when nothing fits."""
        taken = self.weights_bytes + self.activation_bytes + self.non_torch_bytes + self.graph_bytes
        return self.budget_bytes - taken
