"""What the benchmarks offer to the command line. Imports nothing heavy."""

from __future__ import annotations

from pagedattn.hooks import Offer, hookimpl


@hookimpl
def pagedattn_commands() -> list[Offer]:
    return [
        Offer(
            "bench",
            "pagedattn.benchmarks.cli:bench",
            summary="compare backends: checked, interleaved, against the machine's limits",
        ),
        Offer(
            "compare",
            "pagedattn.benchmarks.cli:compare",
            summary="compare two reports of bench; exit 1 on a regression",
        ),
        Offer(
            "audit",
            "pagedattn.benchmarks.audit.cli:audit",
            summary="replay a request trace through allocators at equal memory",
        ),
    ]
