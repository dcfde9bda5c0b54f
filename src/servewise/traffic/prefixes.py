"""Prefix blocks: canonical identities, and rows of a part of the requests."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from servewise.types import PrefixBlocks

__all__ = ["canonical_prefix", "is_widely_used", "positions", "prefix_of_requests", "repeat_prefix"]

_WIDELY_USED_FRAC = 0.01
_WIDELY_USED_MIN = 20


def positions(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Position of each block within its request, shape (offsets[-1],)."""
    return np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))


def canonical_prefix(offsets: NDArray[np.int64], ids: NDArray[np.int64], block_size_tokens: int) -> PrefixBlocks:
    """Make identities stand for the block and everything before it.

    When every id always follows the same id, ids already do. Otherwise (blocks hashed one by one) a block's
    identity becomes the pair of its parent's identity and its own id.

    Parameters
    ----------
    offsets : int64 array, shape (num_requests + 1,)
    ids : int64 array, shape (offsets[-1],)
        Any whole numbers.
    block_size_tokens : int

    Returns
    -------
    PrefixBlocks
        Identities numbered from 0 without gaps.
    """
    unique, codes = np.unique(ids, return_inverse=True)
    codes = codes.astype(np.int64, copy=False)
    num_ids = len(unique)
    depth = positions(offsets)
    parents = np.where(depth == 0, -1, np.concatenate(([-1], codes[:-1]))) if len(codes) else codes
    parent_of = np.empty(num_ids, dtype=np.int64)
    parent_of[codes] = parents
    if not np.array_equal(parent_of[codes], parents):
        codes, num_ids = _chain(offsets, codes, num_ids)
    return PrefixBlocks(offsets=offsets, ids=codes, num_ids=num_ids, block_size_tokens=block_size_tokens)


def _chain(offsets: NDArray[np.int64], codes: NDArray[np.int64], num_codes: int) -> tuple[NDArray[np.int64], int]:
    """Identities of (parent identity, code), one depth after another."""
    chained = np.empty_like(codes)
    lengths = np.diff(offsets)
    rows = np.flatnonzero(lengths)
    parents = np.zeros(len(rows), dtype=np.int64)
    num_ids = 0
    depth = 0
    while len(rows):
        places = offsets[rows] + depth
        # Parents of one depth are numbered without gaps, so the pair fits 64 bits.
        _, identity = np.unique(parents * num_codes + codes[places], return_inverse=True)
        chained[places] = num_ids + identity
        num_ids += int(identity.max()) + 1
        depth += 1
        is_longer = lengths[rows] > depth
        rows, parents = rows[is_longer], identity[is_longer].astype(np.int64, copy=False)
    return chained, num_ids


def prefix_of_requests(prefix: PrefixBlocks, requests: NDArray[np.int64]) -> PrefixBlocks:
    """Rows of ``requests`` in that order; identities stay as they are."""
    lengths = np.diff(prefix.offsets)[requests]
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64, copy=False)
    ids = prefix.ids[np.repeat(prefix.offsets[requests], lengths) + positions(offsets)]
    return PrefixBlocks(offsets=offsets, ids=ids, num_ids=prefix.num_ids, block_size_tokens=prefix.block_size_tokens)


def is_widely_used(prefix: PrefixBlocks) -> NDArray[np.bool_]:
    """Which identities more than 1% of the requests (and more than 20) have, shape (num_ids,).

    Those are system prompts. A deeper block is used by no more requests than the blocks above it, so that
    widely used ones begin a row.
    """
    uses = np.bincount(prefix.ids, minlength=prefix.num_ids)
    return uses > max(_WIDELY_USED_MIN, _WIDELY_USED_FRAC * (len(prefix.offsets) - 1))


def repeat_prefix(prefix: PrefixBlocks, num_copies: int) -> PrefixBlocks:
    """Rows of several copies one after another: they share widely used blocks and nothing else."""
    is_wide = is_widely_used(prefix)[prefix.ids]
    copy = np.arange(num_copies)[:, None]
    ends = prefix.offsets[1:] + copy * prefix.offsets[-1]
    ids = np.where(is_wide, prefix.ids, prefix.ids + copy * prefix.num_ids)
    return PrefixBlocks(
        offsets=np.concatenate((prefix.offsets[:1], ends.ravel())),
        ids=ids.ravel(),
        num_ids=num_copies * prefix.num_ids,
        block_size_tokens=prefix.block_size_tokens,
    )
