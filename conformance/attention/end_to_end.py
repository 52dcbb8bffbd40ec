"""The backend at work under an allocator: prefixes, forks, copies, rollback, eviction."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from pagedattn import registry
from pagedattn.conformance.attention.build import attention_case
from pagedattn.conformance.attention.judge import Measures
from pagedattn.conformance.attention.subject import AttentionSubject
from pagedattn.conformance.attention.trace import CHUNK, run_trace
from pagedattn.conformance.case import Case
from pagedattn.spec import KVQuant, Layout

__all__ = ["CASES"]


def _end_to_end(wanted: dict[str, Any], subject: AttentionSubject, seed: int) -> Measures:
    """Through the built-in paged allocator, in the backend's own block size."""
    size = subject.spec(wanted, rows=CHUNK).block_size
    alloc = registry.allocator("paged", num_blocks=12, block_size=size)
    return run_trace(subject, alloc, wanted=wanted, seed=seed)


CASES: list[Case] = [
    attention_case(
        f"end-to-end/{id}",
        "write",
        partial(_end_to_end, wanted),
        faults=("KH-14", "KH-48", "KH-50", "KH-52"),
        core=id == "plain",
    )
    for id, wanted in (
        ("plain", {}),
        ("block-5", {"block_size": 5}),
        ("hnd", {"layout": Layout.HND}),
        ("window", {"window": (7, None)}),
        ("int8", {"kv_dtype": torch.int8, "kv_quant": KVQuant.PER_TOKEN_HEAD}),
    )
]
