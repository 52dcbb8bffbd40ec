"""Medians with intervals, ratios, and the only four words that a comparison may use.

Intervals are order statistics: exact for any distribution, no random numbers, and honest about few
samples (below MIN_SAMPLES there is none). Samples that were taken side by side are compared as
pairs, so that drift of the machine cancels; samples of different runs are not.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

__all__ = [
    "MIN_SAMPLES",
    "TOLERANCE",
    "Estimate",
    "Verdict",
    "estimate",
    "judge",
    "paired_ratio",
    "unpaired_ratio",
]

MIN_SAMPLES = 7
"""Fewest samples that give an interval, also for the 97.5% intervals of unpaired_ratio()."""

TOLERANCE = 0.02
"""Speeds within 2% of each other count as the same."""


class Verdict(enum.StrEnum):
    """What an interval of the speed-up over the baseline says.

    SAME     it lies within 1 +- tolerance
    FASTER   it lies above 1, SLOWER below 1, and it is not SAME
    UNCLEAR  anything else: take more samples
    """

    FASTER = "FASTER"
    SLOWER = "SLOWER"
    SAME = "SAME"
    UNCLEAR = "UNCLEAR"


@dataclass(frozen=True)
class Estimate:
    """A median and its interval, low <= value <= high."""

    value: float
    low: float
    high: float

    def scaled(self, factor: float) -> Estimate:
        """In another unit; `factor` is positive."""
        return Estimate(self.value * factor, self.low * factor, self.high * factor)

    def inverse(self) -> Estimate:
        """1 / x: a rate from a time."""
        return Estimate(1 / self.value, 1 / self.high, 1 / self.low)


def estimate(samples: Sequence[float], *, confidence: float = 0.95) -> Estimate:
    """The median with an order-statistic interval that covers it with at least `confidence`.

    The k-th smallest and k-th largest sample enclose the true median unless fewer than k samples
    fall on one of its sides; k is the largest for which that is rare enough. Raises ValueError when
    even the smallest and the largest sample do not reach `confidence`."""
    ordered, n = sorted(samples), len(samples)
    rank, tail = 0, 0.0
    while rank < n:
        tail += math.comb(n, rank) * 0.5**n
        if 2 * tail > 1 - confidence:
            break
        rank += 1
    if rank == 0:
        raise ValueError(f"{n} samples give no {confidence:.1%} interval; take {MIN_SAMPLES}")
    return Estimate(median(ordered), ordered[rank - 1], ordered[n - rank])


def paired_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Estimate:
    """Median of numerator[i] / denominator[i], samples of one round, with its 95% interval."""
    return estimate([a / b for a, b in zip(numerator, denominator, strict=True)])


def unpaired_ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Estimate:
    """median(numerator) / median(denominator) of different runs.

    Both 97.5% intervals hold together with at least 95%, and then so does the quotient of their
    ends; it is wider than a paired one, as it should be."""
    a, b = (estimate(samples, confidence=0.975) for samples in (numerator, denominator))
    return Estimate(a.value / b.value, a.low / b.high, a.high / b.low)


def judge(speedup: Estimate, *, tolerance: float = TOLERANCE) -> Verdict:
    """The verdict on a speed-up, by its interval alone."""
    if speedup.low >= 1 - tolerance and speedup.high <= 1 + tolerance:
        return Verdict.SAME
    if speedup.low > 1:
        return Verdict.FASTER
    if speedup.high < 1:
        return Verdict.SLOWER
    return Verdict.UNCLEAR
