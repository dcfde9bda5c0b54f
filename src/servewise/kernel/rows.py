"""What drivers share that grow their requests: blocks, the running list, the calendar of last tokens."""

from __future__ import annotations

from typing import Any

from servewise.kernel.layout import Prefix, Replica, compiled
from servewise.kernel.prefix import release_blocks

__all__ = [
    "blocks_of",
    "compact",
    "next_finish_after",
    "release",
    "sort_by_position",
    "steps_before_shortage",
    "unlink",
]


@compiled
def blocks_of(tokens: int, shift: int) -> int:
    """Blocks of ``1 << shift`` tokens that hold so many tokens."""
    return (tokens + (1 << shift) - 1) >> shift


@compiled
def release(px: Prefix, caching: bool, r: int, scheduled: int, known: int, ended: bool, shift: int) -> int:
    """Free the blocks of a request's ``scheduled`` tokens, of which ``known`` can have an identity."""
    blocks = blocks_of(scheduled, shift)
    return release_blocks(px, r, blocks, known >> shift, ended) if caching else blocks


@compiled
def unlink(rep: Replica, r: int, bucket: int) -> None:
    """Take a request out of the calendar."""
    other = rep.ring[bucket]
    if other == r:
        rep.ring[bucket] = rep.next_same[r]
        return
    while rep.next_same[other] != r:
        other = rep.next_same[other]
    rep.next_same[other] = rep.next_same[r]


@compiled
def next_finish_after(rep: Replica, step: int, far: int) -> int:
    """The first step after number ``step`` in which a row emits its last token; ``far`` if there is none."""
    ring_mask = len(rep.ring) - 1
    finish = step + 1
    while rep.ring[finish & ring_mask] < 0 and finish - step <= ring_mask:
        finish += 1
    return far if finish - step > ring_mask else finish


@compiled
def steps_before_shortage(phase: Any, step: int, free: int, rows: int, limit: int) -> int:
    """Most steps (at most ``limit``) after step number ``step`` that ``free`` blocks allow."""
    size = len(phase)
    if (limit // size + 1) * rows <= free:
        return limit
    cycles = free // rows
    free -= cycles * rows
    steps = cycles * size
    while steps < limit:
        free -= phase[(step + steps) & (size - 1)]
        if free < 0:
            return steps
        steps += 1
    return limit


@compiled
def compact(rep: Replica, top: int) -> int:
    """Close the gaps of the running list; returns its new length."""
    kept = 0
    for i in range(top):
        r = rep.running[i]
        if r >= 0:
            rep.running[kept] = r
            rep.position[r] = kept
            kept += 1
    return kept


@compiled
def sort_by_position(rep: Replica, count: int) -> None:
    """Order requests that ended together as they stand in the running list: so they are freed."""
    for i in range(1, count):
        r = rep.pending[i]
        j = i - 1
        while j >= 0 and rep.position[rep.pending[j]] > rep.position[r]:
            rep.pending[j + 1] = rep.pending[j]
            j -= 1
        rep.pending[j + 1] = r
