"""vLLM's KV blocks: one object a block, the free queue a list, the prefix cache a dictionary."""

from __future__ import annotations

from dataclasses import dataclass

Identity = int | tuple[str, int, int]
"""A full block's content and all before it: a named identity, or ``("own", request id, index)``."""


@dataclass(slots=True, eq=False)
class Block:
    """A KV block: free (``ref`` 0, in the free queue) or held by ``ref`` requests; hashed or not."""

    number: int
    ref: int = 0
    identity: Identity | None = None


class BlockPool:
    """KV blocks: a queue of free ones in order of reuse, and the hashed ones by what they contain."""

    def __init__(self, num_blocks: int, caching: bool) -> None:
        self.blocks = [Block(number) for number in range(num_blocks)]
        self.caching = caching
        self.free = list(self.blocks)
        self.hashed: dict[Identity, list[Block]] = {}

    def lookup(self, identity: Identity) -> Block | None:
        """The block with this content; the one hashed first where several have it."""
        found = self.hashed.get(identity)
        return found[0] if found else None

    def set_hash(self, block: Block, identity: Identity) -> None:
        """Make a full block findable. Copies of the same content are kept side by side, not merged."""
        block.identity = identity
        self.hashed.setdefault(identity, []).append(block)

    def take(self, count: int) -> list[Block]:
        """Pop blocks from the front of the free queue; their old content is forgotten."""
        taken, self.free = self.free[:count], self.free[count:]
        for block in taken:
            if block.identity is not None:
                copies = self.hashed[block.identity]
                copies.remove(block)
                if not copies:
                    del self.hashed[block.identity]
                block.identity = None
            block.ref = 1
        return taken

    def touch(self, block: Block) -> None:
        """One more request holds this block."""
        if block.ref == 0:
            self.free.remove(block)
        block.ref += 1

    def release(self, blocks: list[Block]) -> None:
        """A request lets go of its blocks, the last one first."""
        unhashed: list[Block] = []
        for block in reversed(blocks):
            block.ref -= 1
            if block.ref == 0:
                if block.identity is None:
                    unhashed.append(block)
                else:
                    self.free.append(block)
        self.free = unhashed + self.free
