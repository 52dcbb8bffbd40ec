"""What the installed kernels really do, tried once on the device.

flash-attn 2 has a path for AMD GPUs in Triton that ignores the block table, the window and the
softcap without a word. A version check cannot see which path a build takes; three tiny calls can.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from pagedattn.backends.flash_attn.limits import FA2, Variant
from pagedattn.backends.flash_attn.presence import Absent, functions
from pagedattn.device import DeviceInfo

__all__ = ["fault", "forget", "place"]

PAGE, DIM, CAP = 256, 64, 1e-3


def place(variant: Variant, device: DeviceInfo) -> torch.device:
    """Where this variant's kernels run on that device; an emulator puts its own answer here.

    Raises Absent."""
    if not torch.cuda.is_available():
        raise Absent(f"torch {torch.__version__} sees no CUDA device")
    return torch.device(device.type)


def fault(variant: Variant, device: DeviceInfo) -> str | None:
    """Why the variant cannot be used on this real device, as a sentence, or None. Remembered."""
    return _fault(variant, device, place)


def forget() -> None:
    """Try again: something was installed or removed."""
    _fault.cache_clear()


@cache
def _fault(
    variant: Variant, device: DeviceInfo, where: Callable[[Variant, DeviceInfo], torch.device]
) -> str | None:
    try:
        found = functions(variant)
        on = where(variant, device)
        if variant is FA2 and (sentence := _ignored(found["flash_attn_with_kvcache"], on)):
            return sentence
        if torch.version.hip is not None:
            return (
                f"torch {torch.__version__} is built for ROCm, and what is promised here was read "
                "from kernels for CUDA; use another backend, such as triton"
            )
        return _other_kernels() if variant.distributions == ("torch",) else None
    except Absent as error:
        return str(error)


def _ignored(attend: Callable[..., Any], on: torch.device) -> str | None:
    """Which of its arguments flash_attn_with_kvcache does not heed.

    Page 1 of two holds the values 2 and 4, and keys that score 0 and 64, or all 0 (`even`); page 0,
    which no table names, holds 8."""
    even = torch.zeros(2, PAGE, 1, DIM, dtype=torch.float16, device=on)
    steep, v = even.clone(), even.clone()
    v[0], v[1, 0], v[1, 1] = 8, 2, 4
    steep[1, 1] = 1
    q = torch.ones(1, 1, 1, DIM, dtype=torch.float16, device=on)
    table = torch.ones(1, 1, dtype=torch.int32, device=on)

    def value(k: torch.Tensor, keys: int, **options: Any) -> float:
        lengths = torch.full((1,), keys, dtype=torch.int32, device=on)
        try:
            out = attend(
                q, k, v, cache_seqlens=lengths, block_table=table, softmax_scale=1.0, causal=True,
                **options,
            )  # fmt: skip
        except Exception as error:  # the plugin border: a build without these kernels, say
            raise Absent(
                f"flash_attn_with_kvcache fails on {on} with {type(error).__name__}: {error}; "
                "reinstall flash-attn for this GPU"
            ) from error
        return float(out.flatten()[0])

    ignored = [
        name
        for name, got, expected in (
            ("block_table", value(even, 1), 2.0),
            ("window", value(even, 2, window_size=(0, -1)), 4.0),
            # Without a cap the second key takes all; with it, half.
            ("softcap", value(steep, 2, softcap=CAP), 3.0),
        )
        if not abs(got - expected) < 0.05
    ]
    if not ignored:
        return None
    return (
        f"its kernels on {on} ignore {', '.join(ignored)}, as the Triton path for AMD GPUs does; "
        "use a build with CUDA kernels (unset FLASH_ATTENTION_TRITON_AMD_ENABLE) or another backend"
    )


def _other_kernels() -> str | None:
    """torch may have been told to use FA3 or FA4, whose limits are others."""
    current = getattr(torch.nn.attention, "current_flash_attention_impl", lambda: None)()
    if current in (None, "FA2"):
        return None
    return (
        f"torch was told to use {current} for its flash attention, whose limits are others; "
        "call torch.nn.attention.restore_flash_attention_impl()"
    )
