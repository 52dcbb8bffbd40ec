"""Arguments of an allocator: what is accepted, and the ValueError that says what is not."""

from __future__ import annotations

import operator
from collections.abc import Callable

from pagedattn.allocator import EvictionPolicy
from pagedattn.backends.allocators.lru import LRU

__all__ = ["eviction_policy", "integer"]


def integer(
    what: str, value: int, low: int | None = None, high: int | None = None, whose: str = ""
) -> int:
    """`value` as an int in low .. high, or ValueError."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{what} must be an integer, not {value!r}") from None
    if low is not None and number < low:
        raise ValueError(f"{what} is {number}; at least {low} is required")
    if high is not None and number > high:
        of = f" ({whose} length)" if whose else ""
        raise ValueError(f"{what} is {number}; at most {high}{of} is possible")
    return number


def eviction_policy(policy: EvictionPolicy | Callable[[], EvictionPolicy] | None) -> EvictionPolicy:
    """`policy`, made where it is a factory; LRU where it is None."""
    made = LRU() if policy is None else policy
    if not isinstance(made, EvictionPolicy) and callable(made):
        made = made()
    if not isinstance(made, EvictionPolicy):
        raise ValueError(
            f"policy must be an EvictionPolicy or make one, not {policy!r}; names are resolved by "
            "pagedattn.allocator(..., policy=NAME)"
        )
    if len(made):
        raise ValueError(
            f"policy {made.name!r} holds {len(made)} blocks already; each allocator needs its own"
        )
    return made
