"""Capabilities: what a backend serves, one row per spec field; check(): why it declines."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from pagedattn.device import DeviceInfo
from pagedattn.errors import Refusal
from pagedattn.spec import (
    FLOAT_DTYPES,
    QUANT_DTYPES,
    AttentionSpec,
    Graph,
    KVQuant,
    Layout,
    Mask,
)

if TYPE_CHECKING:
    from pagedattn.attention import AttentionBackend

__all__ = ["EVERYTHING_1_0", "Capabilities", "check", "describe_values"]


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """Supported values. A row left out means the required core only, so a newer spec option is
    refused by an older backend without a change to it.

    Collections of ints may be a set or a range (`range(16, 257, 16)`); None means any.

    device             torch device types
    dtype              of q
    kv_dtype, out_dtype, head_dim_v   what is served besides the q dtype, or head_dim, itself
    group_size         num_heads // num_kv_heads
    window             (left, right): whether that bound may be set; one bool for both
    max_query_len      None: decode, prefill and mixed batches; 1: decode alone
    graph              the strongest promise that can be given
    """

    device: Collection[str] = frozenset({"cpu", "cuda"})
    num_heads: Collection[int] | None = None
    num_kv_heads: Collection[int] | None = None
    group_size: Collection[int] | None = frozenset({1, 4})
    head_dim: Collection[int] | None = frozenset({64, 128})
    head_dim_v: Collection[int] | None = frozenset()
    block_size: Collection[int] | None = frozenset({16})
    dtype: Collection[torch.dtype] = frozenset({torch.float32})
    kv_dtype: Collection[torch.dtype] = frozenset()
    out_dtype: Collection[torch.dtype] = frozenset()
    layout: Collection[Layout] = frozenset({Layout.NHD})
    mask: Collection[Mask] = frozenset({Mask.CAUSAL})
    window: tuple[bool, bool] | bool = (False, False)
    softcap: bool = False
    sinks: bool = False
    alibi: bool = False
    return_lse: bool = False
    shared_kv: bool = False
    kv_quant: Collection[KVQuant] = frozenset({KVQuant.NONE})
    max_query_len: int | None = None
    batch_invariant: bool = False
    async_lengths: bool = False
    graph: Graph = Graph.NEVER

    def __post_init__(self) -> None:
        if isinstance(self.window, bool):
            object.__setattr__(self, "window", (self.window, self.window))

    def missing(self, spec: AttentionSpec, device: DeviceInfo) -> Iterator[tuple[str, Any, str]]:
        """(code, requested, supported) for every row that `spec` on `device` falls outside of."""
        if device.type not in self.device:
            yield "device", device.type, describe_values(self.device)
        for name in ("num_heads", "num_kv_heads", "group_size", "head_dim", "block_size"):
            row, value = getattr(self, name), getattr(spec, name)
            if row is not None and value not in row:
                yield name, value, describe_values(row)
        if (
            self.head_dim_v is not None
            and spec.head_dim_v != spec.head_dim
            and spec.head_dim_v not in self.head_dim_v
        ):
            yield "head_dim_v", spec.head_dim_v, _besides("head_dim", self.head_dim_v)
        if spec.dtype not in self.dtype:
            yield "dtype", spec.dtype, describe_values(self.dtype)
        for name in ("kv_dtype", "out_dtype"):
            row, value = getattr(self, name), getattr(spec, name)
            if value != spec.dtype and value not in row:
                yield name, value, _besides("dtype", row)
        for name in ("layout", "mask", "kv_quant"):
            row, value = getattr(self, name), getattr(spec, name)
            if value not in row:
                yield name, value, describe_values(row)
        assert not isinstance(self.window, bool)
        for side, allowed, bound in zip(("left", "right"), self.window, spec.window, strict=True):
            if bound is not None and not allowed:
                yield "window", spec.window, f"{side} bound None"
        for name in (
            "softcap",
            "sinks",
            "alibi",
            "return_lse",
            "shared_kv",
            "batch_invariant",
            "async_lengths",
        ):
            if getattr(spec, name) and not getattr(self, name):
                yield name, getattr(spec, name), "off"
        longest = self.max_query_len
        if longest is not None and (spec.max_query_len is None or spec.max_query_len > longest):
            yield "max_query_len", spec.max_query_len, f"at most {longest}"
        if spec.graph > self.graph:
            yield "graph", spec.graph.name, f"at most {self.graph.name}"


EVERYTHING_1_0 = Capabilities(
    group_size=None,
    head_dim=None,
    head_dim_v=None,
    block_size=None,
    dtype=FLOAT_DTYPES,
    kv_dtype=FLOAT_DTYPES | QUANT_DTYPES,
    out_dtype=FLOAT_DTYPES,
    layout=frozenset({Layout.NHD, Layout.HND}),
    mask=frozenset({Mask.CAUSAL, Mask.FULL, Mask.TREE}),
    window=True,
    softcap=True,
    sinks=True,
    alibi=True,
    return_lse=True,
    shared_kv=True,
    kv_quant=frozenset(
        {KVQuant.NONE, KVQuant.PER_TENSOR, KVQuant.PER_HEAD, KVQuant.PER_TOKEN_HEAD}
    ),
    batch_invariant=True,
    async_lengths=True,
)
"""All that contract 1.0 knows, but for graphs: dataclasses.replace() narrows it. What later
versions add is not in it, so that a backend written on it goes on refusing what is new."""


def _combinations(spec: AttentionSpec) -> Iterator[str]:
    """Pairs of options that nobody serves yet: libraries disagree on their order and origin."""
    tree = spec.mask is Mask.TREE
    if spec.softcap is not None and spec.alibi:
        yield "softcap+alibi"
    if tree and spec.window != (None, None):
        yield "tree+window"
    if tree and spec.alibi:
        yield "tree+alibi"


def check(
    backend: str | AttentionBackend, spec: AttentionSpec, device: Any = "cpu"
) -> tuple[Refusal, ...]:
    """Why `backend` will not serve `spec` on `device`; empty means open() will.

    A backend that is not ready (a library is missing, say) refuses with code "unavailable".
    `device` is a torch.device, a DeviceInfo, or text ("cpu", "cuda:0", "sm90"). Raises UnknownName.
    """
    if isinstance(backend, str):
        from pagedattn.registry import check_by_name

        return check_by_name(backend, spec, device)
    info = backend.device_info(device)
    if not isinstance(spec, AttentionSpec):
        raise TypeError(f"spec={spec!r} is not an AttentionSpec")
    capabilities = backend.capabilities(info)
    if not isinstance(capabilities, Capabilities):
        raise TypeError(f"{backend.name}.capabilities() returned {capabilities!r}")
    refusals = [
        Refusal(backend.name, code, requested, supported, _HINTS.get(code, ""))
        for code, requested, supported in capabilities.missing(spec, info)
    ]
    refusals += [
        Refusal(
            backend.name,
            code,
            "both",
            "one of them",
            "the combination has no agreed meaning; see docs/SPEC.md",
        )
        for code in _combinations(spec)
    ]
    own = tuple(backend.refuse(spec, info))
    for refusal in own:
        if not isinstance(refusal, Refusal):
            raise TypeError(f"{backend.name}.refuse() returned {refusal!r}, not a Refusal")
    return (*refusals, *own)


_HINTS = {
    "device": "open it on a supported device, or choose another backend",
    "block_size": "open the cache pool with a supported block_size, or choose another backend",
    "layout": "allocate the cache in a supported layout",
    "max_query_len": "open a decode op with max_query_len=1 and another backend for prefill",
    "graph": "open a second op without graph for eager steps",
}


def describe_values(values: Collection[Any] | None) -> str:
    """ "16, 32, 64", "multiples of 16 from 16 to 256", "any"."""
    if values is None:
        return "any"
    if isinstance(values, range) and len(values) > 4:
        step = "" if values.step == 1 else f"in steps of {values.step} "
        return f"{step}from {values[0]} to {values[-1]}"
    return ", ".join(sorted((_name(v) for v in values), key=_natural)) or "none"


def _besides(own: str, values: Collection[Any]) -> str:
    return f"the same as {own}" + (f", or {describe_values(values)}" if len(values) else "")


def _name(value: Any) -> str:
    return str(getattr(value, "name", value)).removeprefix("torch.")


def _natural(text: str) -> tuple[int, str]:
    return (int(text), "") if text.isdigit() else (0, text)
