"""The attention cases. `ATTENTION_CASES` is what `pagedattn check BACKEND` runs."""

from __future__ import annotations

from pagedattn.conformance.attention import (
    arguments,
    basics,
    honesty,
    invariance,
    masking,
    memory,
    numeric,
    options,
    planning,
    shapes,
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
    *numeric.CASES,
    *invariance.CASES,
    *writing.CASES,
    *planning.CASES,
    *arguments.CASES,
    *honesty.CASES,
)
"""In the order of a reader's questions; ids are unique (tests/test_conformance_cases.py)."""
