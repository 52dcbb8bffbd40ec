"""Which allocators are compared, and how each is made for a given pool."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pagedattn import registry
from pagedattn.allocator import BlockAllocator
from pagedattn.errors import Unsupported
from pagedattn.hooks import OfferKind

__all__ = ["Contender", "Make", "contenders"]


class Make(Protocol):
    """Makes an allocator. max_seq_len and lengths (id -> final length) are in its own tokens; an
    allocator that does not ask for them does not see them."""

    def __call__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        max_seq_len: int,
        lengths: Callable[[int], int],
    ) -> BlockAllocator: ...


@dataclass(frozen=True)
class Contender:
    """An allocator by name, with an eviction policy where it takes one (None: its default)."""

    allocator: str
    policy: str | None
    make: Make

    @property
    def label(self) -> str:
        return f"{self.allocator} ({self.policy})" if self.policy else self.allocator


def contenders(allocators: Sequence[str], policies: Sequence[str]) -> list[Contender]:
    """Every allocator with every policy; one that takes no policy appears once, without.

    Raises UnknownName and NotReady."""
    for policy in policies:
        registry.load(OfferKind.POLICY, policy)
    found = []
    for name in allocators:
        found += [Contender(name, policy, _maker(name, policy)) for policy in policies]
        if not policies or not _takes_policies(name, policies[0]):
            del found[len(found) - len(policies) :]
            found.append(Contender(name, None, _maker(name, None)))
    return found


def _takes_policies(name: str, policy: str) -> bool:
    try:
        made = registry.allocator(name, num_blocks=16, block_size=1, policy=policy)
    except Unsupported:
        return False
    return bool(made.capabilities().policies)


def _maker(name: str, policy: str | None) -> Make:
    parameters = inspect.signature(registry.load(OfferKind.ALLOCATOR, name)).parameters

    def make(
        *, num_blocks: int, block_size: int, max_seq_len: int, lengths: Callable[[int], int]
    ) -> BlockAllocator:
        asked: dict[str, Any] = {"max_seq_len": max_seq_len, "lengths": lengths}
        options = {option: value for option, value in asked.items() if option in parameters}
        return registry.allocator(
            name, num_blocks=num_blocks, block_size=block_size, policy=policy, **options
        )

    return make
