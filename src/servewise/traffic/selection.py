"""A part of a workload's requests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from servewise.errors import InputError
from servewise.traffic.prefixes import prefix_of_requests
from servewise.types import Provenance, Workload

__all__ = ["add_note", "check_limits", "limit", "select_requests"]


def add_note(provenance: Provenance, note: str) -> Provenance:
    """Provenance with one more thing that a reader must know."""
    return replace(provenance, note=f"{provenance.note}; {note}" if provenance.note else note)


def select_requests(workload: Workload, requests: NDArray[np.int64]) -> Workload:
    """The given requests in that order; times stay as they are."""
    return replace(
        workload,
        arrival_s=workload.arrival_s[requests],
        input_tokens=workload.input_tokens[requests],
        output_tokens=workload.output_tokens[requests],
        max_tokens=workload.max_tokens[requests],
        prefix=None if workload.prefix is None else prefix_of_requests(workload.prefix, requests),
        session=None if workload.session is None else workload.session[requests],
        priority=None if workload.priority is None else workload.priority[requests],
    )


def limit(workload: Workload, num_requests: int | None = None, duration_s: float | None = None) -> Workload:
    """The start of a workload.

    Parameters
    ----------
    workload : Workload
    num_requests : int or None
        At most so many requests.
    duration_s : float or None [s]
        Only arrivals up to this time.

    Raises
    ------
    InputError
        A limit that no request can meet.
    """
    check_limits(num_requests, duration_s)
    end = workload.num_requests if num_requests is None else min(num_requests, workload.num_requests)
    if duration_s is not None:
        end = min(end, int(np.searchsorted(workload.arrival_s, duration_s, side="right")))
    if end == 0:
        raise InputError(f"no request arrives within duration_s {duration_s:g}; give a longer one")
    if end == workload.num_requests:
        return workload
    start = select_requests(workload, np.arange(end))
    return replace(start, provenance=add_note(workload.provenance, f"first {end} requests"))


def check_limits(num_requests: int | None, duration_s: float | None) -> None:
    """Refuse limits that leave nothing.

    Raises
    ------
    InputError
    """
    if num_requests is not None and num_requests < 1:
        raise InputError(f"num_requests is {num_requests}; it must be at least 1")
    if duration_s is not None and not 0 < duration_s < np.inf:
        raise InputError(f"duration_s is {duration_s}; it must be a positive number of seconds")
