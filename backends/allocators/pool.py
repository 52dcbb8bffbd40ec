"""Who holds which block: free list, holders, pins and the blocks that could be reclaimed.

A block is in exactly one state, which follows from two counts and the prefix index:

    live         a table holds it
    reserved     no table holds it but a pin does
    reclaimable  nobody holds it and its content can be found: the eviction policy has it
    free         the rest
"""

from __future__ import annotations

from pagedattn.allocator import EvictionPolicy
from pagedattn.backends.allocators.prefix import PrefixIndex
from pagedattn.errors import AllocatorError

__all__ = ["BlockPool"]


class BlockPool:
    """States of all blocks. Every operation is O(1) per block plus the policy's own cost."""

    def __init__(self, num_blocks: int, policy: EvictionPolicy, index: PrefixIndex) -> None:
        self.policy, self.index = policy, index
        self.refs = [0] * num_blocks  # tables that hold the block
        self.pins = [0] * num_blocks
        self.priority = [0] * num_blocks  # highest of those that held the block since it was free
        self.free: list[int] = []
        self.live = self.reserved = self.reclaimable = self.evicted = 0
        self._free_all()

    @property
    def total(self) -> int:
        """Blocks in the pool."""
        return len(self.refs)

    @property
    def available(self) -> int:
        """Blocks that take() could give, one after the other."""
        return len(self.free) + self.reclaimable

    def take(self, n: int, priority: int) -> list[int]:
        """n blocks for one table, evicting where the free list is short; n <= available."""
        self.evict(n - len(self.free))
        blocks = [self.free.pop() for _ in range(n)]
        for block in blocks:
            self.refs[block] = 1
            self.priority[block] = priority
        self.live += n
        return blocks

    def share(self, block: int, priority: int) -> None:
        """One more table holds `block`, which is live, reserved or reclaimable."""
        if self.refs[block] == 0:
            if self.pins[block]:
                self.reserved -= 1
            else:
                self.policy.remove(block)
                self.reclaimable -= 1
            self.live += 1
        self.refs[block] += 1
        self.priority[block] = max(self.priority[block], priority)

    def drop(self, block: int) -> None:
        """One table less holds `block`."""
        self.refs[block] -= 1
        if self.refs[block] == 0:
            self.live -= 1
            if self.pins[block]:
                self.reserved += 1
            else:
                self._retire(block)

    def pin(self, block: int) -> None:
        """Keep a live, published block published."""
        self.pins[block] += 1

    def unpin(self, block: int) -> None:
        """Undo one pin()."""
        self.pins[block] -= 1
        if self.pins[block] == 0 and self.refs[block] == 0:
            self.reserved -= 1
            self._retire(block)

    def shared(self, block: int, gone: int = 0) -> bool:
        """Whether someone else would miss what a holder overwrites, `gone` holders having left."""
        return self.refs[block] - gone > 1 or self.pins[block] > 0

    def evict(self, n: int) -> int:
        """Free up to n reclaimable blocks; returns how many."""
        count = max(0, min(n, self.reclaimable))
        for _ in range(count):
            block = self.policy.pop()
            if not 0 <= block < self.total or not self._is_reclaimable(block):
                raise AllocatorError(
                    f"eviction policy {self.policy.name!r} chose block {block}, which it was not "
                    "given or which was taken from it: the policy is broken"
                )
            self._forget(block)
            self.free.append(block)
        return count

    def resize(self, num_blocks: int) -> int:
        """Grow, or shrink down to the last held block; returns the new total."""
        held = (b for b in range(self.total - 1, -1, -1) if self.refs[b] or self.pins[b])
        new, old = max(num_blocks, next(held, -1) + 1), self.total
        for block in range(new, old):
            if self._is_reclaimable(block):
                self.policy.remove(block)
                self._forget(block)
        self.free = [*range(new - 1, old - 1, -1), *(b for b in self.free if b < new)]
        for counts in (self.refs, self.pins, self.priority):
            del counts[new:]
            counts.extend([0] * (new - old))
        self.index.resize(new)
        return new

    def clear(self) -> None:
        """Every block is free; no table may hold one. Pins are forgotten."""
        self.policy.clear()
        self.index.clear()
        self.pins = [0] * self.total
        self.reserved = self.reclaimable = 0
        self._free_all()

    def _free_all(self) -> None:
        # A stack, lowest id on top: sequences get ascending, adjacent ids while the pool is fresh.
        self.free = list(range(self.total - 1, -1, -1))

    def _is_reclaimable(self, block: int) -> bool:
        held = self.refs[block] or self.pins[block]
        return not held and self.index.node_of[block] is not None

    def _retire(self, block: int) -> None:
        node = self.index.node_of[block]
        if node is None:
            self.free.append(block)
        else:
            self.policy.add(block, key=node.key, depth=node.depth, priority=self.priority[block])
            self.reclaimable += 1

    def _forget(self, block: int) -> None:
        self.index.unpublish(block)
        self.reclaimable -= 1
        self.evicted += 1
