"""What FlashInfer can do, and whether the one that is installed is the one that is known."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import metadata
from typing import Any

import torch

import pagedattn as pa
from pagedattn_flashinfer.op import FlashInferOp

__all__ = ["FlashInferBackend", "fault"]

OLDEST_SM = (8, 0)
WORKSPACE_BYTES = 128 * 2**20
"""What FlashInfer's documentation recommends for partial results of split keys."""

VERSIONS = ("0.6", "0.7")
KNOWN = " to ".join(VERSIONS)
NEEDED = {
    "BatchDecodeWithPagedKVCacheWrapper": {
        "__init__": ("float_workspace_buffer", "kv_layout", "use_tensor_cores", "backend"),
        "run": ("q", "paged_kv_cache", "out", "lse", "return_lse"),
    },
    "BatchPrefillWithPagedKVCacheWrapper": {
        "__init__": ("float_workspace_buffer", "kv_layout", "backend"),
        "plan": (
            "qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len",
            "causal", "sm_scale", "window_left", "logits_soft_cap", "q_data_type", "kv_data_type",
        ),
        "run": ("q", "paged_kv_cache", "out", "lse", "return_lse"),
    },
}  # fmt: skip


class FlashInferBackend(pa.AttentionBackend):
    """FlashInfer's paged wrappers."""

    name = "flashinfer"
    op = FlashInferOp

    def capabilities(self, device: pa.DeviceInfo) -> pa.Capabilities:
        return pa.Capabilities(
            device={"cuda"},
            group_size=None,
            head_dim={64, 128, 256},
            block_size={1, 8, 16, 32, 64, 128},
            dtype={torch.float16, torch.bfloat16},
            layout=set(pa.Layout),
            mask={pa.Mask.CAUSAL, pa.Mask.FULL},
            window=(True, False),
            softcap=True,
            return_lse=True,
        )

    def refuse(self, spec: pa.AttentionSpec, device: pa.DeviceInfo) -> Iterable[pa.Refusal]:
        if device.type != "cuda":
            return
        if device.sm is not None and device.sm < OLDEST_SM:
            sm = ".".join(map(str, device.sm))
            yield pa.Refusal(self.name, "sm", sm, "8.0 and later", "use another backend")
        if device.real and (sentence := fault()):
            yield pa.Refusal(self.name, "unavailable", "flashinfer", "a known version", sentence)
        if spec.mask is pa.Mask.FULL and spec.window != (None, None):
            hint = "its windows are made for causal masks"
            yield pa.Refusal(self.name, "window", spec.window, "none with mask=FULL", hint)
        if spec.scale <= 0 and spec.softcap is None:
            hint = "its kernels take the maximum before they scale; negate q"
            yield pa.Refusal(self.name, "scale", spec.scale, "above 0", hint)

    def workspace_bytes(
        self, spec: pa.AttentionSpec, limits: pa.Limits, device: pa.DeviceInfo
    ) -> int:
        return WORKSPACE_BYTES

    def describe(self, spec: pa.AttentionSpec, device: pa.DeviceInfo) -> Mapping[str, Any]:
        return {
            "kernels": "FlashInfer fa2, JIT or jit-cache",
            "out": "written in place when it is contiguous, else copied",
        }


def installed_version() -> str | None:
    """Of the distribution, None when there is none."""
    try:
        return metadata.version("flashinfer-python")
    except metadata.PackageNotFoundError:
        return None


@cache
def fault() -> str | None:
    """Why the installed flashinfer cannot be used, as a sentence, or None. It is imported here."""
    version = installed_version()
    if version is None:
        return f"flashinfer-python is not installed; pip install one of {KNOWN}"
    seen = f"flashinfer-python {version}"
    if not version.startswith(tuple(f"{known}." for known in VERSIONS)):
        return f"{seen} is installed, this adapter knows {KNOWN}; install one of those"
    try:
        module = importlib.import_module("flashinfer")
    except (Exception, SystemExit) as error:  # the plugin border: any package may be broken
        text = f"importing {seen} fails with {type(error).__name__}: {error}"
        if isinstance(error, ImportError):  # a dependency, a library of another CUDA
            cuda = torch.version.cuda or "none"
            text += f" (torch {torch.__version__} with CUDA {cuda})"
        return f"{text}; reinstall it for this torch"
    for name, methods in NEEDED.items():
        wrapper = getattr(module, name, None)
        if wrapper is None:
            return f"{seen} has no {name}; this adapter knows {KNOWN}"
        for method, wanted in methods.items():
            function = getattr(wrapper, method, None)
            if function is None:
                return f"{seen} has no {name}.{method}; this adapter knows {KNOWN}"
            taken = inspect.signature(function).parameters
            missing = [p for p in wanted if p not in taken]
            if missing:
                text = f"{name}.{method}() of {seen} takes no {', '.join(missing)}"
                return f"{text}; this adapter knows {KNOWN}"
    return None
