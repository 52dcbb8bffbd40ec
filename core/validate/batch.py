"""What plan() checks of a batch. Contents on a device are looked at in debug mode only."""

from __future__ import annotations

import dataclasses
import os
from itertools import pairwise

import torch
from torch import Tensor

from pagedattn.batch import AttentionBatch, host_version
from pagedattn.errors import InvalidBatch
from pagedattn.spec import AttentionSpec, Limits, Mask

__all__ = [
    "check_batch",
    "check_same_memory",
    "check_slots",
    "fresh_view",
    "readable",
    "same_device",
    "visible_columns",
]


def debug() -> bool:
    """PAGEDATTN_DEBUG=1 also checks what lies on a device, at the price of waiting for it."""
    return os.environ.get("PAGEDATTN_DEBUG", "") not in ("", "0")


def readable(tensor: Tensor) -> bool:
    """Whether the contents may be looked at: always on the CPU, elsewhere in debug mode."""
    return tensor.device.type == "cpu" or debug()


def check_batch(
    batch: AttentionBatch, spec: AttentionSpec, limits: Limits, device: torch.device
) -> int:
    """Validate `batch` for an op; returns the largest block id that a row can see, -1 when none
    is or when the table's contents cannot be looked at. Remembered per batch and content."""
    version = host_version(batch)
    key = (
        version,
        limits,
        device,
        debug(),
        spec.block_size,
        spec.window,
        spec.mask,
        spec.max_query_len,
        spec.async_lengths,
    )
    known: dict[object, int] = batch.__dict__.setdefault("_checked", {})
    if version is not None and key in known:
        return known[key]
    _check_tensors(batch, spec, device)
    _check_lengths(batch, spec, limits)
    max_block = _check_table(batch, spec, limits)
    if batch.slot_mapping is not None:
        check_slots(batch.slot_mapping, limits.num_blocks * spec.block_size)
    if spec.mask is Mask.TREE:
        _check_tree(batch)
    known[key] = max_block
    return max_block


def _check_tensors(batch: AttentionBatch, spec: AttentionSpec, device: torch.device) -> None:
    requests = batch.seq_lens.shape[0] if batch.seq_lens.dim() == 1 else None
    expected: list[tuple[str, torch.dtype, int, int | None, bool]] = [
        # name, dtype, dims, length, on the op's device
        ("seq_lens", torch.int32, 1, requests, True),
        ("query_start_loc", torch.int32, 1, None if requests is None else requests + 1, True),
        ("block_table", torch.int32, 2, requests, True),
        ("query_start_loc_host", torch.int32, 1, None if requests is None else requests + 1, False),
        ("seq_lens_host", torch.int32, 1, requests, False),
        ("slot_mapping", torch.int64, 1, None, True),
        ("tree_mask", torch.uint8, 1, None, True),
        ("tree_indptr", torch.int64, 1, None if requests is None else requests + 1, True),
    ]
    tree = spec.mask is Mask.TREE
    for name, dtype, dims, length, on_device in expected:
        tensor: Tensor | None = getattr(batch, name)
        if name.startswith("tree") and (tensor is not None) != tree:
            given = "missing" if tensor is None else "given"
            raise InvalidBatch(name, given, f"must be given if and only if mask=TREE ({spec.mask})")
        if tensor is None:
            continue
        if tensor.dtype != dtype:
            raise InvalidBatch(name, tensor.dtype, f"must be {dtype}")
        if tensor.dim() != dims or (length is not None and tensor.shape[0] != length):
            shape = "[B]" if dims == 1 else "[B, M]"
            raise InvalidBatch(
                name, f"of shape {list(tensor.shape)}", f"must be {shape} with {length} entries"
            )
        if tensor.numel() > 0 and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            raise InvalidBatch(
                name, f"of stride {list(tensor.stride())}", "its last stride must be 1"
            )
        if on_device and not same_device(tensor.device, device):
            raise InvalidBatch(name, f"on {tensor.device}", f"must be on the op's device {device}")


def _check_lengths(batch: AttentionBatch, spec: AttentionSpec, limits: Limits) -> None:
    assert batch.query_start_loc_host is not None
    assert batch.seq_lens_host is not None
    starts, lengths = batch.query_start_loc_host.tolist(), batch.seq_lens_host.tolist()
    if len(lengths) > limits.max_requests:
        raise InvalidBatch(
            "seq_lens", f"of {len(lengths)} requests", f"Limits.max_requests={limits.max_requests}"
        )
    if starts[0] != 0:
        raise InvalidBatch("query_start_loc", starts[0], "must start at 0", request=0)
    for r, (start, end) in enumerate(pairwise(starts)):
        if end < start:
            raise InvalidBatch("query_start_loc", end, f"must not be below {start}", request=r)
        if spec.max_query_len is not None and end - start > spec.max_query_len:
            raise InvalidBatch(
                "query_len", end - start, f"spec.max_query_len={spec.max_query_len}", request=r
            )
    if starts[-1] > limits.max_tokens:
        raise InvalidBatch("query_start_loc", starts[-1], f"Limits.max_tokens={limits.max_tokens}")
    actual = batch.seq_lens.tolist() if readable(batch.seq_lens) else None
    capacity = batch.block_table.shape[1] * spec.block_size
    for r, bound in enumerate(lengths):
        n = bound if actual is None else actual[r]
        if n < 0 or bound < 0:
            raise InvalidBatch("seq_lens", min(n, bound), "must not be negative", request=r)
        if bound > limits.max_seq_len:
            raise InvalidBatch(
                "seq_lens", bound, f"Limits.max_seq_len={limits.max_seq_len}", request=r
            )
        # An upper bound may exceed the table; what counts there is the length itself.
        if n > capacity and not (spec.async_lengths and actual is None):
            raise InvalidBatch(
                "seq_lens",
                n,
                f"block_table has {batch.block_table.shape[1]} columns of {spec.block_size} tokens",
                request=r,
            )
        if spec.async_lengths:
            if n > bound:
                raise InvalidBatch(
                    "seq_lens_host", bound, f"must be at least seq_lens, {n}", request=r
                )
        elif n != bound:
            raise InvalidBatch(
                "seq_lens_host",
                bound,
                f"must equal seq_lens, {n} (or open the op with async_lengths)",
                request=r,
            )
    if batch.query_start_loc is not batch.query_start_loc_host and readable(batch.query_start_loc):
        real = batch.query_start_loc.tolist()
        if real != starts:
            r = next(i for i, (a, b) in enumerate(zip(real, starts, strict=True)) if a != b)
            raise InvalidBatch(
                "query_start_loc_host", starts[r], f"must equal query_start_loc, {real[r]}"
            )


def _check_table(batch: AttentionBatch, spec: AttentionSpec, limits: Limits) -> int:
    table = batch.block_table
    if table.numel() == 0 or not readable(table):
        return -1
    assert batch.query_start_loc_host is not None
    query_lens = batch.query_start_loc_host.diff().to(table.device)
    seen = visible_columns(batch.seq_lens, query_lens, table.shape[1], spec)
    bad = seen & ((table < 0) | (table >= limits.num_blocks))
    if bool(bad.any()):
        r, column = bad.nonzero()[0].tolist()
        raise InvalidBatch(
            f"block_table[{r}, {column}]",
            int(table[r, column]),
            f"a row can see this block, so it must lie in [0, {limits.num_blocks})",
            request=r,
        )
    return int(torch.where(seen, table, -1).max())


def visible_columns(
    seq_lens: Tensor, query_lens: Tensor, width: int, spec: AttentionSpec
) -> Tensor:
    """bool [B, M]: columns of the block table that hold a key some row of the request can see.

    Keys reach from the first row's window (0 without one) to seq_len - 1, the last row's own."""
    first = torch.zeros_like(seq_lens)
    if spec.window[0] is not None:
        first = (seq_lens.long() - query_lens - spec.window[0]).clamp(min=0) // spec.block_size
    column = torch.arange(width, device=seq_lens.device)
    reached = column * spec.block_size < seq_lens[:, None]
    return reached & (column >= first[:, None]) & (query_lens[:, None] > 0)


def _check_tree(batch: AttentionBatch) -> None:
    assert batch.tree_mask is not None
    assert batch.tree_indptr is not None
    assert batch.query_start_loc_host is not None
    if not readable(batch.tree_indptr):
        return
    offsets = batch.tree_indptr.tolist()
    query_lens = batch.query_start_loc_host.diff().tolist()
    for r, ((begin, end), rows) in enumerate(zip(pairwise(offsets), query_lens, strict=True)):
        if not 0 <= begin <= end <= batch.tree_mask.shape[0]:
            raise InvalidBatch(
                "tree_indptr",
                (begin, end),
                f"must ascend within the {batch.tree_mask.shape[0]} bytes of tree_mask",
                request=r,
            )
        need = -(-rows * rows // 8)
        if begin != end and end - begin < need:
            raise InvalidBatch(
                "tree_mask", f"{end - begin} bytes", f"{rows} rows need {need} bytes", request=r
            )


def check_slots(slots: Tensor, pool_slots: int) -> None:
    """No slot twice, none beyond the pool. Negative slots are skipped by write()."""
    if not readable(slots) or slots.numel() == 0:
        return
    live = slots[slots >= 0]
    if live.numel() == 0:
        return
    top = int(live.max())
    if top >= pool_slots:
        raise InvalidBatch("slot_mapping", top, f"the pool has {pool_slots} slots")
    ordered = live.sort().values
    twice = (ordered[1:] == ordered[:-1]).nonzero()
    if twice.numel():
        slot = int(ordered[twice[0, 0]])
        rows = (slots == slot).nonzero().flatten()[:2].tolist()
        raise InvalidBatch(
            "slot_mapping", slot, f"rows {rows[0]} and {rows[1]} would both write this slot"
        )


def check_same_memory(old: AttentionBatch, new: AttentionBatch) -> None:
    """plan(batch, into=): a captured graph reads the tensors that the plan was made of."""
    for field in dataclasses.fields(AttentionBatch):
        if field.name.endswith("_host"):
            continue
        a, b = getattr(old, field.name), getattr(new, field.name)
        if a is b:
            continue
        if a is None or b is None or _memory(a) != _memory(b):
            raise InvalidBatch(
                field.name,
                "another tensor",
                "plan(into=) needs the pointer, shape and stride that the plan was made of",
            )


def fresh_view(batch: AttentionBatch) -> AttentionBatch:
    """The same tensors in a batch that remembers nothing."""
    return dataclasses.replace(batch)


def _memory(x: Tensor) -> tuple[object, ...]:
    return x.data_ptr(), x.shape, x.stride(), x.dtype


def same_device(a: torch.device, b: torch.device) -> bool:
    """Equal, an index left out standing for any."""
    return a.type == b.type and (a.index == b.index or None in (a.index, b.index))
