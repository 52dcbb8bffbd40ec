"""Broken promises: determinism, neighbours, plans, refusals, workspace, tuning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pagedattn.attention import Plan
from pagedattn.batch import AttentionBatch, KVCache
from pagedattn.capabilities import Capabilities
from pagedattn.conformance.mutants.honest import HonestBackend, HonestOp, QueryRow
from pagedattn.conformance.mutants.planting import Garden
from pagedattn.device import DeviceInfo
from pagedattn.errors import Refusal
from pagedattn.spec import AttentionSpec, Limits

__all__ = ["MUTANTS"]

garden = Garden()


@garden.op("unordered-sums", "keys are summed in an order of chance, as atomics do", "KH-25")
class _Unordered(HonestOp):
    def visible(self, row: QueryRow, position: int) -> Tensor:
        keys = super().visible(row, position)
        return keys[torch.randperm(len(keys))]


@garden.op("order-of-ids", "keys are summed in the order of their block ids")
class _OrderOfIds(HonestOp):
    def visible(self, row: QueryRow, position: int) -> Tensor:
        keys = super().visible(row, position)
        return keys[self.blocks(row, keys).argsort(stable=True)] if len(keys) else keys


@garden.op("maximum-of-neighbours", "the running maximum is carried to the next request", "KH-56")
class _Carried(HonestOp):
    def rows(self, plan: Plan) -> list[QueryRow]:
        self._carried: Tensor | None = None
        return super().rows(plan)

    def top(self, score: Tensor, sinks: Tensor | None) -> Tensor:
        top = super().top(score, sinks)
        if self._carried is not None:
            top = torch.maximum(top, self._carried)
        self._carried = top
        return top


@garden.op("batch-dependent-split", "sums are split by the number of requests", "KH-55")
class _Split(HonestOp):
    def rows(self, plan: Plan) -> list[QueryRow]:
        self._parts = 1 + plan.batch.num_requests % 5
        return super().rows(plan)

    def mix(self, weight: Tensor, v: Tensor) -> Tensor:
        parts = zip(weight.chunk(self._parts, 1), v.chunk(self._parts, 1), strict=True)
        return sum((super(_Split, self).mix(w, x) for w, x in parts), torch.zeros(()))


class _Planned(HonestOp):
    """Lengths are taken from the plan's own data, as a kernel with a work list does."""

    def prepare(self, batch: AttentionBatch, data: Any) -> Any:
        return batch.seq_lens.clone()

    def lengths(self, plan: Plan) -> list[int]:
        found: list[int] = plan.data.tolist()
        return found


@garden.op("into-moves", "plan(into=) makes new tensors; a captured graph reads the old ones")
class _Moves(_Planned):
    pass


@garden.op("into-stale", "plan(into=) does not refresh the derived state")
class _StalePlan(_Planned):
    def prepare(self, batch: AttentionBatch, data: Any) -> Any:
        return batch.seq_lens.clone() if data is None else data


@garden.op("plan-shared", "the op keeps one plan; a second one overwrites the first")
class _SharedPlan(_Planned):
    def prepare(self, batch: AttentionBatch, data: Any) -> Any:
        self._lengths = batch.seq_lens.tolist()
        return None

    def lengths(self, plan: Plan) -> list[int]:
        found: list[int] = self._lengths[: plan.batch.num_requests]
        return found + [0] * (plan.batch.num_requests - len(found))


@garden.op("plan-unchecked", "plan() is replaced and validates nothing", "KH-09")
class _Unchecked(HonestOp):
    def plan(self, batch, into=None):  # type: ignore[no-untyped-def,misc]
        return Plan(self, batch, None, -1) if into is None else super().plan(batch, into)


@garden.op("run-unchecked", "run() is replaced and checks none of its arguments")
class _RunUnchecked(HonestOp):
    def run(  # type: ignore[misc]
        self,
        q: Tensor,
        cache: KVCache,
        plan: Plan,
        *,
        out: Tensor,
        lse: Tensor | None = None,
        sinks: Tensor | None = None,
        alibi_slopes: Tensor | None = None,
    ) -> None:
        self.kernel(q, cache, plan, out, lse, sinks, alibi_slopes)


@garden.op("inputs-scaled", "q is scaled in place")
class _Scaled(HonestOp):
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
        q[: plan.batch.num_tokens] *= self.spec.scale
        super().kernel(q, cache, plan, out, lse, sinks, alibi_slopes)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return self.cap(self.dot(q, k))


# -- what it says about itself -------------------------------------------------------------------


@garden.backend("refusals-flip", "refuse() says no only when asked the second time")
class _Flips(HonestBackend):
    def __init__(self) -> None:
        self.asked = 0

    def refuse(self, spec: AttentionSpec, device: DeviceInfo) -> Iterable[Refusal]:
        self.asked += 1
        if spec.softcap is not None and self.asked % 2 == 0:
            return [Refusal(self.name, "softcap", spec.softcap, "off")]
        return []


@garden.backend("refusals-vary", "check() and open() give different reasons")
class _Vary(HonestBackend):
    def __init__(self) -> None:
        self.asked = 0

    def refuse(self, spec: AttentionSpec, device: DeviceInfo) -> Iterable[Refusal]:
        self.asked += 1
        return [Refusal(self.name, "sinks", self.asked, "off")] if spec.sinks else []


@garden.backend("computes-declined", "open() serves what check() declines")
class _Eager(HonestBackend):
    def refuse(self, spec: AttentionSpec, device: DeviceInfo) -> Iterable[Refusal]:
        return [Refusal(self.name, "alibi", True, "off")] if spec.alibi else []

    def open(self, spec, limits, *, device, tuning=None, workspace=None):  # type: ignore[no-untyped-def,misc]
        scratch = torch.empty(0, dtype=torch.uint8)
        return self.op(
            self, spec, limits, device=torch.device(device), tuning=tuning or {}, workspace=scratch
        )


@garden.backend("core-declined", "grouped heads, a part of the required core, are declined")
class _NoGroups(HonestBackend):
    def capabilities(self, device: DeviceInfo) -> Capabilities:
        return Capabilities(device={"cpu"}, group_size={1})


@garden.backend("refusal-unexplained", "a refusal without a word about what is supported")
class _Unexplained(HonestBackend):
    def refuse(self, spec: AttentionSpec, device: DeviceInfo) -> Iterable[Refusal]:
        return [Refusal(self.name, "sinks", True, "")] if spec.sinks else []


@garden.backend("probes-made-up-devices", "capabilities() asks a device that does not exist")
class _Probes(HonestBackend):
    def capabilities(self, device: DeviceInfo) -> Capabilities:
        if device.type == "cuda":
            torch.cuda.get_device_properties(0)
        return super().capabilities(device)


@garden.backend("workspace-taken-for-zero", "scratch is taken to be zero at the first call")
class _Dirty(HonestBackend):
    class op(HonestOp):  # noqa: N801
        def mix(self, weight: Tensor, v: Tensor) -> Tensor:
            return super().mix(weight, v) + self.workspace.view(torch.float32)[:1]

    def workspace_bytes(self, spec: AttentionSpec, limits: Limits, device: DeviceInfo) -> int:
        return 64


@garden.backend("workspace-overrun", "partial results are written beyond the workspace")
class _Overrun(HonestBackend):
    class op(HonestOp):  # noqa: N801
        def mix(self, weight: Tensor, v: Tensor) -> Tensor:
            beyond = self.workspace.storage_offset() + self.workspace.numel() + 1
            if self.workspace.untyped_storage().nbytes() >= beyond:
                self.workspace.as_strided((self.workspace.numel() + 1,), (1,))[-1] = 0
            return super().mix(weight, v)

    def workspace_bytes(self, spec: AttentionSpec, limits: Limits, device: DeviceInfo) -> int:
        return 64


@garden.backend("workspace-product", "the workspace grows with requests times length")
class _Product(HonestBackend):
    def workspace_bytes(self, spec: AttentionSpec, limits: Limits, device: DeviceInfo) -> int:
        return limits.max_requests * limits.max_seq_len // 64


@garden.backend("tuning-wrong", "one of the advertised tile sizes drops the last keys")
class _Tuning(HonestBackend):
    class op(HonestOp):  # noqa: N801
        def visible(self, row: QueryRow, position: int) -> Tensor:
            keys = super().visible(row, position)
            tile = self.tuning.get("tile", 1)
            return keys[: max(1, len(keys) // tile * tile)] if len(keys) else keys

    def tunables(self, spec: AttentionSpec, device: DeviceInfo) -> Mapping[str, Sequence[int]]:
        return {"tile": (1, 4)}


@garden.op("tables-on-the-default-device", "open() makes a table where torch's default device is")
class _DefaultDevice(HonestOp):
    def setup(self) -> None:
        super().setup()
        self._heads = torch.arange(self.spec.num_heads) // self.spec.group_size

    def kv_heads(self) -> Tensor:
        return self._heads


MUTANTS = tuple(garden.mutants)
