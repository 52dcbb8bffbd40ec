"""Broken promises of a GPU backend, on a made-up GPU: waiting for the device, taking memory, baking
values of the host into a captured graph.

An honest op has a host part, which computes scalars, and a launch, which stands for device work:
it looks at tensors when it is executed and again when a captured launch is replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pagedattn.attention import Plan
from pagedattn.batch import AttentionBatch, KVCache
from pagedattn.capabilities import Capabilities
from pagedattn.conformance.attention.waiting import on_the_device
from pagedattn.conformance.mutants.honest import HonestBackend, HonestOp
from pagedattn.conformance.mutants.planting import Garden
from pagedattn.device import DeviceInfo
from pagedattn.emulation import Emulation
from pagedattn.spec import Graph

__all__ = ["MUTANTS", "MadeUpGpuBackend", "MadeUpGpuOp"]

garden = Garden()

_recording: list[Callable[[], None]] | None = None


def _launch(work: Callable[[], None]) -> None:
    if _recording is not None:
        _recording.append(work)
    with on_the_device():
        work()


def _capture(call: Callable[[], None]) -> Callable[[], None]:
    """What `call` launches, to be launched again."""
    global _recording
    launches: list[Callable[[], None]] = []
    _recording = launches
    try:
        call()
    finally:
        _recording = None

    def replay() -> None:
        with on_the_device():
            for work in launches:
                work()

    return replay


class MadeUpGpuOp(HonestOp):
    """The honest op, launched."""

    def host(self, plan: Plan) -> list[int] | None:
        """Lengths that the host passes to the launch; None: it looks at seq_lens itself."""
        return None

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
        scalars, run = self.host(plan), super().kernel

        def work() -> None:
            self._scalars = scalars
            run(q, cache, plan, out, lse, sinks, alibi_slopes)

        _launch(work)

    def lengths(self, plan: Plan) -> list[int]:
        return super().lengths(plan) if self._scalars is None else self._scalars

    def write_kernel(
        self, k: Tensor, v: Tensor | None, cache: KVCache, slot_mapping: Tensor
    ) -> None:
        write = super().write_kernel
        _launch(lambda: write(k, v, cache, slot_mapping))


class MadeUpGpuBackend(HonestBackend):
    """The honest backend on a GPU that is made up and promises everything."""

    op = MadeUpGpuOp
    emulated = Emulation(
        DeviceInfo("cuda", sm=(9, 0), name="made up", num_sms=4, real=True),
        capture=_capture,
    )

    def capabilities(self, device: DeviceInfo) -> Capabilities:
        return replace(super().capabilities(device), device={"cuda"}, graph=Graph.ANY)


def _plant(name: str, summary: str, *faults: str) -> Callable[[type[MadeUpGpuOp]], None]:
    def add(cls: type[MadeUpGpuOp]) -> None:
        garden.backend(name, summary, *faults)(type("Mutant", (MadeUpGpuBackend,), {"op": cls}))

    return add


@_plant("grid-from-the-device", "run() asks the device for the longest length", "KH-53")
class _Item(MadeUpGpuOp):
    def host(self, plan: Plan) -> list[int] | None:
        if plan.batch.num_requests:
            assert int(plan.batch.seq_lens.max()) >= 0
        return None


@_plant("plan-waits", "plan() reads lengths from the device although the host has them")
class _PlanWaits(MadeUpGpuOp):
    def prepare(self, batch: AttentionBatch, data: Any) -> Any:
        return batch.seq_lens.tolist()


@_plant("write-compacts", "write() picks the live rows by a boolean mask: nonzero waits", "KH-49")
class _Compacts(MadeUpGpuOp):
    def write_kernel(
        self, k: Tensor, v: Tensor | None, cache: KVCache, slot_mapping: Tensor
    ) -> None:
        live = slot_mapping >= 0
        n = len(live)
        v = None if v is None else v[:n][live]
        super().write_kernel(k[:n][live], v, cache, slot_mapping[live])


@_plant("lengths-baked-in", "lengths are scalars of the launch: a replay has the old ones", "KH-53")
class _Baked(MadeUpGpuOp):
    def host(self, plan: Plan) -> list[int] | None:
        assert plan.batch.seq_lens_host is not None
        return [int(n) for n in plan.batch.seq_lens_host]


@_plant("triton:temporary", "partial results are allocated by every call")
class _Temporary(MadeUpGpuOp):
    def host(self, plan: Plan) -> list[int] | None:
        torch.empty(plan.num_tokens, self.spec.num_heads, self.spec.head_dim_v)
        return None


MUTANTS = tuple(garden.mutants)
