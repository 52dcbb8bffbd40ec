"""How allocator mutants are planted: a small change of the paged allocator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pagedattn.allocator import BlockAllocator, Violation
from pagedattn.backends.allocators.paged import PagedAllocator

__all__ = ["PLANTED", "AllocatorMutant", "Blind", "plant"]


@dataclass(frozen=True)
class AllocatorMutant:
    """One planted bug.

    summary  what it does wrong
    faults   entries of the public fault collection that are this bug
    make     the factory that a conformance case gets as its subject
    """

    name: str
    summary: str
    faults: tuple[str, ...]
    make: Callable[..., BlockAllocator]


class Blind(PagedAllocator):
    """check() finds nothing, so that the suite must notice by behaviour, as with a stranger's."""

    def check(self) -> list[Violation]:
        return []


PLANTED: dict[str, AllocatorMutant] = {}
"""name -> planted bug, filled by plant()"""


def plant(name: str, summary: str, *faults: str) -> Callable[[type[Blind]], type[Blind]]:
    """Enter a class into PLANTED."""

    def add(cls: type[Blind]) -> type[Blind]:
        PLANTED[name] = AllocatorMutant(name, summary, faults, cls)
        return cls

    return add
