"""Planted bugs that the suite must find, by name.

Lazy, because the two suites need different things to be imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pagedattn.conformance.mutants.allocator import ALLOCATOR_MUTANTS as ALLOCATOR_MUTANTS
    from pagedattn.conformance.mutants.attention import ATTENTION_MUTANTS as ATTENTION_MUTANTS

__all__ = ["ALLOCATOR_MUTANTS", "ATTENTION_MUTANTS"]


def __getattr__(name: str) -> Any:
    if name == "ATTENTION_MUTANTS":
        from pagedattn.conformance.mutants.attention import ATTENTION_MUTANTS

        return ATTENTION_MUTANTS
    if name == "ALLOCATOR_MUTANTS":
        from pagedattn.conformance.mutants.allocator import ALLOCATOR_MUTANTS

        return ALLOCATOR_MUTANTS
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
