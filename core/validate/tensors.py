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
from pagedattn.validate.aliases import Pools, distinct, extent, overlap, pools_of
from pagedattn.validate.batch import check_slots, readable, same_device

if TYPE_CHECKING:
    from pagedattn.attention import AttentionOp, Plan

__all__ = ["Seen", "check_run", "check_tuning", "check_types", "check_workspace", "check_write"]


class Seen:
    """What one op has checked already, so that a layer of a running engine costs a set lookup."""

    def __init__(self) -> None:
        # Signature -> bytes between the first and the last element of each tensor in it.
        self.signatures: dict[object, tuple[int, int, int]] = {}
        self.caches: weakref.WeakKeyDictionary[KVCache, Pools] = weakref.WeakKeyDictionary()
        self.slots: tuple[weakref.ref[Tensor], int, int] | None = None

    def remember(self, key: object, extents: tuple[int, int, int] = (0, 0, 0)) -> None:
        """After the check."""
        if len(self.signatures) >= 1024:  # ragged prefills bring a new shape every step
            self.signatures.clear()
        self.signatures[key] = extents


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
    pools = _check_cache(seen, op.spec, op.device, cache)
    if plan.max_block >= cache.num_blocks:
        raise InvalidTensor(
            "cache", f"{cache.num_blocks} blocks", f"block {plan.max_block}, which the plan reads"
        )
    tokens = plan.num_tokens
    key = (
        tokens,
        _signature(q),
        _signature(out),
        lse if lse is None else _signature(lse),
        sinks if sinks is None else _signature(sinks),
        alibi_slopes if alibi_slopes is None else _signature(alibi_slopes),
    )
    extents = seen.signatures.get(key)
    if extents is None:
        extents = _check_new_run(op, tokens, q, out, lse, sinks, alibi_slopes)
        seen.remember(key, extents)
    of_q, of_out, of_lse = extents
    (k_at, k_end), (v_at, v_end) = pools.k, pools.v
    at, q_at = out.data_ptr(), q.data_ptr()
    end, q_end = at + of_out, q_at + of_q
    near = (q_at < end and at < q_end) or (k_at < end and at < k_end) or (v_at < end and at < v_end)
    if lse is not None and not near:
        at_lse = lse.data_ptr()
        end_lse = at_lse + of_lse
        near = (
            (at_lse < end and at < end_lse)
            or (at_lse < q_end and q_at < end_lse)
            or (at_lse < k_end and k_at < end_lse)
            or (at_lse < v_end and v_at < end_lse)
        )
    if near:
        _check_aliases(seen, key, tokens, q, cache, out, lse)


def _check_new_run(
    op: AttentionOp,
    tokens: int,
    q: Tensor,
    out: Tensor,
    lse: Tensor | None,
    sinks: Tensor | None,
    alibi_slopes: Tensor | None,
) -> tuple[int, int, int]:
    """Everything about tensors of a new signature; the extents of the live rows of q, out, lse."""
    spec, device = op.spec, op.device
    heads = spec.num_heads
    _check_rows("q", q, (heads, spec.head_dim), spec.dtype, device)
    _check_rows("out", out, (heads, spec.head_dim_v), spec.out_dtype, device)
    if not distinct(out):
        raise InvalidTensor("out", f"stride {list(out.stride())}", "distinct elements")
    _check_optional("lse", lse, (None, heads), spec.return_lse, "return_lse", device)
    _check_optional("sinks", sinks, (heads,), spec.sinks, "sinks", device)
    _check_optional("alibi_slopes", alibi_slopes, (heads,), spec.alibi, "alibi", device)
    for name, tensor in (("q", q), ("out", out), ("lse", lse)):
        if tensor is not None and tensor.shape[0] < tokens:
            raise InvalidTensor(
                name, f"{tensor.shape[0]} rows", f"at least the {tokens} rows of the batch"
            )
    live_lse = 0 if lse is None else extent(lse[:tokens])
    return extent(q[:tokens]), extent(out[:tokens]), live_lse


def _check_aliases(
    seen: Seen,
    key: object,
    tokens: int,
    q: Tensor,
    cache: KVCache,
    out: Tensor,
    lse: Tensor | None,
) -> None:
    """What is written lies apart from what is read; exact, remembered by the distances."""
    at = out.data_ptr()
    others = (q, cache.k, cache.v, *(() if lse is None else (lse,)))
    apart = (key, *((x.data_ptr() - at, x.stride(), x.shape[0]) for x in others))
    if apart in seen.signatures:
        return
    read = (("q", q[:tokens]), ("cache.k", cache.k), ("cache.v", cache.v))
    for name, other in (*read, *(() if lse is None else (("lse", lse[:tokens]),))):
        if overlap(out[:tokens], other):
            raise InvalidTensor("out", f"overlaps {name}", "its own memory")
    if lse is not None:
        for name, other in read:
            if overlap(lse[:tokens], other):
                raise InvalidTensor("lse", f"overlaps {name}", "its own memory")
    seen.remember(apart)


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
    pools = _check_cache(seen, spec, device, cache)
    if pools.fault:
        raise InvalidTensor(*pools.fault, "elements with a place of their own, to be written")
    key = (_signature(k), v if v is None else _signature(v), _signature(slot_mapping))
    extents = seen.signatures.get(key)
    if extents is None:
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
        extents = extent(k), 0 if v is None else extent(v), 0
        seen.remember(key, extents)
    if pools.near(k, extents[0]) or (v is not None and pools.near(v, extents[1])):
        for name, x in (("k", k), ("v", v)):
            for pool, other in (("cache.k", cache.k), ("cache.v", cache.v)):
                if x is not None and overlap(x, other):
                    raise InvalidTensor(name, f"overlaps {pool}", "its own memory: copy_blocks()")
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


def _check_cache(seen: Seen, spec: AttentionSpec, device: torch.device, cache: KVCache) -> Pools:
    try:
        known = seen.caches.get(cache)
    except TypeError:  # no KVCache, nor anything with a weak reference: check_types() names it
        known = None
    if known is not None:
        return known
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
        if pool.requires_grad:
            raise InvalidTensor(name, "requires grad", "a tensor that does not: detach() it")
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
    pools = seen.caches[cache] = pools_of(cache, shared_kv=spec.shared_kv)
    return pools


def _same_start(a: Tensor | None, b: Tensor | None) -> bool:
    """Whether one is the first columns of the other: the same first element, the same strides."""
    if a is None or b is None:
        return a is b
    return a.data_ptr() == b.data_ptr() and a.stride() == b.stride()


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
    _check_grad(name, x)


def _check_grad(name: str, x: Tensor) -> None:
    if x.requires_grad and torch.is_grad_enabled():
        raise InvalidTensor(
            name,
            "requires grad",
            "a tensor that does not (torch.no_grad() or detach()): there is no backward",
        )


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
    _check_grad(name, x)


def _signature(x: Tensor) -> tuple[object, ...]:
    return x.shape, x.stride(), x.dtype, x.device, x.requires_grad and torch.is_grad_enabled()


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
