"""The backend under judgement on a device, and how cases choose a spec that it declares."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product
from typing import Any

import torch

from pagedattn.attention import AttentionBackend, AttentionOp
from pagedattn.capabilities import Capabilities, check
from pagedattn.conformance.case import CaseFailure, Declined, NotRun
from pagedattn.device import DeviceInfo
from pagedattn.errors import Refusal, Unsupported
from pagedattn.spec import AttentionSpec, Limits

__all__ = ["AttentionSubject"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
HEAD_DIMS = (64, 128)
BLOCK_SIZES = (16, 32, 64, 8, 128, 256)
GROUPS = (4, 1, 2, 8)
KV_HEADS = (2, 3, 1, 4, 8, 16, 32)

NOT_HERE = frozenset({"unavailable", "device"})
"""Refusals that say nothing about the backend's abilities, only that it cannot run here."""

MOST_CANDIDATES = 96


@dataclass(frozen=True)
class AttentionSubject:
    """What every attention case is called with."""

    backend: AttentionBackend
    device: torch.device

    @cached_property
    def info(self) -> DeviceInfo:
        return self.backend.device_info(self.device)

    @cached_property
    def capabilities(self) -> Capabilities:
        return self.backend.capabilities(self.info)

    # -- choosing --------------------------------------------------------------------------------

    def spec(self, wanted: Mapping[str, Any] | None = None, *, rows: int = 1) -> AttentionSpec:
        """A spec with the fields of `wanted` and otherwise what this backend declares, so that one
        which serves only bfloat16 in blocks of 256 is still fully judged.

        wanted  AttentionSpec fields, and `group_size` in place of the two head counts
        rows    the longest query of the case; more than a declared max_query_len gets declined

        The first candidate that check() accepts, or the first of all when each is refused."""
        wanted = dict(wanted or {})
        limit = self.capabilities.max_query_len
        if limit is not None and rows <= limit:
            wanted.setdefault("max_query_len", limit)
        first: AttentionSpec | None = None
        for spec in islice(self._candidates(wanted), MOST_CANDIDATES):
            if not self.refusals(spec):
                return spec
            first = first or spec
        assert first is not None
        return first

    def _candidates(self, wanted: dict[str, Any]) -> Iterator[AttentionSpec]:
        caps = self.capabilities
        group = wanted.pop("group_size", None)
        fixed = {name: (wanted.pop(name),) for name in ("dtype", "head_dim") if name in wanted}
        blocks = (wanted.pop("block_size"),) if "block_size" in wanted else None
        heads: list[tuple[int, int]]
        if "num_heads" in wanted:
            heads = [(wanted.pop("num_heads"), wanted.pop("num_kv_heads"))]
        else:
            groups = (group,) if group else _served(caps.group_size, GROUPS)
            heads = self._heads(groups, wanted.pop("num_kv_heads", None))
        for size, dtype, dim, (q_heads, kv_heads) in product(
            blocks or _served(caps.block_size, BLOCK_SIZES),
            fixed.get("dtype") or _served(caps.dtype, DTYPES),
            fixed.get("head_dim") or _served(caps.head_dim, HEAD_DIMS),
            heads,
        ):
            values = {"scale": dim**-0.5, **wanted}
            yield AttentionSpec(
                num_heads=q_heads,
                num_kv_heads=kv_heads,
                head_dim=dim,
                block_size=size,
                dtype=dtype,
                **values,
            )

    def _heads(self, groups: Collection[int], kv_heads: int | None) -> list[tuple[int, int]]:
        """(Hq, Hkv), several kv heads first: with one, a wrong head mapping goes unseen."""
        caps = self.capabilities
        wanted = (kv_heads,) if kv_heads else _served(caps.num_kv_heads, KV_HEADS)
        pairs = [(g * h, h) for g in groups for h in wanted]
        declared = [p for p in pairs if caps.num_heads is None or p[0] in caps.num_heads]
        return (declared or pairs)[:4]

    # -- opening ---------------------------------------------------------------------------------

    def refusals(self, spec: AttentionSpec) -> tuple[Refusal, ...]:
        """What check() says; NotRun when it says that the backend cannot run here at all."""
        refusals = check(self.backend, spec, self.info)
        absent = [r for r in refusals if r.code in NOT_HERE]
        if absent:
            raise NotRun("; ".join(map(str, absent)))
        return refusals

    def open(self, spec: AttentionSpec, limits: Limits) -> AttentionOp:
        """The op for `spec`, holding check() and open() to the same word.

        Raises Declined when both refuse with the same reasons, CaseFailure when they disagree."""
        refusals = self.refusals(spec)
        try:
            op = self.backend.open(spec, limits, device=self.device)
        except Unsupported as error:
            if not refusals:
                raise CaseFailure(
                    f"check() claims this spec but open() refuses it: {error}\n  spec: {spec}"
                ) from error
            if error.refusals != refusals:
                raise CaseFailure(
                    "check() and open() give different reasons:\n"
                    f"  check(): {_listed(refusals)}\n  open():  {_listed(error.refusals)}"
                ) from error
            raise Declined(refusals) from error
        if refusals:
            raise CaseFailure(
                f"open() accepts what check() declines ({_listed(refusals)}); "
                "a declined spec must raise Unsupported with those refusals"
            )
        return op


def _served(row: Collection[Any] | None, preferred: tuple[Any, ...]) -> tuple[Any, ...]:
    """At most four declared values, the preferred ones first."""
    if row is None:
        return preferred[:4]
    known = [value for value in preferred if value in row]
    ordered = row if isinstance(row, range) else sorted(row, key=_order)
    others = islice((value for value in ordered if value not in known), 4)
    return (*known, *others)[:4] or preferred[:1]


def _order(value: Any) -> tuple[int, str]:
    return (value, "") if isinstance(value, int) else (0, str(value))


def _listed(refusals: tuple[Refusal, ...]) -> str:
    return "; ".join(map(str, refusals)) or "none"
