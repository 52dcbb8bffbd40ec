"""A step's tensors, made from what was scheduled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pagedattn.batch import AttentionBatch
from pagedattn.engine.request import Request
from pagedattn.engine.scheduler import Work

__all__ = ["StepInput", "build_step"]


@dataclass(frozen=True, eq=False)
class StepInput:
    """input_ids, positions i64 [T]; logits_rows i64 [n], one per entry of `sampled`."""

    input_ids: Tensor
    positions: Tensor
    logits_rows: Tensor
    batch: AttentionBatch
    sampled: tuple[Request, ...]


def build_step(
    work: Sequence[Work], *, block_size: int, num_blocks: int, device: torch.device
) -> StepInput:
    """Lay the requests' tokens end to end. Raises InvalidBatch when a table is too short."""
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    rows: list[int] = []
    for item in work:
        start = item.request.computed
        ids += item.request.tokens[start : start + item.count]
        positions += range(start, start + item.count)
        slots += item.slots
        if item.samples:
            rows.append(len(ids) - 1)
    batch = AttentionBatch.build(
        query_lens=[item.count for item in work],
        seq_lens=[item.request.computed + item.count for item in work],
        block_tables=[item.request.table for item in work],
        block_size=block_size,
        num_blocks=num_blocks,
        slot_mapping=slots,
        device=device,
    )

    def tensor(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64).to(device)

    return StepInput(
        input_ids=tensor(ids),
        positions=tensor(positions),
        logits_rows=tensor(rows),
        batch=batch,
        sampled=tuple(item.request for item in work if item.samples),
    )
