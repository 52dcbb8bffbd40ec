"""How cases are written: a function of (subject, seed), an id, a rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pagedattn.conformance.attention.judge import Measures
from pagedattn.conformance.attention.subject import AttentionSubject
from pagedattn.conformance.case import Case, Kind
from pagedattn.conformance.settings import seed_of

__all__ = ["Judge", "attention_case", "edges", "seed_of"]

Judge = Callable[[AttentionSubject, int], Measures | None]


def attention_case(
    id: str, rule: str, judge: Judge, *, faults: Sequence[str] = (), core: bool = False
) -> Case:
    """A case whose random numbers come from its id (and the run's seed), so that the id
    reproduces it."""
    return Case(
        id=id,
        kind=Kind.ATTENTION,
        rule=rule,
        run=partial(_run, judge, id),
        faults=tuple(faults),
        core=core,
    )


def _run(judge: Judge, id: str, subject: Any) -> Measures | None:
    return judge(subject, seed_of(id))


def edges(block_size: int) -> list[int]:
    """Lengths around the edges of blocks: 1, bs-1, bs, bs+1, 2bs-1, 2bs, 2bs+1, without repeats."""
    found = {1, *(k * block_size + d for k in (1, 2) for d in (-1, 0, 1))}
    return sorted(n for n in found if n > 0)
