"""Traffic as the simulator and the load generator see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from servewise.types.provenance import Provenance

__all__ = ["MaxTokensKind", "PrefixBlocks", "Workload"]

MaxTokensKind = Literal["declared", "assumed"]
"""Whether the trace declares each request's ``max_tokens`` or a default was assumed for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixBlocks:
    """Which token blocks the requests share, as rows of chained block identities (CSR).

    Request ``i`` consists of blocks ``ids[offsets[i]:offsets[i + 1]]``, each ``block_size_tokens`` long, from
    its first token on. Only full blocks are listed. When a trace names the output's blocks (a conversation
    whose next turn repeats them), the row goes on past the prompt; otherwise it ends with the prompt.

    An identity stands for the block *and everything before it*: two requests share a block if and only if
    the identities are equal, and then all earlier blocks are equal too (readers make identities canonical).

    Parameters
    ----------
    offsets : int64 array, shape (num_requests + 1,)
    ids : int64 array, shape (offsets[-1],), values in [0, num_ids)
    num_ids : int
    block_size_tokens : int
        A power of two (16 or 512 in public traces).
    """

    offsets: NDArray[np.int64]
    ids: NDArray[np.int64]
    num_ids: int
    block_size_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests in order of arrival.

    Parameters
    ----------
    name : str
    arrival_s : float64 array, shape (num_requests,) [s]
        Intended send times, sorted, the first is 0 or later.
    input_tokens, output_tokens : int64 array, shape (num_requests,) [tokens]
        At least 1 each.
    max_tokens : int64 array, shape (num_requests,) [tokens]
        The declared limit on output tokens; never below ``output_tokens``. A request whose output equals
        it ends by length, any other ends by a stop token.
    max_tokens_kind : MaxTokensKind
    prefix : PrefixBlocks or None
        None means that nothing is known about shared prefixes; it does not mean that none are shared.
    session : int64 array, shape (num_requests,) or None
        Conversation a request belongs to, for session-sticky routing; None when unknown.
    priority : int64 array, shape (num_requests,) or None
        For engines that serve by priority, a lower one first; None when unknown: all are the same.
    provenance : Provenance
    """

    name: str
    arrival_s: NDArray[np.float64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    max_tokens: NDArray[np.int64]
    max_tokens_kind: MaxTokensKind
    prefix: PrefixBlocks | None
    session: NDArray[np.int64] | None
    provenance: Provenance
    priority: NDArray[np.int64] | None = None

    @property
    def num_requests(self) -> int:
        """Number of requests."""
        return len(self.arrival_s)

    @property
    def span_s(self) -> float:
        """Time from the first to the last arrival [s]."""
        return float(self.arrival_s[-1] - self.arrival_s[0])
