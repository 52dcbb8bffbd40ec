"""The attention cases. `ATTENTION_CASES` is what `pagedattn check BACKEND` runs."""

from __future__ import annotations

from pagedattn.conformance.attention import (
    arguments,
    basics,
    bounds,
    end_to_end,
    extremes,
    honesty,
    invariance,
    launching,
    masking,
    memory,
    moving,
    numeric,
    options,
    paging,
    pairs,
    planning,
    precision,
    ragged,
    reach,
    shapes,
    together,
    waiting,
    writing,
)
from pagedattn.conformance.attention.subject import AttentionSubject
from pagedattn.conformance.case import Case

__all__ = ["ATTENTION_CASES", "AttentionSubject"]

ATTENTION_CASES: tuple[Case, ...] = (
    *basics.CASES,
    *masking.CASES,
    *memory.CASES,
    *shapes.CASES,
    *options.CASES,
    *together.CASES,
    *numeric.CASES,
    *precision.CASES,
    *extremes.CASES,
    *invariance.CASES,
    *writing.CASES,
    *planning.CASES,
    *moving.CASES,
    *arguments.CASES,
    *honesty.CASES,
    *bounds.CASES,
    *reach.CASES,
    *launching.CASES,
    *waiting.CASES,
    *paging.CASES,
    *end_to_end.CASES,
    *pairs.CASES,
    *ragged.CASES,
)
"""In the order of a reader's questions; ids are unique (tests/test_conformance_cases.py)."""
