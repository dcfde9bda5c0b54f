"""Memory and time of one replica, as tables that the simulator reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from servewise.types.calibration import UNCORRECTED, StepCorrection
from servewise.types.provenance import Provenance

__all__ = ["MemoryReport", "StepModel", "StepTable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """Memory of the fullest GPU of a replica [bytes], and what is left for the KV cache.

    Parameters
    ----------
    mem_bytes, budget_bytes : int
        What the driver reports, and the part the engine may use.
    weights_bytes, activation_bytes, non_torch_bytes, graph_bytes : int
    kv_bytes : int
        ``budget - weights - activation - non_torch - graph``, may be negative when nothing fits.
    kv_bytes_per_token : float
        Of one GPU, over all layers.
    block_size_tokens, num_kv_blocks : int
        Usable blocks (the engine's null block is not counted); 0 when it does not fit.
    fits : bool
    reason : str
        Empty when it fits, otherwise what does not fit and by how much, e.g. ``weights 131.4 GiB > 72.9 GiB
        usable on H100-SXM-80GB at TP1``.
    provenance : mapping of str to Provenance
        Origin of each part.
    """

    mem_bytes: int
    budget_bytes: int
    weights_bytes: int
    activation_bytes: int
    non_torch_bytes: int
    graph_bytes: int
    kv_bytes: int
    kv_bytes_per_token: float
    block_size_tokens: int
    num_kv_blocks: int
    fits: bool
    reason: str
    provenance: Mapping[str, Provenance]

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens the KV cache of a replica holds."""
        return self.num_kv_blocks * self.block_size_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTable:
    """Duration of one engine step, tabulated. All times [s].

    A step runs ``n`` decode rows whose contexts sum to ``S`` tokens (each row's context counts the KV tokens
    it attends to, its own new token included), and possibly ``p`` prefill tokens with ``a`` attention pairs
    (the sum over prefill tokens of the tokens each attends to, itself included) in ``c`` chunks, and samples
    ``q`` rows (decode rows and finished prompts).

    Attention over the context is piecewise affine: with ``k`` such that
    ``context_knots[k] <= S / n < context_knots[k + 1]`` (the last piece is open)::

        attention(n, S) = attention_base_s[n, k] + attention_slope_s[n, k] * S      (0 for n = 0)

    A step without prefill takes ``decode_fixed_s[n] + attention(n, S)``; a step with prefill takes::

        mixed_tokens_s[n + p] + max(attention(n, S), beside_prompts(n, S)) + sample_s[q]
            + prefill_fixed_s + prefill_s_per_token * p + prefill_s_per_pair * a

        beside_prompts(n, S) = mixed_row_attention_fixed_s * n + mixed_row_attention_s_per_token * S

    With data parallel ranks (``d`` of them, in lock step) the table is one rank's beside ranks with as many tokens.
    A step of ranks with ``m`` tokens at most and ``t`` together, of which some are of prompts or none, takes what
    the table says for ``m`` tokens, plus the most that any rank takes for its own attention, prefill and samples;
    and if ``m`` exceeds ``padded_mixed_tokens`` (``padded_decode_tokens`` without prompts),
    ``experts_s[d * m] - experts_s[t]`` less. SGLang pads a step without prompts beyond that, too, if ``2 t >= d m``.

    Parameters
    ----------
    context_knots : float64 array, shape (num_knots,) [tokens]
        Average context per row, ascending, the first is 0.
    attention_base_s, attention_slope_s : float64 array, shape (max_rows + 1, num_knots)
        Row 0 is zero. Slope in s per token of ``S``.
    decode_fixed_s : float64 array, shape (max_rows + 1,)
        All of a decode step that does not depend on ``S``: padding of captured graphs included.
    mixed_tokens_s : float64 array, shape (max_batched_tokens + 1,)
        All of a mixed step that depends on the number of scheduled tokens only.
    sample_s : float64 array, shape (max_rows + 1,)
        Head and sampling of ``q`` rows in a mixed step.
    prefill_fixed_s, prefill_s_per_token, prefill_s_per_pair : float
    mixed_row_attention_fixed_s, mixed_row_attention_s_per_token : float
        Least attention of a decode row beside a prompt, and of a token of its context; 0 for kernels that a prompt
        does not slow down.
    experts_s : float64 array, shape (d * max_batched_tokens + 1,)
        Routed experts by the tokens of all ranks together, with SGLang the exchange around them, too; empty for one
        rank.
    padded_decode_tokens, padded_mixed_tokens : int
        Steps of at most so many tokens pad every rank to the fullest one.
    request_fixed_s, request_s_per_input_token : float
        Network, tokenizer and API server: added to every request's TTFT and E2E outside the engine.
    """

    context_knots: NDArray[np.float64]
    attention_base_s: NDArray[np.float64]
    attention_slope_s: NDArray[np.float64]
    decode_fixed_s: NDArray[np.float64]
    mixed_tokens_s: NDArray[np.float64]
    sample_s: NDArray[np.float64]
    prefill_fixed_s: float
    prefill_s_per_token: float
    prefill_s_per_pair: float
    request_fixed_s: float
    request_s_per_input_token: float
    mixed_row_attention_fixed_s: float = 0.0
    mixed_row_attention_s_per_token: float = 0.0
    experts_s: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    padded_decode_tokens: int = 0
    padded_mixed_tokens: int = 0

    @property
    def max_rows(self) -> int:
        """Largest decode batch the table covers."""
        return len(self.decode_fixed_s) - 1

    @property
    def max_batched_tokens(self) -> int:
        """Most tokens in one step the table covers."""
        return len(self.mixed_tokens_s) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepModel:
    """A deployment's step times with where they come from and where they hold.

    Parameters
    ----------
    table : StepTable
    provenance : mapping of str to Provenance
        By part: ``gemm``, ``attention``, ``all_reduce``, ``overhead``, ``request`` ...
    max_context_tokens : int
        Largest context of one request the underlying measurements cover.
    warnings : tuple of str
        Extrapolations and transferred coefficients, in words.
    correction : StepCorrection
        What measured runs have corrected in the table.
    """

    table: StepTable
    provenance: Mapping[str, Provenance]
    max_context_tokens: int
    warnings: tuple[str, ...] = ()
    correction: StepCorrection = UNCORRECTED
