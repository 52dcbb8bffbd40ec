"""A batch in the form that the libraries take: cumulative lengths, bounds, who owns which row.

Made once per batch by plan(). Everything that depends on the contents of the batch's tensors is
computed on their device, so that nothing waits, and refreshed in place for a captured graph.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pagedattn.batch import AttentionBatch
from pagedattn.errors import InvalidBatch
from pagedattn.spec import AttentionSpec, Graph, Limits, Mask

__all__ = ["MOST_REQUESTS", "Step"]

MOST_REQUESTS = 65535
"""Requests are a dimension of the kernels' grids that cannot be longer."""


@dataclass(frozen=True, eq=False)
class Step:
    """n rows: num_tokens, or with a graph all rows that there may ever be, max_tokens. R requests:
    B, or only those with rows when B is more than a grid can hold.

    rows      n; those of q beyond it belong to nobody
    max_q     bound of query_len       max_k  bound of the keys, as the kernels count them
    decode    whether every request has at most one row and the kvcache function serves it
    cu_q      i32 [R+1]   query_start_loc       table  i32 [R, M]  the block table
    cu_k      i32 [R+1]   cumulative seq_lens   keys   i32 [R]     seq_lens
    used      i32 [R]     keys, but 0 where a request has no row: its table is garbage (decode)
    first     i64 [R]     its row of q, None when that is row r (decode)
    owner     i64 [n]     request of a row
    live      bool [n]    whether a row belongs to a request; None without a graph: all do
    position  f32 [n]     p of a launched row; None unless the LSE must be moved by it (ALiBi)

    Rows that see no key are left out where the kernels cannot take them; cu_q counts the others:
    seen      bool [n]    whether a row is launched; None: all are, in their order
    source    i64 [n]     launched row -> row of q, 0 behind the last
    place     i64 [n]     row -> launched row
    """

    rows: int
    max_q: int
    max_k: int
    decode: bool
    cu_q: Tensor
    table: Tensor
    cu_k: Tensor
    keys: Tensor
    used: Tensor
    first: Tensor | None = None
    owner: Tensor | None = None
    live: Tensor | None = None
    position: Tensor | None = None
    seen: Tensor | None = None
    source: Tensor | None = None
    place: Tensor | None = None

    @classmethod
    def of(
        cls, batch: AttentionBatch, spec: AttentionSpec, limits: Limits, *, keyless_rows: bool
    ) -> Step:
        """keyless_rows: whether ragged kernels may be given rows that see no key."""
        captured = spec.graph is not Graph.NEVER
        max_q, max_k = _bounds(batch, spec, limits)
        # With UNIFORM or ANY a later step of the same launch may have more rows.
        decode = (
            batch.max_query_len <= 1
            and spec.graph in (Graph.NEVER, Graph.DECODE)
            and not spec.batch_invariant
        )
        cu_q, table, keys = _requests(batch, captured)
        requests = len(keys)
        rows = limits.max_tokens if captured and requests else batch.num_tokens
        counts = cu_q.diff()
        cu_k = torch.zeros_like(cu_q)
        torch.cumsum(keys, 0, dtype=torch.int32, out=cu_k[1:])
        used = torch.where(counts > 0, keys, 0)
        step = cls(rows, max_q, max_k, decode, cu_q, table, cu_k, keys, used)
        shifted = origin_at_zero(spec, step)
        dropping = not (keyless_rows or decode) and _keyless_rows(batch, spec, captured)
        if not (captured or shifted or dropping or (decode and rows != requests)):
            return step
        row = torch.arange(rows, device=cu_q.device)
        owner = torch.searchsorted(cu_q[1:], row.int(), right=True).clamp_(max=max(requests - 1, 0))
        position = keys[owner] - cu_q[1:][owner] + row
        live = row < cu_q[-1]
        if dropping:
            seen = live & (keys[owner] > 0)
            if (right := _right(spec)) is not None:
                seen &= position + right >= 0
            step = step._with_only(seen, row)
            position = position[step.source]
        return dataclasses.replace(
            step,
            owner=owner,
            live=live if captured else None,
            first=torch.where(counts > 0, cu_q[:-1], 0).long() if decode else None,
            position=position.float() if shifted else None,
        )

    def _with_only(self, seen: Tensor, row: Tensor) -> Step:
        """The rows that are `seen`, moved together."""
        before = torch.zeros(len(row) + 1, dtype=torch.int32, device=row.device)
        torch.cumsum(seen, 0, dtype=torch.int32, out=before[1:])
        place = before[:-1].long()
        source = torch.zeros(len(row) + 1, dtype=torch.int64, device=row.device)
        source[torch.where(seen, place, len(row))] = row
        return dataclasses.replace(
            self, cu_q=before[self.cu_q.long()], seen=seen, source=source[:-1], place=place
        )

    def refreshed(self, other: Step) -> Step:
        """`other` in the memory of this step, where the shapes are the same: a captured graph holds
        its pointers."""
        kept: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if isinstance(mine, Tensor) and theirs is not None and mine.shape == theirs.shape:
                same = mine.data_ptr() == theirs.data_ptr()
                kept[field.name] = mine if same else mine.copy_(theirs)
        return dataclasses.replace(other, **kept)


def _requests(batch: AttentionBatch, captured: bool) -> tuple[Tensor, Tensor, Tensor]:
    """(cu_q, table, keys): the batch's tensors, without requests that have no rows if they are too
    many. Raises InvalidBatch when that does not help."""
    starts, table, keys = batch.query_start_loc, batch.block_table, batch.seq_lens
    if batch.num_requests <= MOST_REQUESTS:
        return starts, table, keys
    assert batch.query_start_loc_host is not None
    asked = batch.query_start_loc_host.diff().nonzero()[:, 0]
    if captured or len(asked) > MOST_REQUESTS:
        raise InvalidBatch(
            "seq_lens",
            f"of {len(keys)} requests",
            f"flash_attn launches at most {MOST_REQUESTS} that have rows, and with a graph "
            f"{MOST_REQUESTS} in all",
        )
    asked = asked.to(starts.device)
    # Requests without rows do not move the others' rows.
    return torch.cat([starts[:1], starts[1:][asked]]), table[asked], keys[asked]


def _right(spec: AttentionSpec) -> int | None:
    """Keys to the right of a row that it sees, None: all."""
    return 0 if spec.mask is Mask.CAUSAL else spec.window[1]


def _keyless_rows(batch: AttentionBatch, spec: AttentionSpec, captured: bool) -> bool:
    """Whether a row may see no key; by the host's lengths where these are exact and final."""
    if captured or spec.async_lengths:
        return True
    assert batch.query_start_loc_host is not None
    assert batch.seq_lens_host is not None
    rows, keys = batch.query_start_loc_host.diff(), batch.seq_lens_host
    without = keys == 0
    if (right := _right(spec)) is not None:
        without |= rows - keys > right
    return bool((without & (rows > 0)).any())


def _bounds(batch: AttentionBatch, spec: AttentionSpec, limits: Limits) -> tuple[int, int]:
    """(max_q, max_k). Fixed by the Limits where nothing may follow the batch.

    max_q is at least 2: at 1 the ragged functions pack the heads of a group as rows, which is wrong
    for a request without rows and makes bits follow the batch.
    max_k also covers rows before the first key: an open side of a window counts max_k keys from the
    row's own position, which may be as low as -max_q."""
    fixed = spec.graph is not Graph.NEVER or spec.batch_invariant
    longest = limits.max_tokens if fixed else batch.max_query_len
    if fixed and spec.max_query_len is not None:
        longest = min(longest, spec.max_query_len)
    max_q = max(2, longest)
    max_k = limits.max_seq_len if fixed else batch.max_seq_len
    return max_q, max_k + max_q


def origin_at_zero(spec: AttentionSpec, step: Step) -> bool:
    """Whether FlashAttention-2 counts ALiBi from key 0 here, so that its LSE must be moved.

    It does so for a causal mask without a window, and treats one that covers all keys as none."""
    if not (spec.alibi and spec.return_lse and spec.mask is Mask.CAUSAL):
        return False
    left = spec.window[0]
    most = step.table.shape[1] * spec.block_size if step.decode else step.max_k
    return left is None or left >= most
