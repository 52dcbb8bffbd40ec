"""Waste by arithmetic: what a reservation or a block size costs at final lengths, without time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pagedattn.benchmarks.audit.trace import Request

__all__ = ["Fixed", "paging", "reservation"]


@dataclass(frozen=True)
class Fixed:
    """What one way of holding the KV costs.

    kind      "reserve" (every request gets `size` tokens) or "page" (whole blocks of `size`)
    requests  those that fit        tokens  that they have in the end        held  tokens held
    """

    kind: str
    size: int
    requests: int
    tokens: int
    held: int

    @property
    def waste(self) -> float:
        """Fraction of what is held that never holds a token; 0 when nothing is held."""
        return 1 - self.tokens / self.held if self.held else 0.0


def reservation(requests: Sequence[Request], sizes: Iterable[int]) -> list[Fixed]:
    """Reserving each of `sizes` tokens for every request that fits into it."""
    totals = [request.total for request in requests]
    found = []
    for size in sizes:
        fit = [total for total in totals if total <= size]
        found.append(Fixed("reserve", size, len(fit), sum(fit), size * len(fit)))
    return found


def paging(requests: Sequence[Request], sizes: Iterable[int]) -> list[Fixed]:
    """Blocks of each of `sizes` tokens, no prefix shared."""
    totals = [request.total for request in requests]
    return [
        Fixed("page", size, len(totals), sum(totals), sum(-(-t // size) * size for t in totals))
        for size in sizes
    ]
