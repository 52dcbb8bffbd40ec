"""RawModule, with CuPy's name and arguments, on the CPU."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pagedattn.conformance.emulation.cuda import limits
from pagedattn.conformance.emulation.cuda.build import Source, build, kernel_names
from pagedattn.conformance.emulation.cuda.checks import Check, require_sanitizer, wanted
from pagedattn.conformance.emulation.cuda.function import Function
from pagedattn.conformance.emulation.cuda.library import Library
from pagedattn.conformance.emulation.cuda.options import Options

__all__ = ["RawModule"]

_lock = threading.RLock()


class RawModule:
    """CUDA C++ source, compiled for the CPU when its first function is asked for.

    code, path        the source, or a file that holds it (its folder is searched for includes)
    options           those of NVRTC; -arch sets __CUDA_ARCH__ and the limits of shared memory
    name_expressions  the kernels wanted ("decode<float, 64>"); default: every __global__ function
                      that the source itself declares
    checked           True: BOUNDS and RACES; or the Checks wanted. Slower. Default: what
                      PAGEDATTN_SIMT_SANITIZE and PAGEDATTN_SIMT_CHECKED say, else False
    """

    def __init__(
        self,
        *,
        code: str | None = None,
        path: str | os.PathLike[str] | None = None,
        options: Iterable[str] = (),
        name_expressions: Iterable[str] | None = None,
        name: str | None = None,
        checked: bool | Check | None = None,
    ) -> None:
        if (code is None) == (path is None):
            raise TypeError("give either code= or path=")
        if path is not None:
            file = Path(path)
            self._source = Source(file.read_text(), name or str(file), file.parent)
        else:
            self._source = Source(code or "", name or "kernel.cu")
        self.options = tuple(options)
        self._options = Options.parse(self.options)
        names = kernel_names(self._source.text) if name_expressions is None else name_expressions
        self.name_expressions = tuple(names)
        if not self.name_expressions:
            raise ValueError("the source declares no __global__ function and none is named")
        self.checks = wanted(checked)
        self._library: Library | None = None
        self._functions: dict[str, Function] = {}

    def compile(self) -> None:
        """Compiles now; CompileError with the compiler's log."""
        with _lock:
            if self._library is None:
                if self.checks & Check.SANITIZERS:
                    require_sanitizer(self._source.name)
                args = (self._source, self.name_expressions, self._options)
                self._library = Library(build(*args, checks=self.checks))

    def get_global(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of a __constant__ or __device__ variable, to read and write:
        module.get_global("table").view(np.float32)[:] = values. ValueError for an unknown name."""
        with _lock:
            self.compile()
            assert self._library is not None
            address, size = self._library.variable(name)
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))

    def get_function(self, name: str) -> Function:
        """The kernel of that name expression."""
        with _lock:
            self.compile()
            assert self._library is not None
            if name not in self._functions:
                if name not in self.name_expressions:
                    known = ", ".join(self.name_expressions)
                    raise ValueError(f"no kernel {name!r} in this module; it has {known}")
                index = self.name_expressions.index(name)
                self._functions[name] = Function(
                    name, self._library, index, self.checks, limits.of(self._options.arch)
                )
            return self._functions[name]
