"""The runtime and the kernels as loaded libraries: the structures that both sides share."""

from __future__ import annotations

import ctypes
import functools
import re
import subprocess
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from pagedattn.conformance.emulation.cuda import toolchain
from pagedattn.conformance.emulation.cuda.elf import global_symbols, tls_symbols

__all__ = ["Fault", "Kind", "Launch", "Library", "Param", "Region", "launcher"]


class Kind(IntEnum):
    """simt::Kind: what a parameter, or what it points to, is."""

    POINTER, SIGNED, UNSIGNED, FLOAT, BOOL, HALF, BFLOAT16, FP8, VOID, OTHER = range(10)


class Param(ctypes.Structure):
    """simt::Param."""

    _fields_ = (
        ("kind", ctypes.c_int),
        ("size", ctypes.c_int),
        ("pointee", ctypes.c_int),
        ("pointee_size", ctypes.c_int),
        ("pointee_const", ctypes.c_int),
    )
    kind: int
    size: int
    pointee: int
    pointee_size: int
    pointee_const: int


class _Kernel(ctypes.Structure):
    _fields_ = (
        ("run", ctypes.c_void_p),
        ("num_params", ctypes.c_int),
        ("params", ctypes.POINTER(Param)),
    )


class Region(ctypes.Structure):
    """simt::Region: global memory from begin to end."""

    _fields_ = (
        ("begin", ctypes.c_void_p),
        ("end", ctypes.c_void_p),
        ("writable", ctypes.c_int),
        ("argument", ctypes.c_int),
    )


class Launch(ctypes.Structure):
    """simt::Launch."""

    _fields_ = (
        ("kernel", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("dynamic_shared", ctypes.c_void_p),
        ("static_bytes", ctypes.c_uint),
        ("dynamic_offset", ctypes.c_uint),
        ("guard_bytes", ctypes.c_uint),
        ("dynamic_bytes", ctypes.c_uint),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("order", ctypes.c_uint),
        ("checks", ctypes.c_uint),
        ("timeout", ctypes.c_uint),
        ("num_regions", ctypes.c_int),
        ("regions", ctypes.c_void_p),
        ("num_guards", ctypes.c_int),
        ("guards", ctypes.c_void_p),
    )


class Fault(ctypes.Structure):
    """simt::Fault."""

    _fields_ = (
        ("message", ctypes.c_char * 2048),
        ("file", ctypes.c_char * 512),
        ("line", ctypes.c_int),
        ("pc", ctypes.c_void_p),
        ("block", ctypes.c_uint * 3),
        ("thread", ctypes.c_uint * 3),
        ("has_thread", ctypes.c_int),
        ("shared_offset", ctypes.c_int),
    )


@functools.cache
def launcher() -> ctypes._NamedFuncPointer:
    """simt_launch of the runtime, which is built on first use and loaded for all kernels to find.

    A PyDLL keeps the interpreter's lock: one launch at a time."""
    runtime = ctypes.PyDLL(str(toolchain.runtime()), mode=ctypes.RTLD_GLOBAL)
    function = runtime.simt_launch
    function.argtypes = (ctypes.POINTER(Launch), ctypes.POINTER(Fault))
    function.restype = ctypes.c_int
    return function


class _LinkMap(ctypes.Structure):
    _fields_ = (("base", ctypes.c_uint64),)


@dataclass(frozen=True)
class KernelEntry:
    """A kernel in a loaded library: its address, and its parameters in order."""

    address: int
    params: tuple[Param, ...]


class Library:
    """A kernel library and the layout of its shared memory."""

    def __init__(self, path: Path) -> None:
        launcher()
        self.path = path
        self._dll = ctypes.CDLL(str(path))
        self.dynamic_shared = ctypes.cast(self._dll.simt_dynamic_shared, ctypes.c_void_p).value
        self._symbols = tls_symbols(path)
        symbols = {s.name: s for s in self._symbols}
        self.static_bytes = symbols["simt_guard"].offset
        self.dynamic_offset = symbols["simt_dynamic"].offset
        # "Is set up" of __shared__ variables of a class with constructors, such as __half.
        guards = [s.offset for s in self._symbols if s.name.startswith("_ZGV")]
        self.guards = (ctypes.c_uint * len(guards))(*guards)

    def kernel(self, index: int) -> KernelEntry:
        """The kernel of the index-th name expression."""
        function = getattr(self._dll, f"simt_kernel_{index}")
        function.restype = ctypes.POINTER(_Kernel)
        kernel = function().contents
        params = tuple(kernel.params[i] for i in range(kernel.num_params))
        return KernelEntry(ctypes.addressof(kernel), params)

    @property
    def base(self) -> int:
        """The address where the library was loaded."""
        return int(_LinkMap.from_address(self._dll._handle).base)

    @functools.cached_property
    def extents(self) -> list[tuple[int, int]]:
        """Where this library and the runtime lie in memory: constants, __device__ variables."""
        wanted = {str(self.path.resolve()), str(toolchain.runtime().resolve())}
        found = []
        for line in Path("/proc/self/maps").read_text().splitlines():
            parts = line.split(maxsplit=5)
            if len(parts) == 6 and parts[5] in wanted:
                begin, end = (int(p, 16) for p in parts[0].split("-"))
                found.append((begin, end))
        return found

    def variable(self, name: str) -> tuple[int, int]:
        """Address and size of a __constant__ or __device__ variable.

        Raises ValueError when there is none."""
        spellings = (name, f"_ZL{len(name)}{name}")  # the second is of a static one
        for s in global_symbols(self.path):
            if s.defined and s.name in spellings:
                return self.base + s.offset, s.size
        raise ValueError(f"no __constant__ or __device__ variable {name!r} in this module")

    def variable_at(self, offset: int) -> str:
        """The static __shared__ variable at this offset, and how far into it, for messages."""
        for s in self._symbols:
            if s.offset <= offset < s.offset + s.size and s.offset < self.static_bytes:
                name = re.search(r"E\d+(\D\w*?)(?:_\d+)?$", s.name)
                return f"byte {offset - s.offset} of {name[1] if name else s.name}"
        return ""

    def place_of(self, pc: int) -> str:
        """ "file:line" of an instruction, "" where there is no debug information. Of inlined calls
        the innermost that is not this package's own."""
        command = ["addr2line", "-i", "-e", str(self.path), hex(pc - self.base - 1)]
        try:
            shown = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout
        except (OSError, subprocess.TimeoutExpired):
            return ""
        places = [line.split(" ")[0] for line in shown.splitlines()]
        known = [p for p in places if not p.startswith("??") and not p.endswith(":?")]
        own = str(toolchain.INCLUDE.resolve())
        known.sort(key=lambda p: str(Path(p).resolve()).startswith(own))
        return re.sub(r"^(\./)+", "", known[0]) if known else ""
