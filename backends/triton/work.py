"""Work items of a step: which program does which tile of which request (prepare() of the op).

Host work on the lengths alone, so it never waits for the device. Items are in ascending order of
(request, tile, part). tile.py and combine.py say what the columns mean.

Tables have room for every batch within the Limits, so that a refreshed plan writes the memory that
a captured graph reads. With graphs all of it is launched, the unused rows marked by request -1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pagedattn.backends.triton.heuristics import (
    CHUNK,
    MIN_PART,
    Tile,
    keys_per_part,
    most_per_sm,
    target_items,
)
from pagedattn.batch import AttentionBatch
from pagedattn.device import DeviceInfo
from pagedattn.spec import AttentionSpec, Graph, Limits, Mask

__all__ = ["ITEM", "MERGE", "PhaseWork", "Work", "assign", "lay_out", "max_items", "max_slots"]

ITEM, MERGE = 5, 4
"""int32 per work item and per tile to merge"""


@dataclass(frozen=True, eq=False)
class PhaseWork:
    """One phase's tables and launch shape.

    items, merges            i32 [n, ITEM], [k, MERGE]: room for every batch within the limits
    num_items, num_merges    leading rows that are launched
    merge_rows               packed rows of a tile that combine.py looks at
    """

    items: Tensor
    merges: Tensor
    num_items: int
    num_merges: int
    merge_rows: int


@dataclass(frozen=True, eq=False)
class Work:
    """plan.data: the phases' tables, all views of `memory` i32 on the op's device."""

    memory: Tensor
    phases: tuple[PhaseWork, ...]


def max_slots(spec: AttentionSpec, limits: Limits, device: DeviceInfo, tile: Tile) -> int:
    """States that the workspace holds, whatever the tuning. A tile of several parts has 1.5 shares
    of keys or more, so there are at most 4/3 of the target; a batch-invariant tile has one for
    every chunk."""
    slots = 4 * target_items(spec, device, most_per_sm(tile.block_m)) // 3
    if spec.batch_invariant:
        chunks = -(-limits.max_seq_len // CHUNK)
        return 0 if chunks < 2 else max(slots, chunks)
    return 0 if 2 * limits.max_seq_len < 3 * MIN_PART else slots


def max_tiles(spec: AttentionSpec, limits: Limits, tiles: tuple[Tile, ...], phase: int) -> int:
    """Tiles of a phase that any batch within the limits can have."""
    requests = min(limits.max_requests, limits.max_tokens)
    if phase < len(tiles) - 1:
        return requests
    return requests + limits.max_tokens * spec.group_size // tiles[phase].block_m


def max_items(
    spec: AttentionSpec, limits: Limits, device: DeviceInfo, tiles: tuple[Tile, ...], phase: int
) -> int:
    """Work items of a phase that any batch within the limits can have."""
    return max_tiles(spec, limits, tiles, phase) + max_slots(spec, limits, device, tiles[phase])


def assign(
    spec: AttentionSpec,
    limits: Limits,
    device: DeviceInfo,
    tiles: tuple[Tile, ...],
    batch: AttentionBatch,
) -> list[tuple[Tensor, Tensor, int]]:
    """Per phase (items i32 [n, ITEM], merges i32 [k, MERGE], merge_rows), on the CPU."""
    assert batch.query_start_loc_host is not None
    assert batch.seq_lens_host is not None
    query_lens = batch.query_start_loc_host.diff().long()
    seq_lens = batch.seq_lens_host.long()
    packed = query_lens * spec.group_size
    found = []
    below = 0
    for phase, tile in enumerate(tiles):
        mine = packed > below
        if phase < len(tiles) - 1:
            mine &= packed <= tile.block_m
            below = tile.block_m
        requests = mine.nonzero()[:, 0]
        if not len(requests):
            none = torch.empty(0, dtype=torch.int32, device="cpu")
            found.append((none.view(0, ITEM), none.view(0, MERGE), 0))
            continue
        slots = max_slots(spec, limits, device, tile)
        target = target_items(spec, device, tile.per_sm)
        items, merges = _phase_items(spec, tile, requests, query_lens, seq_lens, target, slots)
        found.append((items, merges, min(tile.block_m, int(packed[requests].max()))))
    return found


def _phase_items(
    spec: AttentionSpec,
    tile: Tile,
    requests: Tensor,
    query_lens: Tensor,
    seq_lens: Tensor,
    target: int,
    slots: int,
) -> tuple[Tensor, Tensor]:
    rows, keys = query_lens[requests], seq_lens[requests]
    counts = -(-rows * spec.group_size // tile.block_m)
    owner = torch.repeat_interleave(torch.arange(len(requests), device="cpu"), counts)
    number = _within(counts)
    rows, keys = rows[owner], keys[owner]
    low, high = _key_range(spec, tile, number, rows, keys)
    first_part = torch.zeros_like(low)
    if spec.batch_invariant:
        first_part = low // CHUNK
        parts = (-(-high // CHUNK) - first_part).clamp(min=1)
        parts = _while_slots_last(parts, slots if len(parts) < 2 * target else 0)
    else:
        work = high - low
        share = keys_per_part(int(work.sum()), target)
        # The nearest number, so that a little more than a share is not cut in two.
        parts = ((2 * work + share) // (2 * share)).clamp(min=1)
    several = parts > 1
    used = torch.where(several, parts, 0)
    first_slot = torch.where(several, used.cumsum(0) - used, -1)

    every = torch.repeat_interleave(torch.arange(len(parts), device="cpu"), parts)
    part = _within(parts)
    slot = torch.where(several[every], first_slot[every] + part, -1)
    items = torch.stack(
        (requests[owner[every]], number[every], first_part[every] + part, parts[every], slot), 1
    )
    merges = torch.stack((requests[owner], number, first_slot, parts), 1)[several]
    return items.int(), merges.int()


def _within(counts: Tensor) -> Tensor:
    """0 .. counts[i] - 1 for every i, in one row."""
    ends = counts.cumsum(0)
    return torch.arange(int(ends[-1]), device="cpu") - torch.repeat_interleave(
        ends - counts, counts
    )


def _key_range(
    spec: AttentionSpec, tile: Tile, number: Tensor, rows: Tensor, keys: Tensor
) -> tuple[Tensor, Tensor]:
    """[low, high) as tile.py computes it. Where lengths are only upper bounds this tells how many
    keys there are, but not which: chunks, which are counted from key 0, then begin there."""
    group, size = spec.group_size, tile.block_m
    left, right = spec.window
    first = keys - rows + number * size // group
    last = keys - rows + torch.minimum(rows - 1, (number * size + size - 1) // group)
    low, high = torch.zeros_like(keys), keys
    if left is not None and not (spec.async_lengths and spec.batch_invariant):
        low = (first - left).clamp(min=0)
    if spec.mask is Mask.CAUSAL:
        high = torch.minimum(keys, last + 1)
    elif right is not None:
        high = torch.minimum(keys, last + 1 + right)
    return low, torch.maximum(low, high)


def _while_slots_last(parts: Tensor, slots: int) -> Tensor:
    """Parts of the leading tiles for which there are slots; 1 for the others. In a batch-invariant
    op neither changes a bit."""
    wanted = torch.where(parts > 1, parts, 0)
    return torch.where(wanted.cumsum(0) <= slots, parts, 1)


def lay_out(
    spec: AttentionSpec,
    limits: Limits,
    info: DeviceInfo,
    tiles: tuple[Tile, ...],
    found: list[tuple[Tensor, Tensor, int]],
    device: torch.device,
    old: Work | None,
) -> Work:
    """The tables on the device, by one copy that nobody waits for; into the memory of `old` when a
    plan is refreshed."""
    sizes = []
    for phase, tile in enumerate(tiles):
        sizes.append(max_items(spec, limits, info, tiles, phase) * ITEM)
        sizes.append(max_slots(spec, limits, info, tile) // 2 * MERGE)
    staged = torch.full(
        (sum(sizes),), -1, dtype=torch.int32, device="cpu", pin_memory=device.type == "cuda"
    )
    tables = [table for one in found for table in one[:2]]
    for view, table in zip(torch.split(staged, sizes), tables, strict=True):
        view[: table.numel()] = table.flatten()
    if old is not None:
        memory = old.memory.copy_(staged, non_blocking=True)
    else:
        memory = staged.to(device, non_blocking=True)
    views = torch.split(memory, sizes)
    phases = []
    for phase, (items, merges, rows) in enumerate(found):
        all_items = views[2 * phase].view(-1, ITEM)
        all_merges = views[2 * phase + 1].view(-1, MERGE)
        programs = (len(items), len(merges), rows)
        # A captured DECODE batch has no item beyond the first phase.
        if spec.graph is not Graph.NEVER and not (spec.graph is Graph.DECODE and phase):
            programs = (len(all_items), len(all_merges), _rows_of(spec, tiles[phase]))
        phases.append(PhaseWork(all_items, all_merges, *programs))
    return Work(memory, tuple(phases))


def _rows_of(spec: AttentionSpec, tile: Tile) -> int:
    """Packed rows that a tile can have."""
    longest = spec.max_query_len
    return tile.block_m if longest is None else min(tile.block_m, longest * spec.group_size)
