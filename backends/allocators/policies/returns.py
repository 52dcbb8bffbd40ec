"""What becomes of released content, learned: how likely it returns, and how long it takes."""

from __future__ import annotations

import math

__all__ = ["STEP", "Cell", "Returns"]

STEP = 4  # grades of time an octave
_HALF = 32  # bins of relative age on either side of 1
_BINS = 2 * _HALF
_ODDS = 16  # grades of odds on either side of 1, two an octave
_PRIOR = 8.0  # releases that a cell's parent counts for
_DELAY = 1024  # most releases from one table to the next
_FORGET = 1 << 18  # blocks after which all counts are halved
_EDGES = [2.0 ** ((b - _HALF) / STEP) for b in range(_BINS + 1)]


class Cell:
    """Blocks alike when they were released, and how many of them were used again.

    parent   the same with one trait less; None for all blocks
    """

    __slots__ = ("parent", "returned", "used")

    def __init__(self, parent: Cell | None) -> None:
        self.parent = parent
        self.used = self.returned = 0.0

    def count(self, used: float, returned: float) -> None:
        """More of either, here and in all that the cell is part of."""
        cell: Cell | None = self
        while cell is not None:
            cell.used += used
            cell.returned += returned
            cell = cell.parent

    def probability(self, prior: float) -> float:
        """That a block of this cell is used again; the parent's counts for `prior` blocks."""
        mean = self.parent.probability(prior) if self.parent else 0.5
        return (self.returned + prior * mean) / (self.used + prior)


class _Moments:
    """Count, sum and sum of squares."""

    __slots__ = ("n", "squares", "sum")

    def __init__(self, n: float, sum: float, squares: float) -> None:
        self.n, self.sum, self.squares = n, sum, squares

    @property
    def mean(self) -> float:
        return self.sum / self.n

    @property
    def variance(self) -> float:
        return self.squares / self.n - self.mean**2

    def add(self, value: float) -> None:
        self.n += 1
        self.sum += value
        self.squares += value * value

    def halve(self) -> None:
        self.n, self.sum, self.squares = self.n / 2, self.sum / 2, self.squares / 2


class Returns:
    """Three things learned from all uses, evicted content included. Times are releases.

    Chance. Blocks are counted by how often they were used, whether they end their release and
    are new, and how many blocks of the release were new; a cell with little of its own leans on
    the one with a trait less (shrinkage).
    Scale. 2 ** mean of log2 of a content's own gaps between uses, the mean first gap of all
    content counting as some more: as many as gaps of one content vary more than contents differ,
    which first and second gaps show (empirical Bayes).
    Shape. How gaps are spread, measured in their own content's scale: one histogram for all.

    Worth of content is the most returns per unit of time that holding it can give, over all times
    at which to stop (Gittins' index; hits per block and time as in LHD, Beckmann, NSDI 2018):

        max over t of  P(back by age + t | not back by age) / E[time held until then]

    It may rise with age: content with a rhythm is worth most just before its time. It depends on
    grades of chance, scale and age alone and is kept in a table.
    """

    def __init__(self) -> None:
        self._cells: dict[tuple[int, ...], Cell] = {}
        self._all = Cell(None)
        self._prior = _PRIOR
        self._releases = self._due = 0
        self._first = _Moments(1.0, math.log2(512), math.log2(512) ** 2)
        self._both = _Moments(1.0, 0.0, 0.0)  # second gaps less first ones
        self._weight, self._mean = 1.0, math.log2(512)
        # Before anything is known gaps are exponential; that counts as much as a few releases.
        self._shape = [math.exp(-low) - math.exp(-high) for low, high in _bins()]
        self._gaps = [0.0] * _BINS
        self._spread: list[float] = []
        self._table: dict[int, list[float]] = {}

    def cell(self, uses: int, *, ends: bool, fresh: int) -> Cell:
        """Of blocks used `uses` times in a release with `fresh` new ones. ends: the new, deepest
        one among them."""
        grade = uses if uses < 6 else 4 + (uses - 1).bit_length()
        cell, name = self._all, tuple[int, ...]()
        for trait in (grade, int(ends), fresh.bit_length()):
            name += (trait,)
            found = self._cells.get(name)
            if found is None:
                found = self._cells[name] = Cell(cell)
            cell = found
        return cell

    def released(self, blocks: int) -> None:
        """A release of that many blocks has ended."""
        self._releases += 1
        mean = (self._all.used + blocks) / self._releases
        self._prior = _PRIOR * mean
        if self._all.used > _FORGET:
            self._forget()
        if self._releases >= self._due:
            self._due = self._releases + min(max(64, self._releases // 2), _DELAY)
            self._mean = self._first.mean
            # Of the difference of two gaps of one content half is either's own variation.
            own = self._both.variance / 2
            self._weight = max(0.5, min(16.0, own / max(self._first.variance - own, 1e-9)))
            self._table.clear()
            self._spread.clear()

    def returned(self, cell: Cell, scale: int, log: float, *, uses: int, logs: float) -> None:
        """A block was used again after a gap of 2 ** log; the rest is as it was judged before."""
        cell.count(0, 1)
        self._gaps[_bin(log, scale)] += 1
        if uses == 1:
            self._first.add(log)
        elif uses == 2:
            self._both.add(log - logs)

    def grades(self, cell: Cell, uses: int, logs: float) -> tuple[int, int]:
        """Chance and scale of content with that sum of log2 of its gaps."""
        chance = cell.probability(self._prior)
        odds = round(2 * math.log2(max(chance, 1e-9) / max(1 - chance, 1e-9)))
        scale = (logs + self._weight * self._mean) / (uses - 1 + self._weight)
        return max(-_ODDS, min(_ODDS, odds)), round(STEP * scale)

    def worth(self, odds: int, scale: int, age: int) -> float:
        """Returns per release to expect of content of these grades, last used `age` ago."""
        worths = self._table.get(odds)
        if worths is None:
            self._spread = self._spread or self._smooth()
            worths = self._table[odds] = _index(self._spread, 1 / (1 + 2 ** (-odds / 2)))
        return worths[_bin(math.log2(max(age, 1)), scale)] * math.exp2(-scale / STEP)

    def _forget(self) -> None:
        for cell in (self._all, *self._cells.values()):
            cell.used /= 2
            cell.returned /= 2
        self._releases //= 2
        self._gaps = [gaps / 2 for gaps in self._gaps]
        self._first.halve()
        self._both.halve()
        self._due = 0

    def _smooth(self) -> list[float]:
        """The histogram of gaps with what is assumed at first, as parts of 1."""
        prior = 10 * self._prior
        total = sum(self._gaps) + prior
        return [(gaps + prior * p) / total for gaps, p in zip(self._gaps, self._shape, strict=True)]


def _bins() -> list[tuple[float, float]]:
    """Bounds of each bin of relative age; the first starts at 0, the last never ends."""
    low = [0.0, *_EDGES[1:-1]]
    return list(zip(low, [*low[1:], math.inf], strict=True))


def _bin(log: float, scale: int) -> int:
    """Bin of an age of 2 ** log for content of that scale."""
    return max(0, min(_BINS - 1, math.floor(STEP * log) - scale + _HALF))


def _index(spread: list[float], chance: float) -> list[float]:
    """Gittins' index in each bin of age, when `chance` returns at all, spread like that."""
    away = [1.0]
    for part in spread:
        away.append(away[-1] - chance * part)
    held = [(_EDGES[b + 1] - _EDGES[b]) * (away[b] + away[b + 1]) / 2 for b in range(_BINS)]
    best = []
    for start in range(_BINS):
        time, top = 0.0, 0.0
        for b in range(start, _BINS):
            time += held[b]
            rate = (away[start] - away[b + 1]) / time
            if rate > top:
                top = rate
        best.append(top)
    return best
