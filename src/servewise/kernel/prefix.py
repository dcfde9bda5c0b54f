"""vLLM's prefix cache for one replica, exact at block level, kept as runs of blocks.

A *node* is a trace block with everything before it (many engine blocks long when the trace's blocks are larger
than the engine's), or all that is private to one request. An *extent* is a run of physical blocks that hold
consecutive engine blocks of one node and have shared one fate so far: hashed in the same plan, with the same
number of users, and side by side in the free queue. An extent is split when a request uses only a part of it.

The free queue is a count of blocks without identity (always reused first) followed by a linked list of unused
extents, the least recently used first; blocks are reused one by one from an extent's tail.

A request's *entries* are the extents it uses, newest first, with the number of blocks it took: if an extent was
split later, the entry goes on into ``rest``.
"""

from __future__ import annotations

from numba import njit

from servewise.kernel.layout import Prefix

__all__ = ["hash_blocks", "lookup", "release_blocks", "take_blocks", "touch_hits"]

# Columns of ``Prefix.extents``.
NODE = 0
START = 1
LENGTH = 2
REFS = 3
SIBLING = 4
"""The next extent of the same node, in the order in which they were hashed."""
REST = 5
"""The extent that was split off this one's tail."""
OLDER = 6
NEWER = 7
"""Neighbours in the free queue; ``NEWER`` also links the spare extents."""

# Columns of ``Prefix.node_ends``.
FIRST = 0
LAST = 1

# Columns of ``Prefix.entries``.
EXTENT = 0
TAKEN = 1
FOLLOWING = 2

# Columns of ``Prefix.users``.
HELD = 0
HASHED = 1

# Places in ``Prefix.counters``.
OVERFLOWED = 0
UNHASHED = 1
OLDEST = 2
NEWEST = 3
FREE_EXTENT = 4
FREE_ENTRY = 5


@njit(cache=True, nogil=True, inline="always")
def _queue_remove(px: Prefix, e: int) -> None:
    older, newer = px.extents[e, OLDER], px.extents[e, NEWER]
    if older >= 0:
        px.extents[older, NEWER] = newer
    else:
        px.counters[OLDEST] = newer
    if newer >= 0:
        px.extents[newer, OLDER] = older
    else:
        px.counters[NEWEST] = older


@njit(cache=True, nogil=True, inline="always")
def _queue_append(px: Prefix, e: int) -> None:
    newest = px.counters[NEWEST]
    px.extents[e, OLDER] = newest
    px.extents[e, NEWER] = -1
    if newest >= 0:
        px.extents[newest, NEWER] = e
    else:
        px.counters[OLDEST] = e
    px.counters[NEWEST] = e


@njit(cache=True, nogil=True, inline="always")
def _new_extent(px: Prefix, node: int, start: int, length: int, refs: int) -> int:
    """Take an extent from the spare ones; the caller links it to its siblings."""
    e = px.counters[FREE_EXTENT]
    px.counters[FREE_EXTENT] = px.extents[e, NEWER]
    px.extents[e, NODE] = node
    px.extents[e, START] = start
    px.extents[e, LENGTH] = length
    px.extents[e, REFS] = refs
    px.extents[e, REST] = -1
    px.extents[e, SIBLING] = -1
    return e


@njit(cache=True, nogil=True, inline="always")
def _add_entry(px: Prefix, r: int, extent: int, length: int) -> None:
    i = px.counters[FREE_ENTRY]
    if i < 0:
        px.counters[OVERFLOWED] = 1
        return
    px.counters[FREE_ENTRY] = px.entries[i, FOLLOWING]
    px.entries[i, EXTENT] = extent
    px.entries[i, TAKEN] = length
    px.entries[i, FOLLOWING] = px.users[r, HELD]
    px.users[r, HELD] = i


@njit(cache=True, nogil=True, inline="always")
def _split(px: Prefix, e: int, length: int) -> int:
    """Cut an extent after ``length`` blocks; returns the new extent that holds the tail."""
    tail = _new_extent(px, px.extents[e, NODE], px.extents[e, START] + length, px.extents[e, LENGTH] - length, px.extents[e, REFS])
    px.extents[e, LENGTH] = length
    px.extents[tail, REST] = px.extents[e, REST]
    px.extents[e, REST] = tail
    px.extents[tail, SIBLING] = px.extents[e, SIBLING]
    px.extents[e, SIBLING] = tail
    if px.node_ends[px.extents[e, NODE], LAST] == e:
        px.node_ends[px.extents[e, NODE], LAST] = tail
    if px.extents[e, REFS] == 0:  # the tail is reused before the head
        older = px.extents[e, OLDER]
        px.extents[tail, OLDER] = older
        px.extents[tail, NEWER] = e
        px.extents[e, OLDER] = tail
        if older >= 0:
            px.extents[older, NEWER] = tail
        else:
            px.counters[OLDEST] = tail
    return tail


@njit(cache=True, nogil=True, inline="always")
def _discard(px: Prefix, e: int) -> None:
    """Forget an unused extent of which no block is left."""
    _queue_remove(px, e)
    node = px.extents[e, NODE]
    if px.node_ends[node, FIRST] == e:
        px.node_ends[node, FIRST] = px.extents[e, SIBLING]
        if px.extents[e, SIBLING] < 0:
            px.node_ends[node, LAST] = -1
    else:
        before = px.node_ends[node, FIRST]
        while px.extents[before, SIBLING] != e:
            before = px.extents[before, SIBLING]
        px.extents[before, SIBLING] = px.extents[e, SIBLING]
        if px.node_ends[node, LAST] == e:
            px.node_ends[node, LAST] = before
    px.extents[e, NEWER] = px.counters[FREE_EXTENT]
    px.counters[FREE_EXTENT] = e


@njit(cache=True, nogil=True)
def take_blocks(px: Prefix, count: int) -> None:
    """Take ``count`` blocks off the front of the free queue; the caller knows that there are enough."""
    unhashed = min(count, px.counters[UNHASHED])
    px.counters[UNHASHED] -= unhashed
    count -= unhashed
    while count > 0:
        e = px.counters[OLDEST]
        if px.extents[e, LENGTH] > count:
            px.extents[e, LENGTH] -= count
            return
        count -= px.extents[e, LENGTH]
        _discard(px, e)


@njit(cache=True, nogil=True, inline="always")
def _place(px: Prefix, r: int, block: int) -> tuple[int, int, int]:
    """Node of a request's block, its place in the node, and the blocks of the request in the node from there."""
    first = px.offsets[r]
    named = (px.offsets[r + 1] - first) << px.span_shift
    if block < named:
        offset = block & ((1 << px.span_shift) - 1)
        return px.nodes[first + (block >> px.span_shift)], offset, (1 << px.span_shift) - offset
    return px.num_shared + r, block - named, 1 << 30


@njit(cache=True, nogil=True, inline="always")
def _find(px: Prefix, node: int, offset: int) -> tuple[int, int]:
    """The first-hashed extent that holds a block of a node (-1: none), and the place up to which it serves."""
    limit = 1 << 30
    e = px.node_ends[node, FIRST]
    while e >= 0:
        start = px.extents[e, START]
        if start > offset:
            limit = min(limit, start)
        elif offset < start + px.extents[e, LENGTH]:
            return e, min(limit, start + px.extents[e, LENGTH])
        e = px.extents[e, SIBLING]
    return -1, offset


@njit(cache=True, nogil=True)
def lookup(px: Prefix, r: int, max_blocks: int) -> tuple[int, int]:
    """Blocks of a request's start that are cached (at most ``max_blocks``), and how many of them nobody uses."""
    hit = 0
    unused = 0
    while hit < max_blocks:
        node, offset, span = _place(px, r, hit)
        e, end = _find(px, node, offset)
        if e < 0:
            break
        count = min(end - offset, span, max_blocks - hit)
        if px.extents[e, REFS] == 0:
            unused += count
        hit += count
    return hit, unused


@njit(cache=True, nogil=True)
def touch_hits(px: Prefix, r: int, hit: int) -> None:
    """Use the first ``hit`` blocks of a request, which :func:`lookup` has found."""
    done = 0
    while done < hit:
        node, offset, span = _place(px, r, done)
        e, end = _find(px, node, offset)
        count = min(end - offset, span, hit - done)
        if px.extents[e, START] < offset:
            e = _split(px, e, offset - px.extents[e, START])
        if px.extents[e, LENGTH] > count:
            _split(px, e, count)
        if px.extents[e, REFS] == 0:
            _queue_remove(px, e)
        px.extents[e, REFS] += 1
        _add_entry(px, r, e, count)
        done += count
    px.users[r, HASHED] = hit


@njit(cache=True, nogil=True, inline="always")
def _hash_up_to(px: Prefix, r: int, blocks: int) -> None:
    while px.users[r, HASHED] < blocks:
        node, offset, span = _place(px, r, px.users[r, HASHED])
        count = min(span, blocks - px.users[r, HASHED])
        e = _new_extent(px, node, offset, count, 1)
        last = px.node_ends[node, LAST]
        if last >= 0:
            px.extents[last, SIBLING] = e
        else:
            px.node_ends[node, FIRST] = e
        px.node_ends[node, LAST] = e
        _add_entry(px, r, e, count)
        px.users[r, HASHED] += count


@njit(cache=True, nogil=True)
def hash_blocks(px: Prefix, r: int, blocks: int) -> None:
    """Give a request's first ``blocks`` blocks their identity, as far as other requests could share them.

    Private blocks get theirs when they are released: nobody else can look for them before.
    """
    _hash_up_to(px, r, min(blocks, (px.offsets[r + 1] - px.offsets[r]) << px.span_shift))


@njit(cache=True, nogil=True)
def release_blocks(px: Prefix, r: int, blocks: int, hashed: int) -> None:
    """Free a request's ``blocks`` blocks, tail first; the first ``hashed`` of them keep their identity."""
    _hash_up_to(px, r, hashed)
    px.counters[UNHASHED] += blocks - hashed
    i = px.users[r, HELD]
    while i >= 0:
        pieces = 1
        left = px.entries[i, TAKEN] - px.extents[px.entries[i, EXTENT], LENGTH]
        e = px.entries[i, EXTENT]
        while left > 0:
            e = px.extents[e, REST]
            left -= px.extents[e, LENGTH]
            pieces += 1
        for piece in range(pieces - 1, -1, -1):
            e = px.entries[i, EXTENT]
            for _ in range(piece):
                e = px.extents[e, REST]
            px.extents[e, REFS] -= 1
            if px.extents[e, REFS] == 0:
                _queue_append(px, e)
        following = px.entries[i, FOLLOWING]
        px.entries[i, FOLLOWING] = px.counters[FREE_ENTRY]
        px.counters[FREE_ENTRY] = i
        i = following
    px.users[r, HELD] = -1
    px.users[r, HASHED] = 0
