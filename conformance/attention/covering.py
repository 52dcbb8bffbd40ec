"""Covering arrays: few rows in which every pair of values of two axes occurs.

Greedy and deterministic: a row starts from the first pair that is not covered yet and takes, axis
by axis, the value that covers most of what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

__all__ = ["Axes", "Pair", "Row", "cover", "pairs_of"]

Axes = Mapping[str, Sequence[str]]
"""axis -> names of its values; the first one is its default"""

Row = Mapping[str, str]
"""axis -> value, for every axis"""

Pair = tuple[tuple[str, str], tuple[str, str]]
"""((axis, value), (axis, value)), the axes in their order"""


def pairs_of(row: Row) -> Iterator[Pair]:
    """Every pair of values of a row."""
    yield from combinations(row.items(), 2)


def cover(
    axes: Axes, allowed: Callable[[Row], bool], *, besides: Iterable[Row] = ()
) -> tuple[list[dict[str, str]], frozenset[Pair]]:
    """(rows, the pairs that occur in them or in `besides`).

    A pair occurs if and only if it can: some row with it, in which at most one further axis leaves
    its default, is allowed. Rows come in the order in which they were needed."""
    covered = {pair for row in besides for pair in pairs_of(row)}
    wanted = dict.fromkeys(pair for pair in _every_pair(axes) if pair not in covered)
    rows = []
    while wanted:
        pair = next(iter(wanted))
        start = _complete(axes, dict(pair), allowed)
        if start is None:
            del wanted[pair]
            continue
        row = _filled(axes, start, allowed, wanted.keys())
        rows.append(row)
        for met in pairs_of(row):
            covered.add(met)
            wanted.pop(met, None)
    return rows, frozenset(covered)


def _every_pair(axes: Axes) -> Iterator[Pair]:
    for (one, values), (other, others) in combinations(axes.items(), 2):
        for value in values:
            for second in others:
                yield (one, value), (other, second)


def _with_defaults(axes: Axes, fixed: Mapping[str, str]) -> dict[str, str]:
    return {axis: fixed.get(axis, values[0]) for axis, values in axes.items()}


def _complete(
    axes: Axes, fixed: dict[str, str], allowed: Callable[[Row], bool]
) -> dict[str, str] | None:
    """`fixed`, with one more axis fixed where its default would not do; None when nothing does."""
    if allowed(_with_defaults(axes, fixed)):
        return fixed
    for axis, values in axes.items():
        if axis not in fixed:
            for value in values[1:]:
                if allowed(_with_defaults(axes, {**fixed, axis: value})):
                    return {**fixed, axis: value}
    return None


def _filled(
    axes: Axes, fixed: dict[str, str], allowed: Callable[[Row], bool], wanted: Collection[Any]
) -> dict[str, str]:
    """The widest axes choose first; of equal gains the earlier value wins."""
    for axis in sorted(axes, key=lambda name: -len(axes[name])):
        if axis in fixed:
            continue

        def gain(value: str, axis: str = axis) -> int:
            row = {name: {**fixed, axis: value}.get(name, "") for name in axes}
            mine = (axis, value)
            pairs = combinations([item for item in row.items() if item[1]], 2)
            return sum(pair in wanted for pair in pairs if mine in pair)

        for value in sorted(axes[axis], key=gain, reverse=True):
            if allowed(_with_defaults(axes, {**fixed, axis: value})):
                fixed[axis] = value
                break
    return _with_defaults(axes, fixed)
