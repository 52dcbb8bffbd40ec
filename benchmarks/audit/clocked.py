"""An allocator whose calls are counted and timed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pagedattn.allocator import BlockAllocator, Grant, PrefixHit

__all__ = ["Clocked", "Operation"]


@dataclass(slots=True)
class Operation:
    """Calls of one kind, failed ones included, and the seconds spent in them."""

    calls: int = 0
    seconds: float = 0.0


class Clocked:
    """The calls of a replay, timed. `blocks_copied` counts the copies that grants ask for."""

    def __init__(self, allocator: BlockAllocator) -> None:
        self.allocator = allocator
        self.operations = {n: Operation() for n in ("open", "append_many", "commit", "close")}
        self.blocks_copied = 0

    def open(self, seq: int, tokens: Sequence[int]) -> PrefixHit:
        operation, begin = self.operations["open"], time.perf_counter()
        try:
            hit = self.allocator.open(seq, tokens)
        finally:
            operation.seconds += time.perf_counter() - begin
            operation.calls += 1
        self.blocks_copied += len(hit.copies)
        return hit

    def append_many(self, wants: Mapping[int, int]) -> dict[int, Grant]:
        operation, begin = self.operations["append_many"], time.perf_counter()
        try:
            grants = self.allocator.append_many(wants)
        finally:
            operation.seconds += time.perf_counter() - begin
            operation.calls += 1
        for grant in grants.values():
            self.blocks_copied += len(grant.copies)
        return grants

    def commit(self, seq: int, tokens: Sequence[int]) -> None:
        operation, begin = self.operations["commit"], time.perf_counter()
        self.allocator.commit(seq, tokens)
        operation.seconds += time.perf_counter() - begin
        operation.calls += 1

    def close(self, seq: int) -> None:
        operation, begin = self.operations["close"], time.perf_counter()
        self.allocator.close(seq)
        operation.seconds += time.perf_counter() - begin
        operation.calls += 1
