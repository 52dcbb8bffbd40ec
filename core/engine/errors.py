"""What the engine raises beside the errors of the contracts."""

from __future__ import annotations

from pagedattn.errors import PagedAttnError

__all__ = ["EngineError", "InvalidRequest"]


class InvalidRequest(PagedAttnError, ValueError):
    """A request that this engine can never serve as asked; refused before anything runs."""


class EngineError(PagedAttnError, RuntimeError):
    """The engine cannot go on: no progress is possible, or the model returned nonsense."""
