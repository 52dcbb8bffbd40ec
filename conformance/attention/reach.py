"""Far addresses and large launches, made cheap: memory that is reserved but never touched, and
requests and rows that have nothing to do."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from pagedattn.batch import AttentionBatch, KVCache
from pagedattn.conformance.attention.build import attention_case
from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.execute import Produced, execute, same_bits
from pagedattn.conformance.attention.judge import Measures, compare, produce
from pagedattn.conformance.attention.place import Step, place
from pagedattn.conformance.attention.placing import INT_MAX, Placing
from pagedattn.conformance.attention.subject import AttentionSubject
from pagedattn.conformance.case import Case, CaseFailure, NotRun
from pagedattn.errors import InvalidTensor
from pagedattn.spec import AttentionSpec, Layout, Limits

__all__ = ["CASES"]

REACH = 2**31
GRID = 65535
"""What CUDA allows on the y and z axes of a grid."""


def _narrow(subject: AttentionSubject, rows: int = 1) -> AttentionSpec:
    """A spec of 16-bit numbers where one is served, so that 2**31 of them are 4 GiB."""
    for dtype in (torch.float16, torch.bfloat16):
        spec = subject.spec({"dtype": dtype}, rows=rows)
        if not subject.refusals(spec):
            return spec
    return subject.spec(rows=rows)


def _reserve(elements: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Uninitialised memory; on a CPU the system provides only the pages that are written."""
    try:
        return torch.empty(elements, dtype=dtype, device=device)
    except RuntimeError as error:
        size = elements * dtype.itemsize / 2**30
        raise NotRun(f"{size:.1f} GiB could not be reserved on {device}: {error}") from error


def _far_blocks(subject: AttentionSubject, seed: int) -> Measures:
    """Blocks that begin beyond 2**31 elements of a contiguous pool: the bits of the same keys at
    low ids, and write() reaches them too."""
    spec = _narrow(subject)
    content = Content.random(spec, [1, 1], [spec.block_size + 2, 3], seed)
    step = place(content, subject.device, Placing(seed=seed))
    near = execute(subject.open(spec, step.limits), step)
    far, paired, ids = _far_cache(spec, step)
    table = step.batch.block_table.cpu().clone()
    for r, own in enumerate(step.tables):
        for c, block in enumerate(own):
            assert block is not None
            table[r, c] = ids[block]
    batch = dataclasses.replace(step.batch, block_table=table.to(subject.device), slot_mapping=None)
    op = subject.open(spec, dataclasses.replace(step.limits, num_blocks=far.num_blocks))
    again = execute(op, dataclasses.replace(step, cache=far, batch=batch))
    same_bits(near, again, "block ids whose memory begins beyond 2**31 elements")
    block = paired.num_blocks - 1
    last = block * spec.block_size + spec.block_size - 1
    k, v = content.k[0][:1].to(subject.device), content.v[0][:1].to(subject.device)
    op.write(k, v, paired, torch.tensor([last], device=subject.device))
    for name, row, pool in (("k", k, paired.k), ("v", v, paired.v)):
        if not torch.equal(pool[block, spec.block_size - 1], row[0]):
            raise CaseFailure(f"write() of slot {last} did not store {name} there")
    return compare(content, again)


def _far_cache(spec: AttentionSpec, step: Step) -> tuple[KVCache, KVCache, list[int]]:
    """The step's blocks in a pool of 2**31 elements, to be read, and where each went: k and v are
    two views of one memory, shifted by a block, and every second id is used. The same memory as
    blocks of k and of v in turn, to be written."""
    size = spec.block_size * spec.num_kv_heads * spec.head_dim
    blocks = REACH // size + 2 * step.limits.num_blocks + 2
    base = _reserve((blocks + 1) * size, spec.kv_dtype, step.cache.k.device)
    inner = (spec.block_size, spec.num_kv_heads, spec.head_dim)
    if spec.layout is Layout.HND:
        inner = (inner[1], inner[0], inner[2])
    pools = [base[at : at + blocks * size].view(blocks, *inner) for at in (0, size)]
    k, v = (p.transpose(1, 2) if spec.layout is Layout.HND else p for p in pools)
    ids = [blocks - 2 - 2 * block for block in range(step.limits.num_blocks)]
    for block, far in enumerate(ids):
        k[far], v[far] = step.cache.k[block], step.cache.v[block]
    paired = KVCache(k=k[: blocks // 2 * 2 : 2], v=k[1::2][: blocks // 2])
    return KVCache(k=k, v=v), paired, ids


def _far_rows(subject: AttentionSubject, seed: int) -> Measures:
    """Rows of q and out that lie 2**30 elements apart: right, or refused by name."""
    spec = _narrow(subject, rows=3)
    content = Content.random(spec, [3], [spec.block_size + 2], seed)
    near = produce(subject, content, Placing(seed=seed))
    step = place(content, subject.device, Placing(seed=seed))
    apart = REACH // 2

    def rows(width: int, dtype: torch.dtype) -> Tensor:
        base = _reserve(2 * apart + spec.num_heads * width, dtype, subject.device)
        return base.as_strided((3, spec.num_heads, width), (apart, width, 1))

    q, out = rows(spec.head_dim, spec.dtype), rows(spec.head_dim_v, spec.out_dtype)
    q.copy_(step.q)
    out.fill_(float("nan"))
    try:
        far = execute(
            subject.open(spec, step.limits), dataclasses.replace(step, q=q, out=out, guards=[])
        )
    except InvalidTensor as error:
        return {"refused": str(error)}
    same_bits(near, far, "rows that lie beyond 2**31 elements")
    return compare(content, far)


def _many_requests(subject: AttentionSubject, seed: int) -> Measures:
    """More requests than a grid has rows; all but four have neither queries nor keys."""
    spec = subject.spec()
    content = Content.random(spec, [1, 1, 1, 1], [spec.block_size + 1, 3, 1, 5], seed)
    step = place(content, subject.device, Placing(seed=seed))
    live = torch.tensor([0, GRID, GRID + 1, GRID + 4])
    requests = GRID + 5
    counts = torch.zeros(requests, dtype=torch.int32)
    counts[live] = 1
    starts = torch.zeros(requests + 1, dtype=torch.int32)
    starts[1:] = counts.cumsum(0)
    lengths = torch.zeros(requests, dtype=torch.int32)
    lengths[live] = step.batch.seq_lens.cpu()
    table = torch.full((requests, step.batch.block_table.shape[1]), INT_MAX, dtype=torch.int32)
    table[live] = step.batch.block_table.cpu()
    device = subject.device
    batch = AttentionBatch(
        query_start_loc=starts.to(device),
        seq_lens=lengths.to(device),
        block_table=table.to(device),
        query_start_loc_host=starts,
        seq_lens_host=lengths,
    )
    op = subject.open(spec, dataclasses.replace(step.limits, max_requests=requests))
    return compare(content, execute(op, dataclasses.replace(step, batch=batch)))


def _many_rows(subject: AttentionSubject, seed: int) -> Measures:
    """More query rows than a grid has rows; all but the last three come before the first key."""
    rows = GRID + 8
    spec = subject.spec({"group_size": 1}, rows=rows)
    content = Content.random(spec, [3], [3], seed)
    step = place(content, subject.device, Placing(seed=seed))
    starts = torch.tensor([0, rows], dtype=torch.int32)
    batch = dataclasses.replace(
        step.batch,
        query_start_loc=starts.to(subject.device),
        query_start_loc_host=starts,
        slot_mapping=None,
    )
    q = step.q.new_zeros(rows, spec.num_heads, spec.head_dim)
    q[-3:] = step.q
    out = step.out.new_full((rows, spec.num_heads, spec.head_dim_v), float("nan"))
    op = subject.open(spec, Limits(1, rows, step.limits.max_seq_len, step.limits.num_blocks))
    op.run(q, step.cache, op.plan(batch), out=out)
    if bool((out[:-3] != 0).any()):
        row = int((out[:-3] != 0).flatten(1).any(1).nonzero()[0])
        raise CaseFailure(f"row {row} of {rows} sees no key and must be 0: {out[row, 0, :4]}")
    return compare(content, Produced([out[-3:].cpu()], None))


CASES: list[Case] = [
    attention_case("reach/far-blocks", "block-table", _far_blocks, faults=("KH-01",), core=True),
    attention_case("reach/far-rows", "strides", _far_rows, faults=("KH-02",), core=True),
    attention_case("reach/requests", "empty-rows", _many_requests, faults=("KH-54",), core=True),
    attention_case("reach/rows", "empty-rows", _many_rows, faults=("KH-54",), core=True),
]
