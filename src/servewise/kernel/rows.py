"""What vLLM's planning functions share: a request's blocks and its place in the calendar of last tokens."""

from __future__ import annotations

from servewise.kernel.layout import Prefix, Replica, compiled
from servewise.kernel.prefix import release_blocks

__all__ = ["blocks_of", "next_finish_after", "release", "unlink"]


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
