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
from pagedattn.capabilities import Capabilities
from pagedattn.device import DeviceInfo
from pagedattn.spec import FLOAT_DTYPES, QUANT_DTYPES, AttentionSpec, KVQuant, Layout, Mask
from pagedattn.write import dequantise

__all__ = ["ReferenceBackend", "ReferenceOp", "attend"]


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
            # Rows one at a time when their bits must not depend on how many run together.
            step = 1 if spec.batch_invariant else max(end - start, 1)
            for row in range(start, end, step):
                rows = slice(row, row + step)
                first_position = seq_len - (end - row)
                keys = self._keys(first_position, min(step, end - row), seq_len)
                k, v = self._gather(cache, batch.block_table[r], keys, work)
                position = first_position + torch.arange(min(step, end - row), device=q.device)
                key = torch.arange(keys.start, keys.stop, device=q.device)
                distance = key - position[:, None]
                bits = None
                if spec.mask is Mask.TREE:
                    bits = tree_bits(batch, r, end - start)
                    bits = None if bits is None else bits[row - start : row - start + step]
                mask = visible(spec, distance, key - (seq_len - (end - start)), bits)
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
        self, cache: KVCache, table: Tensor, keys: range, work: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """k [n, Hkv, D] and v [n, Hkv, Dv] of these positions, dequantised, in `work` precision."""
        position = torch.arange(keys.start, keys.stop, device=table.device)
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
        return Capabilities(
            device={"cpu", "cuda"},
            group_size=None,
            head_dim=None,
            head_dim_v=None,
            block_size=None,
            dtype=FLOAT_DTYPES,
            kv_dtype=FLOAT_DTYPES | QUANT_DTYPES,
            out_dtype=FLOAT_DTYPES,
            layout=frozenset(Layout),
            mask=frozenset(Mask),
            window=(True, True),
            softcap=True,
            sinks=True,
            alibi=True,
            return_lse=True,
            shared_kv=True,
            kv_quant=frozenset(KVQuant),
            batch_invariant=True,
            async_lengths=True,
        )
