"""What happened to each request: written alike by the simulator and by the load generator."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

__all__ = ["ItlSegments", "RequestLog", "RequestStatus", "Timeline"]


class RequestStatus(IntEnum):
    """How a request ended."""

    OK = 0
    REJECTED = 1
    """Refused by the engine: it can never fit, or a queue limit was reached."""
    FAILED = 2
    UNFINISHED = 3
    """Still waiting or running when the run was stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ItlSegments:
    """Gaps between consecutive tokens, pooled over requests, as weighted runs.

    Run ``i`` stands for ``steps[i]`` gaps ``first_s[i], first_s[i] + increment_s[i], ...``, each seen by
    ``weight[i]`` requests.

    Parameters
    ----------
    first_s, increment_s : float64 array, shape (num_segments,) [s]
    steps, weight : int64 array, shape (num_segments,)
    """

    first_s: NDArray[np.float64]
    increment_s: NDArray[np.float64]
    steps: NDArray[np.int64]
    weight: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """State of the fleet over time (sums over replicas), sampled.

    Parameters
    ----------
    time_s : float64 array, shape (num_samples,) [s]
    running, waiting : float64 array, shape (num_samples,)
        Requests.
    kv_used_frac : float64 array, shape (num_samples,)
        Share of KV blocks held by running requests.
    """

    time_s: NDArray[np.float64]
    running: NDArray[np.float64]
    waiting: NDArray[np.float64]
    kv_used_frac: NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLog:
    """One row a request, in order of intended send time. Arrays have shape (num_requests,).

    Parameters
    ----------
    intended_s, sent_s : float64 [s]
        When the request should have been and was sent (equal in a simulation).
    first_token_s, last_token_s : float64 [s]
        Receipt of the first token of any channel and of the last; NaN when there was none.
    input_tokens, output_tokens : int64 [tokens]
    cached_tokens : int64 [tokens]
        Prompt tokens served from the prefix cache; -1 when unknown.
    num_preemptions : int64
        -1 when unknown.
    replica : int64
        Replica that served it; -1 when unknown.
    status : int8
        Values of :class:`RequestStatus`.
    itl : ItlSegments or None
        None when gaps were not recorded.
    timeline : Timeline or None
    """

    intended_s: NDArray[np.float64]
    sent_s: NDArray[np.float64]
    first_token_s: NDArray[np.float64]
    last_token_s: NDArray[np.float64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    cached_tokens: NDArray[np.int64]
    num_preemptions: NDArray[np.int64]
    replica: NDArray[np.int64]
    status: NDArray[np.int8]
    itl: ItlSegments | None = None
    timeline: Timeline | None = None

    @property
    def num_requests(self) -> int:
        """Number of requests."""
        return len(self.intended_s)
