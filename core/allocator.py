"""The allocator contract: who owns which KV block. Sequence-level, so that paged, contiguous,
radix and virtual-memory designs all fit behind it.

An author subclasses BlockAllocator and overrides the abstract methods; whatever capabilities()
does not offer may be left alone (the defaults raise Unsupported). docs/SPEC.md states the
semantics; `pagedattn check NAME` judges an implementation.

Vocabulary. A *slot* is block * block_size + offset. A block is *live* while it is in the table of
an open sequence, *reclaimable* when nobody owns it but its content can still be found as a prefix,
*reserved* when it is held for a sequence that has not used it, and *free* otherwise:

    total == free + reclaimable + live + reserved        after every call
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from pagedattn.callable_module import make_callable
from pagedattn.errors import Refusal, Unsupported

__all__ = [
    "Addressing",
    "AllocatorCapabilities",
    "AllocatorStats",
    "BlockAllocator",
    "CopyOp",
    "Event",
    "EventKind",
    "EvictionPolicy",
    "Grant",
    "Prefix",
    "PrefixHit",
    "Violation",
]


class Addressing(enum.Enum):
    """How a sequence's tokens lie in the pool."""

    PAGED = "paged"
    CONTIGUOUS = "contiguous"
    VIRTUAL = "virtual"


class Prefix(enum.Enum):
    """How earlier content is found again."""

    NONE = "none"
    HASH = "hash"
    RADIX = "radix"


@dataclass(frozen=True, kw_only=True)
class AllocatorCapabilities:
    """What an allocator offers. A call that is not offered raises Unsupported.

    hit_granularity  tokens: a prefix hit is a multiple of it (block_size for hashed full blocks)
    window           release_before() is offered
    policies         names of the eviction policies it accepts; empty when it evicts nothing
    """

    addressing: Addressing = Addressing.PAGED
    prefix: Prefix = Prefix.NONE
    hit_granularity: int = 1
    fork: bool = False
    truncate: bool = False
    resize: bool = False
    window: bool = False
    policies: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CopyOp:
    """Copy the first `tokens` slots of block `src` to block `dst`, before the step's writes."""

    src: int
    dst: int
    tokens: int


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """What open() found: the first `tokens` tokens need no computing; they lie in `blocks`."""

    tokens: int = 0
    blocks: tuple[int, ...] = ()
    copies: tuple[CopyOp, ...] = ()


@dataclass(frozen=True, slots=True)
class Grant:
    """What append() gave.

    slots   one slot per appended token, in order
    column  the sequence's table from this column on is `blocks`; earlier columns are unchanged
    blocks  those columns, copy-on-write replacements included
    copies  to be run in list order by copy_blocks() before the step's first write
    """

    slots: Sequence[int]
    column: int
    blocks: tuple[int, ...]
    copies: tuple[CopyOp, ...] = ()


class EventKind(enum.Enum):
    """STORED: the block can now be found by `key`. REMOVED: no longer. CLEARED: nothing can."""

    STORED = "stored"
    REMOVED = "removed"
    CLEARED = "cleared"


@dataclass(frozen=True, slots=True)
class Event:
    """A change of what can be found, for routers and offloaders; replaying the log from an empty
    index gives the allocator's index. `parent` is the key of the block before (b"" at the start);
    block is -1 and key b"" for CLEARED."""

    kind: EventKind
    block: int = -1
    key: bytes = b""
    parent: bytes = b""


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken invariant found by check()."""

    rule: str
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocatorStats:
    """Counters. Blocks: total == free + reclaimable + live + reserved, always.

    lookups     open() calls         hit_tokens  tokens that those calls found
    evicted     blocks that lost their key to make room
    """

    total: int
    free: int
    reclaimable: int
    live: int
    reserved: int
    lookups: int = 0
    hit_tokens: int = 0
    evicted: int = 0


class EvictionPolicy(ABC):
    """Chooses which reclaimable block goes next. It sees only blocks that nobody owns.

    Every method is O(log n) or better in the number of reclaimable blocks, those for many blocks
    as much for each. Within one release (equal age) deeper blocks go first; a higher `priority`
    stays longer whatever its age.

    A call that raises must have changed nothing. The paged allocator then undoes what it was about
    to do, loses no block, and raises AllocatorError with the name of the policy.

    add_all, remove_all and pop_many say at once what the single calls say block by block, and by
    default make these. A class that overrides a single call and not its form for many inherits the
    default of the latter, not the one of a class that knows nothing of the change.
    """

    name: ClassVar[str]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for one, many in (("add", "add_all"), ("remove", "remove_all"), ("pop", "pop_many")):
            definer = next(base for base in cls.__mro__ if {one, many} & vars(base).keys())
            if many not in vars(definer):
                setattr(cls, many, vars(EvictionPolicy)[many])

    @abstractmethod
    def add(self, block: int, *, key: bytes, depth: int, priority: int) -> None:
        """`block` lost its last owner. depth: its index in the prefix chain, 0 for the first block.

        The blocks of one sequence are added deepest first, one call after the other."""

    @abstractmethod
    def remove(self, block: int) -> None:
        """`block` was hit and is owned again, or lost its key; it is not ours any more."""

    @abstractmethod
    def pop(self) -> int:
        """Remove and return the block to evict. IndexError when there is none."""

    @abstractmethod
    def __len__(self) -> int:
        """Blocks that pop() could return one after the other."""

    def add_all(
        self, blocks: Sequence[int], *, priority: int, content: Callable[[int], tuple[bytes, int]]
    ) -> None:
        """add() for blocks that were released together, deepest first. content(block) is the key
        and the depth of one of them: who needs no key does not ask, and it is not computed."""
        for block in blocks:
            key, depth = content(block)
            self.add(block, key=key, depth=depth, priority=priority)

    def remove_all(self, blocks: Sequence[int]) -> None:
        """remove() for each of `blocks`."""
        for block in blocks:
            self.remove(block)

    def pop_many(self, n: int) -> Iterable[int]:
        """What the next n calls of pop() would return, n <= len(self)."""
        for _ in range(n):
            yield self.pop()

    def hit(self, key: bytes) -> None:  # noqa: B027 - optional
        """A lookup found the block stored under `key` (owned or not); for frequency policies. Where
        a policy does not override it, no key is computed for it and it is not called."""

    def clear(self) -> None:
        """Forget every block."""
        while len(self):
            self.pop()


class BlockAllocator(ABC):
    """Hands out KV blocks to sequences. One allocator, one thread.

    Made by `pagedattn.allocator(name, num_blocks=, block_size=, ...)`. Sequence ids are the
    caller's, any int; an id may be used again after close(). Every call either succeeds or raises
    and leaves the state as it was. A call with an id that is not open raises AllocatorError.
    """

    name: ClassVar[str]
    api_version: ClassVar[tuple[int, int]] = (1, 0)
    num_blocks: int
    block_size: int

    # -- required ------------------------------------------------------------------------------

    @abstractmethod
    def capabilities(self) -> AllocatorCapabilities:
        """What this instance offers."""

    @abstractmethod
    def open(
        self, seq: int, tokens: Sequence[int], *, namespace: bytes = b"", priority: int = 0
    ) -> PrefixHit:
        """Start a sequence whose prompt is `tokens`; returns what need not be computed.

        Afterwards length(seq) == hit.tokens, a multiple of hit_granularity and at most
        len(tokens) - 1, so that at least one token is computed. Hit tokens count as committed.
        `namespace` (adapter, tenant, salt, model revision) is part of the identity of a prefix.
        A paged allocator reserves nothing beyond the hit and never raises OutOfBlocks here."""

    @abstractmethod
    def append_many(self, wants: Mapping[int, int]) -> dict[int, Grant]:
        """Give each sequence slots for its next tokens: {seq: count}, all or nothing.

        Raises OutOfBlocks(needed, available) for the call as a whole. Copies of all grants come
        before all writes."""

    @abstractmethod
    def can_append(self, wants: Mapping[int, int]) -> bool:
        """True iff append_many(wants) would succeed now; changes nothing."""

    @abstractmethod
    def commit(self, seq: int, tokens: Sequence[int]) -> None:
        """The KV of the next len(tokens) tokens is really written; only now may it be shared.

        These tokens, not the prompt given to open(), are the truth. More than was appended is an
        AllocatorError."""

    @abstractmethod
    def close(self, seq: int) -> None:
        """End a sequence. A second close raises AllocatorError."""

    @abstractmethod
    def table(self, seq: int) -> Sequence[int]:
        """Block ids of the sequence, position p lying in table[p // block_size].

        Columns freed by release_before() hold -1."""

    @abstractmethod
    def length(self, seq: int) -> int:
        """Tokens that have slots: hit + appended - truncated."""

    @abstractmethod
    def stats(self) -> AllocatorStats:
        """Counters; O(1)."""

    @abstractmethod
    def check(self) -> list[Violation]:
        """Audit every invariant; O(blocks). Empty when sound."""

    @abstractmethod
    def reset(self) -> None:
        """Forget all cached prefixes. AllocatorError while a sequence is open."""

    # -- optional: Unsupported where an allocator has none ------------------------------------

    def append(self, seq: int, n: int) -> Grant:
        """append_many for one sequence."""
        return self.append_many({seq: n})[seq]

    def truncate(self, seq: int, length: int) -> None:
        """Drop the tokens from `length` on (rejected speculation). Committed tokens and shared
        blocks may be cut; a published block that is cut is unpublished, or copied when shared."""
        raise self._unsupported("truncate", length)

    def fork(self, parent: int, child: int, length: int | None = None) -> None:
        """`child` starts with the first `length` tokens of `parent` (default: all committed ones),
        sharing its blocks until one of them writes; copies come with a later append.

        ValueError when `length` exceeds what the parent has committed. The child inherits the
        namespace, the priority and the commit state."""
        raise self._unsupported("fork", child)

    def pin(self, seq: int) -> None:
        """Keep the committed prefix of `seq` findable after close(), never evicted, until unpin."""
        raise self._unsupported("pin", seq)

    def unpin(self, seq: int) -> None:
        """Undo pin(seq); valid after close() too."""
        raise self._unsupported("unpin", seq)

    def release_before(self, seq: int, position: int) -> None:
        """Free whole blocks that hold only positions below `position` (sliding windows)."""
        raise self._unsupported("window", position)

    def evict(self, n: int) -> int:
        """Make up to n reclaimable blocks free; returns how many it freed."""
        return 0

    def resize(self, num_blocks: int) -> int:
        """Grow or shrink the pool; live blocks are never dropped. Returns the new total."""
        raise self._unsupported("resize", num_blocks)

    def drain_events(self) -> list[Event]:
        """Events since the last call, oldest first."""
        return []

    def _unsupported(self, code: str, requested: object) -> Unsupported:
        return Unsupported(Refusal(self.name, code, requested, "not offered", "see capabilities()"))


make_callable(__name__, "allocator")
