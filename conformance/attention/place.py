"""Putting a step into hostile memory: poisoned pools, shuffled ids, garbage in tables, canaries.

Whatever the contract says is never read holds NaN, Inf or an absurd id; whatever it says is never
written is compared bit by bit afterwards (see execute.py).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pagedattn.batch import AttentionBatch, KVCache, scale_shape
from pagedattn.conformance.attention.content import Content
from pagedattn.spec import AttentionSpec, KVQuant, Layout, Limits, Mask

__all__ = ["CANARY", "INT_MAX", "Guard", "Order", "Placing", "Poison", "Rows", "Step", "Storage", "place"]

INT_MAX = 2**31 - 1
CANARY = 1234.5
GAP = 16
"""Elements between heads (Storage.GAPS): keeps 16-byte alignment in every dtype."""


class Poison(enum.Enum):
    """What unowned slots hold: (pattern of k, pattern of v), repeated over the elements."""

    ZERO = ((0.0,), (0.0,))
    NAN = ((float("nan"),), (float("nan"),))
    MIXED = ((float("nan"), float("inf"), float("-inf")), (float("-inf"), float("nan"), float("inf")))
    K_NAN = ((float("nan"),), (0.0,))
    V_NAN = ((0.0,), (float("nan"),))
    K_INF = ((float("inf"),), (0.0,))
    V_INF = ((0.0,), (float("-inf"), float("inf")))
    HUGE = ((100.0, -100.0), (1000.0,))


class Storage(enum.Enum):
    """How the pools lie in memory. All have the index order [block, offset, head, dim]."""

    PLAIN = "plain"
    INTERLEAVED = "interleaved"  # k and v are views of one [N, 2, ...] tensor
    GAPS = "gaps"  # a head is wider than D, poison in between


class Rows(enum.Enum):
    """How q and out lie in memory."""

    PLAIN = "plain"
    FUSED = "fused"  # heads of a wider [T, H + others, D] tensor
    TRANSPOSED = "transposed"  # [H, T, D] seen as [T, H, D]
    WIDE = "wide"  # [T, H, D + gap], cut to D


class Order(enum.Enum):
    """Which physical blocks a request gets."""

    SHUFFLED = "shuffled"
    ASCENDING = "ascending"
    DESCENDING = "descending"


@dataclass(frozen=True, kw_only=True)
class Placing:
    """Where and how a step lies in memory; nothing here may change a bit of the result.

    filler         what table entries that no row can see hold
    extra_columns  table columns beyond the longest request
    table_gap      columns between the rows of the table that belong to nobody
    spare_blocks   blocks of the pool beyond the owned ones
    padding_rows   rows of q, out and lse beyond query_start_loc[B]
    lengths_slack  seq_lens_host exceeds seq_lens by this (async_lengths)
    reuse          requests with equal keys share blocks: entry r names the request whose table it
                   copies
    """

    seed: int = 0
    poison: Poison = Poison.MIXED
    storage: Storage = Storage.PLAIN
    order: Order = Order.SHUFFLED
    q_rows: Rows = Rows.PLAIN
    out_rows: Rows = Rows.PLAIN
    filler: int = INT_MAX
    extra_columns: int = 2
    table_gap: int = 0
    spare_blocks: int = 5
    padding_rows: int = 0
    lengths_slack: int = 0
    reuse: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False)
class Guard:
    """Memory whose bytes must not change, except in the part that view() gives."""

    name: str
    rule: str
    base: Tensor
    view: Callable[[Tensor], Tensor] | None = None


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
    for r, table in enumerate(tables):
        if placing.reuse is None or placing.reuse[r] == r:
            _store(content, r, table, cache)
    _constant_scales(content, cache)
    tokens = sum(content.query_lens)
    q = _rows(
        guards, "q", placing.q_rows, (tokens, placing.padding_rows),
        (spec.num_heads, spec.head_dim), spec.dtype, device, fill=float("nan"), output=False,
    )
    if tokens:
        q[:tokens].copy_(torch.cat(content.q))
    out = _rows(
        guards, "out", placing.out_rows, (tokens, placing.padding_rows),
        (spec.num_heads, spec.head_dim_v), spec.out_dtype, device, fill=CANARY, output=True,
    )
    lse = None
    if spec.return_lse:
        base = torch.full((tokens + placing.padding_rows + 2, spec.num_heads), CANARY, device=device)
        lse = base[1:-1]
        lse[:tokens] = float("nan")
        guards.append(Guard("lse", "padding-rows", base, lambda x: x[1 : 1 + tokens]))
    sinks = None if content.sinks is None else content.sinks.to(device)
    slopes = None if content.slopes is None else content.slopes.to(device)
    for name, tensor in (("sinks", sinks), ("alibi_slopes", slopes)):
        if tensor is not None:
            guards.append(Guard(name, "arguments", tensor))
    for name in ("query_start_loc", "seq_lens", "block_table", "slot_mapping", "tree_mask", "tree_indptr"):
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


def first_column(spec: AttentionSpec, query_len: int, seq_len: int) -> int:
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
        needs.append((columns, 0 if shared else first_column(spec, rows, keys), shared))
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
    padded = torch.full((len(tables), width + placing.table_gap), placing.filler, dtype=torch.int32)
    for r, table in enumerate(tables):
        for c, block in enumerate(table):
            if block is not None:
                padded[r, c] = block
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
        tree_mask, tree_indptr = _pack_trees(content.trees)
    return AttentionBatch(
        query_start_loc=starts.to(device, copy=True),
        seq_lens=lengths.to(device, copy=True),
        block_table=padded.to(device)[:, :width],
        slot_mapping=torch.tensor(slots, dtype=torch.int64).to(device),
        query_start_loc_host=starts,
        seq_lens_host=host_lengths,
        tree_mask=None if tree_mask is None else tree_mask.to(device),
        tree_indptr=None if tree_indptr is None else tree_indptr.to(device),
    )


def _pack_trees(trees: tuple[Tensor | None, ...]) -> tuple[Tensor, Tensor]:
    """Bit row*query_len+col of a request's bytes, lowest bit first; unused bits are set."""
    data: list[int] = []
    offsets = [0]
    for tree in trees:
        if tree is not None:
            bits = [bool(b) for b in tree.flatten().tolist()]
            bits += [True] * (-len(bits) % 8)
            for i in range(0, len(bits), 8):
                data.append(sum(bit << n for n, bit in enumerate(bits[i : i + 8])))
        offsets.append(len(data))
    return torch.tensor(data, dtype=torch.uint8), torch.tensor(offsets, dtype=torch.int64)


# -- the pools -----------------------------------------------------------------------------------


def make_cache(
    spec: AttentionSpec,
    num_blocks: int,
    device: torch.device,
    placing: Placing,
    guards: list[Guard],
) -> KVCache:
    """Pools full of poison. Their bytes are guarded: run() changes none of them."""
    inner = (spec.block_size, spec.num_kv_heads)
    hnd = spec.layout is Layout.HND
    inner = inner[::-1] if hnd else inner

    def oriented(x: Tensor) -> Tensor:
        return x.transpose(1, 2) if hnd else x

    def poisoned(shape: tuple[int, ...], which: int) -> Tensor:
        base = torch.empty(shape, dtype=spec.kv_dtype, device=device)
        _poison(base, placing.poison.value[which])
        return base

    gap = GAP if placing.storage is Storage.GAPS else 0
    dim, dim_v = spec.head_dim, spec.head_dim_v
    if spec.shared_kv:
        bases = [poisoned((num_blocks, *inner, dim + gap), 0)]
        k = oriented(bases[0])[..., :dim]
        v = k[..., :dim_v]
    elif placing.storage is Storage.INTERLEAVED and dim == dim_v:
        bases = [poisoned((num_blocks, 2, *inner, dim), 0)]
        k, v = oriented(bases[0][:, 0]), oriented(bases[0][:, 1])
        _poison(v, placing.poison.value[1])
    elif placing.storage is Storage.INTERLEAVED:
        bases = [poisoned((num_blocks, *inner, dim + dim_v), 0)]
        k, v = oriented(bases[0])[..., :dim], oriented(bases[0])[..., dim:]
        _poison(v, placing.poison.value[1])
    else:
        bases = [poisoned((num_blocks, *inner, d + gap), i) for i, d in enumerate((dim, dim_v))]
        k, v = oriented(bases[0])[..., :dim], oriented(bases[1])[..., :dim_v]
    guards += [Guard("the KV pool", "unowned-slots", base) for base in bases]
    if spec.kv_quant is KVQuant.NONE:
        return KVCache(k=k, v=v)
    scales = []
    for i in range(1 if spec.shared_kv else 2):
        shape = scale_shape(spec, num_blocks)
        scale = torch.empty(shape, device=device)
        if spec.kv_quant is KVQuant.PER_TOKEN_HEAD:
            # Strided: one row of scales per token, a gap behind them.
            wide = torch.empty((*shape[:2], shape[2] + 3), device=device)
            _poison(wide, placing.poison.value[i])
            scale = wide[..., : shape[2]]
            guards.append(Guard("the scales", "unowned-slots", wide))
        scales.append(scale)
    return KVCache(k=k, v=v, k_scale=scales[0], v_scale=scales[-1])


def _poison(x: Tensor, pattern: tuple[float, ...]) -> None:
    """Fill x, also where its dtype cannot hold the pattern: int8 gets its extremes instead."""
    numbers = torch.tensor(pattern)
    if x.dtype is torch.int8:
        numbers = torch.nan_to_num(numbers, nan=-128.0, posinf=127.0, neginf=-127.0).clamp(-128, 127)
    flat = numbers.repeat(-(-x.numel() // len(pattern)))[: x.numel()].reshape(x.shape)
    x.copy_(flat.to(x.dtype))


def _store(content: Content, request: int, table: list[int | None], cache: KVCache) -> None:
    size = content.spec.block_size
    positions = [p for p in range(len(content.k[request])) if table[p // size] is not None]
    if not positions:
        return
    at = torch.tensor(positions)
    blocks = torch.tensor([table[p // size] for p in positions], device=cache.k.device)
    offsets = (at % size).to(cache.k.device)
    pools = [(cache.k, content.k[request])]
    if not content.spec.shared_kv:
        pools.append((cache.v, content.v[request]))
    for pool, values in pools:
        as_bytes(pool)[blocks, offsets] = as_bytes(values[at]).to(pool.device)
    for scale, given in ((cache.k_scale, content.k_scale), (cache.v_scale, content.v_scale)):
        if isinstance(given, tuple):
            assert scale is not None
            scale[blocks, offsets] = given[request][at].to(scale.device)


def _constant_scales(content: Content, cache: KVCache) -> None:
    for scale, given in ((cache.k_scale, content.k_scale), (cache.v_scale, content.v_scale)):
        if isinstance(given, Tensor):
            assert scale is not None
            scale.copy_(given)


def as_bytes(x: Tensor) -> Tensor:
    """8-bit floats as uint8: torch indexes those on every device."""
    return x.view(torch.uint8) if x.dtype.itemsize == 1 else x


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
    }
    base = torch.full(shapes[kind], fill, dtype=dtype, device=device)

    def all_rows(x: Tensor) -> Tensor:
        if kind is Rows.FUSED:
            x = x[:, 1 : 1 + heads]
        elif kind is Rows.TRANSPOSED:
            x = x.transpose(0, 1)
        elif kind is Rows.WIDE:
            x = x[..., :dim]
        return x[1:-1]

    view = all_rows(base)
    if output:
        view[:live] = float("nan")
        guards.append(Guard(name, "padding-rows", base, lambda x: all_rows(x)[:live]))
    else:
        guards.append(Guard(name, "arguments", base))
    return view
