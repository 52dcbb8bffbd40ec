"""The Triton op: work items in plan(), launches in run() and write()."""

from __future__ import annotations

from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from pagedattn.attention import AttentionOp, Plan
from pagedattn.backends.triton import launch, work
from pagedattn.backends.triton.heuristics import Tile, choose
from pagedattn.batch import AttentionBatch, KVCache
from pagedattn.spec import AttentionSpec, KVQuant

__all__ = ["TritonOp", "slot_bytes"]


def slot_bytes(spec: AttentionSpec, tile: Tile) -> int:
    """Workspace of one slot: a float32 state per packed row and kv head."""
    return spec.num_kv_heads * tile.block_m * (spec.head_dim_v + 2) * torch.float32.itemsize


class TritonOp(AttentionOp):
    """Opened for one spec. Nothing is allocated and nothing compiled after open()."""

    def setup(self) -> None:
        info = self.info
        self.tiles = choose(self.spec, info, self.tuning)
        self.launches = launch.build(self.spec, self.tiles)
        self.factor = launch.factor(self.spec)
        self._pools: WeakKeyDictionary[KVCache, tuple[bool, tuple[int, ...], tuple[int, ...]]] = (
            WeakKeyDictionary()
        )
        self._scratch = [self._views(phase) for phase in range(len(self.tiles))]
        with launch.on_device(self.device):
            for variant, arguments in launch.variants(self.spec, self.tiles):
                variant.warmup(arguments)

    def _views(self, phase: int) -> tuple[Tensor, Tensor]:
        """(PARTIAL, STATS) of a phase; phases run one after the other and share the memory."""
        spec, tile = self.spec, self.tiles[phase]
        slots = work.max_slots(spec, self.limits, self.info, tile)
        rows = slots * spec.num_kv_heads * tile.block_m
        start = -self.workspace.data_ptr() % launch.ALIGN_BYTES
        scratch = self.workspace[start : start + slots * slot_bytes(spec, tile)].view(torch.float32)
        return scratch[: rows * spec.head_dim_v], scratch[rows * spec.head_dim_v :]

    def prepare(self, batch: AttentionBatch, data: Any) -> work.Work:
        spec, limits, info = self.spec, self.limits, self.info
        found = work.assign(spec, limits, info, self.tiles, batch)
        return work.lay_out(spec, limits, info, self.tiles, found, self.device, data)

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
        batch = plan.batch
        pool_aligned, strides, scale_strides = self._pool(cache)
        is_aligned = pool_aligned and launch.aligned(q, out)
        heads = self.spec.num_kv_heads
        with launch.on_device(self.device):
            for phase, todo in enumerate(cast(work.Work, plan.data).phases):
                if not todo.num_items:
                    continue
                partial, stats = self._scratch[phase]
                tile = self.launches.tiles[phase][is_aligned]
                tile(
                    todo.num_items * heads,
                    (
                        q, cache.k, cache.v, out, lse, sinks, alibi_slopes,
                        cache.k_scale, cache.v_scale,
                        batch.query_start_loc, batch.seq_lens, batch.block_table,
                        batch.tree_mask, batch.tree_indptr,
                        todo.items, partial, stats, self.factor,
                        *tile.units(*q.stride()[:2]), *tile.pool_units(*strides),
                        *tile.units(*out.stride()[:2]),
                        batch.block_table.stride(0), *scale_strides,
                    ),
                )  # fmt: skip
                if todo.num_merges:
                    self.launches.combines[phase](
                        todo.num_merges * heads * todo.merge_rows,
                        (
                            partial, stats, todo.merges, batch.query_start_loc, out, lse, sinks,
                            todo.merge_rows, *out.stride()[:2],
                        ),
                    )  # fmt: skip

    def write_kernel(
        self, k: Tensor, v: Tensor | None, cache: KVCache, slot_mapping: Tensor
    ) -> None:
        tokens = slot_mapping.shape[0]
        if not tokens:
            return
        pool_aligned, strides, scale_strides = self._pool(cache)
        variant = self.launches.write[pool_aligned and launch.aligned(k, v)]
        shared = v is None
        groups = -(-tokens // variant.constants["BLOCK_T"])
        with launch.on_device(self.device):
            variant(
                groups * self.spec.num_kv_heads,
                (
                    k, v, cache.k, None if shared else cache.v,
                    cache.k_scale, None if shared else cache.v_scale, slot_mapping, tokens,
                    *variant.units(*k.stride()[:2], *((0, 0) if v is None else v.stride()[:2])),
                    *variant.pool_units(*strides), *scale_strides,
                ),
            )  # fmt: skip

    def _pool(self, cache: KVCache) -> tuple[bool, tuple[int, ...], tuple[int, ...]]:
        """(aligned, strides of k and v, strides of their scales): a cache is never rebound."""
        known = self._pools.get(cache)
        if known is None:
            known = (
                launch.aligned(cache.k, cache.v),
                (*cache.k.stride()[:3], *cache.v.stride()[:3]),
                (
                    *scale_strides(self.spec, cache.k_scale),
                    *scale_strides(self.spec, cache.v_scale),
                ),
            )
            self._pools[cache] = known
        return known


def scale_strides(spec: AttentionSpec, scale: Tensor | None) -> tuple[int, int, int]:
    """(block, token, head) strides of a scale tensor, 0 where it has no such dimension."""
    if scale is None or spec.kv_quant is KVQuant.PER_TENSOR:
        return 0, 0, 0
    if spec.kv_quant is KVQuant.PER_HEAD:
        return 0, 0, scale.stride(0)
    block, token, head = scale.stride()
    return block, token, head
