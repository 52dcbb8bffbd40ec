"""Planted bugs that the suite must find."""

from pagedattn.conformance.mutants.allocator import ALLOCATOR_MUTANTS

__all__ = ["ALLOCATOR_MUTANTS"]
