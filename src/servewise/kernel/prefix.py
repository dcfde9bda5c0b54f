"""The prefix cache of vLLM and of TensorRT-LLM for one replica, exact at block level, kept as runs of blocks.

A *node* is a trace block with everything before it (many engine blocks long when the trace's blocks are
larger than the engine's), or all that is private to one request. An *extent* is a run of physical blocks that
hold consecutive engine blocks of one node and have shared one fate so far: hashed in the same plan, with the
same number of users, and side by side in the free queue. An extent is split when a request uses only a part
of it. Private blocks of requests that have ended can never be found again: in the free queue they are extents
of no node.

The free queue is a count of blocks without identity (always reused first) followed by a linked list of unused
extents, the least recently used first; blocks are reused one by one from an extent's tail. TensorRT-LLM puts all
blocks that are freed at the end of the list, so without identity are only those that were never used.

A request's *entries* are the extents it uses, newest first, with the number of blocks it took: if an extent
was split later, the entry goes on into ``rest``.
"""

from __future__ import annotations

from typing import Any

from servewise.kernel.layout import Prefix, compiled

__all__ = [
    "first_new_block",
    "hash_blocks",
    "lookup",
    "release_blocks",
    "release_stored_blocks",
    "store_blocks",
    "take_blocks",
    "touch_hits",
]

# Columns of ``Prefix.extents``.
NODE = 0
"""-1 for blocks that cannot be found."""
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


@compiled
def _queue_remove(extents: Any, counters: Any, e: int) -> None:
    older, newer = extents[e, OLDER], extents[e, NEWER]
    if older >= 0:
        extents[older, NEWER] = newer
    else:
        counters[OLDEST] = newer
    if newer >= 0:
        extents[newer, OLDER] = older
    else:
        counters[NEWEST] = older


@compiled
def _queue_append(extents: Any, counters: Any, e: int) -> None:
    newest = counters[NEWEST]
    extents[e, OLDER] = newest
    extents[e, NEWER] = -1
    if newest >= 0:
        extents[newest, NEWER] = e
    else:
        counters[OLDEST] = e
    counters[NEWEST] = e


@compiled
def _new_extent(extents: Any, counters: Any, node: int, start: int, length: int, refs: int) -> int:
    """Take an extent from the spare ones; the caller links it to its siblings."""
    e = int(counters[FREE_EXTENT])
    counters[FREE_EXTENT] = extents[e, NEWER]
    extents[e, NODE] = node
    extents[e, START] = start
    extents[e, LENGTH] = length
    extents[e, REFS] = refs
    extents[e, REST] = -1
    extents[e, SIBLING] = -1
    return e


@compiled
def _add_entry(entries: Any, users: Any, counters: Any, r: int, extent: int, length: int) -> None:
    i = counters[FREE_ENTRY]
    if i < 0:
        counters[OVERFLOWED] = 1
        return
    counters[FREE_ENTRY] = entries[i, FOLLOWING]
    entries[i, EXTENT] = extent
    entries[i, TAKEN] = length
    entries[i, FOLLOWING] = users[r, HELD]
    users[r, HELD] = i


@compiled
def _split(extents: Any, node_ends: Any, counters: Any, e: int, length: int) -> int:
    """Cut an extent after ``length`` blocks; returns the new extent that holds the tail."""
    tail = _new_extent(
        extents,
        counters,
        extents[e, NODE],
        extents[e, START] + length,
        extents[e, LENGTH] - length,
        extents[e, REFS],
    )
    extents[e, LENGTH] = length
    extents[tail, REST] = extents[e, REST]
    extents[e, REST] = tail
    extents[tail, SIBLING] = extents[e, SIBLING]
    extents[e, SIBLING] = tail
    if node_ends[extents[e, NODE], LAST] == e:
        node_ends[extents[e, NODE], LAST] = tail
    if extents[e, REFS] == 0:  # the tail is reused before the head
        older = extents[e, OLDER]
        extents[tail, OLDER] = older
        extents[tail, NEWER] = e
        extents[e, OLDER] = tail
        if older >= 0:
            extents[older, NEWER] = tail
        else:
            counters[OLDEST] = tail
    return tail


@compiled
def _discard(extents: Any, node_ends: Any, counters: Any, e: int) -> None:
    """Forget an unused extent of which no block is left."""
    _queue_remove(extents, counters, e)
    node = extents[e, NODE]
    if node < 0:
        pass
    elif node_ends[node, FIRST] == e:
        node_ends[node, FIRST] = extents[e, SIBLING]
        if extents[e, SIBLING] < 0:
            node_ends[node, LAST] = -1
    else:
        before = node_ends[node, FIRST]
        while extents[before, SIBLING] != e:
            before = extents[before, SIBLING]
        extents[before, SIBLING] = extents[e, SIBLING]
        if node_ends[node, LAST] == e:
            node_ends[node, LAST] = before
    extents[e, NEWER] = counters[FREE_EXTENT]
    counters[FREE_EXTENT] = e


@compiled
def take_blocks(px: Prefix, count: int) -> None:
    """Take ``count`` blocks off the front of the free queue; the caller knows that there are enough."""
    extents, counters, node_ends = px.extents, px.counters, px.node_ends
    unhashed = min(count, counters[UNHASHED])
    counters[UNHASHED] -= unhashed
    count -= unhashed
    while count > 0:
        e = counters[OLDEST]
        if extents[e, LENGTH] > count:
            extents[e, LENGTH] -= count
            return
        count -= extents[e, LENGTH]
        _discard(extents, node_ends, counters, e)


@compiled
def _place(offsets: Any, nodes: Any, span_shift: int, num_shared: int, r: int, block: int) -> tuple[int, int, int]:
    """Node of a request's block, its place in the node, and the request's blocks in the node from there."""
    first = offsets[r]
    named = (offsets[r + 1] - first) << span_shift
    if block < named:
        offset = block & ((1 << span_shift) - 1)
        return nodes[first + (block >> span_shift)], offset, (1 << span_shift) - offset
    return num_shared + r, block - named, 1 << 30


@compiled
def _find(extents: Any, node_ends: Any, node: int, offset: int) -> tuple[int, int]:
    """The first-hashed extent that holds a block of a node, and the place to which it serves; or -1, and the place to
    which none does."""
    limit = 1 << 30
    e = node_ends[node, FIRST]
    while e >= 0:
        start = extents[e, START]
        if start > offset:
            limit = min(limit, start)
        elif offset < start + extents[e, LENGTH]:
            return e, min(limit, start + extents[e, LENGTH])
        e = extents[e, SIBLING]
    return -1, limit


@compiled
def lookup(px: Prefix, r: int, max_blocks: int) -> tuple[int, int]:
    """Blocks of a request's start that are cached (at most ``max_blocks``), and how many nobody uses."""
    offsets, nodes = px.offsets, px.nodes
    extents, node_ends = px.extents, px.node_ends
    hit = 0
    unused = 0
    while hit < max_blocks:
        node, offset, span = _place(offsets, nodes, px.span_shift, px.num_shared, r, hit)
        e, end = _find(extents, node_ends, node, offset)
        if e < 0:
            break
        count = min(end - offset, span, max_blocks - hit)
        if extents[e, REFS] == 0:
            unused += count
        hit += count
    return hit, unused


@compiled
def touch_hits(px: Prefix, r: int, hit: int) -> None:
    """Use the first ``hit`` blocks of a request, which :func:`lookup` has found."""
    offsets, nodes = px.offsets, px.nodes
    extents, entries, users, counters, node_ends = px.extents, px.entries, px.users, px.counters, px.node_ends
    done = 0
    while done < hit:
        node, offset, span = _place(offsets, nodes, px.span_shift, px.num_shared, r, done)
        e, end = _find(extents, node_ends, node, offset)
        count = min(end - offset, span, hit - done)
        if extents[e, START] < offset:
            e = _split(extents, node_ends, counters, e, offset - extents[e, START])
        if extents[e, LENGTH] > count:
            _split(extents, node_ends, counters, e, count)
        if extents[e, REFS] == 0:
            _queue_remove(extents, counters, e)
        extents[e, REFS] += 1
        _add_entry(entries, users, counters, r, e, count)
        done += count
    users[r, HASHED] = hit


@compiled
def _append_extent(extents: Any, node_ends: Any, counters: Any, node: int, offset: int, count: int) -> int:
    """A new extent of one user at the end of its node's."""
    e = _new_extent(extents, counters, node, offset, count, 1)
    last = node_ends[node, LAST]
    if last >= 0:
        extents[last, SIBLING] = e
    else:
        node_ends[node, FIRST] = e
    node_ends[node, LAST] = e
    return e


@compiled
def _hash_up_to(px: Prefix, r: int, blocks: int) -> None:
    extents, entries, users, counters = px.extents, px.entries, px.users, px.counters
    node_ends, offsets, nodes = px.node_ends, px.offsets, px.nodes
    hashed = users[r, HASHED]
    while hashed < blocks:
        node, offset, span = _place(offsets, nodes, px.span_shift, px.num_shared, r, hashed)
        count = min(span, blocks - hashed)
        e = _append_extent(extents, node_ends, counters, node, offset, count)
        _add_entry(entries, users, counters, r, e, count)
        hashed += count
    users[r, HASHED] = hashed


@compiled
def hash_blocks(px: Prefix, r: int, blocks: int) -> None:
    """Give a request's first ``blocks`` blocks their identity, as far as other requests could share them.

    Private blocks get theirs when they are released: nobody else can look for them before.
    """
    _hash_up_to(px, r, min(blocks, (px.offsets[r + 1] - px.offsets[r]) << px.span_shift))


@compiled
def _append_unfindable(extents: Any, counters: Any, count: int) -> None:
    """Put ``count`` blocks at the back of the free queue that nobody can look for."""
    newest = counters[NEWEST]
    if newest >= 0 and extents[newest, NODE] < 0:
        extents[newest, LENGTH] += count
    else:
        _queue_append(extents, counters, _new_extent(extents, counters, -1, 0, count, 0))


@compiled
def _release_entries(px: Prefix, r: int) -> int:
    """Give up the extents that a request uses, newest first; returns the blocks that nobody else uses."""
    extents, entries, users, counters = px.extents, px.entries, px.users, px.counters
    freed = 0
    i = users[r, HELD]
    while i >= 0:
        pieces = 1
        left = entries[i, TAKEN] - extents[entries[i, EXTENT], LENGTH]
        e = entries[i, EXTENT]
        while left > 0:
            e = extents[e, REST]
            left -= extents[e, LENGTH]
            pieces += 1
        for piece in range(pieces - 1, -1, -1):
            e = entries[i, EXTENT]
            for _ in range(piece):
                e = extents[e, REST]
            extents[e, REFS] -= 1
            if extents[e, REFS] == 0:
                freed += extents[e, LENGTH]
                _queue_append(extents, counters, e)
        following = entries[i, FOLLOWING]
        entries[i, FOLLOWING] = counters[FREE_ENTRY]
        counters[FREE_ENTRY] = i
        i = following
    users[r, HELD] = -1
    users[r, HASHED] = 0
    return int(freed)


@compiled
def release_blocks(px: Prefix, r: int, blocks: int, hashed: int, ended: bool) -> int:
    """Give up a request's ``blocks`` blocks, tail first; the first ``hashed`` of them keep their identity.

    Returns the number of blocks that nobody else uses.
    """
    users, counters = px.users, px.counters
    if ended:
        hash_blocks(px, r, hashed)
        private = hashed - users[r, HASHED]
        if private > 0:
            _append_unfindable(px.extents, counters, private)
        freed = blocks - users[r, HASHED]
    else:
        _hash_up_to(px, r, hashed)
        freed = blocks - hashed
    counters[UNHASHED] += blocks - hashed
    return int(freed + _release_entries(px, r))


@compiled
def first_new_block(px: Prefix, r: int, found: int, full: int) -> tuple[int, int]:
    """Node and place of the first of a request's ``full`` blocks that cannot be found, of which :func:`lookup` has
    ``found`` some; -1 as the node when all can, or when it is private."""
    while found < full:
        node, offset, _ = _place(px.offsets, px.nodes, px.span_shift, px.num_shared, r, found)
        if node >= px.num_shared:
            break
        e, _ = _find(px.extents, px.node_ends, node, offset)
        if e < 0:
            return node, offset
        found += 1
    return -1, 0


@compiled
def _store_up_to(px: Prefix, r: int, blocks: int) -> None:
    extents, entries, users, counters = px.extents, px.entries, px.users, px.counters
    node_ends, offsets, nodes = px.node_ends, px.offsets, px.nodes
    stored = users[r, HASHED]
    while stored < blocks:
        node, offset, span = _place(offsets, nodes, px.span_shift, px.num_shared, r, stored)
        e, end = _find(extents, node_ends, node, offset)
        count = min(span, blocks - stored, end - offset)
        if e < 0:
            e = _append_extent(extents, node_ends, counters, node, offset, count)
        else:
            e = _new_extent(extents, counters, -1, 0, count, 1)
        _add_entry(entries, users, counters, r, e, count)
        stored += count
    users[r, HASHED] = stored


@compiled
def store_blocks(px: Prefix, r: int, blocks: int) -> None:
    """TensorRT-LLM's way of giving a request's first ``blocks`` blocks their identity, as far as others share it:
    a block whose content can be found already stays without."""
    _store_up_to(px, r, min(blocks, (px.offsets[r + 1] - px.offsets[r]) << px.span_shift))


@compiled
def release_stored_blocks(px: Prefix, r: int, blocks: int, known: int, ended: bool) -> int:
    """Give up a request's ``blocks`` blocks as TensorRT-LLM does, tail first, all of them to the end of the queue.

    The first ``known`` of them get their identity, private ones only if the request will be back. Returns the
    number of blocks that nobody else uses.
    """
    if ended:
        store_blocks(px, r, known)
    else:
        _store_up_to(px, r, known)
    tail = blocks - px.users[r, HASHED]
    if tail > 0:
        _append_unfindable(px.extents, px.counters, tail)
    return int(tail + _release_entries(px, r))
