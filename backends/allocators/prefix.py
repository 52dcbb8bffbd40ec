"""Which content lies in which block: the index behind prefix hits.

Content is identified by comparison: a node is found only under the very parent node and with the
very tokens it was made of. By induction a hit is exact whatever any hash function does. Its name,
for events and policies, is a chained hash: equal in every process.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from hashlib import sha256

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
    block    a block that holds this content; -1: there is none
    more     further blocks that hold it, where there are any
    child    a node that follows this one; mostly there is one alone
    others   the other nodes that follow it, by their tokens, where there are any
    users    how many blocks, children and sequence ends refer to the node; at 0 it is forgotten
    """

    __slots__ = ("block", "child", "depth", "key", "more", "others", "parent", "tokens", "users")

    def __init__(self, parent: Node | None, tokens: bytes, key: bytes) -> None:
        self.parent, self.tokens, self.key = parent, tokens, key
        self.depth: int = -1 if parent is None else parent.depth + 1
        self.block = -1
        self.more: dict[int, None] | None = None
        self.child: Node | None = None
        self.others: dict[bytes, Node] | None = None
        self.users = 0

    @property
    def blocks(self) -> tuple[int, ...]:
        """All blocks that hold this content."""
        return () if self.block < 0 else (self.block, *(self.more or ()))


class _Published(dict[int, "Node | None"]):
    """The node of each published block, None for any other."""

    __slots__ = ()

    def __missing__(self, block: int) -> None:
        return None


class PrefixIndex:
    """A tree of nodes from a root for each namespace, the node of every published block, and the
    log of changes."""

    def __init__(self, block_size: int, hash_fn: Callable[[bytes], bytes] | None) -> None:
        self.block_size = block_size
        self.node_of = _Published()
        self.roots: dict[bytes, Node] = {}
        self._hash = hash_fn or _sha256
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
        child = parent.child
        if child is not None and child.tokens == tokens:
            return child
        return parent.others.get(tokens) if parent.others else None

    def child(self, parent: Node, tokens: bytes) -> Node:
        """The same, made when missing; the index knows `parent`."""
        node = self.find(parent, tokens)
        if node is None:
            node = Node(parent, tokens, self.key(parent, tokens))
            parent.users += 1
            if parent.child is None:
                parent.child = node
            elif parent.others is None:
                parent.others = {tokens: node}
            else:
                parent.others[tokens] = node
        return node

    @property
    def nodes(self) -> dict[tuple[Node, bytes], Node]:
        """All nodes but the roots by parent and tokens; O(nodes), for audits."""
        found: dict[tuple[Node, bytes], Node] = {}
        parents = list(self.roots.values())
        for parent in parents:
            first = () if parent.child is None else (parent.child,)
            for node in (*first, *(parent.others or {}).values()):
                found[parent, node.tokens] = node
                parents.append(node)
        return found

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
        while not node.users:
            parent = node.parent
            if parent is None:
                del self.roots[node.tokens]
                return
            if parent.child is node:
                parent.child = None
            elif parent.others:
                del parent.others[node.tokens]
            node = parent
            node.users -= 1

    # -- blocks ------------------------------------------------------------------------------

    def publish(self, block: int, node: Node) -> None:
        """`block` holds the content of `node` and may be found from now on."""
        node.users += 1
        self.node_of[block] = node
        if node.block < 0:
            node.block = block
        elif node.more is None:
            node.more = {block: None}
        else:
            node.more[block] = None
        self._log(EventKind.STORED, block, node)

    def unpublish(self, block: int) -> None:
        """`block` will be overwritten: nobody may find it any more."""
        node = self.node_of.pop(block, None)
        assert node is not None, f"block {block} is not published"
        if not node.more:
            node.block = -1
        elif node.block == block:
            node.block = node.more.popitem()[0]
        else:
            del node.more[block]
        self._log(EventKind.REMOVED, block, node)
        self.drop(node)

    def clear(self) -> None:
        """Forget all content; no sequence may be open."""
        for node in (*self.roots.values(), *self.nodes.values()):
            node.child = node.others = None  # parents and children hold each other
        self.node_of.clear()
        self.roots.clear()
        self._events = [(EventKind.CLEARED, -1, None)]

    # -- events ------------------------------------------------------------------------------

    def drain(self) -> list[Event]:
        """The log since the last call; CLEARED and the present state when it grew too long."""
        events, self._events = self._events, []
        if events is None:
            stored = [(EventKind.STORED, b, n) for b, n in self.node_of.items() if n is not None]
            stored.sort(key=lambda item: (item[2].depth, item[1]))
            events = [(EventKind.CLEARED, -1, None), *stored]
        return [
            Event(kind) if node is None else Event(kind, block, node.key, _key(node.parent))
            for kind, block, node in events
        ]

    def _log(self, kind: EventKind, block: int, node: Node) -> None:
        if self._events is not None:
            self._events.append((kind, block, node))
            if len(self._events) > 4096 + len(self.node_of) // 4:
                self._events = None


def _sha256(data: bytes) -> bytes:
    return sha256(data).digest()


def _key(node: Node | None) -> bytes:
    return b"" if node is None else node.key
