"""The Triton backend: what it serves, and what it says of itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from pagedattn.attention import AttentionBackend
from pagedattn.backends.triton import heuristics, work
from pagedattn.backends.triton.cost import cost
from pagedattn.backends.triton.launch import ALIGN_BYTES
from pagedattn.backends.triton.op import TritonOp, slot_bytes
from pagedattn.capabilities import EVERYTHING_1_0, Capabilities
from pagedattn.device import DeviceInfo
from pagedattn.errors import Refusal
from pagedattn.spec import AttentionSpec, Graph, Limits

__all__ = ["TritonBackend"]

FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32})
EIGHT_BIT = frozenset({torch.int8, torch.float8_e4m3fn, torch.float8_e5m2})
FLOAT8 = EIGHT_BIT - {torch.int8}

MAX_SOFTCAP = 1e30
"""Below it neither the cap nor a score divided by it leaves the range of float32."""

STEPS = {"decode": (8, 1, 4096), "prefill": (1, 2048, 2048)}
"""(requests, query_len, seq_len) of the steps that describe() predicts."""


class TritonBackend(AttentionBackend):
    """Our own Triton kernels, for GPUs; every option of the contract but float64."""

    name = "triton"
    op = TritonOp

    def capabilities(self, device: DeviceInfo) -> Capabilities:
        return replace(
            EVERYTHING_1_0,
            device={"cuda"},
            head_dim=range(1, 577),
            head_dim_v=range(1, 577),
            dtype=FLOATS,
            kv_dtype=FLOATS | EIGHT_BIT,
            out_dtype=FLOATS,
            graph=Graph.ANY,
        )

    def refuse(self, spec: AttentionSpec, device: DeviceInfo) -> Iterator[Refusal]:
        if device.sm is not None and device.sm < (8, 0):
            yield Refusal(
                self.name, "device", str(device), "sm_80 and newer", "choose another backend"
            )
        if device.sm is not None and device.sm < (8, 9) and spec.kv_dtype in FLOAT8:
            yield Refusal(
                self.name,
                "kv_dtype",
                spec.kv_dtype,
                "int8, or 8-bit floats from sm_89 on",
                "this GPU has no conversions of 8-bit floats; use an int8 cache",
            )
        if spec.softcap is not None and spec.softcap > MAX_SOFTCAP:
            yield Refusal(
                self.name,
                "softcap",
                spec.softcap,
                f"up to {MAX_SOFTCAP:g}",
                "such a cap changes nothing; leave it out",
            )
        if not heuristics.choose(spec, device):
            yield Refusal(
                self.name,
                "head_dim",
                (spec.head_dim, spec.head_dim_v),
                f"what fits {device.shared_limit} bytes of shared memory",
                "use a 16-bit dtype or another backend",
            )

    def workspace_bytes(self, spec: AttentionSpec, limits: Limits, device: DeviceInfo) -> int:
        """The states of shared-out tiles; the phases run in turn and share it."""
        needed = max(
            (
                work.max_slots(spec, limits, device, tile) * slot_bytes(spec, tile)
                for tile in heuristics.choose(spec, device)
            ),
            default=0,
        )
        return needed + ALIGN_BYTES if needed else 0

    def tunables(self, spec: AttentionSpec, device: DeviceInfo) -> Mapping[str, Sequence[int]]:
        return heuristics.tunables(spec, device)

    def describe(self, spec: AttentionSpec, device: DeviceInfo) -> Mapping[str, Any]:
        tiles = heuristics.choose(spec, device)
        if not tiles:
            return {}
        facts: dict[str, Any] = {"kernel": "attention_tile_kernel, attention_combine_kernel"}
        names = ("decode", "prefill") if len(tiles) > 1 else ("every phase",)
        for name, tile in zip(names, tiles, strict=True):
            memory = heuristics.smem_bytes(spec, tile.block_m, tile.block_n, tile.num_stages)
            facts[f"{name} tile"] = (
                f"{tile.block_m} packed rows x {tile.block_n} keys, {tile.num_warps} warps, "
                f"{tile.num_stages} stages, {memory} bytes of shared memory at most"
            )
        for name, (requests, query_len, seq_len) in STEPS.items():
            if spec.max_query_len is not None and query_len > spec.max_query_len:
                continue
            tile = tiles[0] if query_len * spec.group_size <= tiles[0].block_m else tiles[-1]
            c = cost(spec, device, tile, requests=requests, query_len=query_len, seq_len=seq_len)
            facts[f"{name} {requests} x {query_len} rows, {seq_len} keys"] = (
                f"{c.bytes / 1e6:.1f} MB ({c.loaded / 1e6:.1f} MB through L2), "
                f"{c.flop / 1e9:.2f} GFLOP, {c.intensity:.1f} FLOP/byte; "
                f"{c.parts} parts, {c.programs} programs, {c.per_sm} per SM, {c.waves} waves, "
                f"{c.occupancy:.0%} of the warps"
            )
        return facts
