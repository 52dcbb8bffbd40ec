"""The part of the suite that `pagedattn check --quick` runs: the required core, and of everything
else one case of each kind."""

from __future__ import annotations

from collections.abc import Sequence

from pagedattn.conformance.areas import area_of
from pagedattn.conformance.case import Case

__all__ = ["quick"]


def quick(cases: Sequence[Case]) -> list[Case]:
    """Every core case, and the first of each area that tests a rule for the same faults.

    It depends on the list of cases alone, never on a clock or on the machine."""
    chosen = []
    seen: set[tuple[str, str, tuple[str, ...]]] = set()
    for case in cases:
        kind = (area_of(case.id), case.rule, case.faults)
        if case.core or kind not in seen:
            chosen.append(case)
        seen.add(kind)
    return chosen
