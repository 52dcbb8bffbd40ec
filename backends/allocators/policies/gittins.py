"""Bins of age, and what content is worth that returns at a given hazard in each of them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

__all__ = ["EDGES", "WIDTHS", "bin_of", "index"]

# Lower bounds, in releases: two bins an octave. Content away for longer than the last counts as
# equally old; the pool of which it is the typical age holds hundreds of thousands of blocks.
EDGES = [0.0, *(2.0 ** (i / 2) for i in range(4, 31))]
WIDTHS = [*(high - low for low, high in pairwise(EDGES)), EDGES[-1]]


def bin_of(age: float) -> int:
    """Bin of an age in releases."""
    return bisect_right(EDGES, age) - 1


def index(hazard: Sequence[float]) -> list[float]:
    """Gittins' index at the start of each bin: the most returns per release of holding content
    that can be had, over all ages `t` at which to give up (Gittins 1979; as hits per block and
    time in LHD, Beckmann, NSDI 2018):

        max over t of  P(returns before t) / E[time held until its return or t]

    hazard: returns per release while the content is away, in each bin. Computed backwards: a bin
    is pooled with what follows while that has the higher rate, which makes the rates of pools
    decrease. O(bins).
    """
    away, gains, times = 1.0, list[float](), list[float]()
    for rate, width in zip(hazard, WIDTHS, strict=True):
        gain = -away * math.expm1(-rate * width)
        gains.append(gain)
        times.append(gain / rate if rate > 1e-15 else away * width)
        away -= gain
    worth, pools = list[float](), list[tuple[float, float]]()
    backwards = zip(reversed(gains), reversed(times), reversed(hazard), strict=True)
    for gain, time, rate in backwards:
        while pools and pools[-1][0] * time > gain * pools[-1][1]:
            more, longer = pools.pop()
            gain, time = gain + more, time + longer
        pools.append((gain, time))
        worth.append(gain / time if time > 0 else rate)  # nothing is left that far out
    worth.reverse()
    return worth
