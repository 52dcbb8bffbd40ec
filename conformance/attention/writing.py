"""write(): the step's keys and values land in their slots, quantised as the spec says, and nothing
else changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pagedattn.conformance.attention import quant
from pagedattn.conformance.attention.build import attention_case
from pagedattn.conformance.attention.execute import check_guards, equal_bytes
from pagedattn.conformance.attention.placing import Guard, Placing, Poison, Storage
from pagedattn.conformance.attention.pools import as_bytes, make_cache
from pagedattn.conformance.attention.subject import AttentionSubject
from pagedattn.conformance.attention.write_rows import ROWS
from pagedattn.conformance.attention.write_slots import BLOCKS, SLOTS
from pagedattn.conformance.case import Case, CaseFailure
from pagedattn.errors import InvalidTensor
from pagedattn.spec import AttentionSpec, KVQuant, Layout, Limits

__all__ = ["CASES", "Shape", "write_case"]

SCALES = (0.0109, 0.034)
TIE_SCALES = (2.0**-5, 2.0**-3)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a write looks like.

    slots      a key of SLOTS
    padding    rows of k and v beyond slot_mapping, NaN
    fused      k and v are slices of one [T, Hq + 2 Hkv, D] tensor
    rows       how k and how v lie in memory otherwise: keys of ROWS
    spread     of the values: large ones saturate an 8-bit cache
    endless    some values are infinite
    ties       values lie in the middle between two 8-bit ones, at scales that are powers of two
    any_bits   NaNs, infinities, denormal numbers and zeros of either sign among the values
    """

    slots: str = "scattered"
    padding: int = 0
    fused: bool = False
    rows: tuple[str, str] = ("plain", "plain")
    storage: Storage = Storage.PLAIN
    spread: float = 1.0
    endless: bool = False
    ties: bool = False
    any_bits: bool = False


def _write(shape: Shape, wanted: dict[str, Any], subject: AttentionSubject, seed: int) -> None:
    spec = subject.spec(wanted)
    guards: list[Guard] = []
    keys = BLOCKS * spec.block_size
    op = subject.open(spec, Limits(8, max(16, 2 * keys), keys, BLOCKS))
    placing = Placing(seed=seed, poison=Poison.MIXED, storage=shape.storage)
    cache = make_cache(spec, BLOCKS, subject.device, placing, guards)
    _give_scales(spec, cache.k_scale, cache.v_scale, TIE_SCALES if shape.ties else SCALES)
    random = torch.Generator().manual_seed(seed)
    slots = SLOTS[shape.slots](spec.block_size, random)
    k, v = _rows(spec, len(slots) + shape.padding, shape, random)
    k[len(slots) :] = float("nan")
    k[[i for i, s in enumerate(slots) if s < 0]] = float("nan")
    if v is not None:
        v[len(slots) :] = float("nan")
        v[[i for i, s in enumerate(slots) if s < 0]] = float("nan")
    pools = [("k", k, cache.k, cache.k_scale)]
    if v is not None:
        pools.append(("v", v, cache.v, cache.v_scale))
    before = [guard.base.clone() for guard in guards]
    sources = [x.clone() for _, x, _, _ in pools]
    device_k, device_v = _to_device(k, v, shape, subject.device)
    mapping = torch.tensor(slots, dtype=torch.int64, device=subject.device)
    inputs = [("k", device_k), ("v", device_v), ("slot_mapping", mapping)]
    given = [None if x is None else x.clone() for _, x in inputs]
    try:
        op.write(device_k, device_v, cache, mapping)
    except InvalidTensor as error:
        _check_pools(guards, before)
        if shape == Shape():
            raise CaseFailure(f"write() refuses plain contiguous tensors: {error}") from error
        return
    if subject.device.type == "cuda":
        torch.cuda.synchronize(subject.device)
    for (name, x), old in zip(inputs, given, strict=True):
        if x is not None and old is not None and not equal_bytes(x, old):
            raise CaseFailure(f"write() changed {name}, which is an input")
    for (name, _, pool, scale), source in zip(pools, sources, strict=True):
        _check_values(spec, name, source, slots, pool, scale, exact=shape.ties)
    # Apart from the slots, which were judged, all is as it was, bit for bit.
    for guard, memory in zip(guards, before, strict=True):
        _blank(guard, guard.base, slots, spec.block_size)
        _blank(guard, memory, slots, spec.block_size)
    _check_pools(guards, before)


def _rows(
    spec: AttentionSpec, rows: int, shape: Shape, random: torch.Generator
) -> tuple[Tensor, Tensor | None]:
    k = torch.randn(rows, spec.num_kv_heads, spec.head_dim, generator=random) * shape.spread
    v = torch.randn(rows, spec.num_kv_heads, spec.head_dim_v, generator=random) * shape.spread
    if shape.ties:
        middles = quant.middles(spec.kv_dtype)
        for x, base in zip((k, v), TIE_SCALES, strict=True):
            pick = torch.randint(len(middles), x.shape, generator=random)
            x.copy_(middles[pick] * _constant(spec, base)[:, None])
    elif rows > 1:
        k[1] = 0.0  # an all-zero row has scale 1
    k, v = k.to(spec.dtype), v.to(spec.dtype)
    for x, kind in zip((k, v), shape.rows, strict=True):
        if shape.endless:
            x[0, 0, :2] = torch.tensor([float("inf"), float("-inf")])
        if shape.any_bits:
            _spice(x)
        if kind == "one head":
            x.copy_(x[:, :1].clone())
        if kind == "one row":
            x.copy_(x[:1].clone())
    return k, None if spec.shared_kv else v


def _spice(x: Tensor) -> None:
    """Numbers that a detour through arithmetic would change, in every row."""
    info = torch.finfo(x.dtype)
    odd = [float("nan"), float("inf"), float("-inf"), -0.0, 0.0, info.max, info.tiny, info.tiny / 4]
    x[..., : len(odd)] = torch.tensor(odd, dtype=torch.float64).to(x.dtype)


def _same(a: Tensor, b: Tensor) -> Tensor:
    """Where two tensors of a dtype hold the same bits, or NaNs of whatever bits."""
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.dtype.itemsize]
    equal = a.contiguous().view(integers) == b.contiguous().view(integers)
    return equal | (a.isnan() & b.isnan())


def _to_device(
    k: Tensor, v: Tensor | None, shape: Shape, device: torch.device
) -> tuple[Tensor, Tensor | None]:
    if not shape.fused or v is None:
        kind_k, kind_v = shape.rows
        return ROWS[kind_k](k.to(device)), None if v is None else ROWS[kind_v](v.to(device))
    rows, heads, dim = k.shape
    width = max(dim, v.shape[2])
    fused = torch.full((rows, 1 + 2 * heads, width), float("nan"), dtype=k.dtype, device=device)
    fused_k, fused_v = fused[:, 1 : 1 + heads, :dim], fused[:, 1 + heads :, : v.shape[2]]
    fused_k.copy_(k)
    fused_v.copy_(v)
    return fused_k, fused_v


def _give_scales(
    spec: AttentionSpec,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
    bases: tuple[float, float],
) -> None:
    """Constant scales, different per head; PER_TOKEN_HEAD ones are write()'s to compute."""
    if spec.kv_quant not in (KVQuant.PER_TENSOR, KVQuant.PER_HEAD):
        return
    for scale, base in ((k_scale, bases[0]), (v_scale, bases[1])):
        assert scale is not None
        value = _constant(spec, base)
        scale.copy_(value if spec.kv_quant is KVQuant.PER_HEAD else value[0])


def _constant(spec: AttentionSpec, base: float) -> Tensor:
    """[Hkv]: `base` times 1, 2, 4, ... by head, or the same for all."""
    head = torch.arange(spec.num_kv_heads)
    return base * 2.0 ** (head % 4 if spec.kv_quant is KVQuant.PER_HEAD else 0 * head)


def _check_values(
    spec: AttentionSpec,
    name: str,
    source: Tensor,
    slots: list[int],
    pool: Tensor,
    scale: Tensor | None,
    *,
    exact: bool,
) -> None:
    """exact: x / scale has no rounding of its own, so that a tie is a tie."""
    for row, slot in enumerate(slots):
        if slot < 0:
            continue
        at = (slot // spec.block_size, slot % spec.block_size)
        stored, real = pool[at].cpu(), source[row]
        where = f"row {row} of {name} at slot {slot} (block {at[0]}, offset {at[1]})"
        if scale is None:
            same = _same(stored, real.to(spec.kv_dtype))
            if not bool(same.all()):
                head = int((~same).any(-1).nonzero()[0])
                raise CaseFailure(
                    f"{where}, head {head}: expected {real[head, :4].tolist()}..., "
                    f"stored {stored[head, :4].tolist()}..."
                )
            continue
        if spec.kv_quant is KVQuant.PER_TOKEN_HEAD:
            used = scale[at].cpu()
            right = quant.token_scales(real[None].float(), spec.kv_dtype)[0]
            if not torch.allclose(used, right, rtol=1e-6, atol=0):
                raise CaseFailure(
                    f"{where}: scale is {used.tolist()}, expected max|x| / "
                    f"{quant.largest(spec.kv_dtype):g} = {right.tolist()} (1 where x is 0)"
                )
        else:
            used = scale.cpu().expand(spec.num_kv_heads)
        codes = stored.contiguous().view(torch.uint8)
        right_codes = quant.acceptable(real, used[:, None], spec.kv_dtype, codes, exact=exact)
        if not bool(right_codes.all()):
            head, dim = (~right_codes).nonzero()[0].tolist()
            value = float(real[head, dim])
            got = float(quant.decode(codes[head, dim][None], spec.kv_dtype)[0])
            raise CaseFailure(
                f"{where}, head {head}, dim {dim}: {value:.6g} / scale {float(used[head]):.6g} = "
                f"{value / float(used[head]):.6g} is stored as {got:g}; round to the nearest "
                "(ties to even) and saturate"
            )


def _blank(guard: Guard, base: Tensor, slots: list[int], block_size: int) -> None:
    if guard.slots is None:  # constant scales
        return
    for slot in slots:
        if slot >= 0:
            for view in guard.slots(base):
                as_bytes(view)[slot // block_size, slot % block_size] = 0


def _check_pools(guards: list[Guard], expected: list[Tensor]) -> None:
    check_guards([dataclasses.replace(g, rule="write") for g in guards], expected)


def _in_place(subject: AttentionSubject, seed: int) -> None:
    """The same tensors with other contents, as engines keep them: what counts is there now."""
    spec = subject.spec()
    op = subject.open(spec, Limits(8, 16, BLOCKS * spec.block_size, BLOCKS))
    cache = make_cache(spec, BLOCKS, subject.device, Placing(seed=seed), [])
    random = torch.Generator().manual_seed(seed)
    slots = torch.empty(4, dtype=torch.int64, device=subject.device)
    k, v = (
        torch.empty(4, spec.num_kv_heads, d, dtype=spec.dtype, device=subject.device)
        for d in (spec.head_dim, spec.head_dim_v)
    )
    free = torch.randperm(BLOCKS * spec.block_size, generator=random)
    for step in range(3):
        chosen = free[4 * step : 4 * step + 4].clone()
        chosen[step] = -1
        own_k, own_v = _rows(spec, 4, Shape(), random)
        assert own_v is not None
        for target, source in ((slots, chosen), (k, own_k), (v, own_v)):
            target.copy_(source)
        op.write(k, v, cache, slots)
        for name, x, pool in (("k", own_k, cache.k), ("v", own_v, cache.v)):
            _check_values(spec, name, x, chosen.tolist(), pool, None, exact=False)


def _many(subject: AttentionSubject, seed: int) -> None:
    """More rows than a grid has on its y axis, of which four are live. An emulated grid has no such
    limit, and every row of it takes its time."""
    rows = 65535 + 5 if subject.backend.emulated is None else 3000
    spec = subject.spec()
    op = subject.open(spec, Limits(8, rows, BLOCKS * spec.block_size, BLOCKS))
    cache = make_cache(spec, BLOCKS, subject.device, Placing(seed=seed), [])
    live = torch.tensor([0, 1, rows - 5, rows - 1])
    slots = torch.full((rows,), -1)
    slots[live] = torch.tensor([1, 0, 2 * spec.block_size, BLOCKS * spec.block_size - 1])
    random = torch.Generator().manual_seed(seed)
    own = [
        torch.randn(4, spec.num_kv_heads, d, generator=random).to(spec.dtype)
        for d in (spec.head_dim, spec.head_dim_v)
    ]
    k, v = (
        torch.full((rows, *x.shape[1:]), float("nan"), dtype=spec.dtype, device=subject.device)
        for x in own
    )
    k[live.to(subject.device)], v[live.to(subject.device)] = (x.to(subject.device) for x in own)
    op.write(k, v, cache, slots.to(subject.device))
    for name, x, pool in (("k", own[0], cache.k), ("v", own[1], cache.v)):
        _check_values(spec, name, x, slots[live].tolist(), pool, None, exact=False)


def write_case(
    id: str,
    shape: Shape,
    wanted: dict[str, Any],
    rule: str = "write",
    *,
    faults: Sequence[str] = (),
    core: bool = False,
) -> Case:
    """A case of that shape for the spec that `wanted` asks for."""
    judge_it = partial(_write, shape, wanted)
    return attention_case(f"write/{id}", rule, judge_it, faults=faults, core=core)


def _cases() -> list[Case]:
    cases = []
    shapes: tuple[tuple[str, Shape, dict[str, Any], tuple[str, ...]], ...] = (
        ("plain", Shape(), {}, ()),
        ("negative-slots", Shape(slots="skips"), {}, ("KH-49",)),
        ("no-live-row", Shape(slots="none"), {}, ("KH-49",)),
        ("no-rows", Shape(slots="empty"), {}, ()),
        ("padding-rows", Shape(padding=3), {}, ("KH-51", "KH-53")),
        ("fused", Shape(fused=True), {}, ("KH-26",)),
        ("interleaved", Shape(storage=Storage.INTERLEAVED), {}, ("KH-24",)),
        ("gaps", Shape(storage=Storage.GAPS), {}, ("KH-24",)),
        ("dim-128", Shape(), {"head_dim": 128}, ()),
        ("hnd", Shape(), {"layout": Layout.HND}, ("KH-27", "KH-28")),
        ("hnd-interleaved", Shape(storage=Storage.INTERLEAVED), {"layout": Layout.HND}, ("KH-27",)),
        ("odd-heads", Shape(), {"num_heads": 9, "num_kv_heads": 3}, ("KH-27",)),
        ("value-dim", Shape(), {"head_dim": 128, "head_dim_v": 64}, ()),
        ("value-dim-wider", Shape(), {"head_dim": 64, "head_dim_v": 128}, ()),
        *(
            (f"rows/{k}-{v}".replace(" ", "-"), Shape(rows=(k, v)), {}, ("KH-26",))
            for k, v in (
                ("plain", "fused"), ("fused", "plain"), ("transposed", "gaps"),
                ("odd gaps", "unaligned"), ("unaligned", "odd gaps"),
                ("one head", "one row"), ("one row", "one head"),
            )
        ),
        ("borders", Shape(slots="borders"), {}, ("KH-14", "KH-50")),
        ("across", Shape(slots="across"), {}, ("KH-50",)),
        ("reversed", Shape(slots="reversed"), {}, ("KH-50",)),
        ("alternate", Shape(slots="alternate"), {}, ("KH-49",)),
        ("borders-hnd", Shape(slots="borders"), {"layout": Layout.HND}, ("KH-27", "KH-28")),
        ("block-5", Shape(slots="borders"), {"block_size": 5}, ("KH-17",)),
        ("block-1", Shape(slots="alternate"), {"block_size": 1}, ("KH-17",)),
        (
            "shared-kv",
            Shape(slots="skips"),
            {
                "head_dim": 96, "head_dim_v": 64, "shared_kv": True,
                "num_heads": 8, "num_kv_heads": 1,
            },
            (),
        ),
    )  # fmt: skip
    plain = {"plain", "negative-slots", "no-live-row", "no-rows", "padding-rows", "dim-128"} | {
        "borders", "across", "reversed", "alternate",
    }  # fmt: skip
    for id, shape, wanted, faults in shapes:
        cases.append(write_case(id, shape, wanted, faults=faults, core=id in plain))
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        name = str(dtype).removeprefix("torch.")
        only = {"dtype": dtype}
        cases += [
            write_case(name, Shape(), only),
            write_case(f"{name}/any-bits", Shape(any_bits=True), only),
            write_case(f"{name}/borders", Shape(slots="borders"), only, faults=("KH-14",)),
        ]
    for dtype, stored in (
        (torch.float32, torch.bfloat16), (torch.float32, torch.float16),
        (torch.bfloat16, torch.float32), (torch.float16, torch.float32),
    ):  # fmt: skip
        name = "-into-".join(str(x).removeprefix("torch.") for x in (dtype, stored))
        wanted = {"dtype": dtype, "kv_dtype": stored}
        cases.append(write_case(name, Shape(slots="borders"), wanted))
    cases.append(attention_case("write/in-place", "write", _in_place, core=True))
    cases.append(attention_case("write/many-rows", "write", _many, faults=("KH-54",), core=True))
    return cases


CASES = _cases()
