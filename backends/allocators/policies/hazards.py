"""How the hazard of a return depends on age and traits, learned as it goes."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import mul

from pagedattn.backends.allocators.policies import gittins

__all__ = ["Hazards", "Profile", "Traits"]

# Small integers that tell what a run of blocks is like (history.py); the place says which trait.
Traits = tuple[int, ...]

_BINS = len(gittins.EDGES)
# Weights below are in mean samples.
_BASE = 16.0  # that the hazard of the bin before counts for
_WHOLE = 8.0  # that the next lower grade counts for, in the factor over all ages
_BIN = 32.0  # that the factor over all ages counts for, in that of a bin
_FIRST = 1 / 1500  # returns per release of the young, before anything is known
_FLAT = 200  # age from which the hazard is taken to fall as 1 / age, unless known better
_MOST = 0.9  # of a bin's hazard, per release
_EPOCH = 50  # releases for which what was worked out is used, at most; an 8th of all so far
_PROFILES = 4096  # that are kept
_FORGET = 1 << 17  # samples after which all counts are halved

# What the hazard of a bin is to that of the one before, unless known better.
_FALL = [1.0] + [
    gittins.EDGES[b - 1] / gittins.EDGES[b] if gittins.EDGES[b] > _FLAT else 1.0
    for b in range(1, _BINS)
]


class _Cell:
    """Samples with one trait in common. By bin: returns, and how many there would have been
    without the trait's own factor. whole, factors: that factor, over all ages and by bin, and the
    times until which these are used."""

    __slots__ = ("expected", "factors", "factors_until", "returned", "whole", "whole_until")

    def __init__(self) -> None:
        self.returned, self.expected = [0.0] * _BINS, [0.0] * _BINS
        self.whole, self.factors = 1.0, list[float]()
        self.whole_until = self.factors_until = -1


class Profile:
    """What is known of runs with given traits. hazard and worth (Gittins' index): by bin."""

    __slots__ = ("_worth", "hazard", "parts", "until")

    def __init__(
        self, parts: list[tuple[_Cell, list[float]]], base: list[float], until: int
    ) -> None:
        self.parts, self.until = parts, until
        hazard = base
        for _, factors in parts:
            hazard = list(map(mul, hazard, factors))
        self.hazard = hazard if max(hazard) < _MOST else [min(h, _MOST) for h in hazard]
        self._worth: list[float] | None = None

    @property
    def worth(self) -> list[float]:
        if self._worth is None:
            self._worth = gittins.index(self.hazard)
        return self._worth


class Hazards:
    """Hazard in a bin of age = base of the bin x one factor for each trait.

    A factor is the ratio of the returns that were seen with its trait to those that the base and
    the other factors let expect (iterative proportional fitting, Deming and Stephan 1940, one step
    with every sample; there is no rate of learning). A factor of a bin leans on the one over all
    ages, that one on the trait's next lower grade, else on 1. What is within chance of what it
    leans on is drawn back to it, so that where traits mean nothing all are worth the same at equal
    age and the oldest goes, as in LRU.

    Factors are worked out when they are asked for and then used for some releases, each trait at
    its own time, so that no call does the work for all.

    lower   the trait's grade below: (place, grade) -> grade, or -1 where there is none
    """

    def __init__(self, lower: Callable[[int, int], int]) -> None:
        self._lower = lower
        self._cells: dict[tuple[int, int], _Cell] = {}
        self._profiles: dict[Traits, Profile] = {}
        self._returned, self._time = [0.0] * _BINS, [0.0] * _BINS
        self._samples = self._weight = 0.0
        self._now = self._until = 0
        self._renew_base()

    def sampled(self, weight: float) -> None:
        """One more run is observed from now on."""
        self._samples += 1
        self._weight += weight

    def lived(self, traits: Traits, b: int, weight: float, time: float) -> None:
        """A run of that weight was away for so many releases in bin `b`."""
        profile = self.profile(traits)
        product, exposure = 1.0, weight * time
        expected = exposure * profile.hazard[b]
        for cell, factors in profile.parts:
            factor = factors[b]
            product *= factor
            cell.expected[b] += expected / factor
        self._time[b] += exposure * product

    def returned(self, traits: Traits, b: int, weight: float) -> None:
        """It returned in that bin."""
        self._returned[b] += weight
        for cell, _ in self.profile(traits).parts:
            cell.returned[b] += weight

    def tick(self) -> None:
        """A release has ended."""
        self._now += 1
        if self._samples > _FORGET:
            self._forget()
        if self._now >= self._until:
            self._renew_base()

    def profile(self, traits: Traits) -> Profile:
        """What is known of these traits."""
        known = self._profiles.get(traits)
        if known is None or known.until <= self._now:
            cells = [self._by_bin(place, grade) for place, grade in enumerate(traits)]
            if len(self._profiles) >= _PROFILES:
                self._profiles.clear()
            known = Profile([(cell, cell.factors) for cell in cells], self._base, self._later())
            self._profiles[traits] = known
        return known

    def _later(self) -> int:
        return self._now + max(1, min(_EPOCH, self._now // 8))

    def _renew_base(self) -> None:
        self._until = self._later()
        self._unit = self._weight / self._samples if self._samples else 1.0
        self._base, prior, hazard = list[float](), _BASE * self._unit, _FIRST
        for returned, time, fall in zip(self._returned, self._time, _FALL, strict=True):
            lean = hazard * fall
            hazard = lean * self._effect(returned, time * lean, prior)
            self._base.append(hazard)

    def _by_bin(self, place: int, grade: int) -> _Cell:
        """The cell of a trait, its factors up to date."""
        cell = self._over_all(place, grade)
        if cell.factors_until <= self._now:
            whole = cell.whole
            prior = _BIN * whole * self._unit
            cell.factors = [
                whole * self._effect(returned, expected * whole, prior) if expected else whole
                for returned, expected in zip(cell.returned, cell.expected, strict=True)
            ]
            cell.factors_until = self._later()
        return cell

    def _over_all(self, place: int, grade: int) -> _Cell:
        """The cell of a trait, its factor over all ages up to date."""
        cell = self._cells.get((place, grade))
        if cell is None:
            cell = self._cells[place, grade] = _Cell()
        if cell.whole_until <= self._now:
            lower = self._lower(place, grade)
            lean = self._over_all(place, lower).whole if lower >= 0 else 1.0
            returned, expected = sum(cell.returned), lean * sum(cell.expected)
            cell.whole = lean * self._effect(returned, expected, _WHOLE * lean * self._unit)
            cell.whole_until = self._later()
        return cell

    def _effect(self, returned: float, expected: float, prior: float) -> float:
        """Returned over expected, as many as `prior` of each counted more, drawn to 1 by one
        standard deviation: that of a count of n samples is the root of n. One sample more than
        were seen, so that the first alone never tells anything."""
        effect = math.log((returned + prior) / (expected + prior))
        n = (returned if returned > expected else expected) + self._unit
        chance = math.sqrt(n * self._unit) / (n + prior)
        if effect > chance:
            return math.exp(effect - chance)
        return math.exp(effect + chance) if effect < -chance else 1.0

    def _forget(self) -> None:
        for cell in self._cells.values():
            cell.returned = [n / 2 for n in cell.returned]
            cell.expected = [n / 2 for n in cell.expected]
        self._returned = [n / 2 for n in self._returned]
        self._time = [n / 2 for n in self._time]
        self._samples, self._weight = self._samples / 2, self._weight / 2
