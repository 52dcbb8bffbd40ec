"""The attention side of an engine: one op per distinct layer spec, one cache per layer, one plan
per op and step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

import torch
from torch import Tensor

from pagedattn.attention import AttentionBackend, AttentionOp, Plan
from pagedattn.batch import AttentionBatch, KVCache
from pagedattn.engine.output import EngineStats
from pagedattn.errors import EngineError
from pagedattn.spec import AttentionSpec, Limits

__all__ = ["PagedLayers"]


class PagedLayers:
    """Ops and caches of a model's layers; itself the LayerAttention given to the model.

    Raises Unsupported when the backend declines a layer; no other backend is tried."""

    def __init__(
        self,
        backend: AttentionBackend,
        specs: Sequence[AttentionSpec],
        limits: Limits,
        *,
        device: torch.device,
        stats: EngineStats,
    ) -> None:
        self.specs, self.stats = tuple(specs), stats
        info = backend.device_info(device)
        distinct = dict.fromkeys(self.specs)
        # The layers run in turn on one stream, so one workspace serves all ops.
        size = max(backend.workspace_bytes(spec, limits, info) for spec in distinct)
        workspace = torch.empty(size, dtype=torch.uint8, device=device)
        self.ops: dict[AttentionSpec, AttentionOp] = {
            spec: backend.open(spec, limits, device=device, workspace=workspace)
            for spec in distinct
        }
        self.caches = tuple(
            KVCache.allocate(spec, limits.num_blocks, device) for spec in self.specs
        )
        self._plans: dict[AttentionSpec, Plan] = {}
        self._slots: Tensor | None = None
        self._called: set[int] = set()

    @contextmanager
    def step(self, batch: AttentionBatch) -> Iterator[None]:
        """Plan a step; within it the model may call. Raises InvalidBatch, and EngineError when the
        model left a layer out, whose cache then lacks the step's tokens."""
        start = perf_counter()
        self._plans = {spec: op.plan(batch) for spec, op in self.ops.items()}
        self._slots = batch.slot_mapping
        self._called = set()
        self.stats.plan_s += perf_counter() - start
        try:
            yield
        finally:
            self._plans, self._slots = {}, None
        missing = [i for i in range(len(self.specs)) if i not in self._called]
        if missing:
            raise EngineError(f"the model did not call attention for layers {missing}")

    def __call__(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor | None,
        *,
        sinks: Tensor | None = None,
        alibi_slopes: Tensor | None = None,
    ) -> Tensor:
        if self._slots is None:
            raise EngineError(f"layer {layer}: attention was called outside of a step")
        if not 0 <= layer < len(self.specs) or layer in self._called:
            what = "called twice" if layer in self._called else "not in layer_specs()"
            raise EngineError(f"layer {layer} is {what} ({len(self.specs)} layers)")
        self._called.add(layer)
        spec, cache = self.specs[layer], self.caches[layer]
        op = self.ops[spec]
        start = perf_counter()
        op.write(k, v, cache, self._slots)
        written = perf_counter()
        out = torch.empty(
            q.shape[0], spec.num_heads, spec.head_dim_v, dtype=spec.out_dtype, device=q.device
        )
        op.run(q, cache, self._plans[spec], out=out, sinks=sinks, alibi_slopes=alibi_slopes)
        self.stats.write_s += written - start
        self.stats.run_s += perf_counter() - written
        return out
