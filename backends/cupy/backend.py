"""CupyBackend: what the CUDA kernels serve."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from pagedattn.attention import AttentionBackend
from pagedattn.backends.cupy.compiler import architectures
from pagedattn.backends.cupy.cost import facts
from pagedattn.backends.cupy.heuristics import WGMMA_DIMS, WGMMA_SM, Kernels, choose
from pagedattn.backends.cupy.loader import store
from pagedattn.backends.cupy.op import DTYPES, CupyOp
from pagedattn.backends.cupy.work import phases, workspace
from pagedattn.capabilities import EVERYTHING_1_0, Capabilities
from pagedattn.device import DeviceInfo
from pagedattn.errors import Refusal, Unsupported
from pagedattn.spec import AttentionSpec, Graph, KVQuant, Limits

__all__ = ["CupyBackend", "CupyWgmmaBackend"]

HALVES = frozenset({torch.float16, torch.bfloat16})
FLOATS = frozenset(d for d in DTYPES if d.itemsize > 1)
OLDEST = (8, 0)
MOST_DIMS = 576
MOST_KV_HEADS = 65535
"""The y axis of a grid."""


class CupyBackend(AttentionBackend):
    """Raw CUDA C++ for sm_80 and newer, compiled by NVRTC when an op is opened."""

    name = "cupy"
    op = CupyOp

    def kernels(
        self, spec: AttentionSpec, device: DeviceInfo, tuning: Mapping[str, int]
    ) -> Kernels | None:
        """What an op of a spec launches; None when no tile fits the device."""
        return choose(spec, device, tuning)

    def capabilities(self, device: DeviceInfo) -> Capabilities:
        return replace(
            EVERYTHING_1_0,
            device={"cuda"},
            head_dim=range(1, MOST_DIMS + 1),
            head_dim_v=range(1, MOST_DIMS + 1),
            dtype=FLOATS,
            kv_dtype=frozenset(DTYPES),
            out_dtype=FLOATS,
            graph=Graph.ANY,
        )

    def refuse(self, spec: AttentionSpec, device: DeviceInfo) -> Iterable[Refusal]:
        return list(self._reasons(spec, device))

    def _reasons(self, spec: AttentionSpec, device: DeviceInfo) -> Iterator[Refusal]:
        if device.sm is not None and device.sm < OLDEST:
            yield Refusal(
                self.name,
                "device",
                str(device),
                "sm80 and newer",
                "the kernels use cp.async and bfloat16 tensor cores: choose another backend",
            )
        if spec.num_kv_heads > MOST_KV_HEADS:
            yield Refusal(
                self.name,
                "num_kv_heads",
                spec.num_kv_heads,
                f"at most {MOST_KV_HEADS}",
                "split the layer over several ops",
            )
        known = spec.dtype in FLOATS and spec.kv_dtype in DTYPES
        if known and self.kernels(spec, device, {}) is None:
            yield Refusal(
                self.name,
                "head_dim",
                f"{spec.head_dim}, head_dim_v {spec.head_dim_v} in {spec.dtype}",
                f"tiles within {device.shared_limit} bytes of shared memory",
                "use a 16-bit dtype, or a device with more shared memory per block",
            )

    def workspace_bytes(self, spec: AttentionSpec, limits: Limits, device: DeviceInfo) -> int:
        # Knobs may change the number of pieces: room for the most of each.
        knobs = self.tunables(spec, device)
        sizes = [0]
        for tuning in ({}, {name: max(values) for name, values in knobs.items()}):
            tuning = {**tuning, "split_keys": min(knobs["split_keys"])}
            kernels = self.kernels(spec, device, tuning)
            if kernels is None:
                continue
            sizes.append(workspace(spec, phases(spec, limits, device, kernels, tuning)))
        return max(sizes)

    def tunables(self, spec: AttentionSpec, device: DeviceInfo) -> Mapping[str, Sequence[int]]:
        """split_keys   fewest keys of a piece      waves   blocks wanted per multiprocessor
        tile_rows    packed rows of a tile"""
        return {"split_keys": (64, 128, 256, 512), "waves": (1, 2, 4), "tile_rows": (16, 32, 64)}

    def describe(self, spec: AttentionSpec, device: DeviceInfo) -> Mapping[str, Any]:
        kernels = self.kernels(spec, device, {})
        return {} if kernels is None else facts(spec, device, kernels)

    def compile_ahead(
        self, spec: AttentionSpec, limits: Limits, device: DeviceInfo
    ) -> Iterable[str]:
        """NVRTC needs no GPU. The names come with the architecture."""
        known = architectures()
        arch = "" if device.sm is None else f"sm_{device.sm[0]}{device.sm[1]}"
        if arch not in known:
            raise Unsupported(
                Refusal(
                    self.name,
                    "device",
                    str(device),
                    ", ".join(known),
                    "name the GPU by its architecture, one that this NVRTC knows",
                )
            )
        kernels = self.kernels(spec, device, {})
        assert kernels is not None  # refuse() has seen to that
        return [store(kernel, device) for kernel in kernels.all]


class CupyWgmmaBackend(CupyBackend):
    """The same, with the large tiles of 16-bit caches on Hopper's wgmma (prefill_wgmma.cu)."""

    name = "cupy:wgmma"

    def kernels(
        self, spec: AttentionSpec, device: DeviceInfo, tuning: Mapping[str, int]
    ) -> Kernels | None:
        return choose(spec, device, tuning, wgmma=True)

    def capabilities(self, device: DeviceInfo) -> Capabilities:
        return replace(
            super().capabilities(device),
            head_dim=WGMMA_DIMS,
            head_dim_v=WGMMA_DIMS,
            dtype=HALVES,
            kv_dtype=HALVES,
            shared_kv=False,
            kv_quant=frozenset({KVQuant.NONE}),
        )

    def _reasons(self, spec: AttentionSpec, device: DeviceInfo) -> Iterator[Refusal]:
        hint = "the backend cupy serves it with mma.sync"
        if device.sm is not None and device.sm != WGMMA_SM:
            yield Refusal(self.name, "device", str(device), "sm90", hint)
        elif spec.head_dim_v != spec.head_dim:
            yield Refusal(self.name, "head_dim_v", spec.head_dim_v, f"{spec.head_dim}, as K", hint)
        elif spec.kv_dtype != spec.dtype:
            yield Refusal(self.name, "kv_dtype", spec.kv_dtype, f"{spec.dtype}, as q", hint)
        elif spec.head_dim in WGMMA_DIMS:
            yield from super()._reasons(spec, device)

    def tunables(self, spec: AttentionSpec, device: DeviceInfo) -> Mapping[str, Sequence[int]]:
        return {**super().tunables(spec, device), "tile_rows": (64, 128)}
