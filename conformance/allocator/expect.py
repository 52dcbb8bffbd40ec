"""How a case fails: which rule, what it asks for, what was seen."""

from __future__ import annotations

from pagedattn.conformance.case import CaseFailure

__all__ = ["fail", "must"]


def fail(rule: str, expected: object, happened: object) -> CaseFailure:
    """The failure to raise."""
    return CaseFailure(f"{rule}: expected {expected}, but: {happened}")


def must(holds: bool, rule: str, expected: object, happened: object) -> None:
    """Raise the failure unless `holds`."""
    if not holds:
        raise fail(rule, expected, happened)
