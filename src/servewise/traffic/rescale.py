"""Change the rate of a workload."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from servewise.errors import InputError
from servewise.traffic.prefixes import is_widely_used, repeat_prefix
from servewise.traffic.selection import add_note, select_requests
from servewise.types import PrefixBlocks, Workload

__all__ = ["RescaleMethod", "families", "rescale"]

RescaleMethod = Literal["thinning", "time"]

_SHIFT_S = 60.0


def rescale(workload: Workload, rate_rps: float, *, method: RescaleMethod = "thinning", seed: int = 0) -> Workload:
    """Give a workload another mean rate.

    Parameters
    ----------
    workload : Workload
    rate_rps : float [requests/s]
        Requests over the time from first to last arrival.
    method : {"thinning", "time"}
        ``thinning`` keeps the time axis, as if fewer or more of the same users came. A lower rate takes a
        random part of the conversations. A higher rate lays copies of the workload over each other, each
        shifted around the circle by up to 60 s either way, and takes a part of the result; copies share
        system prompts but no conversations. The rate curve and its peak over the mean stay. ``time``
        stretches or squeezes the time axis: gaps keep their relative sizes, but hours become minutes.
    seed : int
        The same seed gives the same workload, byte for byte.

    Raises
    ------
    InputError
        A rate that is not positive, or that leaves fewer than two requests; a workload without duration.
    """
    if not 0 < rate_rps < np.inf:
        raise InputError(f"rate_rps is {rate_rps}; it must be a positive number")
    if method not in ("thinning", "time"):
        raise InputError(f"rescale method is {method!r}; allowed: thinning, time")
    span_s = workload.span_s
    if span_s <= 0:
        raise InputError("all requests arrive at once, so the workload has no rate to change; drop rate_rps")
    note = f"rescaled from {workload.num_requests / span_s:.4g} to {rate_rps:.4g} requests/s by {method}"
    provenance = add_note(workload.provenance, note)
    if method == "time":
        factor = workload.num_requests / span_s / rate_rps
        return replace(workload, arrival_s=workload.arrival_s * factor, provenance=provenance)
    wanted = round(rate_rps * span_s)
    if wanted < 2:
        least = 2 / span_s
        raise InputError(f"rate_rps {rate_rps:g} leaves fewer than 2 requests; the least is {least:.3g}")
    rng = np.random.default_rng(seed)
    num_copies = -(-wanted // workload.num_requests)
    many = workload if num_copies == 1 else _superpose(workload, num_copies, rng)
    kept = many if wanted == many.num_requests else _thin(many, wanted, rng)
    return replace(kept, provenance=provenance)


def _superpose(workload: Workload, num_copies: int, rng: np.random.Generator) -> Workload:
    start_s, span_s = workload.arrival_s[0], workload.span_s
    limit_s = min(_SHIFT_S, span_s / 2)
    # The first copy stays in place, so that first and last arrival bound the others.
    shift_s = np.concatenate(([0.0], rng.uniform(-limit_s, limit_s, num_copies - 1)))
    turned = np.mod(workload.arrival_s - start_s + shift_s[1:, None], span_s)
    arrival_s = start_s + np.concatenate((workload.arrival_s - start_s, turned.ravel()))
    copies = np.tile(np.arange(workload.num_requests), num_copies)
    many = select_requests(replace(workload, prefix=None), copies)
    prefix = None
    if workload.prefix is not None:
        prefix = repeat_prefix(workload.prefix, num_copies)
    session = None
    if workload.session is not None:
        stride = int(workload.session.max()) + 1
        session = workload.session[copies] + np.repeat(np.arange(num_copies) * stride, workload.num_requests)
    many = replace(many, arrival_s=arrival_s, prefix=prefix, session=session)
    return select_requests(many, np.argsort(arrival_s, kind="stable"))


def _thin(workload: Workload, wanted: int, rng: np.random.Generator) -> Workload:
    """Keep exactly ``wanted`` requests, whole families as far as the number allows."""
    family = families(workload)
    # First and last arrival always stay: they bound the time that the rate refers to.
    is_end = np.zeros(workload.num_requests, dtype=np.bool_)
    is_end[[0, -1]] = True
    turn = rng.permutation(int(family.max()) + 1)[family]
    order = np.lexsort((np.arange(workload.num_requests), turn, ~is_end))
    return select_requests(workload, np.sort(order[:wanted]))


def families(workload: Workload) -> NDArray[np.int64]:
    """Which requests belong together, shape (num_requests,): conversations.

    Known conversations are taken as they are. Otherwise requests belong together when they share a prefix
    block that few others have: used by at most 1% of the requests, or 20. (Blocks that more share are system
    prompts.) Without prefix blocks each request stands alone.
    """
    if workload.session is not None:
        names = workload.session
    elif workload.prefix is not None:
        names = _first_rare_block(workload.prefix)
    else:
        names = np.arange(workload.num_requests)
    return np.unique(names, return_inverse=True)[1].astype(np.int64, copy=False)


def _first_rare_block(prefix: PrefixBlocks) -> NDArray[np.int64]:
    """The first block of each request that few others have; a number of its own where there is none.

    Deeper blocks are used by no more requests than those above, so requests that share any rare block share
    their first one.
    """
    num_requests = len(prefix.offsets) - 1
    is_wide = is_widely_used(prefix)[prefix.ids]
    num_wide = np.concatenate(([0], np.cumsum(is_wide)))
    place = prefix.offsets[:-1] + num_wide[prefix.offsets[1:]] - num_wide[prefix.offsets[:-1]]
    names = prefix.num_ids + np.arange(num_requests)
    has_rare = place < prefix.offsets[1:]
    names[has_rare] = prefix.ids[place[has_rare]]
    return names
