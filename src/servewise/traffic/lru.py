"""How much of the prompts an LRU cache of a given size would have held, exactly and without replaying it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from servewise.traffic.prefixes import positions
from servewise.types import Workload

__all__ = ["hit_tokens_by_cache", "reuse_distances"]


def hit_tokens_by_cache(workload: Workload, cache_tokens: Sequence[float]) -> list[int]:
    """Prompt tokens found in one LRU cache, for each cache size [tokens].

    The requests pass one after another in order of arrival. Each finds the leading blocks of its prompt that
    are cached, then touches all of its blocks, the last block first, so that beginnings outlive ends. Only
    full blocks of the prompt count.

    Parameters
    ----------
    workload : Workload
        With prefix blocks.
    cache_tokens : sequence of float [tokens]
        Cache sizes; ``inf`` for one that never evicts.
    """
    prefix = workload.prefix
    if prefix is None:
        raise ValueError("the workload has no prefix blocks")
    lengths = np.diff(prefix.offsets)
    position = positions(prefix.offsets)
    in_prompt = position < np.repeat(workload.input_tokens // prefix.block_size_tokens, lengths)
    # Mirror the blocks of each request: touched last to first.
    mirrored = np.repeat(prefix.offsets[:-1] + prefix.offsets[1:] - 1, lengths) - np.arange(len(position))
    distance = reuse_distances(prefix.ids[mirrored])
    # What counts is the cache as the request finds it: without the deeper blocks that it touches itself.
    distance -= (np.repeat(lengths, lengths) - 1 - position)[mirrored]
    distance = np.sort(distance[in_prompt[mirrored]])
    sizes = [size / prefix.block_size_tokens for size in cache_tokens]
    return [
        int(np.searchsorted(distance, min(size, len(position)), side="right")) * prefix.block_size_tokens
        for size in sizes
    ]


def reuse_distances(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Distinct blocks touched since a block was last touched, itself included; int64 maximum the first time.

    A block is found by an LRU cache of c blocks if and only if its distance is at most c (Mattson's stack
    distance).

    Parameters
    ----------
    ids : int64 array, shape (num_accesses,)

    Sources
    -------
    Mattson, Gecsei, Slutz, Traiger: Evaluation techniques for storage hierarchies, IBM Systems Journal 9
    (1970) 78-117.
    """
    num = len(ids)
    order = np.argsort(ids, kind="stable")
    is_repeat = np.concatenate(([False], ids[order[1:]] == ids[order[:-1]]))[:num]
    last = np.full(num, -1, dtype=np.int64)
    last[order[1:]] = np.where(is_repeat[1:], order[:-1], -1)
    # Between its last touch p and now, a block is distinct when its own last touch lies at or before p. Every
    # touch up to p has one, so: (earlier touches whose last touch is not after p) - (p + 1), plus itself.
    distance = _num_earlier_below(last) - last
    distance[last < 0] = np.iinfo(np.int64).max
    return distance


def _num_earlier_below(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each element, how many earlier ones sort before it (ties in order), by a radix descent."""
    num = len(values)
    rank = np.empty(num, dtype=np.int64)
    rank[np.argsort(values, kind="stable")] = np.arange(num)
    below = np.zeros(num, dtype=np.int64)
    current = rank
    where = np.arange(num)
    for bit in reversed(range(max(num - 1, 1).bit_length())):
        # Elements are grouped by their higher bits; ranks fill each group without gaps.
        is_high = (current >> bit) & 1 == 1
        zeros_before = np.concatenate(([0], np.cumsum(~is_high)[:-1])) if num else where
        group_start = (current >> (bit + 1)) << (bit + 1)
        below[where[is_high]] += (zeros_before - zeros_before[np.minimum(group_start, num - 1)])[is_high]
        keys = np.argsort((current >> bit), kind="stable")
        current, where = current[keys], where[keys]
    return below
