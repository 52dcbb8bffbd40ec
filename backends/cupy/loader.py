"""Kernels of this process: each is compiled and loaded once for a device, whoever asks."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from pagedattn.backends.cupy import cache, driver
from pagedattn.backends.cupy.heuristics import Kernel
from pagedattn.backends.cupy.source import OPTIONS, source
from pagedattn.device import DeviceInfo

__all__ = ["Launch", "arch_of", "load", "store"]

_STATIC_LIMIT = 48 * 1024
"""Dynamic shared memory that needs no permission."""

_loaded: dict[tuple[object, ...], Any] = {}


class Launch:
    """A loaded kernel with its block: call it with a grid, a struct and a stream."""

    __slots__ = ("block", "function", "shared")

    def __init__(self, function: Any, kernel: Kernel) -> None:
        self.function, self.shared = function, kernel.shared
        self.block = (kernel.threads, 1, 1)

    def __call__(self, blocks: int, kv_heads: int, params: Any, stream: Any) -> None:
        self.function((blocks, kv_heads, 1), self.block, (params,), self.shared, stream)


def arch_of(info: DeviceInfo, kernel: Kernel) -> str:
    """ "sm_90", or "sm_90a" for a kernel that needs that."""
    assert info.sm is not None
    return f"sm_{info.sm[0]}{info.sm[1]}{kernel.suffix}"


def load(kernel: Kernel, info: DeviceInfo, device: torch.device) -> Launch:
    """Compiled (or found compiled) and loaded on the device.

    Raises KernelCompileError with the compiler's log."""
    arch = arch_of(info, kernel)
    key = (driver.DRIVER, str(device), arch, kernel.file, kernel.name)
    function = _loaded.get(key)
    if function is None:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            found = driver.DRIVER.load(source(kernel.file), OPTIONS, (kernel.name,), arch)
        function = _loaded[key] = found[kernel.name]
    if kernel.shared > max(_STATIC_LIMIT, function.max_dynamic_shared_size_bytes):
        function.max_dynamic_shared_size_bytes = kernel.shared
    return Launch(function, kernel)


def store(kernel: Kernel, info: DeviceInfo) -> str:
    """Compiled into the cache on disk, where load() will find it; the device need not be here.
    Returns what was compiled.

    Raises KernelCompileError with the compiler's log, NotReady when nothing can be kept."""
    arch = arch_of(info, kernel)
    cache.stored(source(kernel.file), OPTIONS, (kernel.name,), arch)
    return f"{kernel.name} {arch}"
