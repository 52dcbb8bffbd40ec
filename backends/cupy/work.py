"""The phases of an op (single rows, tiles) and the memory of a plan's work lists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pagedattn.backends.cupy.heuristics import Kernel, Kernels, TileKernel
from pagedattn.backends.cupy.schedule import (
    ITEM_INTS,
    NOTHING,
    Split,
    most_pieces,
    most_tiles,
    work_lists,
)
from pagedattn.batch import AttentionBatch
from pagedattn.device import DeviceInfo
from pagedattn.spec import AttentionSpec, Graph, Limits

__all__ = ["Phase", "StepWork", "phases", "step_work", "workspace"]

SPLIT_KEYS, WAVES = 128, 4
"""Fewest keys of a piece; blocks wanted per multiprocessor."""

DECODE_UNIT = 32

UNKNOWN_SMS = 132


@dataclass(frozen=True)
class Phase:
    """One attention kernel of the op.

    single    takes the requests of one row; the others belong to the next phase
    all       takes every request
    rows      packed rows of an item            split  None: keys stay together
    offset    of partial_out, and state_offset of partial_state, in bytes of the workspace
    fixed     its grid comes from the Limits
    """

    kernel: Kernel
    single: bool
    all: bool
    rows: int
    split: Split | None
    offset: int
    state_offset: int
    fixed: bool

    def slots(self) -> int:
        """Partial results that it may leave."""
        return most_pieces(self.split)


def phases(
    spec: AttentionSpec,
    limits: Limits,
    info: DeviceInfo,
    kernels: Kernels,
    tuning: Mapping[str, int],
) -> tuple[Phase, ...]:
    """In launch order. workspace() says how much scratch they share."""
    sms = info.num_sms or UNKNOWN_SMS
    waves = tuning.get("waves", WAVES)
    keys = tuning.get("split_keys", SPLIT_KEYS)
    may_split = not spec.batch_invariant and limits.max_seq_len > keys
    found: list[Phase] = []
    offset = 0

    def add(kernel: Kernel, rows: int, unit: int, *, single: bool) -> None:
        nonlocal offset
        every = kernels.decode is None
        fixed = spec.graph >= Graph.UNIFORM or (spec.graph is Graph.DECODE and (single or every))
        wanted = sms * (waves if single else max(1, waves // 2))  # a tile takes twice the registers
        split = Split(max(1, wanted // spec.num_kv_heads), keys, unit) if may_split else None
        lines = most_pieces(split) * spec.num_kv_heads * rows
        state = offset + lines * spec.head_dim_v * 4
        found.append(Phase(kernel, single, every, rows, split, offset, state, fixed))
        offset = state + lines * 2 * 4

    if kernels.decode is not None:
        if isinstance(kernels.decode, TileKernel):
            add(kernels.decode, kernels.decode.rows, kernels.decode.keys, single=True)
        else:
            add(kernels.decode, spec.group_size, DECODE_UNIT, single=True)
    if kernels.tile is not None:
        add(kernels.tile, kernels.tile.rows, kernels.tile.keys, single=False)
    return tuple(found)


def workspace(spec: AttentionSpec, parts: tuple[Phase, ...]) -> int:
    """Bytes of all partial results."""
    last = parts[-1]
    return last.state_offset + last.slots() * spec.num_kv_heads * last.rows * 2 * 4


@dataclass(frozen=True, eq=False)
class StepWork:
    """plan.data.

    memory   i32 [lines, ITEM_INTS] on the device: per phase the items, then the joins
    lists    addresses of the items and of the joins, per phase
    counts   blocks of the two launches, per phase; changed by a refresh
    batch    addresses of block_table, its row stride, query_start_loc, seq_lens, tree_mask and
             tree_indptr
    """

    memory: Tensor
    lists: tuple[tuple[int, int], ...]
    counts: list[tuple[int, int]]
    batch: tuple[int | None, ...]


def step_work(
    spec: AttentionSpec,
    limits: Limits,
    parts: tuple[Phase, ...],
    batch: AttentionBatch,
    device: torch.device,
    old: StepWork | None,
) -> StepWork:
    """The work lists of a batch on the device; into `old`'s memory when there is one.

    The copy is asynchronous: from pinned memory, which torch keeps until the copy is done."""
    assert batch.query_start_loc_host is not None
    assert batch.seq_lens_host is not None
    starts = batch.query_start_loc_host.numpy().astype(np.int64)
    query_lens = starts[1:] - starts[:-1]
    seq_lens = batch.seq_lens_host.numpy().astype(np.int64)
    begins: list[tuple[int, int]] = []
    lines = 0
    for phase in parts:
        requests, group, rows = batch.num_requests, spec.group_size, phase.rows
        if phase.single:
            most = requests * -(-group // rows)
        else:
            most = most_tiles(requests, limits.max_tokens, group, rows)
        most += phase.slots()
        begins.append((lines, lines + most))
        lines += most + phase.slots() // 2
    host = torch.empty(
        lines, ITEM_INTS, dtype=torch.int32, device="cpu", pin_memory=device.type == "cuda"
    )
    table = host.numpy()
    table[:, 0] = NOTHING
    counts: list[tuple[int, int]] = []
    for phase, (items, joins) in zip(parts, begins, strict=True):
        mine = phase.all | ((query_lens == 1) == phase.single)
        which = np.flatnonzero(mine & (query_lens > 0))
        needed = (0, 0)
        if len(which):
            lists = work_lists(
                spec, which, query_lens[which], seq_lens[which], rows=phase.rows, split=phase.split
            )
            needed = len(lists.items), len(lists.joins)
            table[items : items + needed[0]] = lists.items
            table[joins : joins + needed[1]] = lists.joins
        counts.append((joins - items, phase.slots() // 2) if phase.fixed else needed)
    if old is None:
        memory = torch.empty(lines, ITEM_INTS, dtype=torch.int32, device=device)
        start, line = memory.data_ptr(), ITEM_INTS * memory.element_size()
        lists_at = tuple((start + i * line, start + j * line) for i, j in begins)
        old = StepWork(memory, lists_at, counts, _addresses(batch))
    old.memory.copy_(host, non_blocking=True)
    old.counts[:] = counts
    return old


def _addresses(batch: AttentionBatch) -> tuple[int | None, ...]:
    tree = (
        None if tensor is None else tensor.data_ptr()
        for tensor in (batch.tree_mask, batch.tree_indptr)
    )
    table = batch.block_table
    lengths = batch.query_start_loc.data_ptr(), batch.seq_lens.data_ptr()
    return table.data_ptr(), table.stride(0), *lengths, *tree
