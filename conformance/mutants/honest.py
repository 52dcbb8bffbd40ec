"""An honest backend in small steps, each of which a planted bug may replace.

One query row at a time: where it is, which keys it sees, what they hold, their scores, their
weights, the result. It serves every option, so that no case declines on a mutant's behalf.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pagedattn.attention import AttentionBackend, AttentionOp, Plan
from pagedattn.batch import AttentionBatch, KVCache
from pagedattn.capabilities import EVERYTHING_1_0, Capabilities
from pagedattn.device import DeviceInfo
from pagedattn.spec import KVQuant, Mask

__all__ = ["HonestBackend", "HonestOp", "QueryRow"]


@dataclass(frozen=True)
class QueryRow:
    """One query row: number `row` of `rows` of request `request`, which has `keys` keys; its
    place in q is `token`."""

    batch: AttentionBatch
    request: int
    row: int
    rows: int
    keys: int
    token: int

    @property
    def table(self) -> Tensor:
        return self.batch.block_table[self.request]


class HonestOp(AttentionOp):
    """The contract, step by step."""

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
        work = torch.float64 if self.spec.dtype is torch.float64 else torch.float32
        with torch.device(q.device):  # whatever torch's default device is
            for row in self.rows(plan):
                if row.keys and not self.attends(row):
                    continue
                position = self.position(row)
                keys = self.visible(row, position)
                k = self.read(row, cache.k, cache.k_scale, keys, work)
                v = self.read(row, cache.v, cache.v_scale, keys, work)
                score = self.score(q[row.token].to(work), k)
                if alibi_slopes is not None:
                    score = score + alibi_slopes.to(work)[:, None] * self.bias(keys, position)
                result, log_sum = self.weigh(score, v, None if sinks is None else sinks.to(work))
                out[row.token] = result.to(out.dtype)
                if lse is not None:
                    lse[row.token] = log_sum.to(torch.float32)

    # -- where -----------------------------------------------------------------------------------

    def lengths(self, plan: Plan) -> list[int]:
        """Keys of each request."""
        found: list[int] = plan.batch.seq_lens.tolist()
        return found

    def rows(self, plan: Plan) -> list[QueryRow]:
        batch = plan.batch
        assert batch.query_start_loc_host is not None
        starts = batch.query_start_loc_host.tolist()
        return [
            QueryRow(batch, r, token - starts[r], starts[r + 1] - starts[r], keys, token)
            for r, keys in enumerate(self.lengths(plan))
            for token in range(starts[r], starts[r + 1])
        ]

    def attends(self, row: QueryRow) -> bool:
        return True

    def position(self, row: QueryRow) -> int:
        return row.keys - row.rows + row.row

    # -- which keys ------------------------------------------------------------------------------

    def left(self, row: QueryRow) -> int | None:
        return self.spec.window[0]

    def right(self, row: QueryRow) -> int | None:
        return self.spec.window[1]

    def visible(self, row: QueryRow, position: int) -> Tensor:
        """Positions of the keys that the row sees."""
        left, right = self.left(row), self.right(row)
        first = 0 if left is None else max(0, position - left)
        last = row.keys - 1 if right is None else min(row.keys - 1, position + right)
        if self.spec.mask is Mask.CAUSAL:
            last = min(last, position)
        keys = torch.arange(first, max(first, last + 1))
        if self.spec.mask is Mask.TREE:
            sees = [self.in_tree(row, position, int(j)) for j in keys]
            keys = keys[torch.tensor(sees, dtype=torch.bool)]
        return keys

    def in_tree(self, row: QueryRow, position: int, key: int) -> bool:
        batch = row.batch
        assert batch.tree_mask is not None
        assert batch.tree_indptr is not None
        begin, end = batch.tree_indptr[row.request : row.request + 2].tolist()
        own = key - (row.keys - row.rows)
        if begin == end:
            return key <= position
        if own < 0:
            return True
        bit = row.row * row.rows + own
        return bool(int(batch.tree_mask[begin + bit // 8]) >> self.tree_bit(bit) & 1)

    def tree_bit(self, bit: int) -> int:
        return bit % 8

    # -- what they hold --------------------------------------------------------------------------

    def blocks(self, row: QueryRow, keys: Tensor) -> Tensor:
        return row.table[keys // self.spec.block_size].long()

    def pool(self, pool: Tensor) -> Tensor:
        """[N, block_size, Hkv, width]"""
        return pool

    def kv_heads(self) -> Tensor:
        """kv head of each query head."""
        return torch.arange(self.spec.num_heads) // self.spec.group_size

    def read(
        self, row: QueryRow, pool: Tensor, scale: Tensor | None, keys: Tensor, work: torch.dtype
    ) -> Tensor:
        """[Hq, n, width]: the keys as each query head sees them."""
        block, offset = self.blocks(row, keys), keys % self.spec.block_size
        pool = self.pool(pool)
        if scale is None:
            values = pool[block, offset].to(work)
        else:
            values = pool.view(torch.uint8)[block, offset].view(pool.dtype).to(work)
            values = values * self.scales(scale, block, offset).to(work)
        return values[:, self.kv_heads()].transpose(0, 1)

    def scales(self, scale: Tensor, block: Tensor, offset: Tensor) -> Tensor:
        """Factors that broadcast over [n, Hkv, width]."""
        if self.spec.kv_quant is KVQuant.PER_TOKEN_HEAD:
            return scale[block, offset][..., None]
        return scale[:, None] if scale.dim() else scale

    # -- scores ----------------------------------------------------------------------------------

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        """[Hq, n] of q [Hq, D] and k [Hq, n, D]."""
        return self.cap(self.dot(q, k) * self.spec.scale)

    def dot(self, q: Tensor, k: Tensor) -> Tensor:
        return (k * q[:, None]).sum(-1)

    def cap(self, score: Tensor) -> Tensor:
        if self.spec.softcap is None:
            return score
        return self.spec.softcap * torch.tanh(score / self.spec.softcap)

    def bias(self, keys: Tensor, position: int) -> Tensor:
        distance = (keys - position).float()
        return -distance.abs() if self.spec.mask is Mask.FULL else distance

    # -- result ----------------------------------------------------------------------------------

    def weigh(self, score: Tensor, v: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
        """(out [Hq, Dv], lse [Hq]) of score [Hq, n] and v [Hq, n, Dv]."""
        top = self.top(score, sinks)
        weight = torch.exp(score - top[:, None])
        total = weight.sum(-1)
        if sinks is not None:
            total = total + torch.exp(sinks - top)
        mixed = self.mix(weight, v)
        out = mixed / torch.where(total == 0, 1.0, total)[:, None]
        return out, self.log_sum(top, total)

    def top(self, score: Tensor, sinks: Tensor | None) -> Tensor:
        """What is taken off before exp: the largest logit, 0 where there is none."""
        parts = [score] if sinks is None else [score, sinks[:, None]]
        logits = torch.cat(parts, dim=-1)
        if not logits.shape[-1]:
            return score.new_zeros(score.shape[0])
        top = logits.amax(-1)
        return torch.where(top == float("-inf"), 0.0, top)

    def mix(self, weight: Tensor, v: Tensor) -> Tensor:
        return (weight[..., None] * v).sum(1)

    def log_sum(self, top: Tensor, total: Tensor) -> Tensor:
        return top + torch.log(total)


class HonestBackend(AttentionBackend):
    """Serves every option. Its op is replaced by a mutant's."""

    name = "honest"
    op = HonestOp

    def capabilities(self, device: DeviceInfo) -> Capabilities:
        return replace(EVERYTHING_1_0, device={"cpu"})
