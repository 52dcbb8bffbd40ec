"""What is remembered of keys, evicted ones included, in bounded space."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

__all__ = ["KeyMemory"]

T = TypeVar("T")


class KeyMemory(Generic[T]):
    """A value for each of the most recently noted keys; every call is O(1).

    The oldest is forgotten once there are more than `floor` keys and more than `times` times the
    largest number of blocks that the caller has reported.
    """

    def __init__(self, *, times: int, floor: int) -> None:
        self._times, self._limit = times, floor
        self._values: OrderedDict[bytes, T] = OrderedDict()

    def get(self, key: bytes) -> T | None:
        """The value noted for `key`, or None."""
        return self._values.get(key)

    def note(self, key: bytes, value: T, *, blocks: int = 0) -> None:
        """Remember `value` as the newest; `blocks` are held at present."""
        self._values[key] = value
        self._values.move_to_end(key)
        self._limit = max(self._limit, self._times * blocks)
        if len(self._values) > self._limit:
            self._values.popitem(last=False)

    def forget(self, key: bytes) -> None:
        """Remember nothing of `key`."""
        self._values.pop(key, None)

    def clear(self) -> None:
        """Remember nothing."""
        self._values.clear()

    def __contains__(self, key: bytes) -> bool:
        return key in self._values

    def __len__(self) -> int:
        return len(self._values)
