"""Shared prefixes of a profile: conversations that continue an earlier request.

Every prompt begins with the blocks common to all. A part of the requests also repeats the beginning of one
earlier request that nobody continued yet. How long ago that was, and how much of the prompt repeats it, is
drawn from the trace's quantiles, so that the hit rate follows at every cache size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servewise.traffic.profile_lengths import LEVELS, LengthTable, bins_of, stratified
from servewise.types import PrefixBlocks

__all__ = ["PrefixTable", "draw_continuations", "draw_prefix", "match_parents", "observed_matches"]

_NEAR = 64
_TRIES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixTable:
    """How requests repeat earlier ones.

    Parameters
    ----------
    block_size_tokens : int
    num_common_blocks : int
        Blocks that every prompt begins with.
    num_continuations : int
        Requests that repeat more than the common blocks.
    lag_s : tuple of float, shape (len(LEVELS),) [s]
        Quantiles of the time since the repeated request.
    matched_frac : tuple of tuple of float, shape (num_bins, len(LEVELS))
        Quantiles of the repeated share of the full blocks of the prompt, by bins of the input.
    lengths : tuple of LengthTable
        Of the continuations, in as many parts of the duration as the profile's own, which are those of the
        other requests.
    """

    block_size_tokens: int
    num_common_blocks: int
    num_continuations: int
    lag_s: tuple[float, ...]
    matched_frac: tuple[tuple[float, ...], ...]
    lengths: tuple[LengthTable, ...]


def observed_matches(prefix: PrefixBlocks) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each request, how many leading blocks came before and the latest request that had the last of them.

    Returns
    -------
    matched : int64 array, shape (num_requests,)
    parent : int64 array, shape (num_requests,)
        -1 where nothing matches.
    """
    num = len(prefix.offsets) - 1
    latest = np.full(prefix.num_ids, -1, dtype=np.int64)
    matched = np.zeros(num, dtype=np.int64)
    parent = np.full(num, -1, dtype=np.int64)
    for request in range(num):
        ids = prefix.ids[prefix.offsets[request] : prefix.offsets[request + 1]]
        # Identities stand for whole prefixes: known ones come first.
        known = int(np.count_nonzero(latest[ids] >= 0))
        matched[request] = known
        if known:
            parent[request] = latest[ids[known - 1]]
        latest[ids] = request
    return matched, parent


def draw_continuations(
    table: PrefixTable, arrival_s: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Time since the repeated request [s] for requests that continue one; NaN for the others.

    Each time goes to any of the requests that arrive later than it, so that a trace begins with few
    continuations. A time that finds no free request in a few tries is left out.
    """
    lags = np.interp(stratified(table.num_continuations, rng), LEVELS, table.lag_s)[::-1]
    first = np.searchsorted(arrival_s, lags, side="right")
    chosen = np.full(len(arrival_s), np.nan)
    for lag, earliest in zip(lags, first, strict=True):
        if earliest >= len(arrival_s):
            continue
        tries = rng.integers(earliest, len(arrival_s), size=_TRIES)
        free = tries[np.isnan(chosen[tries])]
        if len(free):
            chosen[free[0]] = lag
    return chosen


def match_parents(
    lag_s: NDArray[np.float64],
    arrival_s: NDArray[np.float64],
    num_blocks: NDArray[np.int64],
    matched: NDArray[np.int64],
) -> NDArray[np.int64]:
    """The request that each continuation repeats; -1 for none.

    Among the requests near the wanted time that nobody continues yet and that are long enough, the one whose
    length is closest to what is repeated.
    """
    parent = np.full(len(arrival_s), -1, dtype=np.int64)
    is_free = np.ones(len(arrival_s), dtype=np.bool_)
    for request in np.flatnonzero(~np.isnan(lag_s)):
        target = int(np.searchsorted(arrival_s, arrival_s[request] - lag_s[request]))
        near = _NEAR
        while True:
            low, high = max(0, target - near), min(int(request), target + near)
            spare = num_blocks[low:high] - matched[request]
            spare = np.where(is_free[low:high] & (spare >= 0), spare, np.iinfo(np.int64).max)
            best = int(np.argmin(spare)) if high > low else 0
            if high > low and spare[best] < np.iinfo(np.int64).max:
                parent[request] = low + best
                is_free[low + best] = False
                break
            if low == 0 and high == request:
                break
            near *= 4
    return parent


def draw_prefix(
    table: PrefixTable,
    arrival_s: NDArray[np.float64],
    lag_s: NDArray[np.float64],
    input_tokens: NDArray[np.int64],
    rng: np.random.Generator,
) -> PrefixBlocks:
    """Block rows of the prompts."""
    num_blocks = input_tokens // table.block_size_tokens
    matched = np.minimum(num_blocks, table.num_common_blocks)
    continued = np.flatnonzero(~np.isnan(lag_s))
    bins = bins_of(input_tokens[continued], len(table.matched_frac))
    for index, quantiles in enumerate(table.matched_frac):
        inside = continued[bins == index]
        share = rng.permutation(np.interp(stratified(len(inside), rng), LEVELS, quantiles))
        wanted = np.rint(share * num_blocks[inside]).astype(np.int64)
        matched[inside] = np.clip(wanted, matched[inside], num_blocks[inside])
    parent = match_parents(lag_s, arrival_s, num_blocks, matched)
    matched = np.where(parent >= 0, matched, np.minimum(num_blocks, table.num_common_blocks))
    offsets = np.zeros(len(num_blocks) + 1, dtype=np.int64)
    np.cumsum(num_blocks, out=offsets[1:])
    ids = np.empty(offsets[-1], dtype=np.int64)
    num_ids = table.num_common_blocks
    for request in range(len(num_blocks)):
        row = ids[offsets[request] : offsets[request + 1]]
        shared = int(matched[request])
        above = offsets[parent[request]] if parent[request] >= 0 else -1
        row[:shared] = np.arange(shared) if above < 0 else ids[above : above + shared]
        row[shared:] = np.arange(num_ids, num_ids + len(row) - shared)
        num_ids += len(row) - shared
    return PrefixBlocks(offsets=offsets, ids=ids, num_ids=num_ids, block_size_tokens=table.block_size_tokens)
