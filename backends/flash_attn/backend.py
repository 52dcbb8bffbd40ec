"""One backend per variant, named flash_attn:<variant>, and the family `flash_attn`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar

import torch

from pagedattn.attention import AttentionBackend
from pagedattn.backends.flash_attn import limits, presence, probe
from pagedattn.backends.flash_attn.limits import VARIANTS, Variant
from pagedattn.backends.flash_attn.op import FlashAttnOp
from pagedattn.capabilities import Capabilities, check
from pagedattn.device import DeviceInfo
from pagedattn.errors import Refusal, Unsupported
from pagedattn.spec import AttentionSpec, Graph, Layout, Mask

__all__ = ["FA2", "FA3", "FA4", "Choosing", "FlashAttnBackend", "TorchVarlen", "capabilities_of"]


class Choosing(AttentionBackend):
    """A backend that names the variant which serves a spec."""

    op = FlashAttnOp

    def choose(self, spec: AttentionSpec, device: DeviceInfo) -> Variant:
        """The variant for a spec that check() accepts."""
        raise NotImplementedError

    def describe(self, spec: AttentionSpec, device: DeviceInfo) -> Mapping[str, Any]:
        if check(self, spec, device):
            return {}
        chosen = self.choose(spec, device)
        version = presence.installed_version(chosen)
        return {
            "variant": chosen.name,
            "library": f"{chosen.title} ({chosen.distributions[0]} {version or 'not installed'})",
            "out": "written in place" if chosen.in_place else "copied from the library's tensor",
        }


class VariantBackend(Choosing):
    """One variant alone."""

    variant: ClassVar[Variant]

    def choose(self, spec: AttentionSpec, device: DeviceInfo) -> Variant:
        return self.variant

    def capabilities(self, device: DeviceInfo) -> Capabilities:
        return capabilities_of(self.variant)

    def refuse(self, spec: AttentionSpec, device: DeviceInfo) -> Iterable[Refusal]:
        return _refusals(self.variant, self.name, spec, device)


class FA2(VariantBackend):
    """FlashAttention-2, pages of multiples of 256."""

    name, variant = "flash_attn:fa2", limits.FA2


class FA3(VariantBackend):
    """FlashAttention-3 on Hopper."""

    name, variant = "flash_attn:fa3", limits.FA3


class FA4(VariantBackend):
    """FlashAttention-4 (CuTe DSL) on Hopper and Blackwell."""

    name, variant = "flash_attn:fa4", limits.FA4


class TorchVarlen(VariantBackend):
    """torch.nn.attention.varlen with block tables."""

    name, variant = "flash_attn:torch_varlen", limits.TORCH_VARLEN


class FlashAttnBackend(Choosing):
    """The first variant that serves the spec on the device."""

    name = limits.FAMILY

    def __init__(self) -> None:
        made = {b.variant.name: b for b in (FA2(), FA3(), FA4(), TorchVarlen())}
        self.variants = tuple(made[v.name] for v in VARIANTS)

    def choose(self, spec: AttentionSpec, device: DeviceInfo) -> Variant:
        for backend in self.variants:
            if not check(backend, spec, device):
                return backend.variant
        raise Unsupported(check(self, spec, device))

    def capabilities(self, device: DeviceInfo) -> Capabilities:
        """What at least one of the variants that can run here serves."""
        return _union([capabilities_of(b.variant) for b in self._here(device) or self.variants])

    def refuse(self, spec: AttentionSpec, device: DeviceInfo) -> Iterable[Refusal]:
        """The reasons of all, under their own names, unless one of them serves the spec."""
        if device.type != "cuda":
            return  # refused by capabilities()
        refused = [(b, check(b, spec, device)) for b in self.variants]
        if not all(reasons for _, reasons in refused):
            return
        here = self._here(device)
        for backend, reasons in refused:
            for r in reasons:
                if "+" in r.code:
                    continue  # said once, for the family
                if r.code == "unavailable" and here:
                    r = replace(r, code="variant")  # others are available
                yield replace(r, hint=_advice(backend.variant, r))

    def _here(self, device: DeviceInfo) -> Sequence[VariantBackend]:
        """The variants that can run on the device; all that are made for it when it is made up."""
        return [b for b in self.variants if not _unusable(b.variant, device)]


def _advice(variant: Variant, refusal: Refusal) -> str:
    """What to do about a refusal when there are other variants."""
    why = variant.why.get(refusal.code)
    if refusal.code == "block_size":
        first = variant.block_size[0] if len(variant.block_size) > 64 else 16
        return f"{why}; open the pool with block_size={first}, or choose another variant"
    return why or refusal.hint


def _unusable(variant: Variant, device: DeviceInfo) -> bool:
    if device.type == "cuda" and device.sm and device.sm[0] not in variant.architectures:
        return True
    return device.type == "cuda" and _fault(variant, device) is not None


def _fault(variant: Variant, device: DeviceInfo) -> str | None:
    """What stands in the way: tried on a real device, looked up for one that is made up."""
    return probe.fault(variant, device) if device.real else presence.absent(variant)


def _refusals(
    variant: Variant, name: str, spec: AttentionSpec, device: DeviceInfo
) -> Iterator[Refusal]:
    if device.type != "cuda":
        return  # refused by capabilities()
    if device.sm and device.sm[0] not in variant.architectures:
        yield Refusal(
            name,
            "sm",
            f"{device.sm[0]}.{device.sm[1]}",
            ", ".join(f"{major}.x" for major in variant.architectures),
            variant.why.get("architectures", "its kernels are built for these GPUs"),
        )
    if sentence := _fault(variant, device):
        yield Refusal(name, "unavailable", variant.name, "an installation that works", sentence)
    if spec.scale <= 0 and spec.softcap is None:
        hint = "its kernels take the maximum before they scale; negate q, or choose another backend"
        yield Refusal(name, "scale", spec.scale, "above 0 (any with softcap)", hint)


def capabilities_of(variant: Variant) -> Capabilities:
    """The Capabilities rows of a variant."""
    return Capabilities(
        device={"cuda"},
        group_size=None,
        head_dim=variant.head_dim,
        block_size=variant.block_size,
        dtype=frozenset(getattr(torch, name) for name in variant.dtype),
        layout=frozenset(Layout[name] for name in variant.layout),
        mask=frozenset(Mask[name] for name in variant.mask),
        window=variant.window,
        softcap=variant.softcap,
        sinks=variant.sinks,
        alibi=variant.alibi,
        return_lse=variant.return_lse,
        batch_invariant=variant.batch_invariant,
        async_lengths=True,
        graph=Graph[variant.graph],
    )


def _union(rows: Sequence[Capabilities]) -> Capabilities:
    """Field by field what at least one serves."""
    first, *others = rows
    merged = {}
    for field in fields(Capabilities):
        value = getattr(first, field.name)
        for row in others:
            value = _either(value, getattr(row, field.name))
        merged[field.name] = value
    return Capabilities(**merged)


def _either(a: Any, b: Any) -> Any:
    if a == b or a is None or b is None:
        return None if a is None or b is None else a
    if isinstance(a, tuple):
        return tuple(x or y for x, y in zip(a, b, strict=True))
    if isinstance(a, bool | Graph):
        return max(a, b)
    return frozenset(a) | frozenset(b)
