"""The suite as classes to subclass in one's own test files; pytest_plugin.py fills the cases in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from pagedattn.attention import AttentionBackend
    from pagedattn.conformance.pytest_plugin import BoundCase

__all__ = ["AllocatorConformance", "BackendConformance"]


class _Conformance:
    def test_case(self, pagedattn_case: BoundCase, request: Any) -> None:
        """One case of the suite; skipped when it is declined with reasons."""
        pagedattn_case.judge(request.node)


class BackendConformance(_Conformance):
    """Judge an attention backend.

    backend  its registered name, or an instance of it
    device   where to judge it
    """

    backend: ClassVar[str | AttentionBackend]
    device: ClassVar[str] = "cpu"


class AllocatorConformance(_Conformance):
    """Judge an allocator by its registered name."""

    allocator: ClassVar[str]
