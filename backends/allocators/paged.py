"""The default allocator: fixed-size blocks, copy-on-write, an exact prefix cache.

    sequence.py  what is remembered of a sequence     pool.py        who holds which block
    prefix.py    which content lies in which block    invariants.py  the invariants that tie them

Two lazy choices shape it. fork() and truncate() only change tables: the copy (or the loss of a
published key) comes when a sequence is about to write into a block that somebody else would miss.
And eviction waits until append needs blocks; then a few more may leave the policy (pool.py).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from pagedattn.allocator import (
    Addressing,
    AllocatorCapabilities,
    AllocatorStats,
    BlockAllocator,
    CopyOp,
    Event,
    EvictionPolicy,
    Grant,
    Prefix,
    PrefixHit,
    Violation,
)
from pagedattn.backends.allocators.arguments import eviction_policy, integer
from pagedattn.backends.allocators.invariants import violations
from pagedattn.backends.allocators.pool import BlockPool
from pagedattn.backends.allocators.prefix import TOKEN_BYTES, Node, PrefixIndex, pack
from pagedattn.backends.allocators.sequence import SequenceState
from pagedattn.errors import AllocatorError, OutOfBlocks

__all__ = ["PagedAllocator"]

_MAX_BLOCKS = 2**31  # block ids are int32 in block tables


class PagedAllocator(BlockAllocator):
    """Paged blocks with lazy copy-on-write, a prefix cache, pins and window release.

    num_blocks    blocks in the pool, ids 0 .. num_blocks - 1
    block_size    tokens per block
    policy        an EvictionPolicy of its own, or what makes one; default LRU
    prefix_cache  False: nothing is found again, commit() only counts and looks at no token, pin()
                  is refused
    hash_fn       names content, for events and for policies that look at keys, once either asks;
                  default SHA-256. Hits are exact whatever it returns.

    Blocks that only a pin holds (pinned, then closed) are counted as `reserved`.
    """

    name = "paged"
    _index_type: ClassVar[type[PrefixIndex]] = PrefixIndex
    _pool_type: ClassVar[type[BlockPool]] = BlockPool

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int = 16,
        policy: EvictionPolicy | Callable[[], EvictionPolicy] | None = None,
        prefix_cache: bool = True,
        hash_fn: Callable[[bytes], bytes] | None = None,
    ) -> None:
        self.num_blocks = integer("num_blocks", num_blocks, 1, _MAX_BLOCKS)
        self.block_size = integer("block_size", block_size, 1)
        if not isinstance(prefix_cache, bool):
            raise ValueError(f"prefix_cache must be True or False, not {prefix_cache!r}")
        if hash_fn is not None and not callable(hash_fn):
            raise ValueError(f"hash_fn must map bytes to bytes, not {hash_fn!r}")
        self._policy = eviction_policy(policy)
        # None: the policy does not listen, and no key need be computed for it.
        listens = getattr(self._policy.hit, "__func__", None) is not EvictionPolicy.hit
        self._hit = self._policy.hit if listens else None
        self._prefix_cache = prefix_cache
        self._index = self._index_type(self.block_size, hash_fn)
        self._pool = self._pool_type(self.num_blocks, self._policy, self._index)
        self._sequences: dict[int, SequenceState] = {}
        self._pins: dict[int, list[int]] = {}  # sequence id -> pinned blocks, in column order
        self._lookups = self._hit_tokens = 0

    def capabilities(self) -> AllocatorCapabilities:
        return AllocatorCapabilities(
            addressing=Addressing.PAGED,
            prefix=Prefix.HASH if self._prefix_cache else Prefix.NONE,
            hit_granularity=self.block_size,
            fork=True,
            truncate=True,
            resize=True,
            window=True,
            policies=frozenset({self._policy.name} if self._prefix_cache else ()),
        )

    # -- life of a sequence --------------------------------------------------------------------

    def open(
        self, seq: int, tokens: Sequence[int], *, namespace: bytes = b"", priority: int = 0
    ) -> PrefixHit:
        self._must_be_new(seq)
        if not isinstance(namespace, bytes):
            raise ValueError(f"sequence {seq}: namespace must be bytes, not {namespace!r}")
        priority = integer("priority", priority)
        root = self._index.root(namespace)
        found = self._index.match(root, tokens) if self._prefix_cache else []
        if self._hit is not None:
            keys = [self._index.key_of(node) for node in found]
            try:
                for key in keys:
                    self._hit(key)
            except Exception as error:
                raise self._pool.failed("hit", error) from error
        table = [node.block for node in found]
        self._pool.share(table, priority)
        tip = found[-1] if found else root
        self._index.hold(tip)
        hit = len(table) * self.block_size
        self._sequences[seq] = SequenceState(
            table=table, length=hit, committed=hit, tip=tip, tail=b"", priority=priority
        )
        self._lookups += 1
        self._hit_tokens += hit
        return PrefixHit(hit, tuple(table))

    def commit(self, seq: int, tokens: Sequence[int]) -> None:
        state = self._state(seq)
        committed = state.committed + len(tokens)
        if committed > state.length:
            raise AllocatorError(
                f"sequence {seq}: commit of {len(tokens)} tokens after {state.committed} exceeds "
                f"the {state.length} that were appended; append first"
            )
        if self._prefix_cache:
            packed, full = state.tail + pack(tokens), self.block_size * TOKEN_BYTES
            if len(packed) >= full:
                column = state.tip.depth + 1
                blocks = state.table[column : column + len(packed) // full]
                state.tip = self._index.publish(state.tip, packed, blocks)
                packed = packed[len(blocks) * full :]
            state.tail = packed
        state.committed = committed

    def close(self, seq: int) -> None:
        state = self._state(seq)
        self._drop_columns(state.table[state.released :])
        del self._sequences[seq]
        self._index.drop(state.tip)

    def fork(self, parent: int, child: int, length: int | None = None) -> None:
        state = self._state(parent)
        self._must_be_new(child)
        length = state.committed if length is None else length
        kept = state.released * self.block_size
        length = integer(
            f"fork of sequence {parent}: length", length, kept, state.committed, "its committed"
        )
        tip, tail = self._cut_content(state, length)
        state.spare = 0  # the last block may have two holders now
        table = state.table[: self._columns(length)]
        self._pool.share(table[state.released :], state.priority)
        self._index.hold(tip)
        self._sequences[child] = SequenceState(
            table=table,
            length=length,
            committed=length,
            tip=tip,
            tail=tail,
            priority=state.priority,
            released=state.released,
        )

    def table(self, seq: int) -> Sequence[int]:
        return tuple(self._state(seq).table)

    def length(self, seq: int) -> int:
        return self._state(seq).length

    # -- growing and cutting -------------------------------------------------------------------

    def append_many(self, wants: Mapping[int, int]) -> dict[int, Grant]:
        needed, copying = self._plan(wants)
        if needed > self._pool.available:
            raise OutOfBlocks(needed, self._pool.available)
        # Blocks are evicted for the call as a whole, so that a policy that fails changes nothing.
        if needed:
            self._pool.stage(needed, len(self._sequences))
        return {seq: self._grow(seq, n, copy=seq in copying) for seq, n in wants.items()}

    def can_append(self, wants: Mapping[int, int]) -> bool:
        return self._plan(wants)[0] <= self._pool.available

    def truncate(self, seq: int, length: int) -> None:
        state = self._state(seq)
        kept = state.released * self.block_size
        length = integer(f"truncate of sequence {seq}: length", length, kept, state.length, "its")
        if length == state.length:
            return
        state.spare = 0
        columns = self._columns(length)
        self._drop_columns(state.table[columns:])
        del state.table[columns:]
        state.length = length
        if length < state.committed:
            tip, state.tail = self._cut_content(state, length)
            self._index.hold(tip)
            self._index.drop(state.tip)
            state.tip, state.committed = tip, length
        # Shared, the cut block is copied by the next append; alone, it is ours to overwrite.
        if length % self.block_size and not self._pool.shared(state.table[-1]):
            self._unpublish(state.table[-1])

    def release_before(self, seq: int, position: int) -> None:
        """Positions below `position` must have been written by a step that has run: their blocks
        may be handed out at once."""
        state = self._state(seq)
        position = integer(
            f"release_before of sequence {seq}: position", position, 0, state.length, "its"
        )
        columns = max(state.released, position // self.block_size)
        self._drop_columns(state.table[state.released : columns])
        state.table[:columns] = [-1] * columns
        state.released = columns

    # -- the cache -----------------------------------------------------------------------------

    def pin(self, seq: int) -> None:
        """The full blocks committed so far, up to the first that release_before() freed. A second
        pin adds what was committed since; one unpin undoes both. Pins belong to the id: they
        outlive close(), and a later sequence of that id adds to them."""
        state = self._state(seq)
        if not self._prefix_cache:
            raise self._unsupported("pin", seq)
        pinned = self._pins.setdefault(seq, [])
        known = set(pinned)
        columns = 0 if state.released else state.committed // self.block_size
        for block in state.table[:columns]:
            if block not in known:
                self._pool.pin(block)
                pinned.append(block)

    def unpin(self, seq: int) -> None:
        if not self._prefix_cache:
            raise self._unsupported("pin", seq)
        if seq not in self._pins:
            raise AllocatorError(f"sequence {seq} is not pinned; call pin() while it is open")
        self._pool.unpin(self._pins[seq][::-1])
        del self._pins[seq]

    def evict(self, n: int) -> int:
        return self._pool.evict(integer("evict: n", n, 0))

    def resize(self, num_blocks: int) -> int:
        """Shrinks to `num_blocks` or, when a block beyond is live or pinned, just past the last
        such block."""
        self.num_blocks = self._pool.resize(integer("num_blocks", num_blocks, 1, _MAX_BLOCKS))
        return self.num_blocks

    def reset(self) -> None:
        """Pins are forgotten with the prefixes; the counters of stats() go on."""
        if self._sequences:
            some = ", ".join(map(str, list(self._sequences)[:5]))
            raise AllocatorError(
                f"reset with {len(self._sequences)} open sequences ({some}); close them first"
            )
        self._pins.clear()
        self._pool.clear()

    def stats(self) -> AllocatorStats:
        pool = self._pool
        return AllocatorStats(
            total=self.num_blocks,
            free=pool.free,
            reclaimable=pool.reclaimable,
            live=pool.live,
            reserved=pool.reserved,
            lookups=self._lookups,
            hit_tokens=self._hit_tokens,
            evicted=pool.evicted,
        )

    def drain_events(self) -> list[Event]:
        """A log that is long beside what is cached is replaced by CLEARED and the present state."""
        return self._index.drain()

    def check(self) -> list[Violation]:
        return violations(
            self._sequences, self._pins, self._pool, self._index, prefix_cache=self._prefix_cache
        )

    # -- inside --------------------------------------------------------------------------------

    def _state(self, seq: int) -> SequenceState:
        state = self._sequences.get(seq)
        if state is None:
            raise AllocatorError(f"sequence {seq} is not open: never opened, or closed already")
        return state

    def _must_be_new(self, seq: int) -> None:
        if seq in self._sequences:
            raise AllocatorError(f"sequence {seq} is open already; close it or take another id")

    def _columns(self, length: int) -> int:
        return -(-length // self.block_size)

    def _plan(self, wants: Mapping[int, int]) -> tuple[int, set[int]]:
        """Blocks that append_many(wants) takes, and the sequences that copy their last block.

        A holder that copies leaves the block, so that of k holders that write in one call only
        k - 1 copy; later ones must therefore see how many have left."""
        needed, copying, gone, size = 0, set(), dict[int, int](), self.block_size
        refs, pins = self._pool.refs, self._pool.pins
        for seq, count in wants.items():
            state = self._state(seq)
            n = count
            if type(n) is not int or n < 0:  # the message costs more than the rest
                n = integer(f"append to sequence {seq}: count", count, 0)
            if n <= state.spare:
                continue
            length, slots = state.length, len(state.table) * size
            if length + n > slots:
                needed += -(-(length + n - slots) // size)
            if n and length < slots:
                last = state.table[-1]
                if (refs[last] > 1 or last in pins) and self._pool.shared(last, gone.get(last, 0)):
                    gone[last] = gone.get(last, 0) + 1
                    copying.add(seq)
        return needed + len(copying), copying

    def _grow(self, seq: int, n: int, *, copy: bool) -> Grant:
        """Slots for n tokens; the pool has room for them."""
        state, size = self._state(seq), self.block_size
        n = operator.index(n)
        column, start, spare = len(state.table), state.length, state.spare
        if 0 < n <= spare:
            state.length += n
            state.spare -= n
            slot = (state.table[-1] + 1) * size - spare
            return Grant(range(slot, slot + n), column, ())
        if not n:
            return Grant(range(0), column, ())
        copies: tuple[CopyOp, ...] = ()
        if blocks := self._columns(start + n) - column + copy:
            last = state.table[-1] if column else -1
            taken = self._pool.take(blocks, state.priority, last, len(self._sequences))
            if copy:
                column -= 1
                old = state.table.pop()
                copies = (CopyOp(old, taken[0], start % size),)
                self._pool.drop((old,))
            state.table += taken
        if start % size and not copy:
            self._unpublish(state.table[start // size])
        state.length += n
        state.spare = len(state.table) * size - state.length
        return Grant(
            _slots(state.table[start // size :], start % size, n, size),
            column,
            tuple(state.table[column:]),
            copies,
        )

    def _unpublish(self, block: int) -> None:
        if block in self._index.node_of:
            self._index.unpublish((block,))

    def _cut_content(self, state: SequenceState, length: int) -> tuple[Node, bytes]:
        if not self._prefix_cache:
            return state.tip, b""
        return self._index.rewind(state.tip, state.tail, length)

    def _drop_columns(self, blocks: Sequence[int]) -> None:
        # Deepest first: the policy keeps the heads of prefixes.
        self._pool.drop(blocks[::-1])


def _slots(blocks: list[int], offset: int, n: int, size: int) -> Sequence[int]:
    """n slots from `offset` in the first of `blocks` on; a range when the blocks are adjacent."""
    if not n:
        return range(0)
    first, count = blocks[0], len(blocks)
    if blocks[-1] - first == count - 1 and blocks == sorted(blocks):  # ids are distinct
        return range(first * size + offset, first * size + offset + n)
    slots: list[int] = []
    for block in blocks:
        slots += range(block * size, block * size + size)
    return tuple(slots[offset : offset + n])
