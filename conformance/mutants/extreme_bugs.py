"""Bugs that only values at the ends of an option's range show."""

from __future__ import annotations

import torch
from torch import Tensor

from pagedattn.conformance.mutants.honest import HonestOp, QueryRow
from pagedattn.conformance.mutants.planting import Garden
from pagedattn.spec import KVQuant

__all__ = ["MUTANTS"]

garden = Garden()


@garden.op("sink-not-in-max", "the maximum taken off before exp leaves the sinks out", "KH-39")
class _SinkNotInMax(HonestOp):
    def top(self, score: Tensor, sinks: Tensor | None) -> Tensor:
        return super().top(score, sinks if not score.shape[-1] else None)


@garden.op("scale-made-positive", "a negative scale loses its sign", "KH-38")
class _ScaleAbs(HonestOp):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return self.cap(self.dot(q, k) * abs(self.spec.scale))


@garden.op("scale-zero-is-default", "scale 0 is taken for 'not given'", "KH-38")
class _ScaleZero(HonestOp):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return self.cap(self.dot(q, k) * (self.spec.scale or self.spec.head_dim**-0.5))


@garden.op("tree-in-a-word", "a tree of more than 64 rows does not fit and is causal")
class _TreeWord(HonestOp):
    def in_tree(self, row: QueryRow, position: int, key: int) -> bool:
        return key <= position if row.rows > 64 else super().in_tree(row, position, key)


@garden.op("alibi-in-bfloat16", "the distance to a key is rounded to 8 bits", "KH-41")
class _AlibiRounded(HonestOp):
    def bias(self, keys: Tensor, position: int) -> Tensor:
        return super().bias(keys, position).bfloat16().float()


@garden.op("head-scales-packed", "scales per head are read as if contiguous", "KH-47")
class _ScalesPacked(HonestOp):
    def scales(self, scale: Tensor, block: Tensor, offset: Tensor) -> Tensor:
        if self.spec.kv_quant is KVQuant.PER_HEAD:
            scale = scale.as_strided(scale.shape, (1,))
        return super().scales(scale, block, offset)


@garden.op("v-by-strides-of-k", "the V pool is read with the strides of the K pool", "KH-24")
class _StridesOfK(HonestOp):
    def read(
        self, row: QueryRow, pool: Tensor, scale: Tensor | None, keys: Tensor, work: torch.dtype
    ) -> Tensor:
        if pool.shape[-1] == self.spec.head_dim:
            known = self.__dict__.setdefault("_stride", pool.stride())
            reach = sum(s * (n - 1) for s, n in zip(known, pool.shape, strict=True))
            if pool.storage_offset() + reach < pool.untyped_storage().nbytes() // pool.itemsize:
                pool = pool.as_strided(pool.shape, known)
        return super().read(row, pool, scale, keys, work)


MUTANTS = tuple(garden.mutants)
