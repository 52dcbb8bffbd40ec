"""Runs: blocks released together that are alike, observed until they return."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from pagedattn.backends.allocators.policies import gittins
from pagedattn.backends.allocators.policies.hazards import Hazards, Traits

__all__ = ["Holder", "Run", "Runs"]


class Holder(Protocol):
    """Who ranks blocks of a run by its worth."""

    def moved(self, run: Run) -> None:
        """The run's worth has changed."""


class Run:
    """One sample of how long content is away.

    key     of its deepest block, which seldom returns without the others
    born    time of its release; times are counts of releases
    bin     of its age (gittins.py)
    weight  of one block: the root of their number over that number, for blocks of a run return
            together, mostly, and are less than as many samples
    away    blocks not used since
    worth   returns per release to expect of holding it
    holders those to tell when that changes
    """

    __slots__ = ("away", "bin", "born", "holders", "key", "traits", "weight", "worth")

    def __init__(self, key: bytes, traits: Traits, born: int, blocks: int, worth: float) -> None:
        self.key, self.traits, self.born, self.bin, self.worth = key, traits, born, 0, worth
        self.away, self.weight = blocks, 1 / math.sqrt(blocks)
        self.holders: list[Holder] = []


class Runs:
    """All runs under observation, and a calendar of when each enters its next bin of age.

    awaited  whether a return of the run would be known as one: its keys are remembered still
    """

    def __init__(self, hazards: Hazards, awaited: Callable[[Run], bool]) -> None:
        self._hazards, self._awaited = hazards, awaited
        self._calendar: dict[int, list[Run]] = {}
        self._back: dict[Run, int] = {}  # blocks of it used since the last release ended

    def start(self, key: bytes, traits: Traits, now: int, blocks: int, *, at_least: float) -> Run:
        """Observe a run. A chain without its head is worth nothing: a run is worth as much as any
        deeper one of its release, `at_least`."""
        run = Run(key, traits, now, blocks, max(at_least, self._hazards.profile(traits).worth[0]))
        self._hazards.sampled(blocks * run.weight)
        self._schedule(run)
        return run

    def used(self, run: Run) -> None:
        """One of its blocks was used, for the first time since its release."""
        self._back[run] = self._back.get(run, 0) + 1

    def learn(self, now: int) -> None:
        """Count what was used up to `now`."""
        for run, blocks in self._back.items():
            age = now - run.born
            b = gittins.bin_of(age)
            weight = blocks * run.weight
            # A return in the release at which the bin begins has lived through half of one.
            time = min(max(0.5, age - gittins.EDGES[b]), gittins.WIDTHS[b])
            self._hazards.lived(run.traits, b, weight, time)
            self._hazards.returned(run.traits, b, weight)
            run.away -= blocks
        self._back.clear()

    def age(self, now: int) -> None:
        """Move the runs that enter another bin at `now`. At most one step a bin and run."""
        for run in self._calendar.pop(now, ()):
            if run.away > 0 and self._awaited(run):
                time = gittins.WIDTHS[run.bin]
                self._hazards.lived(run.traits, run.bin, run.away * run.weight, time)
            elif not run.holders:
                continue
            run.bin += 1
            self._schedule(run)
            if run.holders:
                run.worth = self._hazards.profile(run.traits).worth[run.bin]
                for holder in run.holders:
                    holder.moved(run)

    def _schedule(self, run: Run) -> None:
        if run.bin + 1 < len(gittins.EDGES):
            time = run.born + math.ceil(gittins.EDGES[run.bin + 1])
            self._calendar.setdefault(time, []).append(run)
