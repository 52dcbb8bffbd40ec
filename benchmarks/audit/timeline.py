"""What the memory holds, over simulated time."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Point", "Timeline", "Use"]


class Use(enum.StrEnum):
    """What a slot of the pool is doing. The fractions of all uses add up to 1.

    TOKENS    holds the KV of a token of a running request
    INTERNAL  lies behind the last token of a sequence, in its last block
    RESERVED  lies in a block that is held for a sequence but has no token yet
    CACHED    lies in a reclaimable block: nobody owns it, it may be found as a prefix or be evicted
    EXTERNAL  is free while a request waits that it would have room for, were the free blocks
              adjacent
    IDLE      is free otherwise: nobody waits, or all free blocks are too few
    """

    TOKENS = "tokens"
    INTERNAL = "internal"
    RESERVED = "reserved"
    CACHED = "cached"
    EXTERNAL = "external"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class Point:
    """Means over `duration` seconds that end at `time`: fraction of the pool by use, requests."""

    time: float
    duration: float
    uses: tuple[float, ...]
    running: float
    waiting: float


class Timeline:
    """Time-weighted means, exact over the whole; at most 2 * `points` pieces are kept by merging
    neighbours, whatever the length of the replay. add() is O(1) on average."""

    def __init__(self, points: int = 256) -> None:
        self._limit = 2 * points
        self._pieces: list[list[float]] = []  # [duration, sums of value * duration ...]
        self._per_piece = 1  # steps
        self._steps = 0  # in the last piece

    def add(
        self, duration: float, uses: Sequence[float], running: int, waiting: int, steps: int = 1
    ) -> None:
        """So many steps with these means; uses in the order of Use."""
        if not self._pieces or self._steps >= self._per_piece:
            if len(self._pieces) == self._limit:
                pairs = zip(self._pieces[::2], self._pieces[1::2], strict=True)
                self._pieces = [[x + y for x, y in zip(a, b, strict=True)] for a, b in pairs]
                self._per_piece *= 2
            self._pieces.append([0.0] * (len(uses) + 3))
            self._steps = 0
        piece = self._pieces[-1]
        piece[0] += duration
        for i, value in enumerate((*uses, running, waiting), 1):
            piece[i] += duration * value
        self._steps += steps

    def points(self) -> list[Point]:
        """The pieces in order."""
        found, time = [], 0.0
        for duration, *sums in self._pieces:
            time += duration
            *uses, running, waiting = (x / duration for x in sums)
            found.append(Point(time, duration, tuple(uses), running, waiting))
        return found

    def mean(self) -> Point:
        """One point for the whole; all zero when nothing was added."""
        if not self._pieces:
            return Point(0.0, 0.0, (0.0,) * len(Use), 0.0, 0.0)
        duration, *sums = (sum(column) for column in zip(*self._pieces, strict=True))
        *uses, running, waiting = (x / duration for x in sums)
        return Point(duration, duration, tuple(uses), running, waiting)
