"""What the conformance suite offers to the rest of pagedattn."""

from __future__ import annotations

from pagedattn.hooks import Offer, hookimpl


@hookimpl
def pagedattn_commands() -> list[Offer]:
    return [
        Offer(
            "check",
            "pagedattn.conformance.cli:check",
            summary="judge backends and allocators by the conformance suite",
        ),
        Offer(
            "matrix",
            "pagedattn.conformance.matrix_cli:matrix",
            summary="stored reports side by side: who serves what",
        ),
    ]
