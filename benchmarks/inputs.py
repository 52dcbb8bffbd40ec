"""Inputs: the tensors of a workload on a device, in as many replicas as it takes to be cold.

All replicas live in one pool, each in blocks of its own, and successive calls take successive
replicas: when the pool is larger than the last-level cache, every call finds its keys and values
in memory only, as a layer of a real model does.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pagedattn.batch import AttentionBatch, KVCache
from pagedattn.benchmarks.roofline import available_bytes, last_level_cache_bytes
from pagedattn.benchmarks.workload import Placement, Workload
from pagedattn.spec import KVQuant, Limits
from pagedattn.write import amax_scale, qmax, quantise, write_kv

__all__ = ["Inputs", "make_inputs"]

MAX_REPLICAS = 1024
PATTERN_BLOCKS = 1021  # prime: two blocks of one request rarely hold the same values


@dataclass(frozen=True, eq=False)
class Inputs:
    """What the backends are given.

    batches    one per replica; equal but for their blocks
    q          [T, Hq, D]      k, v  the step's new keys [T, Hkv, D] and values [T, Hkv, Dv],
                               which the cache already holds (v None when shared_kv)
    sinks, alibi_slopes        f32 [Hq] iff the spec has them
    cold       whether the replicas together exceed the last-level cache
    """

    workload: Workload
    device: torch.device
    limits: Limits
    cache: KVCache
    batches: tuple[AttentionBatch, ...]
    q: Tensor
    k: Tensor
    v: Tensor | None
    sinks: Tensor | None
    alibi_slopes: Tensor | None
    cold: bool

    def restore(self) -> None:
        """Make the cache what it was at first, after a backend that may have spoiled it."""
        _fill(self.workload, self.cache)
        for batch in self.batches:
            assert batch.slot_mapping is not None
            write_kv(self.workload.spec, self.k, self.v, self.cache, batch.slot_mapping)

    def poison_unowned(self) -> None:
        """NaN (the largest code of int8) in every slot past the end of a request."""
        size = self.workload.spec.block_size
        for batch in self.batches:
            for table, keys in zip(batch.block_table, self.workload.seq_lens, strict=True):
                if tail := keys % size:
                    block = int(table[keys // size])
                    for pool in (self.cache.k, self.cache.v):
                        slots = pool[block, tail:]
                        if pool.dtype.itemsize == 1:
                            slots.view(torch.uint8).fill_(0x7F)
                        else:
                            slots.fill_(torch.nan)

    def empty_out(self) -> tuple[Tensor, Tensor | None]:
        """out [T, Hq, Dv] and lse [T, Hq] (None unless the spec returns it), full of NaN."""
        spec, rows = self.workload.spec, self.q.shape[0]
        out = torch.full(
            (rows, spec.num_heads, spec.head_dim_v),
            torch.nan,
            dtype=spec.out_dtype,
            device=self.device,
        )
        lse = torch.full((rows, spec.num_heads), torch.nan, device=self.device)
        return out, lse if spec.return_lse else None


def make_inputs(
    workload: Workload, device: torch.device, *, pool_bytes: int | None = None
) -> Inputs:
    """Tensors for `workload` on `device`.

    pool_bytes   bytes that successive calls read before they come back to the first replica;
                 default 1.5 x the last-level cache. The pool takes at most a quarter of the
                 available memory, but one replica is always made."""
    spec = workload.spec
    cache_bytes = last_level_cache_bytes(device)
    if pool_bytes is None:
        pool_bytes = 3 * cache_bytes // 2
    footprint = workload.kv_bytes
    most = max(1, available_bytes(device) // 4 // workload.allocated_bytes)
    replicas = max(1, min(-(-pool_bytes // footprint), most, MAX_REPLICAS))
    num_blocks = replicas * workload.blocks
    generator = torch.Generator().manual_seed(workload.seed)
    if workload.placement is Placement.RANDOM:
        ids = torch.randperm(num_blocks, generator=generator)
    else:
        ids = torch.arange(num_blocks)
    batches = tuple(
        _batch(workload, part.tolist(), num_blocks, device) for part in ids.chunk(replicas)
    )

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device)

    rows = workload.num_tokens
    k = normal(rows, spec.num_kv_heads, spec.head_dim).to(spec.dtype)
    v = None
    if not spec.shared_kv:
        v = normal(rows, spec.num_kv_heads, spec.head_dim_v).to(spec.dtype)
    heads = torch.arange(1, spec.num_heads + 1, device=device)
    inputs = Inputs(
        workload=workload,
        device=device,
        limits=Limits(
            max_requests=workload.num_requests,
            max_tokens=rows,
            max_seq_len=max(workload.seq_lens),
            num_blocks=num_blocks,
        ),
        cache=KVCache.allocate(spec, num_blocks, device),
        batches=batches,
        q=normal(rows, spec.num_heads, spec.head_dim).to(spec.dtype),
        k=k,
        v=v,
        sinks=normal(spec.num_heads) if spec.sinks else None,
        alibi_slopes=torch.exp2(-8.0 * heads / spec.num_heads) if spec.alibi else None,
        cold=replicas * footprint > cache_bytes,
    )
    inputs.restore()
    return inputs


def _fill(workload: Workload, cache: KVCache) -> None:
    """Standard normal keys and values, quantised as the spec says. A pattern of blocks is repeated:
    a pool of gigabytes of fresh random numbers would take longer than the benchmark."""
    spec = workload.spec
    generator = torch.Generator().manual_seed(workload.seed + 1)
    tensors = [(cache.k, cache.k_scale)]
    tensors += [] if spec.shared_kv else [(cache.v, cache.v_scale)]
    for pool, scale in tensors:
        n = min(PATTERN_BLOCKS, cache.num_blocks)
        pattern = torch.randn((n, *pool.shape[1:]), generator=generator).to(pool.device)
        if spec.kv_quant is KVQuant.NONE:
            _repeat(pool, pattern.to(pool.dtype))
            continue
        assert scale is not None
        if spec.kv_quant is KVQuant.PER_TOKEN_HEAD:
            token_scale = amax_scale(pattern, pool.dtype)
            _repeat(scale, token_scale)
            pattern = quantise(pattern, token_scale[..., None], pool.dtype)
        else:
            scale.fill_(4.0 / qmax(pool.dtype))  # four standard deviations use the whole range
            pattern = quantise(pattern, scale.expand(pool.shape[2])[..., None], pool.dtype)
        _repeat(pool, pattern)


def _repeat(pool: Tensor, pattern: Tensor) -> None:
    """Copy pattern [n, ...] over pool [N, ...] as often as it fits."""
    for start in range(0, pool.shape[0], pattern.shape[0]):
        part = pool[start : start + pattern.shape[0]]
        part.copy_(pattern[: part.shape[0]])


def _batch(
    workload: Workload, ids: list[int], num_blocks: int, device: torch.device
) -> AttentionBatch:
    """One replica in the blocks `ids`, handed out request by request."""
    tables, begin = [], 0
    for keys in workload.seq_lens:
        end = begin - (-keys // workload.spec.block_size)
        tables.append(ids[begin:end])
        begin = end
    return AttentionBatch.build(
        query_lens=workload.query_lens,
        seq_lens=workload.seq_lens,
        block_tables=tables,
        block_size=workload.spec.block_size,
        num_blocks=num_blocks,
        device=device,
    )
