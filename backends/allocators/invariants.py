"""check() of the paged allocator: recompute every redundant fact and compare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from pagedattn.allocator import Violation
from pagedattn.backends.allocators.pool import BlockPool
from pagedattn.backends.allocators.prefix import TOKEN_BYTES, Node, PrefixIndex
from pagedattn.backends.allocators.sequence import SequenceState

__all__ = ["violations"]


def violations(
    sequences: Mapping[int, SequenceState],
    pins: Mapping[int, list[int]],
    pool: BlockPool,
    index: PrefixIndex,
    *,
    prefix_cache: bool,
) -> list[Violation]:
    """All broken invariants; O(blocks + sequences)."""
    found = [
        *_sequences(sequences, pool, index, prefix_cache),
        *_pool(sequences, pins, pool, index),
    ]
    return [Violation(rule, detail) for rule, detail in (*found, *_index(sequences, index))]


def _sequences(
    sequences: Mapping[int, SequenceState], pool: BlockPool, index: PrefixIndex, prefix_cache: bool
) -> Iterator[tuple[str, str]]:
    size = index.block_size
    for seq, state in sequences.items():
        who, columns = f"sequence {seq}", -(-state.length // size)
        if len(state.table) != columns:
            yield "table-length", f"{who}: {len(state.table)} columns for {state.length} tokens"
        if not 0 <= state.committed <= state.length:
            yield "commit", f"{who}: {state.committed} of {state.length} tokens committed"
        head, rest = state.table[: state.released], state.table[state.released :]
        if any(b != -1 for b in head) or any(not 0 <= b < pool.total for b in rest):
            yield "table-ids", f"{who}: {state.released} columns released, table {state.table}"
        if len(set(rest)) != len(rest):
            yield "table-ids", f"{who}: a block twice in {state.table}"
        if state.spare:
            last, left = rest[-1] if rest else -1, columns * size - state.length
            alone = pool.refs[last] == 1 and last not in pool.pins and last not in index.node_of
            if state.spare != left or not alone:
                yield "spare", f"{who}: {state.spare} slots of block {last} are not its own"
        if not prefix_cache:
            continue
        full, partial = divmod(state.committed, size)
        if state.tip.depth + 1 != full or len(state.tail) != partial * TOKEN_BYTES:
            yield "content", f"{who}: content of {state.tip.depth + 1} blocks, {full} committed"
        node: Node | None = state.tip
        for column in range(full - 1, state.released - 1, -1):
            if index.node_of[state.table[column]] is not node:
                yield "content", f"{who}: column {column} is not published as what it holds"
            node = node.parent if node is not None else None


def _pool(
    sequences: Mapping[int, SequenceState],
    pins: Mapping[int, list[int]],
    pool: BlockPool,
    index: PrefixIndex,
) -> Iterator[tuple[str, str]]:
    refs = Counter(b for state in sequences.values() for b in state.table if b >= 0)
    pinned = Counter(b for blocks in pins.values() for b in blocks)
    yield from (("free-list", problem) for problem in pool.room.problems())
    states: Counter[str] = Counter()
    for block in {*refs, *pool.refs, *pinned, *pool.pins, *index.node_of}:
        if pool.refs[block] != refs[block]:
            yield "refcount", f"block {block}: {pool.refs[block]} for {refs[block]} tables"
        if pool.pins[block] != pinned[block]:
            yield "pins", f"block {block}: {pool.pins[block]} for {pinned[block]} pins"
        if pinned[block] and block not in index.node_of:
            yield "pins", f"block {block} is pinned but cannot be found"
        state = "live" if refs[block] else "reserved" if pinned[block] else "reclaimable"
        states[state] += 1
        if block in pool.staged and state != "reclaimable":
            yield "free-list", f"block {block} is {state} but staged"
        if (block in pool.room) != (block in pool.staged):
            where = "among the staged" if block in pool.staged else "in the room"
            yield "free-list", f"block {block} is {state} but {where}"
    # Nothing that is in use is free; with the number right as well, all the rest is.
    states["free"] = pool.total - states.total()
    if pool.free != states["free"]:
        yield "free-list", f"{pool.free} blocks are counted as free, {states['free']} are free"
    counters = (("live", pool.live), ("reserved", pool.reserved), ("free", pool.free))
    for name, value in (*counters, ("reclaimable", pool.reclaimable)):
        if states[name] != value:
            yield "stats-identity", f"{name} is {value}; {states[name]} blocks are"
    held = len(pool.policy) + len(pool.staged)
    if held != states["reclaimable"]:
        yield "policy", f"policy and stage have {held} of {states['reclaimable']} blocks"


def _index(sequences: Mapping[int, SequenceState], index: PrefixIndex) -> Iterator[tuple[str, str]]:
    nodes = list(index.nodes.values())
    users = Counter(id(node.parent) for node in nodes)
    users.update(id(state.tip) for state in sequences.values())
    users.update(id(node) for node in index.node_of.values())
    for node in (*nodes, *index.roots.values()):
        if node.users != users.pop(id(node), 0) or not node.users:
            yield "index", f"node at depth {node.depth} counts {node.users} users wrongly"
        for block in node.blocks:
            if index.node_of[block] is not node:
                yield "index", f"block {block} is found by content that it does not hold"
    if users:
        yield "index", f"{len(users)} nodes are in use but not in the index"
    for block, held in index.node_of.items():
        if held is None or block not in held.blocks:
            yield "index", f"block {block} is published but cannot be found"
