"""SGLang's prefix tree and page pool in plain Python: one object a node, a list of contents a node.

To be read beside ``docs/sglang-scheduler.md``. As in SGLang, nodes are stamped with a counter when they are touched
and the leaf with the lowest stamp is evicted; the kernel keeps a list instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile

Content = int | tuple[str, int, int]
"""A page with everything before it: a name, or ``("own", request id, index)``."""


@dataclass(slots=True, eq=False)
class Node:
    """A run of pages. ``holders`` counts the requests that hold it."""

    contents: list[Content]
    parent: Node | None
    children: dict[Content, Node] = field(default_factory=dict)
    holders: int = 0
    stamp: float = 0.0


class RadixTree:
    """``available`` pages that contain nothing, and those in the nodes; requests have the rest."""

    def __init__(self, num_pages: int) -> None:
        self.available = num_pages
        self.root = Node([], None)
        self.clock = 0

    # ---------------------------------------------------------------- looking

    def nodes(self) -> list[Node]:
        """All but the root."""
        found: list[Node] = []
        todo = [self.root]
        while todo:
            node = todo.pop()
            found.extend(node.children.values())
            todo.extend(node.children.values())
        return found

    @property
    def evictable(self) -> int:
        """Pages of the tree that nobody holds."""
        return sum(len(node.contents) for node in self.nodes() if node.holders == 0)

    def path(self, node: Node) -> list[Node]:
        """From the node up, without the root."""
        found = []
        while node.parent is not None:
            found.append(node)
            node = node.parent
        return found

    def look_up(self, contents: list[Content]) -> tuple[int, Node]:
        """Pages that are in the tree, and the node where they end; touches the path."""
        found, node = self._walk(contents)
        self._touch(node)
        return found, node

    def _walk(self, contents: list[Content]) -> tuple[int, Node]:
        found, node = 0, self.root
        while found < len(contents) and contents[found] in node.children:
            child = node.children[contents[found]]
            equal = sum(
                1
                for _ in takewhile(lambda pair: pair[0] == pair[1], zip(child.contents, contents[found:], strict=False))
            )
            found += equal
            if equal < len(child.contents):
                return found, self._split(child, equal)
            node = child
        return found, node

    def _split(self, node: Node, length: int) -> Node:
        """Cut a node after ``length`` pages; returns the new node before it."""
        assert node.parent is not None
        front = Node(node.contents[:length], node.parent, holders=node.holders)
        node.parent.children[front.contents[0]] = front
        node.contents = node.contents[length:]
        front.children = {node.contents[0]: node}
        node.parent = front
        self.clock += 1
        node.stamp = self.clock
        self.clock += 1
        front.stamp = self.clock
        return front

    def _touch(self, node: Node) -> None:
        self.clock += len(self.path(node)) + 1
        for above, touched in enumerate(self.path(node)):  # a node's stamp is below its parent's
            touched.stamp = self.clock - len(self.path(node)) + above

    # ---------------------------------------------------------------- changing

    def hold(self, node: Node) -> None:
        """One more request holds the path to this node."""
        for held in self.path(node):
            held.holders += 1

    def let_go(self, node: Node) -> None:
        """One less."""
        for held in self.path(node):
            held.holders -= 1

    def insert(self, contents: list[Content]) -> tuple[int, Node]:
        """Put contents into the tree; returns how many pages were there already, and the node where they end."""
        found, node = self._walk(contents)
        if found < len(contents):
            leaf = Node(contents[found:], node)
            node.children[contents[found]] = leaf
            node = leaf
        self._touch(node)
        return found, node

    def evict(self, wanted: int) -> None:
        """Evict leaves that nobody holds until ``wanted`` pages are available, if there are any."""
        while self.available < wanted:
            leaves = [node for node in self.nodes() if not node.children and node.holders == 0]
            if not leaves:
                return
            oldest = min(leaves, key=lambda node: node.stamp)
            assert oldest.parent is not None
            del oldest.parent.children[oldest.contents[0]]
            self.available += len(oldest.contents)
