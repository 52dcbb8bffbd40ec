"""Putting a step into hostile memory: poisoned pools, shuffled ids, garbage in tables, canaries.

Whatever the contract says is never read holds NaN, Inf or an absurd id; whatever it says is never
written is compared bit by bit afterwards (see execute.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from pagedattn.batch import AttentionBatch, KVCache
from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.placing import CANARY, GAP, Guard, Order, Placing, Rows
from pagedattn.conformance.attention.pools import make_cache, store
from pagedattn.spec import AttentionSpec, Limits, Mask

__all__ = ["Step", "place"]


@dataclass(frozen=True, eq=False)
class Step:
    """A placed step: the arguments of plan() and run(), and what must stay as it is.

    tables  block ids of each request, None where a block was not stored (before the window)
    """

    content: Content
    placing: Placing
    limits: Limits
    batch: AttentionBatch
    cache: KVCache
    q: Tensor
    out: Tensor
    lse: Tensor | None
    sinks: Tensor | None
    slopes: Tensor | None
    tables: list[list[int | None]]
    guards: list[Guard] = field(default_factory=list)

    @property
    def spec(self) -> AttentionSpec:
        return self.content.spec


def place(content: Content, device: torch.device, placing: Placing | None = None) -> Step:
    """A step in memory on `device`."""
    placing = placing or Placing()
    spec = content.spec
    tables, num_blocks = _tables(content, placing)
    batch = _batch(content, placing, tables, device)
    guards: list[Guard] = []
    cache = make_cache(spec, num_blocks, device, placing, guards)
    own = [
        t if placing.reuse is None or placing.reuse[r] == r else [] for r, t in enumerate(tables)
    ]
    store(content, own, cache)
    tokens = sum(content.query_lens)
    q = _rows(
        guards,
        "q",
        placing.q_rows,
        (tokens, placing.padding_rows),
        (spec.num_heads, spec.head_dim),
        spec.dtype,
        device,
        fill=float("nan"),
        output=False,
    )
    if tokens:
        q[:tokens].copy_(torch.cat(content.q))
    out = _rows(
        guards,
        "out",
        placing.out_rows,
        (tokens, placing.padding_rows),
        (spec.num_heads, spec.head_dim_v),
        spec.out_dtype,
        device,
        fill=CANARY,
        output=True,
    )
    lse = None
    if spec.return_lse:
        base = torch.full(
            (tokens + placing.padding_rows + 2, spec.num_heads), CANARY, device=device
        )
        lse = base[1:-1]
        lse[:tokens] = float("nan")
        guards.append(Guard("lse", "padding-rows", base, lambda x: x[1 : 1 + tokens]))
    sinks = None if content.sinks is None else content.sinks.to(device)
    slopes = None if content.slopes is None else content.slopes.to(device)
    for name, tensor in (("sinks", sinks), ("alibi_slopes", slopes)):
        if tensor is not None:
            guards.append(Guard(name, "arguments", tensor))
    for name in (
        "query_start_loc",
        "seq_lens",
        "block_table",
        "slot_mapping",
        "tree_mask",
        "tree_indptr",
    ):
        tensor = getattr(batch, name)
        if tensor is not None:
            guards.append(Guard(name, "plan", tensor))
    assert batch.seq_lens_host is not None
    limits = Limits(
        max_requests=max(1, len(tables)),
        max_tokens=max(1, tokens),
        max_seq_len=max(1, batch.max_seq_len),
        num_blocks=num_blocks,
    )
    return Step(content, placing, limits, batch, cache, q, out, lse, sinks, slopes, tables, guards)


# -- the table -----------------------------------------------------------------------------------


def _first_column(spec: AttentionSpec, query_len: int, seq_len: int) -> int:
    """The first block that a row can see; those before it lie wholly before the window."""
    left = spec.window[0]
    return 0 if left is None else max(0, seq_len - query_len - left) // spec.block_size


def _tables(content: Content, placing: Placing) -> tuple[list[list[int | None]], int]:
    """Block ids per request and the size of the pool."""
    spec = content.spec
    needs = []
    for r, (rows, keys) in enumerate(zip(content.query_lens, content.seq_lens, strict=True)):
        shared = placing.reuse is not None and placing.reuse[r] != r
        columns = -(-keys // spec.block_size)
        needs.append((columns, 0 if shared else _first_column(spec, rows, keys), shared))
    total = sum(columns - min(first, columns) for columns, first, shared in needs if not shared)
    num_blocks = max(1, total + placing.spare_blocks)
    ids = torch.arange(num_blocks)
    if placing.order is Order.SHUFFLED:
        ids = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(placing.seed))
    elif placing.order is Order.DESCENDING:
        ids = ids.flip(0)
    free = iter(ids.tolist())
    tables: list[list[int | None]] = []
    for r, (columns, first, shared) in enumerate(needs):
        if shared:
            assert placing.reuse is not None
            tables.append(tables[placing.reuse[r]][:columns])
        else:
            tables.append([None if c < first else next(free) for c in range(columns)])
    return tables, num_blocks


def _batch(
    content: Content,
    placing: Placing,
    tables: list[list[int | None]],
    device: torch.device,
) -> AttentionBatch:
    spec = content.spec
    width = max((len(t) for t in tables), default=0) + placing.extra_columns
    skip = placing.table_skip
    around = (len(tables), skip + width + placing.table_gap)
    padded = torch.full(around, placing.filler, dtype=torch.int32)
    for r, table in enumerate(tables):
        for c, block in enumerate(table):
            if block is not None:
                padded[r, skip + c] = block
    slots = []
    for rows, keys, table in zip(content.query_lens, content.seq_lens, tables, strict=True):
        for p in range(keys - rows, keys):
            own = table[p // spec.block_size] if p >= 0 else None
            slots.append(-1 if own is None else own * spec.block_size + p % spec.block_size)
    if placing.reuse is not None:
        slots = [-1] * len(slots)
    starts = torch.zeros(len(tables) + 1, dtype=torch.int32)
    starts[1:] = torch.tensor(content.query_lens, dtype=torch.int32).cumsum(0)
    lengths = torch.tensor(content.seq_lens, dtype=torch.int32)
    host_lengths = lengths + placing.lengths_slack if spec.async_lengths else lengths.clone()
    tree_mask = tree_indptr = None
    if spec.mask is Mask.TREE:
        assert content.trees is not None
        tree_mask, tree_indptr = _pack_trees(content.trees, placing.tree_gap)
    return AttentionBatch(
        query_start_loc=starts.to(device, copy=True),
        seq_lens=lengths.to(device, copy=True),
        block_table=padded.to(device)[:, skip : skip + width],
        slot_mapping=torch.tensor(slots, dtype=torch.int64).to(device),
        query_start_loc_host=starts,
        seq_lens_host=host_lengths,
        tree_mask=None if tree_mask is None else tree_mask.to(device),
        tree_indptr=None if tree_indptr is None else tree_indptr.to(device),
    )


def _pack_trees(trees: tuple[Tensor | None, ...], gap: int) -> tuple[Tensor, Tensor]:
    """Bit row*query_len+col of a request's bytes, lowest bit first; unused bits are set."""
    data: list[int] = []
    offsets = [0]
    for tree in trees:
        if tree is not None:
            bits = [bool(b) for b in tree.flatten().tolist()]
            bits += [True] * (-len(bits) % 8)
            for i in range(0, len(bits), 8):
                data.append(sum(bit << n for n, bit in enumerate(bits[i : i + 8])))
            data += [255] * gap
        offsets.append(len(data))
    return torch.tensor(data, dtype=torch.uint8), torch.tensor(offsets, dtype=torch.int64)


# -- q and out -----------------------------------------------------------------------------------


def _rows(
    guards: list[Guard],
    name: str,
    kind: Rows,
    rows: tuple[int, int],
    inner: tuple[int, int],
    dtype: torch.dtype,
    device: torch.device,
    *,
    fill: float,
    output: bool,
) -> Tensor:
    """[live + padding, H, D], a view of a larger tensor full of `fill`."""
    live, padding = rows
    heads, dim = inner
    total = live + padding
    shapes = {
        Rows.PLAIN: (total + 2, heads, dim),
        Rows.FUSED: (total + 2, heads + 3, dim),
        Rows.TRANSPOSED: (heads, total + 2, dim),
        Rows.WIDE: (total + 2, heads, dim + GAP),
        Rows.ODD: (total + 2, heads, dim + 1),
    }
    base = torch.full(shapes[kind], fill, dtype=dtype, device=device)

    def all_rows(x: Tensor) -> Tensor:
        if kind is Rows.FUSED:
            x = x[:, 1 : 1 + heads]
        elif kind is Rows.TRANSPOSED:
            x = x.transpose(0, 1)
        elif kind is Rows.WIDE:
            x = x[..., :dim]
        elif kind is Rows.ODD:
            x = x[..., 1:]
        return x[1:-1]

    view = all_rows(base)
    if output:
        view[:live] = float("nan")
        guards.append(Guard(name, "padding-rows", base, lambda x: all_rows(x)[:live]))
    else:
        guards.append(Guard(name, "arguments", base))
    return view
