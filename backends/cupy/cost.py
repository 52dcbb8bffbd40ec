"""What a spec costs on this backend, by arithmetic: kernels, bytes, FLOPs, blocks in flight."""

from __future__ import annotations

from typing import Any

from pagedattn.backends.cupy.heuristics import CTA_OVERHEAD, Kernel, Kernels
from pagedattn.device import DeviceInfo
from pagedattn.spec import AttentionSpec, KVQuant

__all__ = ["facts"]

MOST_THREADS = 2048
"""That a multiprocessor holds (1536 on sm_86, sm_89 and sm_120)."""


def facts(spec: AttentionSpec, device: DeviceInfo, kernels: Kernels) -> dict[str, Any]:
    """For describe(). Intensity: FLOPs per byte of KV; below the device's ratio of peak FLOP/s to
    bandwidth a kernel waits for memory."""
    width = spec.head_dim + (0 if spec.shared_kv else spec.head_dim_v)
    per_token = width * spec.kv_dtype.itemsize
    if spec.kv_quant is KVQuant.PER_TOKEN_HEAD:
        per_token += 4 if spec.shared_kv else 8
    flops = 2 * (spec.head_dim + spec.head_dim_v)
    found: dict[str, Any] = {
        "kv_bytes_per_token": per_token * spec.num_kv_heads,
        "decode_flops_per_kv_byte": round(flops * spec.group_size / per_token, 1),
        "splits_keys": not spec.batch_invariant,
    }
    if kernels.decode is not None:
        found["decode"] = _shown(kernels.decode, device)
    if kernels.tile is not None:
        decodes, prefills = kernels.decode is None, spec.max_query_len != 1
        name = " and ".join(["decode"] * decodes + ["prefill"] * prefills)
        found[name] = _shown(kernels.tile, device)
        if prefills:
            found["prefill_flops_per_kv_byte"] = round(flops * kernels.tile.rows / per_token, 1)
    return found


def _shown(kernel: Kernel, device: DeviceInfo) -> str:
    total = device.shared_limit + CTA_OVERHEAD
    blocks = min(MOST_THREADS // kernel.threads, total // (kernel.shared + CTA_OVERHEAD))
    return f"{kernel.name}, {kernel.shared} bytes shared, {blocks} blocks per SM by shared memory"
