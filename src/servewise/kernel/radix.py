"""SGLang's prefix tree for one replica (specification: docs/sglang-scheduler.md), exact at page level.

A *segment* is a node of the tree: a run of pages of the request that put it there, its owner. Segments are numbered
from 1; 0 stands for the root and for none. The tree holds every content once, so a *node* of the workload (a trace
block with everything before it, or all that is private to a request) is found through the segment that holds its first
page, and through the segments that begin somewhere else in it.

What requests hold and what the tree holds are counted in pages. Segments that nobody holds are a list, the one touched
longest ago first. The segments of a path are touched together, the deepest first, so whoever stands in front has
nothing below it and can be evicted.

Rows that were never used are all zeros: the caller allocates for the worst case, and the operating system gives memory
for what is used.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from servewise.kernel.layout import Prefix, compiled

__all__ = ["AVAILABLE", "Radix", "drop", "evict", "hold", "keep", "look_up", "new_radix", "node_of", "release"]

# Columns of ``Radix.segments``.
OWNER = 0
START = 1
LENGTH = 2
PARENT = 3
HOLDERS = 4
OLDER = 5
NEWER = 6
"""Neighbours in the list; ``NEWER`` also links the spare segments."""
BESIDE = 7
"""The next segment that begins in the same node, and not with it."""
NUM_COLUMNS = 8

# Columns of ``Radix.nodes``.
WITH_START = 0
BEGINS_WITHIN = 1

# Columns of ``Radix.users``.
PATH_END = 0
KEPT = 1

# Places in ``Radix.counters``.
AVAILABLE = 0
"""Pages that contain nothing."""
OLDEST = 1
NEWEST = 2
SPARE = 3
NUM_USED = 4
NUM_COUNTERS = 5


class Radix(NamedTuple):
    """A replica's tree. ``users`` is by request and shared between the replicas: the last segment of the path that a
    request holds, and the pages of that path."""

    segments: NDArray[np.int32]
    nodes: NDArray[np.int32]
    counters: NDArray[np.int64]
    users: NDArray[np.int32]


def new_radix(num_replicas: int, num_pages: int, num_nodes: int, num_requests: int) -> Radix:
    """Empty trees, the replica as the first axis.

    Parameters
    ----------
    num_replicas : int
    num_pages : int
        Of a replica's cache; 0 makes placeholders.
    num_nodes : int
        Nodes that several requests have in common.
    num_requests : int
    """
    counters = np.zeros((num_replicas, NUM_COUNTERS), np.int64)
    counters[:, AVAILABLE] = num_pages
    num_private = num_requests if num_pages else 0
    return Radix(
        segments=np.zeros((num_replicas, num_pages + 2, NUM_COLUMNS), np.int32),
        nodes=np.zeros((num_replicas, num_nodes + num_private if num_pages else 1, 2), np.int32),
        counters=counters,
        users=np.zeros((num_requests, 2), np.int32),
    )


@compiled
def _remove(segments: Any, counters: Any, s: int) -> None:
    older, newer = segments[s, OLDER], segments[s, NEWER]
    if older > 0:
        segments[older, NEWER] = newer
    else:
        counters[OLDEST] = newer
    if newer > 0:
        segments[newer, OLDER] = older
    else:
        counters[NEWEST] = older


@compiled
def _put_after(segments: Any, counters: Any, s: int, older: int) -> None:
    """Put a segment into the list behind ``older``, in front with 0."""
    newer = segments[older, NEWER] if older > 0 else counters[OLDEST]
    segments[s, OLDER] = older
    segments[s, NEWER] = newer
    if older > 0:
        segments[older, NEWER] = s
    else:
        counters[OLDEST] = s
    if newer > 0:
        segments[newer, OLDER] = s
    else:
        counters[NEWEST] = s


@compiled
def _new_segment(segments: Any, counters: Any) -> int:
    s = counters[SPARE]
    if s > 0:
        counters[SPARE] = segments[s, NEWER]
    else:
        counters[NUM_USED] += 1
        s = counters[NUM_USED]
    return int(s)


@compiled
def node_of(px: Prefix, r: int, page: int) -> tuple[int, int]:
    """Node of a request's page, and the page at which that node begins."""
    first = px.offsets[r]
    named = (px.offsets[r + 1] - first) << px.span_shift
    if page < named:
        return px.nodes[first + (page >> px.span_shift)], page >> px.span_shift << px.span_shift
    return px.num_shared + r, named


@compiled
def _common_pages(px: Prefix, r: int, owner: int) -> int:
    """Pages that two requests have in common: nodes stand for all before them, so the last equal one tells."""
    if r == owner:
        return 1 << 30
    first, second = px.offsets[r], px.offsets[owner]
    low = 0
    high = min(px.offsets[r + 1] - first, px.offsets[owner + 1] - second)
    while low < high:
        middle = (low + high + 1) >> 1
        if px.nodes[first + middle - 1] == px.nodes[second + middle - 1]:
            low = middle
        else:
            high = middle - 1
    return int(low << px.span_shift)


@compiled
def _child(px: Prefix, segments: Any, nodes: Any, r: int, page: int) -> int:
    """The segment that begins with a request's page; the path to it is that of the pages before it."""
    node, start = node_of(px, r, page)
    if page == start:
        return int(nodes[node, WITH_START])
    s = nodes[node, BEGINS_WITHIN]
    while s > 0 and segments[s, START] != page:
        s = segments[s, BESIDE]
    return int(s)


@compiled
def _set_holder(px: Prefix, nodes: Any, owner: int, start: int, end: int, s: int) -> None:
    """Write down that segment ``s`` holds the nodes that begin in a run of pages."""
    first = px.offsets[owner]
    num_named = px.offsets[owner + 1] - first
    j = (start + (1 << px.span_shift) - 1) >> px.span_shift
    while j < num_named and j << px.span_shift < end:
        nodes[px.nodes[first + j], WITH_START] = s
        j += 1
    named = num_named << px.span_shift
    if start <= named < end:
        nodes[px.num_shared + owner, WITH_START] = s


@compiled
def _link_begin(px: Prefix, segments: Any, nodes: Any, s: int) -> None:
    """A segment that begins within a node is found through that node."""
    node, start = node_of(px, segments[s, OWNER], segments[s, START])
    if start != segments[s, START]:
        segments[s, BESIDE] = nodes[node, BEGINS_WITHIN]
        nodes[node, BEGINS_WITHIN] = s


@compiled
def _unlink_begin(px: Prefix, segments: Any, nodes: Any, s: int, instead: int) -> None:
    """Take a segment out of the node within which it begins, or put another one in its place."""
    node, start = node_of(px, segments[s, OWNER], segments[s, START])
    if start == segments[s, START]:
        return
    other = nodes[node, BEGINS_WITHIN]
    before = 0
    while other != s:
        before = other
        other = segments[other, BESIDE]
    following = segments[s, BESIDE]
    if instead > 0:
        segments[instead, BESIDE] = following
        following = instead
    if before > 0:
        segments[before, BESIDE] = following
    else:
        nodes[node, BEGINS_WITHIN] = following


@compiled
def _split(px: Prefix, tree: Radix, s: int, length: int) -> int:
    """Cut a segment after ``length`` pages; returns the new segment that stands before it."""
    segments, nodes, counters = tree.segments, tree.nodes, tree.counters
    front = _new_segment(segments, counters)
    start = segments[s, START]
    segments[front, OWNER] = segments[s, OWNER]
    segments[front, START] = start
    segments[front, LENGTH] = length
    segments[front, PARENT] = segments[s, PARENT]
    segments[front, HOLDERS] = segments[s, HOLDERS]
    _unlink_begin(px, segments, nodes, s, front)
    _set_holder(px, nodes, segments[s, OWNER], start, start + length, front)
    segments[s, START] = start + length
    segments[s, LENGTH] -= length
    segments[s, PARENT] = front
    _link_begin(px, segments, nodes, s)
    if segments[s, HOLDERS] == 0:
        _put_after(segments, counters, front, s)
    return front


@compiled
def _touch(segments: Any, counters: Any, s: int) -> None:
    if segments[s, HOLDERS] == 0 and counters[NEWEST] != s:
        _remove(segments, counters, s)
        _put_after(segments, counters, s, counters[NEWEST])


@compiled
def _walk(px: Prefix, tree: Radix, r: int, limit: int) -> tuple[int, int]:
    """Pages of a request's first ``limit`` that are in the tree, and the segment that ends there; splits it."""
    segments, nodes, counters = tree.segments, tree.nodes, tree.counters
    found = 0
    last = 0
    while found < limit:
        s = _child(px, segments, nodes, r, found)
        if s == 0:
            break
        length = segments[s, LENGTH]
        equal = min(length, limit - found, _common_pages(px, r, segments[s, OWNER]) - found)
        if equal < length:
            _touch(segments, counters, s)
            last = _split(px, tree, s, equal)
            return found + equal, last
        found += equal
        last = s
    return found, last


@compiled
def _touch_path(segments: Any, counters: Any, s: int) -> int:
    """Touch a path, its end first; returns the pages of it that nobody holds."""
    unheld = 0
    while s > 0:
        _touch(segments, counters, s)
        if segments[s, HOLDERS] == 0:
            unheld += segments[s, LENGTH]
        s = segments[s, PARENT]
    return unheld


@compiled
def look_up(px: Prefix, tree: Radix, r: int, limit: int) -> tuple[int, int, int]:
    """Pages of a request's first ``limit`` that are in the tree, how many of them nobody holds, and where they end."""
    found, last = _walk(px, tree, r, limit)
    return found, _touch_path(tree.segments, tree.counters, last), last


@compiled
def hold(tree: Radix, r: int, last: int, pages: int) -> None:
    """Let a request hold the path of ``pages`` pages that :func:`look_up` has found."""
    segments, counters = tree.segments, tree.counters
    s = last
    while s > 0:
        if segments[s, HOLDERS] == 0:
            _remove(segments, counters, s)
        segments[s, HOLDERS] += 1
        s = segments[s, PARENT]
    tree.users[r, PATH_END] = last
    tree.users[r, KEPT] = pages


@compiled
def keep(px: Prefix, tree: Radix, r: int, pages: int, prompt_pages: int) -> int:
    """Put a request's first ``pages`` pages into the tree and hold their path.

    Returns by how many the pages that nobody holds have changed.
    """
    segments, counters, users = tree.segments, tree.counters, tree.users
    kept = users[r, KEPT]
    found, last = _walk(px, tree, r, pages)
    if found < pages:
        leaf = _new_segment(segments, counters)
        segments[leaf, OWNER] = r
        segments[leaf, START] = found
        segments[leaf, LENGTH] = pages - found
        segments[leaf, PARENT] = last
        segments[leaf, HOLDERS] = 0
        _set_holder(px, tree.nodes, r, found, pages, leaf)
        _link_begin(px, segments, tree.nodes, leaf)
        _put_after(segments, counters, leaf, counters[NEWEST])
        last = leaf
    _touch_path(segments, counters, last)
    if 0 < prompt_pages < pages:
        look_up(px, tree, r, prompt_pages)
    counters[AVAILABLE] += found - kept
    change = pages - kept
    s = last
    while s > 0 and segments[s, START] >= kept:
        if segments[s, HOLDERS] == 0:
            _remove(segments, counters, s)
            change -= segments[s, LENGTH]
        segments[s, HOLDERS] += 1
        s = segments[s, PARENT]
    users[r, PATH_END] = last
    users[r, KEPT] = pages
    return int(change)


@compiled
def drop(tree: Radix, r: int, pages: int) -> int:
    """Give up a request's ``pages`` pages; those that are in the tree stay there.

    The path goes to the back of the list. It belongs there: an ended request has just touched it, and one is retracted
    only when everything that nobody held has been evicted. Returns how many pages nobody holds now that were held.
    """
    segments, counters, users = tree.segments, tree.counters, tree.users
    own = pages - users[r, KEPT]
    counters[AVAILABLE] += own
    s = users[r, PATH_END]
    while s > 0:
        segments[s, HOLDERS] -= 1
        if segments[s, HOLDERS] == 0:
            own += segments[s, LENGTH]
            _put_after(segments, counters, s, counters[NEWEST])
        s = segments[s, PARENT]
    users[r, PATH_END] = 0
    users[r, KEPT] = 0
    return int(own)


@compiled
def release(px: Prefix, tree: Radix, r: int, pages: int, whole_pages: int, prompt_pages: int) -> int:
    """An ended request leaves its ``whole_pages`` to the tree and gives up its ``pages``; returns as :func:`drop`."""
    change = keep(px, tree, r, whole_pages, prompt_pages)
    return change + drop(tree, r, pages)


@compiled
def evict(px: Prefix, tree: Radix, wanted: int) -> None:
    """Evict segments until ``wanted`` pages are available, if there are any left."""
    segments, counters = tree.segments, tree.counters
    while counters[AVAILABLE] < wanted and counters[OLDEST] > 0:
        s = counters[OLDEST]
        _remove(segments, counters, s)
        start, length = segments[s, START], segments[s, LENGTH]
        _set_holder(px, tree.nodes, segments[s, OWNER], start, start + length, 0)
        _unlink_begin(px, segments, tree.nodes, s, 0)
        counters[AVAILABLE] += length
        segments[s, NEWER] = counters[SPARE]
        counters[SPARE] = s
