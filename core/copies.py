"""copy_blocks: move whole blocks inside a pool (copy-on-write) or between pools (swapping)."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from pagedattn.allocator import CopyOp
from pagedattn.batch import KVCache
from pagedattn.errors import InvalidTensor
from pagedattn.write import as_bytes

__all__ = ["copy_blocks"]


def copy_blocks(
    src_caches: KVCache | Sequence[KVCache],
    dst_caches: KVCache | Sequence[KVCache],
    pairs: Iterable[CopyOp | tuple[int, int]],
) -> None:
    """Copy blocks, layer by layer, as if the pairs were run one after the other.

    src_caches, dst_caches  one KVCache per layer; the same ones for copy-on-write; one side may be
                            on another device (swap). Any strides; PER_TOKEN_HEAD scales move along
    pairs                   (src, dst) block ids, or CopyOp(src, dst, tokens) for the first
                            `tokens` slots only; chains such as 0->1, 1->2 see the first copy

    Constant scales (PER_TENSOR, PER_HEAD) must be equal on both sides. Raises InvalidTensor before
    anything is copied.
    """
    sources = [src_caches] if isinstance(src_caches, KVCache) else list(src_caches)
    targets = [dst_caches] if isinstance(dst_caches, KVCache) else list(dst_caches)
    if len(sources) != len(targets):
        raise InvalidTensor(
            "dst_caches", f"{len(targets)} layers", f"{len(sources)}, as src_caches"
        )
    if not sources:
        return
    ops = [_as_op(i, pair) for i, pair in enumerate(pairs)]
    for source, target in zip(sources, targets, strict=True):
        _check(source, target, ops)
    for run in _independent_runs(ops):
        for source, target in zip(sources, targets, strict=True):
            _copy(source, target, run)


def _as_op(i: int, pair: CopyOp | tuple[int, int]) -> CopyOp:
    if isinstance(pair, CopyOp):
        return pair
    try:
        src, dst = (operator.index(block) for block in pair)
    except (TypeError, ValueError):
        raise InvalidTensor(f"pairs[{i}]", repr(pair), "(src, dst) ids, or a CopyOp") from None
    return CopyOp(src, dst, -1)


def _independent_runs(ops: Sequence[CopyOp]) -> list[list[CopyOp]]:
    """Consecutive ops that may be gathered at once: equal length, and none reads or rewrites a
    block that an earlier one of the run has written."""
    runs: list[list[CopyOp]] = []
    written: set[int] = set()
    for op in ops:
        new = not runs or op.tokens != runs[-1][0].tokens
        if new or op.src in written or op.dst in written:
            runs.append([])
            written = set()
        runs[-1].append(op)
        written.add(op.dst)
    return runs


def _copy(source: KVCache, target: KVCache, run: Sequence[CopyOp]) -> None:
    tokens = run[0].tokens
    for src, dst in _pools(source, target):
        slots = src.shape[1] if tokens < 0 else tokens
        if slots == 0:
            continue
        take = torch.tensor([op.src for op in run], device=src.device)
        put = torch.tensor([op.dst for op in run], device=dst.device)
        # The gather is complete before the scatter starts, so src may be dst.
        as_bytes(dst)[put, :slots] = as_bytes(src)[take, :slots].to(dst.device)


def _pools(source: KVCache, target: KVCache) -> list[tuple[Tensor, Tensor]]:
    """Tensors to copy: k, v unless it is a view of k, and per-token scales likewise."""
    pools = [(source.k, target.k)]
    if not _shares(target.v, target.k):
        pools.append((source.v, target.v))
    if source.k_scale is not None and source.k_scale.dim() == 3:
        assert target.k_scale is not None
        assert source.v_scale is not None
        assert target.v_scale is not None
        pools.append((source.k_scale, target.k_scale))
        if not _shares(target.v_scale, target.k_scale):
            pools.append((source.v_scale, target.v_scale))
    return pools


def _shares(v: Tensor, k: Tensor) -> bool:
    """Whether v is k[..., :Dv]: the same first element and the same outer strides."""
    return v.data_ptr() == k.data_ptr() and v.stride() == k.stride()


def _check(source: KVCache, target: KVCache, ops: Sequence[CopyOp]) -> None:
    for name in ("k", "v", "k_scale", "v_scale"):
        src, dst = getattr(source, name), getattr(target, name)
        if (src is None) != (dst is None):
            raise InvalidTensor(name, "given on one side only", "the same kind of cache on both")
        if src is None:
            continue
        constant_scale = name.endswith("scale") and src.dim() < 3
        same_shape = src.shape == dst.shape if constant_scale else src.shape[1:] == dst.shape[1:]
        if src.dim() != dst.dim() or not same_shape or src.dtype != dst.dtype:
            raise InvalidTensor(
                f"dst {name}",
                f"{dst.dtype} {tuple(dst.shape)}",
                f"{src.dtype} {tuple(src.shape)} but for the number of blocks",
            )
        if constant_scale and src is not dst and not torch.equal(src.cpu(), dst.cpu()):
            raise InvalidTensor(f"dst {name}", dst.tolist(), f"{src.tolist()}, as on the source")
    block_size = source.k.shape[1]
    for i, op in enumerate(ops):
        for side, block, pool in (("src", op.src, source), ("dst", op.dst, target)):
            if not 0 <= block < pool.num_blocks:
                raise InvalidTensor(
                    f"pairs[{i}].{side}", block, f"a block id in [0, {pool.num_blocks})"
                )
        if not -1 <= op.tokens <= block_size:
            raise InvalidTensor(f"pairs[{i}].tokens", op.tokens, f"at most {block_size} slots")
