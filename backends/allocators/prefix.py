"""Which content lies in which block: the index behind prefix hits.

Content is identified by comparison: a node is found only under the very parent node and with the
very tokens it was made of. By induction a hit is exact whatever any hash function does. Its name,
for events and policies, is a chained hash: equal in every process.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from array import array
from collections.abc import Callable, Sequence

from pagedattn.allocator import Event, EventKind

__all__ = ["TOKEN_BYTES", "Node", "PrefixIndex", "pack"]

TOKEN_BYTES = 8
_ONE = struct.Struct("<q").pack


def pack(tokens: Sequence[int]) -> bytes:
    """Token ids as little-endian int64: compact, comparable, the same on every machine."""
    try:
        if len(tokens) == 1:  # a decode step
            return _ONE(tokens[0])
        packed = array("q", tokens)
    except (TypeError, OverflowError, struct.error) as error:
        raise ValueError(f"token ids must be integers that fit 64 bits: {error}") from None
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


class Node:
    """One full block of content after one particular prefix.

    tokens   the block's tokens, packed; for a root the namespace
    depth    index of the block in its chain; -1 for a root
    key      chained hash; b"" for a root
    blocks   the blocks that hold this content (an ordered set)
    users    how many blocks, children and sequence ends refer to the node; at 0 it is forgotten
    """

    __slots__ = ("blocks", "depth", "key", "parent", "tokens", "users")

    def __init__(self, parent: Node | None, tokens: bytes, key: bytes) -> None:
        self.parent, self.tokens, self.key = parent, tokens, key
        self.depth: int = -1 if parent is None else parent.depth + 1
        self.blocks: dict[int, None] = {}
        self.users = 0


class PrefixIndex:
    """Nodes by parent and tokens, the node of every published block, and the log of changes."""

    def __init__(
        self, num_blocks: int, block_size: int, hash_fn: Callable[[bytes], bytes] | None
    ) -> None:
        self.block_size = block_size
        self.node_of: list[Node | None] = [None] * num_blocks
        self.roots: dict[bytes, Node] = {}
        self.nodes: dict[tuple[Node, bytes], Node] = {}
        self._hash = hash_fn or (lambda data: hashlib.sha256(data).digest())
        # None: it grew too long while nobody drained it.
        self._events: list[tuple[EventKind, int, Node | None]] | None = []

    # -- content -----------------------------------------------------------------------------

    def root(self, namespace: bytes) -> Node:
        """Start of the chains of `namespace`; known to the index once it is held."""
        return self.roots.get(namespace) or Node(None, namespace, b"")

    def key(self, parent: Node, tokens: bytes) -> bytes:
        """Name of the block `tokens` after `parent`; the namespace enters with the first block."""
        if parent.parent is None:
            namespace = parent.tokens
            return self._hash(b"\0" + len(namespace).to_bytes(8, "little") + namespace + tokens)
        return self._hash(b"\1" + parent.key + tokens)

    def find(self, parent: Node, tokens: bytes) -> Node | None:
        """The node of `tokens` after `parent`, or None."""
        return self.nodes.get((parent, tokens))

    def child(self, parent: Node, tokens: bytes) -> Node:
        """The same, made when missing."""
        node = self.find(parent, tokens)
        if node is None:
            node = self.nodes[parent, tokens] = Node(parent, tokens, self.key(parent, tokens))
            self.hold(parent)
        return node

    def rewind(self, tip: Node, tail: bytes, tokens: int) -> tuple[Node, bytes]:
        """End of the chain `tip`, `tail` when it is cut to its first `tokens` tokens."""
        depth, rest = divmod(tokens, self.block_size)
        while tip.parent is not None and tip.depth >= depth:
            tip, tail = tip.parent, tip.tokens
        return tip, tail[: rest * TOKEN_BYTES]

    def hold(self, node: Node) -> None:
        """One more user."""
        node.users += 1
        if node.parent is None:
            self.roots[node.tokens] = node

    def drop(self, node: Node) -> None:
        """One user less; the last one forgets the node, and with it its hold on its parent."""
        node.users -= 1
        while node.users == 0:
            if node.parent is None:
                del self.roots[node.tokens]
                return
            del self.nodes[node.parent, node.tokens]
            node = node.parent
            node.users -= 1

    # -- blocks ------------------------------------------------------------------------------

    def publish(self, block: int, node: Node) -> None:
        """`block` holds the content of `node` and may be found from now on."""
        self.hold(node)
        self.node_of[block] = node
        node.blocks[block] = None
        self._log(EventKind.STORED, block, node)

    def unpublish(self, block: int) -> None:
        """`block` will be overwritten: nobody may find it any more."""
        node = self.node_of[block]
        assert node is not None, f"block {block} is not published"
        self.node_of[block] = None
        del node.blocks[block]
        self._log(EventKind.REMOVED, block, node)
        self.drop(node)

    def clear(self) -> None:
        """Forget all content; no sequence may be open."""
        self.node_of = [None] * len(self.node_of)
        self.roots.clear()
        self.nodes.clear()
        self._events = [(EventKind.CLEARED, -1, None)]

    def resize(self, num_blocks: int) -> None:
        """Blocks from `num_blocks` on are gone (and were unpublished) or new."""
        del self.node_of[num_blocks:]
        self.node_of.extend([None] * (num_blocks - len(self.node_of)))

    # -- events ------------------------------------------------------------------------------

    def drain(self) -> list[Event]:
        """The log since the last call; CLEARED and the present state when it grew too long."""
        events, self._events = self._events, []
        if events is None:
            stored = [(EventKind.STORED, b, n) for b, n in enumerate(self.node_of) if n is not None]
            stored.sort(key=lambda item: item[2].depth)
            events = [(EventKind.CLEARED, -1, None), *stored]
        return [
            Event(kind) if node is None else Event(kind, block, node.key, _key(node.parent))
            for kind, block, node in events
        ]

    def _log(self, kind: EventKind, block: int, node: Node) -> None:
        if self._events is not None:
            self._events.append((kind, block, node))
            if len(self._events) > len(self.node_of) + 4096:
                self._events = None


def _key(node: Node | None) -> bytes:
    return b"" if node is None else node.key
