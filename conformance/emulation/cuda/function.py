"""A kernel that can be launched, with CuPy's calling convention."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pagedattn.conformance.emulation.cuda import arguments, limits
from pagedattn.conformance.emulation.cuda.build import GUARD_BYTES
from pagedattn.conformance.emulation.cuda.checks import Check
from pagedattn.conformance.emulation.cuda.errors import KernelFault, LaunchError
from pagedattn.conformance.emulation.cuda.extents import regions_of
from pagedattn.conformance.emulation.cuda.library import Fault, Launch, Library, Region, launcher

__all__ = ["Function", "recording"]

_PLAIN_GUARD_BYTES = 512  # canaries looked at after every block, without checked mode
_recorders: list[list[Callable[[], None]]] = []
_lock = threading.RLock()  # the runtime runs one launch at a time


@contextmanager
def recording() -> Iterator[list[Callable[[], None]]]:
    """The list given fills with one callable per launch within: each launches the same again."""
    launches: list[Callable[[], None]] = []
    _recorders.append(launches)
    try:
        yield launches
    finally:
        _recorders.remove(launches)


@dataclass(frozen=True)
class _Prepared:
    """A launch in the form that the runtime takes; `kept` holds what it points to."""

    launch: Launch
    kept: tuple[Any, ...]


class Function:
    """A kernel. Call it as kernel(grid, block, args, shared_mem=bytes)."""

    def __init__(
        self, name: str, library: Library, index: int, checks: Check, limit: limits.Limit
    ) -> None:
        self.name = name
        self._library, self._checks, self._limit = library, checks, limit
        entry = library.kernel(index)
        self._entry, self.params = entry, entry.params
        self._dynamic_allowed = limits.DEFAULT_SHARED - library.static_bytes

    @property
    def shared_size_bytes(self) -> int:
        """Static shared memory of the module."""
        return self._library.static_bytes

    @property
    def max_threads_per_block(self) -> int:
        """Threads that a block may have."""
        return limits.MAX_THREADS

    @property
    def max_dynamic_shared_size_bytes(self) -> int:
        """Dynamic shared memory that a launch may ask for; raise it before asking for more."""
        return self._dynamic_allowed

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, value: int) -> None:
        most = self._limit.shared - self._library.static_bytes
        if not 0 <= value <= most:
            raise LaunchError(
                f"{self.name}: max_dynamic_shared_size_bytes={value}: {self._limit.arch} allows "
                f"{most} ({self._limit.shared} less {self._library.static_bytes} static)"
            )
        self._dynamic_allowed = value

    def __call__(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[Any],
        shared_mem: int = 0,
        stream: Any = None,
        order: int | None = None,
    ) -> None:
        """Launches and waits. `stream` is ignored: launches run in the order they are made.

        order  of threads and blocks: 0 forward, 1 backward, from 2 on a seed (default:
               PAGEDATTN_SIMT_ORDER, else 0). A right kernel gives the same result under each.
        Raises LaunchError before anything ran, KernelFault when a thread broke a rule."""
        prepared = self._prepare(grid, block, args, shared_mem)
        for launches in _recorders:
            launches.append(lambda: self._run(prepared, order))
        self._run(prepared, order)

    def _prepare(
        self, grid: Sequence[int], block: Sequence[int], args: Sequence[Any], shared_mem: int
    ) -> _Prepared:
        try:
            grid3, block3 = limits.check(grid, block, shared_mem, self._dynamic_allowed)
            count = len(self.params)
            buffer = ctypes.create_string_buffer(arguments.SLOT * (count + 1))
            large = arguments.pack(self.params, args, buffer)
        except LaunchError as error:
            raise LaunchError(f"{self.name}: {error}") from None
        start = ctypes.addressof(buffer)
        addresses = [start + arguments.SLOT * i for i in range(count)]
        for i, value in large:
            addresses[i] = ctypes.addressof(value)
        pointers = (ctypes.c_void_p * (count + 1))(*addresses)
        watched = self._checks & ~Check.SANITIZERS
        regions = self._regions(args, buffer, pointers, large) if watched else []
        table = (Region * (len(regions) + 1))(*regions)
        launch = Launch(
            kernel=self._entry.address,
            arguments=ctypes.addressof(pointers),
            dynamic_shared=self._library.dynamic_shared,
            static_bytes=self._library.static_bytes,
            dynamic_offset=self._library.dynamic_offset,
            guard_bytes=GUARD_BYTES if self._checks else _PLAIN_GUARD_BYTES,
            dynamic_bytes=shared_mem,
            grid=grid3,
            block=block3,
            checks=self._checks,
            timeout=int(os.environ.get("PAGEDATTN_SIMT_TIMEOUT", "120")),
            num_regions=len(regions),
            regions=ctypes.addressof(table),
            num_guards=len(self._library.guards),
            guards=ctypes.addressof(self._library.guards),
        )
        return _Prepared(launch, (buffer, pointers, table, large, tuple(args)))

    def _regions(self, args: Sequence[Any], *own: Any) -> list[Region]:
        """What the kernel may touch: what it was given, the module itself, and its arguments."""
        try:
            regions = regions_of(self.params, args)
        except LaunchError as error:
            raise LaunchError(f"{self.name}: {error}") from None
        buffer, pointers, large = own
        for held in (buffer, pointers, *(value for _, value in large)):
            begin = ctypes.addressof(held)
            regions.append(Region(begin, begin + ctypes.sizeof(held), 0, -1))
        return regions + [Region(begin, end, 1, -1) for begin, end in self._library.extents]

    def _run(self, prepared: _Prepared, order: int | None) -> None:
        if order is None:
            order = int(os.environ.get("PAGEDATTN_SIMT_ORDER", "0"))
        fault = Fault()
        with _lock:
            prepared.launch.order = order
            failed = launcher()(ctypes.byref(prepared.launch), ctypes.byref(fault))
        if failed:
            raise self._fault(fault)

    def _fault(self, fault: Fault) -> KernelFault:
        place = f"{fault.file.decode()}:{fault.line}" if fault.file else ""
        if not place and fault.pc:
            place = self._library.place_of(fault.pc)
        message = fault.message.decode(errors="replace")
        if fault.shared_offset >= 0 and (name := self._library.variable_at(fault.shared_offset)):
            message += f" ({name})"
        x, y, z = fault.thread
        return KernelFault(
            self.name,
            message,
            block=(fault.block[0], fault.block[1], fault.block[2]),
            thread=(x, y, z) if fault.has_thread else None,
            place=place,
        )
