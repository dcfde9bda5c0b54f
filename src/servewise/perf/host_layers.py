"""Layers that llama.cpp leaves on the host: computed by its processor, or copied to the GPU for larger batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servewise.engines import llamacpp
from servewise.perf.layout import Experts, Matrix, bytes_per_weight
from servewise.types import Deployment, LlamacppParams

__all__ = ["HostLayers", "host_layers"]

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLayers:
    """What the layers on the host cost, which are ``frac`` of all.

    Parameters
    ----------
    frac : float
    matrices : sequence of Matrix
    experts : Experts or None
        Of all layers, wherever they are.
    rates : HostRates
    """

    frac: float
    matrices: Sequence[Matrix]
    experts: Experts | None
    rates: llamacpp.HostRates

    def products_s(self, tokens: Array) -> Array:
        """Matrix products of the host's layers for so many tokens, without what the GPU computes [s].

        A processor reads the weights once and is limited by its memory or its arithmetic. Batches of at least
        ``rates.copy_tokens`` are computed by the GPU, which is sent the weights. A smaller batch is taken not to
        last longer than that, so that no step is shorter than one of fewer tokens.
        """
        read = np.zeros_like(tokens)
        weights = np.zeros_like(tokens)
        for w in self.matrices:
            num = w.num_layers * w.num_outputs * w.num_inputs
            read, weights = read + num * bytes_per_weight(w.precision), weights + num
        if self.experts is not None:
            e = self.experts
            one = e.num_layers * e.num_matrices * e.hidden_size * e.intermediate_size
            hit = np.maximum(e.num_experts * (1 - np.exp(-tokens * e.top_k / e.num_experts)), 1.0)
            read, weights = read + hit * one * bytes_per_weight(e.precision), weights + e.top_k * one
        math = 2.0 * tokens * weights / self.rates.flops_per_s
        computed = np.maximum(read / self.rates.memory_bytes_per_s, math)
        copied = read / self.rates.copy_bytes_per_s
        small = np.minimum(computed, np.maximum(copied, read / self.rates.memory_bytes_per_s))
        return self.frac * np.where(tokens < self.rates.copy_tokens, small, copied)

    def on_gpu_frac(self, tokens: Array) -> Array:
        """Share of the matrix products that the GPU computes."""
        return np.where(tokens < self.rates.copy_tokens, 1.0 - self.frac, 1.0)

    def read_s(self, kv_bytes: Array) -> Array:
        """Decode attention of the host's layers, given the KV cache of all layers that it reads [s]."""
        return np.asarray(self.frac * kv_bytes / self.rates.memory_bytes_per_s)

    def attend_s(self, flops: float) -> float:
        """Prefill attention of the host's layers, given the arithmetic of all [s]."""
        return self.frac * flops / self.rates.flops_per_s


def host_layers(deployment: Deployment, matrices: Sequence[Matrix], experts: Experts | None) -> HostLayers | None:
    """Layers on the host; None when there are none."""
    params, model = deployment.params, deployment.model
    if not isinstance(params, LlamacppParams):
        return None
    num_layers, _ = llamacpp.host_layers(params.n_gpu_layers, model)
    if num_layers == 0:
        return None
    frac = num_layers / model.num_layers
    return HostLayers(frac=frac, matrices=matrices, experts=experts, rates=llamacpp.host_rates())
