"""The one seam between this backend and a GPU: loading and launching kernels.

compiler.py calls NVRTC and arrays.py takes CuPy arrays; the rest is Python on torch tensors. DRIVER
may be replaced by any object with the same two methods; the kernels it loads are called as
kernel(grid, block, args, shared_mem=, stream=) and have max_dynamic_shared_size_bytes to set.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from pagedattn.backends.cupy.cache import compiled
from pagedattn.errors import NotReady

__all__ = ["DRIVER", "CupyDriver", "Driver", "LoadedKernel"]


class Driver(Protocol):
    """What the backend needs of a GPU."""

    def load(
        self, source: str, options: Sequence[str], names: Sequence[str], arch: str
    ) -> dict[str, Any]:
        """name expression -> kernel, on the current device; `arch` as in sm_90."""

    def stream(self, device: torch.device) -> Any:
        """torch's current stream, for launches."""


class LoadedKernel:
    """A kernel on a device. Keeps its module alive."""

    def __init__(self, module: Any, function: Any) -> None:
        from cupy.cuda import driver

        self._driver, self._module, self._function = driver, module, function.ptr
        self._device = torch.cuda.current_device() if torch.cuda.is_available() else None

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        """What a launch may ask for."""
        kind = self._driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        return int(self._driver.funcGetAttribute(kind, self._function))

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, value: int) -> None:
        kind = self._driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._driver.funcSetAttribute(self._function, kind, value)

    def __call__(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        args: Sequence[ctypes.Structure],
        shared_mem: int = 0,
        stream: int = 0,
    ) -> None:
        """Launches; `args` are structs that the kernel takes by value."""
        pointers = (ctypes.c_void_p * len(args))(*map(ctypes.addressof, args))
        if self._device is not None and torch.cuda.current_device() != self._device:
            with torch.cuda.device(self._device):
                return self(grid, block, args, shared_mem, stream)
        self._driver.launchKernel(
            self._function, *grid, *block, shared_mem, stream, ctypes.addressof(pointers), 0
        )


class CupyDriver:
    """NVRTC through CuPy, cubins from the cache on disk, launches on torch's current stream."""

    def load(
        self, source: str, options: Sequence[str], names: Sequence[str], arch: str
    ) -> dict[str, Any]:
        from cupy.cuda.function import Module

        if torch.cuda.is_available():
            if torch.cuda.is_current_stream_capturing():
                raise NotReady(
                    "backend",
                    "cupy",
                    "being captured",
                    "open() compiles and loads kernels, which a CUDA graph cannot record: open "
                    "the op before the capture begins",
                )
            torch.cuda.current_stream().synchronize()  # the device's context exists and is current
        binary = compiled(source, options, names, arch)
        module = Module()
        module.load(binary.cubin)
        return {
            name: LoadedKernel(module, module.get_function(binary.symbols[name])) for name in names
        }

    def stream(self, device: torch.device) -> int:
        return torch.cuda.current_stream(device).cuda_stream


DRIVER: Driver = CupyDriver()
