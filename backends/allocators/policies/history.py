"""When and how often each key was used, of evicted blocks too, and what runs that makes."""

from __future__ import annotations

from collections.abc import Iterator

from pagedattn.backends.allocators.policies.hazards import Hazards, Traits
from pagedattn.backends.allocators.policies.memory import KeyMemory
from pagedattn.backends.allocators.policies.runs import Run, Runs

__all__ = ["History", "Record", "Release"]

_COUNTS = 24  # grades of a count
_FRESH = 9  # grades of a number of new blocks
# Places of traits.
_KIND, _TURN, _GAP, _NEW, _USES = range(5)
# Kinds of run. The last block of a chain is a run of its own: it often holds an answer's end, or
# a question, that nobody shares.
_LAST_OF_NEW, _OLD, _LAST_OLD, _ONLY_NEW, _NEW_RUN, _SINGLE = range(6)


class Record:
    """Uses of one key. Times are counts of releases.

    count   uses so far                found   a lookup found the key since it was last released
    last    time of the last one       run     what it was last released in
    gap     between that and the one before; 0 for the first
    turn    in its last release, which turn of a conversation that was; length: of its chain
    """

    __slots__ = ("count", "found", "gap", "last", "length", "run", "turn")

    def __init__(self, now: int) -> None:
        self.count, self.last, self.gap, self.found = 1, now, 0, False
        self.turn = self.length = 0
        self.run: Run | None = None


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
    hazards  what is learned from all of them
    """

    def __init__(self) -> None:
        self.now = 0
        self.hazards = Hazards(lower_grade)
        self._runs = Runs(self.hazards, self._awaited)
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
        and the records of its keys are up to date. O(1) a block, amortised."""
        release, self._release = self._release, None
        if release is None:
            return None
        self.now += 1
        keys = list(reversed(release.keys))
        chain, known, new = list[Record](), 0, False
        for key in keys:
            record = self._memory.get(key)
            new = new or record is None
            if record is None or new:
                record = Record(self.now)
            else:
                known += 1
                if record.found:
                    record.found, record.last = False, self.now
                    release.found += 1
                else:  # computed anew, which is a use as well
                    self._again(record, self.now)
            chain.append(record)
        for key, record in zip(reversed(keys), reversed(chain), strict=True):
            self._memory.note(key, record, blocks=blocks)
        self._runs.learn(self.now)
        self.hazards.tick()
        self._judge(keys, chain, known, release.depth)
        self._runs.age(self.now + 1)
        return release

    def run(self, key: bytes) -> Run | None:
        """The run that `key` was last released in, if it is remembered."""
        record = self._memory.get(key)
        return record.run if record else None

    def _again(self, record: Record, now: int) -> None:
        if not record.found:
            if record.run is not None:
                self._runs.used(record.run)
            record.gap = now - record.last
        record.count += 1
        record.last = now

    def _awaited(self, run: Run) -> bool:
        return self.run(run.key) is run

    def _judge(self, keys: list[bytes], chain: list[Record], known: int, depth: int) -> None:
        """Runs of a chain whose first block is at `depth`; `known` leading ones are old."""
        fresh, length = len(chain) - known, depth + len(chain)
        turn, gap = 1, 0
        if known:
            # A chain that goes on where another ended, or nearly, is the next turn of it.
            end = chain[known - 1]
            lost = end.length - depth - known
            turn = end.turn + 1 if lost <= max(1, end.length // 4) else 1
            gap = end.gap.bit_length()
        worth = 0.0
        for start, stop in reversed(list(_alike(chain, known))):
            first = chain[start]
            kind = _kind(start, stop, len(chain), known)
            traits = _traits(kind, turn=turn, gap=gap, fresh=fresh, uses=first.count)
            run = self._runs.start(keys[stop - 1], traits, self.now, stop - start, at_least=worth)
            worth = run.worth
            for record in chain[start:stop]:
                record.run, record.turn, record.length = run, turn, length


def lower_grade(place: int, grade: int) -> int:
    """The grade of a trait that one leans on while little is known of it, or -1: one turn less,
    one use less."""
    if place == _TURN and grade > 1:
        return grade - 1
    if place == _USES and grade >= 6:
        return grade - 3
    return -1


def _alike(chain: list[Record], known: int) -> Iterator[tuple[int, int]]:
    """Bounds of runs: neighbours with equal uses, all that is new; the last block alone."""
    start, end = 0, len(chain) - 1
    while start <= end:
        stop, first = start + 1, chain[start]
        if start >= known:
            stop = max(end, stop)
        while start < known and stop < min(known, end):
            other = chain[stop]
            if (other.count, other.gap.bit_length()) != (first.count, first.gap.bit_length()):
                break
            stop += 1
        yield start, stop
        start = stop


def _kind(start: int, stop: int, blocks: int, known: int) -> int:
    old = start < known
    if stop < blocks or stop - start > 1:
        return _OLD if old else _NEW_RUN
    if old:
        return _LAST_OLD
    if blocks == 1:
        return _SINGLE
    return _ONLY_NEW if known == blocks - 1 else _LAST_OF_NEW


def _traits(kind: int, *, turn: int, gap: int, fresh: int, uses: int) -> Traits:
    end = {_LAST_OF_NEW: 0, _ONLY_NEW: 0, _OLD: 1}.get(kind, 2)
    new = min(fresh.bit_length(), _FRESH)
    return (kind, _grade(turn), gap, 2 * new + (turn == 1), 3 * _grade(uses) + end)


def _grade(count: int) -> int:
    """Each number up to 3, 4 to 6, then two grades an octave: 7 and 8, 9 to 12, 13 to 16."""
    if count <= 4:
        return count
    octave = (count - 1).bit_length() - 1
    return min(2 * octave + ((count - 1) >> (octave - 1) & 1), _COUNTS)
