"""The reference backend: every option of AttentionSpec, one request at a time.

`attend` below is the definition of attention in this project; docs/SPEC.md says the same in words.
It computes in float32, in float64 when q is float64, and never looks at a key that no row sees.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pagedattn.attention import AttentionBackend, AttentionOp, Plan
from pagedattn.backends.reference.masks import tree_bits, visible
from pagedattn.batch import KVCache
from pagedattn.capabilities import EVERYTHING_1_0, Capabilities
from pagedattn.device import DeviceInfo
from pagedattn.spec import AttentionSpec, KVQuant, Mask
from pagedattn.write import dequantise

__all__ = ["ReferenceBackend", "ReferenceOp", "attend"]

MAX_ROWS = 256
MAX_SCORES = 2**25


def attend(
    spec: AttentionSpec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    distance: Tensor,
    sinks: Tensor | None,
    alibi_slopes: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Attention of one request: (out [Tq, Hq, Dv], lse [Tq, Hq]).

    q [Tq, Hq, D], k [n, Hkv, D], v [n, Hkv, Dv]; mask bool [Tq, n], True where row sees key;
    distance [Tq, n], key position - row position; sinks, alibi_slopes [Hq].
    """
    group = spec.group_size
    rows, heads = q.shape[0], spec.num_heads
    grouped = q.reshape(rows, spec.num_kv_heads, group, spec.head_dim)  # head h reads h // group
    score = torch.einsum("thgd,jhd->thgj", grouped, k).reshape(rows, heads, -1) * spec.scale
    if spec.softcap is not None:
        score = spec.softcap * torch.tanh(score / spec.softcap)
    if alibi_slopes is not None:
        offset = -distance.abs() if spec.mask is Mask.FULL else distance
        score = score + alibi_slopes[:, None] * offset[:, None, :]
    score = score.masked_fill(~mask[:, None, :], float("-inf"))

    top = score.amax(-1) if score.shape[-1] else score.new_full((rows, heads), float("-inf"))
    if sinks is not None:
        top = torch.maximum(top, sinks)
    base = torch.where(top == float("-inf"), 0.0, top)  # no key and no sink: avoid inf - inf
    weight = torch.exp(score - base[..., None])
    total = weight.sum(-1)
    if sinks is not None:
        total = total + torch.exp(sinks - base)
    mixed = torch.einsum("thgj,jhd->thgd", weight.reshape(rows, spec.num_kv_heads, group, -1), v)
    out = mixed.reshape(rows, heads, -1) / torch.where(total == 0, 1.0, total)[..., None]
    return out, base + torch.log(total)


class ReferenceOp(AttentionOp):
    """Gathers the blocks of a request, calls attend, goes on to the next request."""

    def kernel(
        self,
        q: Tensor,
        cache: KVCache,
        plan: Plan,
        out: Tensor,
        lse: Tensor | None,
        sinks: Tensor | None,
        alibi_slopes: Tensor | None,
    ) -> None:
        batch, spec = plan.batch, self.spec
        assert batch.query_start_loc_host is not None
        work = torch.float64 if spec.dtype is torch.float64 else torch.float32
        starts = batch.query_start_loc_host.tolist()
        for r, seq_len in enumerate(batch.seq_lens.tolist()):
            start, end = starts[r], starts[r + 1]
            bits = tree_bits(batch, r, end - start) if spec.mask is Mask.TREE else None
            step = self._rows_at_once(seq_len)
            for first in range(start, end, step):
                rows = slice(first, min(first + step, end))
                position = seq_len - end + torch.arange(rows.start, rows.stop, device=q.device)
                keys = self._keys(seq_len - end + rows.start, rows.stop - rows.start, seq_len)
                key = torch.arange(keys.start, keys.stop, device=q.device)
                distance = key - position[:, None]
                k, v = self._gather(cache, batch.block_table[r], key, work)
                mask = visible(
                    spec,
                    distance,
                    key - (seq_len - (end - start)),
                    None if bits is None else bits[rows.start - start : rows.stop - start],
                )
                result, log_sum = attend(
                    spec,
                    q[rows].to(work),
                    k,
                    v,
                    mask,
                    distance.to(work),
                    None if sinks is None else sinks.to(work),
                    None if alibi_slopes is None else alibi_slopes.to(work),
                )
                out[rows] = result.to(out.dtype)
                if lse is not None:
                    lse[rows] = log_sum.to(lse.dtype)

    def _rows_at_once(self, seq_len: int) -> int:
        """Rows whose scores are held together: few enough for memory, and one when a row's bits
        must not depend on how many run with it."""
        if self.spec.batch_invariant:
            return 1
        left, right = self.spec.window
        keys = seq_len
        if left is not None and (right is not None or self.spec.mask is Mask.CAUSAL):
            keys = min(seq_len, left + (right or 0) + MAX_ROWS)
        return max(1, min(MAX_ROWS, MAX_SCORES // (self.spec.num_heads * max(keys, 1))))

    def _keys(self, first_position: int, rows: int, seq_len: int) -> range:
        """Key positions that at least one of these rows may see."""
        left, right = self.spec.window
        begin = 0 if left is None else max(0, first_position - left)
        last = first_position + rows - 1
        end = seq_len
        if self.spec.mask is Mask.CAUSAL:
            end = min(end, last + 1)
        elif right is not None:
            end = min(end, last + right + 1)
        return range(begin, max(begin, end))

    def _gather(
        self, cache: KVCache, table: Tensor, position: Tensor, work: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """k [n, Hkv, D] and v [n, Hkv, Dv] of positions [n], dequantised, in `work` precision."""
        block = table[position // self.spec.block_size].long()
        offset = position % self.spec.block_size

        def read(pool: Tensor, scale: Tensor | None) -> Tensor:
            if self.spec.kv_quant is KVQuant.NONE:
                return pool[block, offset].to(work)
            assert scale is not None
            if self.spec.kv_quant is KVQuant.PER_TOKEN_HEAD:
                scale = scale[block, offset]
            values = pool.view(torch.uint8)[block, offset].view(pool.dtype)
            return dequantise(values, scale.expand(values.shape[:2])[..., None], work)

        return read(cache.k, cache.k_scale), read(cache.v, cache.v_scale)


class ReferenceBackend(AttentionBackend):
    """Plain PyTorch, readable as the specification, every option; slow."""

    name = "reference"
    op = ReferenceOp

    def capabilities(self, device: DeviceInfo) -> Capabilities:
        return EVERYTHING_1_0
