"""When and how often each key was used, of evicted blocks too."""

from __future__ import annotations

import math

from pagedattn.backends.allocators.policies.memory import KeyMemory
from pagedattn.backends.allocators.policies.returns import Cell, Returns

__all__ = ["History", "Record", "Release"]


class Record:
    """Uses of one key. Times are counts of releases.

    count   uses so far               logs   sum of log2 of the gaps between them
    last    time of the last one      found  a lookup found the key since it was last released
    cell, odds, scale  how its last release was judged (returns.py); no cell once it was used since
    """

    __slots__ = ("cell", "count", "found", "last", "logs", "odds", "scale")

    def __init__(self, now: int) -> None:
        self.count, self.last, self.logs, self.found = 1, now, 0.0, False
        self.cell: Cell | None = None
        self.odds = self.scale = 0


class Release:
    """Blocks released together. keys: deepest first; depth: of the last of them; found: how many
    a lookup had found."""

    __slots__ = ("depth", "found", "keys")

    def __init__(self) -> None:
        self.keys: dict[bytes, None] = {}  # two releases may look like one: each key once
        self.depth, self.found = -1, 0


class History:
    """Uses by key, for 8 times as many keys as the pool has blocks and at least 65,536.

    now      the time: releases that have ended
    returns  what is learned from all of them
    """

    def __init__(self) -> None:
        self.now = 0
        self.returns = Returns()
        self._memory: KeyMemory[Record] = KeyMemory(times=8, floor=65_536)
        self._release: Release | None = None

    def hit(self, key: bytes) -> None:
        """A lookup found `key`; the release before must have ended."""
        record = self._memory.get(key)
        if record is not None:
            self._again(record, self.now + 1)
            record.found = True

    def continues(self, depth: int) -> bool:
        """Whether a block of that depth belongs to the release that has not ended yet."""
        return self._release is not None and depth == self._release.depth - 1

    def add(self, key: bytes, depth: int) -> None:
        """The block of `key` was released: one more of a release."""
        if self._release is None:
            self._release = Release()
        self._release.keys[key] = None
        self._release.depth = depth

    def end(self, blocks: int) -> Release | None:
        """The release has ended, if there is one; `blocks` are held now. What it tells is learned,
        and the records of its keys are up to date. O(1) a block."""
        release, self._release = self._release, None
        if release is None:
            return None
        self.now += 1
        records, fresh = list[Record](), 0
        for key in release.keys:
            record = self._memory.get(key)
            if record is None:
                record = Record(self.now)
                fresh += 1
            elif record.found:
                record.found, record.last = False, self.now
                release.found += 1
            else:  # computed anew, which is a use as well
                self._again(record, self.now)
            self._memory.note(key, record, blocks=blocks)
            records.append(record)
        self.returns.released(len(records))
        self._judge(records, fresh)
        return release

    def record(self, key: bytes) -> Record:
        """What is known of `key`; a first use now where nothing is."""
        return self._memory.get(key) or Record(self.now)

    def _again(self, record: Record, now: int) -> None:
        log = math.log2(max(1, now - record.last))
        if record.cell is not None:
            self.returns.returned(
                record.cell, record.scale, log, uses=record.count, logs=record.logs
            )
            record.cell = None
        record.logs += log
        record.count += 1
        record.last = now

    def _judge(self, records: list[Record], fresh: int) -> None:
        """Cell and grades of each. Neighbours with equal uses are judged as one."""
        start = 0
        while start < len(records):
            first, stop = records[start], start + 1
            ends = start == 0 and first.count == 1
            while (
                not ends
                and stop < len(records)
                and records[stop].count == first.count
                and records[stop].logs == first.logs
            ):
                stop += 1
            cell = self.returns.cell(first.count, ends=ends, fresh=fresh)
            cell.count(stop - start, 0)
            odds, scale = self.returns.grades(cell, first.count, first.logs)
            for record in records[start:stop]:
                record.cell, record.odds, record.scale = cell, odds, scale
            start = stop
