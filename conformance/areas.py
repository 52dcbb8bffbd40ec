"""Cases are grouped by the first part of their ids."""

from __future__ import annotations

__all__ = ["area_of"]


def area_of(case_id: str) -> str:
    """The first part of an id; of "allocator/..." the first two."""
    parts = case_id.split("/")
    return "/".join(parts[:2]) if parts[0] == "allocator" and len(parts) > 2 else parts[0]
