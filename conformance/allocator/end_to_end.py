"""The allocator at work over real memory: the reference backend reads what its tables, slots and
copies say, and a dense oracle judges every step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pagedattn import registry
from pagedattn.conformance.allocator.shadow import Factory
from pagedattn.conformance.case import Case, Declined, Kind
from pagedattn.errors import Unsupported

__all__ = ["CASES"]

SHAPE: Mapping[str, Any] = {"head_dim": 16, "num_heads": 2, "num_kv_heads": 1}


def _trace(
    num_blocks: int, block_size: int, left: int | None, seed: int, make: Factory
) -> dict[str, Any] | None:
    import torch

    from pagedattn.conformance.attention.subject import AttentionSubject
    from pagedattn.conformance.attention.trace import run_trace

    subject = AttentionSubject(registry.backend("reference"), torch.device("cpu"))
    try:
        alloc = make(num_blocks=num_blocks, block_size=block_size)
    except Unsupported as error:
        raise Declined(error.refusals) from None
    run_trace(subject, alloc, wanted={**SHAPE, "window": (left, None)}, seed=seed, steps=60)
    return None


def _case(id: str, run: Callable[[Factory], dict[str, Any] | None], *faults: str) -> Case:
    return Case(f"allocator/end-to-end/{id}", Kind.ALLOCATOR, "copy-on-write", run, faults, True)


CASES = (
    *(
        _case(
            f"blocks-{blocks}x{size}-seed-{seed}",
            partial(_trace, blocks, size, None, seed),
            "AH-06", "AH-16", "AH-18", "AH-25", "AH-30",
        )
        for blocks, size, seed in ((12, 4, 1), (8, 4, 2), (24, 1, 3), (10, 5, 4))
    ),
    _case("window", partial(_trace, 10, 4, 7, 5), "AH-28", "AH-37"),
)  # fmt: skip
