"""Which content lies in which block: the index behind prefix hits.

Content is identified by comparison: a node is found only under the very parent node and with the
very tokens it was made of. By induction a hit is exact whatever any hash function does. Its name,
for events and policies, is a chained hash: equal in every process, and computed when it is asked
for, because nothing is found by it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from hashlib import sha256

from pagedattn.allocator import Event, EventKind

__all__ = ["TOKEN_BYTES", "Node", "PrefixIndex", "pack"]

TOKEN_BYTES = 8
_ONE = struct.Struct("<q").pack
_PIECE = 16  # blocks of a prompt that are packed at once at first; twice as many each further time


def pack(tokens: Sequence[int]) -> bytes:
    """Token ids as little-endian int64: compact, comparable, the same on every machine."""
    try:
        if len(tokens) == 1:  # a decode step
            return _ONE(tokens[0])
        return struct.pack(f"<{len(tokens)}q", *tokens)
    except (TypeError, struct.error) as error:
        raise ValueError(f"token ids must be integers that fit 64 bits: {error}") from None


class Node:
    """One full block of content after one particular prefix.

    tokens   the block's tokens, packed; for a root the namespace
    depth    index of the block in its chain; -1 for a root
    key      chained hash; b"" for a root, and until somebody asks for it (PrefixIndex.key_of)
    block    a block that holds this content; -1: there is none
    more     further blocks that hold it, where there are any
    child    a node that follows this one; mostly there is one alone
    others   the other nodes that follow it, by their tokens, where there are any
    users    how many blocks, children and sequence ends refer to the node; at 0 it is forgotten
    """

    __slots__ = ("block", "child", "depth", "key", "more", "others", "parent", "tokens", "users")

    def __init__(self, parent: Node | None, tokens: bytes, depth: int) -> None:
        self.parent, self.tokens, self.depth = parent, tokens, depth
        self.key = b""
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
        self._width = block_size * TOKEN_BYTES
        self.node_of = _Published()
        self.roots: dict[bytes, Node] = {}
        self._hash = hash_fn or _sha256
        # Blocks that changed alike in one call, and their nodes. None: the log grew too long while
        # nobody drained it.
        self._events: list[tuple[EventKind, Sequence[int], Sequence[Node]]] | None = []
        self._logged = 0  # blocks in there

    # -- content -----------------------------------------------------------------------------

    def root(self, namespace: bytes) -> Node:
        """Start of the chains of `namespace`; known to the index once it is held."""
        return self.roots.get(namespace) or Node(None, namespace, -1)

    def key(self, parent: Node, tokens: bytes) -> bytes:
        """Name of the block `tokens` after `parent`, which has its own; the namespace enters with
        the first block."""
        if parent.parent is None:
            namespace = parent.tokens
            return self._hash(b"\0" + len(namespace).to_bytes(8, "little") + namespace + tokens)
        return self._hash(b"\1" + parent.key + tokens)

    def key_of(self, node: Node) -> bytes:
        """Name of a node. O(1) a node, those before it included: each is named once."""
        if node.key or node.parent is None:
            return node.key
        nameless, parent = [node], node.parent
        while not parent.key and parent.parent is not None:
            nameless.append(parent)
            parent = parent.parent
        for one in reversed(nameless):
            one.key = self.key(parent, one.tokens)
            parent = one
        return node.key

    def describe(self, block: int) -> tuple[bytes, int]:
        """Key and depth of a published block."""
        node = self.node_of[block]
        assert node is not None, f"block {block} is not published"
        return self.key_of(node), node.depth

    def find(self, parent: Node, tokens: bytes) -> Node | None:
        """The node of `tokens` after `parent`, or None."""
        child = parent.child
        if child is not None and child.tokens == tokens:
            return child
        return parent.others.get(tokens) if parent.others else None

    def match(self, root: Node, tokens: Sequence[int]) -> list[Node]:
        """The nodes of a prompt's leading full blocks, as far as blocks hold them. Its last token
        is not looked for: its logits are wanted.

        The prompt is packed piece by piece, as far as its blocks are found."""
        size, width, step = self.block_size, self._width, self.block_size * _PIECE
        start, end = 0, (len(tokens) - 1) // size * size
        node, found = root, list[Node]()
        while start < end:
            piece = pack(tokens[start : min(start + step, end)])
            for at in range(0, len(piece), width):
                content = piece[at : at + width]
                child = node.child
                if child is None or child.tokens != content:
                    child = self.find(node, content)
                if child is None or child.block < 0:
                    return found
                found.append(child)
                node = child
            start += step
            step *= 2
        return found

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

    def publish(self, tip: Node, tokens: bytes, blocks: Sequence[int]) -> Node:
        """`tokens`, packed, follow `tip`, where a sequence ends, and lie in `blocks`: they may be
        found from now on. Leading blocks may be -1: what they held lies in none. The new end of the
        sequence is returned."""
        new, node_of, width, at = Node.__new__, self.node_of, self._width, 0
        nodes: list[Node] = []
        for block in blocks:
            content = tokens[at : at + width]
            at += width
            if tip.child is None and not tip.others:
                # What Node() does, at half the cost: there is a node for every block ever filled.
                node = tip.child = new(Node)
                node.parent = tip
                node.tokens = content
                node.depth = tip.depth + 1
                node.key = b""
                node.block = -1
                node.more = node.child = node.others = None
                node.users = 1  # the end of the sequence; in its place `tip` has a child
            else:
                node = self.find(tip, content) or self._branch(tip, content)
                node.users += 1
                tip.users -= 1
            if block >= 0:
                if node.block < 0:
                    node.block = block
                elif node.more is None:
                    node.more = {block: None}
                else:
                    node.more[block] = None
                node.users += 1
                node_of[block] = node
                nodes.append(node)
            tip = node
        self._log(EventKind.STORED, blocks[len(blocks) - len(nodes) :], nodes)
        return tip

    def unpublish(self, blocks: Sequence[int]) -> None:
        """`blocks`, deepest first where they follow one another, will be overwritten: nobody may
        find them any more."""
        pop, nodes = self.node_of.pop, list[Node]()
        for block in blocks:
            node = pop(block)
            assert node is not None, f"block {block} is not published"
            nodes.append(node)
            if not node.more:
                node.block = -1
            elif node.block == block:
                node.block = node.more.popitem()[0]
            else:
                del node.more[block]
            parent = node.parent
            if node.users == 1 and parent is not None and parent.users > 1 and parent.child is node:
                parent.child = None  # the usual case of drop(): the end of a chain whose rest stays
                parent.users -= 1
            else:
                self.drop(node)
        self._log(EventKind.REMOVED, blocks, nodes)

    def clear(self) -> None:
        """Forget all content; no sequence may be open."""
        for node in (*self.roots.values(), *self.nodes.values()):
            node.child = node.others = None  # parents and children hold each other
        self.node_of.clear()
        self.roots.clear()
        self._events, self._logged = [(EventKind.CLEARED, (), ())], 0

    # -- events ------------------------------------------------------------------------------

    def drain(self) -> list[Event]:
        """The log since the last call; CLEARED and the present state when it grew too long."""
        log = self._events
        if log is None:
            held = [(block, node) for block, node in self.node_of.items() if node is not None]
            held.sort(key=lambda item: (item[1].depth, item[0]))
            log = [
                (EventKind.CLEARED, (), ()),
                (EventKind.STORED, [block for block, _ in held], [node for _, node in held]),
            ]
        events: list[Event] = []
        for kind, blocks, nodes in log:
            if kind is EventKind.CLEARED:
                events.append(Event(kind))
            for block, node in zip(blocks, nodes, strict=True):
                key, parent = self.key_of(node), node.parent  # the parent is named by then
                events.append(Event(kind, block, key, parent.key if parent is not None else b""))
        self._events, self._logged = [], 0
        return events

    def _branch(self, parent: Node, tokens: bytes) -> Node:
        """A new node after `parent`, beside others."""
        node = Node(parent, tokens, parent.depth + 1)
        parent.users += 1
        if parent.child is None:
            parent.child = node
        elif parent.others is None:
            parent.others = {tokens: node}
        else:
            parent.others[tokens] = node
        return node

    def _log(self, kind: EventKind, blocks: Sequence[int], nodes: Sequence[Node]) -> None:
        if self._events is not None and blocks:
            self._events.append((kind, tuple(blocks), nodes))
            self._logged += len(blocks)
            if self._logged > 4096 + len(self.node_of) // 4:
                self._events = None


def _sha256(data: bytes) -> bytes:
    return sha256(data).digest()
