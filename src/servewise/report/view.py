"""What a plan's reports show: the plan with everything that explains it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from servewise.types import Plan, Promise, Provenance

__all__ = ["PlanReport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """A plan and what its readers need beside it. Strings are untrusted; the reports escape them.

    Parameters
    ----------
    name : str
        Of the service.
    plan : Plan
    promise : Promise
    traffic : str
        The workload in words, e.g. ``azure-conversation-2023, 19,366 requests, 5.5 requests/s``.
    launch_command : str
        Of the winner, ready to paste; empty without one.
    warnings : tuple of str
        Of the whole plan; those of a candidate are in the candidate.
    provenance : mapping of str to Provenance
        By figure or part, of everything the winner's numbers rest on.
    facts : mapping of str to str
        What is needed to make the plan again: versions, input hashes, seeds, price date.
    latency_cdf : mapping of str to (float64 array [s], float64 array)
        Of the winner (or the nearest candidate) by metric ``ttft``, ``tpot``, ``e2e``: sorted values and the
        share of requests at or below each; a few hundred points are enough.
    """

    name: str
    plan: Plan
    promise: Promise
    traffic: str = ""
    launch_command: str = ""
    warnings: tuple[str, ...] = ()
    provenance: Mapping[str, Provenance] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    latency_cdf: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]] = field(default_factory=dict)
