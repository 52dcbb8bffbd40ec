"""What open(), run() and write() check of their tensors, before anything is launched."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pagedattn.batch import KVCache, scale_shape
from pagedattn.errors import InvalidTensor
from pagedattn.spec import AttentionSpec, KVQuant, Layout
from pagedattn.validate.batch import check_slots, readable, same_device

if TYPE_CHECKING:
    from pagedattn.attention import AttentionOp, Plan

__all__ = ["Seen", "check_run", "check_tuning", "check_types", "check_workspace", "check_write"]


class Seen:
    """What one op has checked already, so that a layer of a running engine costs a set lookup."""

    def __init__(self) -> None:
        self.signatures: set[object] = set()
        self.caches: weakref.WeakSet[KVCache] = weakref.WeakSet()
        self.slots: tuple[weakref.ref[Tensor], int, int] | None = None

    def signature(self, key: object) -> bool:
        """True when `key` was remembered; remembering happens after the check, by remember()."""
        return key in self.signatures

    def remember(self, key: object) -> None:
        if len(self.signatures) >= 1024:  # ragged prefills bring a new shape every step
            self.signatures.clear()
        self.signatures.add(key)


def check_run(
    seen: Seen,
    op: AttentionOp,
    q: Tensor,
    cache: KVCache,
    plan: Plan,
    out: Tensor,
    lse: Tensor | None,
    sinks: Tensor | None,
    alibi_slopes: Tensor | None,
) -> None:
    """Arguments of AttentionOp.run(); shapes and types are remembered per signature."""
    if plan.op is not op:
        raise InvalidTensor("plan", "made by another op", "a plan of this op")
    _check_cache(seen, op.spec, op.device, cache)
    if plan.max_block >= cache.num_blocks:
        raise InvalidTensor(
            "cache", f"{cache.num_blocks} blocks", f"block {plan.max_block}, which the plan reads"
        )
    tokens = plan.num_tokens
    start = out.data_ptr()
    one_buffer = q.untyped_storage().data_ptr() == out.untyped_storage().data_ptr()
    offset = start - q.data_ptr() if one_buffer else None
    for pool in (cache.k, cache.v):
        if 0 <= start - pool.data_ptr() < pool.numel() * pool.itemsize and tokens:
            raise InvalidTensor("out", "memory of the cache", "its own memory")
    key = (
        tokens,
        offset,
        _signature(q),
        _signature(out),
        lse if lse is None else _signature(lse),
        sinks if sinks is None else _signature(sinks),
        alibi_slopes if alibi_slopes is None else _signature(alibi_slopes),
    )
    if seen.signature(key):
        return
    spec, device = op.spec, op.device
    heads = spec.num_heads
    _check_rows("q", q, (heads, spec.head_dim), spec.dtype, device)
    _check_rows("out", out, (heads, spec.head_dim_v), spec.out_dtype, device)
    for name, tensor in (("q", q), ("lse", lse)):
        if tokens and tensor is not None and _overlap(out[:tokens], tensor[:tokens]):
            raise InvalidTensor("out", f"overlaps {name}", "its own memory")
    _check_distinct("out", out)
    _check_optional("lse", lse, (None, heads), spec.return_lse, "return_lse", device)
    _check_optional("sinks", sinks, (heads,), spec.sinks, "sinks", device)
    _check_optional("alibi_slopes", alibi_slopes, (heads,), spec.alibi, "alibi", device)
    for name, tensor in (("q", q), ("out", out), ("lse", lse)):
        if tensor is not None and tensor.shape[0] < tokens:
            raise InvalidTensor(
                name, f"{tensor.shape[0]} rows", f"at least the {tokens} rows of the batch"
            )
    seen.remember(key)


def check_write(
    seen: Seen,
    spec: AttentionSpec,
    device: torch.device,
    k: Tensor,
    v: Tensor | None,
    cache: KVCache,
    slot_mapping: Tensor,
) -> None:
    """Arguments of AttentionOp.write()."""
    _check_cache(seen, spec, device, cache)
    key = (_signature(k), v if v is None else _signature(v), _signature(slot_mapping))
    if not seen.signature(key):
        _check_rows("k", k, (spec.num_kv_heads, spec.head_dim), spec.dtype, device)
        if (v is None) != spec.shared_kv:
            raise InvalidTensor(
                "v", "missing" if v is None else "given", "None if and only if spec.shared_kv"
            )
        if v is not None:
            _check_rows("v", v, (spec.num_kv_heads, spec.head_dim_v), spec.dtype, device)
        if slot_mapping.dtype != torch.int64 or slot_mapping.dim() != 1:
            raise InvalidTensor(
                "slot_mapping", f"{slot_mapping.dtype} {list(slot_mapping.shape)}", "int64 [T]"
            )
        if not slot_mapping.is_contiguous():
            raise InvalidTensor(
                "slot_mapping", f"stride {list(slot_mapping.stride())}", "contiguous memory"
            )
        if not same_device(slot_mapping.device, device):
            raise InvalidTensor("slot_mapping", f"on {slot_mapping.device}", f"on {device}")
        for name, x in (("k", k), ("v", v)):
            if x is not None and x.shape[0] < slot_mapping.shape[0]:
                raise InvalidTensor(
                    name, f"{x.shape[0]} rows", f"at least the {slot_mapping.shape[0]} slots"
                )
        seen.remember(key)
    if not readable(slot_mapping):
        return
    pool_slots = cache.num_blocks * spec.block_size
    if slot_mapping.is_inference():
        check_slots(slot_mapping, pool_slots)
        return
    known = seen.slots  # the layers of a step share one slot_mapping
    if (
        known is None
        or known[0]() is not slot_mapping
        or known[1:] != (slot_mapping._version, pool_slots)
    ):
        check_slots(slot_mapping, pool_slots)
        seen.slots = (weakref.ref(slot_mapping), slot_mapping._version, pool_slots)


def _check_cache(seen: Seen, spec: AttentionSpec, device: torch.device, cache: KVCache) -> None:
    if cache in seen.caches:
        return
    block, heads = spec.block_size, spec.num_kv_heads
    for name, pool, width in (
        ("cache.k", cache.k, spec.head_dim),
        ("cache.v", cache.v, spec.head_dim_v),
    ):
        shape = (cache.k.shape[0], block, heads, width)
        if tuple(pool.shape) != shape or pool.dtype != spec.kv_dtype:
            raise InvalidTensor(
                name, f"{pool.dtype} {list(pool.shape)}", f"{spec.kv_dtype} {list(shape)}"
            )
        if not same_device(pool.device, device):
            raise InvalidTensor(name, f"on {pool.device}", f"on {device}")
        _, per_offset, per_head, per_dim = pool.stride()
        if width > 1 and per_dim != 1:
            raise InvalidTensor(name, f"stride {list(pool.stride())}", "last stride 1")
        nhd = per_offset >= heads * per_head
        hnd = per_head >= block * per_offset
        right = nhd if spec.layout is Layout.NHD else hnd
        if block > 1 and heads > 1 and not right:
            raise InvalidTensor(
                name,
                f"stride {list(pool.stride())}",
                f"{spec.layout.name} order, as the spec says (indices: [block, offset, head, dim])",
            )
    if spec.shared_kv and not (
        _same_start(cache.v, cache.k) and _same_start(cache.v_scale, cache.k_scale)
    ):
        raise InvalidTensor(
            "cache.v", "other memory or strides", "k[..., :head_dim_v] and k_scale: shared_kv"
        )
    quantised = spec.kv_quant is not KVQuant.NONE
    for name, scale in (("cache.k_scale", cache.k_scale), ("cache.v_scale", cache.v_scale)):
        if (scale is not None) != quantised:
            raise InvalidTensor(
                name,
                "missing" if scale is None else "given",
                f"a scale if and only if kv_quant is not NONE ({spec.kv_quant.name})",
            )
        if scale is None:
            continue
        shape_s = scale_shape(spec, cache.num_blocks)
        if scale.dtype != torch.float32 or tuple(scale.shape) != shape_s:
            raise InvalidTensor(
                name, f"{scale.dtype} {list(scale.shape)}", f"torch.float32 {list(shape_s)}"
            )
        if not same_device(scale.device, device):
            raise InvalidTensor(name, f"on {scale.device}", f"on {device}")
        constant = spec.kv_quant is not KVQuant.PER_TOKEN_HEAD
        if constant and readable(scale) and not bool(((scale > 0) & scale.isfinite()).all()):
            raise InvalidTensor(name, scale.tolist(), "finite scales above 0")
    seen.caches.add(cache)


def _same_start(a: Tensor | None, b: Tensor | None) -> bool:
    """Whether one is the first columns of the other: the same first element, the same strides."""
    if a is None or b is None:
        return a is b
    return a.data_ptr() == b.data_ptr() and a.stride() == b.stride()


def _check_distinct(name: str, x: Tensor) -> None:
    """No two elements in one place, as far as strides tell: each step clears all smaller ones."""
    reach = 0
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1 and stride <= reach:
            raise InvalidTensor(name, f"stride {list(x.stride())}", "distinct elements")
        reach += stride * (size - 1)


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors share memory; exact, for tensors that may be slices of one buffer. Their
    last dimension is contiguous: each is a set of equal intervals."""
    if a.numel() == 0 or b.numel() == 0:
        return False

    def intervals(x: Tensor) -> tuple[Tensor, int]:
        starts = torch.tensor([x.data_ptr()], device="cpu")
        for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True):
            steps = torch.arange(size, device="cpu") * stride * x.itemsize
            starts = (starts[:, None] + steps).flatten()
        return starts.sort().values, x.shape[-1] * x.itemsize

    starts_a, length_a = intervals(a)
    starts_b, length_b = intervals(b)
    # The last interval of b that begins before one of a ends is the one that reaches furthest.
    last = torch.searchsorted(starts_b, starts_a + length_a) - 1
    return bool(((last >= 0) & (starts_b[last.clamp(min=0)] + length_b > starts_a)).any())


def check_types(**tensors: object) -> None:
    """InvalidTensor for the first argument that is not what its name says; called when a check
    tripped over one, so that good calls do not pay for it."""
    for name, value in tensors.items():
        expected = {"cache": "KVCache", "plan": "Plan"}.get(name, "Tensor")
        if not any(base.__name__ == expected for base in type(value).__mro__) and not (
            value is None and name in ("v", "lse", "sinks", "alibi_slopes")
        ):
            raise InvalidTensor(name, f"a {type(value).__name__}", f"a {expected}")


def _check_rows(
    name: str, x: Tensor, inner: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> None:
    if x.dtype != dtype or x.dim() != 3 or tuple(x.shape[1:]) != inner:
        raise InvalidTensor(
            name, f"{x.dtype} {list(x.shape)}", f"{dtype} [T, {inner[0]}, {inner[1]}]"
        )
    if x.numel() > 0 and inner[1] > 1 and x.stride(2) != 1:
        raise InvalidTensor(name, f"stride {list(x.stride())}", "last stride 1")
    if not same_device(x.device, device):
        raise InvalidTensor(name, f"on {x.device}", f"on {device}")


def _check_optional(
    name: str,
    x: Tensor | None,
    shape: tuple[int | None, ...],
    wanted: bool,
    field: str,
    device: torch.device,
) -> None:
    if (x is not None) != wanted:
        given = "missing" if x is None else "given"
        raise InvalidTensor(name, given, f"given if and only if spec.{field} ({wanted})")
    if x is None:
        return
    fits = x.dim() == len(shape) and all(
        want in (None, have) for want, have in zip(shape, x.shape, strict=True)
    )
    if x.dtype != torch.float32 or not fits or not x.is_contiguous():
        text = ", ".join("T" if want is None else str(want) for want in shape)
        raise InvalidTensor(
            name,
            f"{x.dtype} {list(x.shape)} of stride {list(x.stride())}",
            f"contiguous torch.float32 [{text}]",
        )
    if not same_device(x.device, device):
        raise InvalidTensor(name, f"on {x.device}", f"on {device}")


def _signature(x: Tensor) -> tuple[object, ...]:
    return x.shape, x.stride(), x.dtype, x.device


def check_tuning(
    tunables: Mapping[str, Sequence[int]], tuning: Mapping[str, int]
) -> Mapping[str, int]:
    """Known knobs and listed values only: the workspace is sized, and kernels are compiled, for
    those."""
    for name, value in tuning.items():
        if name not in tunables:
            known = ", ".join(tunables) or "none"
            raise ValueError(f"tuning has no knob {name!r}; known: {known}")
        if value not in tunables[name]:
            listed = ", ".join(map(str, tunables[name]))
            raise ValueError(f"tuning: {name}={value!r} is not one of {listed}")
    return dict(tuning)


def check_workspace(workspace: Tensor | None, needed: int, device: torch.device) -> Tensor:
    """The given scratch, or a new one."""
    if workspace is None:
        return torch.empty(needed, dtype=torch.uint8, device=device)
    if workspace.dtype != torch.uint8 or workspace.dim() != 1 or workspace.numel() < needed:
        raise InvalidTensor(
            "workspace",
            f"{workspace.dtype} {list(workspace.shape)}",
            f"torch.uint8 of at least {needed} bytes",
        )
    if not same_device(workspace.device, device):
        raise InvalidTensor("workspace", f"on {workspace.device}", f"on {device}")
    if not workspace.is_contiguous() or workspace.data_ptr() % 16:
        raise InvalidTensor(
            "workspace",
            f"stride {workspace.stride(0)}, address {workspace.data_ptr():#x}",
            "contiguous bytes that start on 16",
        )
    return workspace
