"""What can go wrong with a kernel on the emulated GPU."""

from __future__ import annotations

from pagedattn.errors import PagedAttnError

__all__ = ["CompileError", "KernelFault", "LaunchError"]


class CompileError(PagedAttnError, RuntimeError):
    """The host compiler refused the kernel; `log` is what it said."""

    def __init__(self, name: str, log: str) -> None:
        self.name, self.log = name, log
        super().__init__(f"{name} does not compile for the CPU:\n{log.strip()[:8000]}")


class LaunchError(PagedAttnError, ValueError):
    """The launch was refused before any thread ran: grid, block, shared memory or arguments."""


class KernelFault(PagedAttnError, RuntimeError):
    """A kernel broke a rule while it ran.

    kernel  name expression of the kernel
    block   blockIdx of the fault            thread  threadIdx, None when it is the whole block's
    place   "file:line" in the kernel's source, "" when unknown
    """

    def __init__(
        self,
        kernel: str,
        message: str,
        *,
        block: tuple[int, int, int],
        thread: tuple[int, int, int] | None,
        place: str,
    ) -> None:
        self.kernel, self.message = kernel, message
        self.block, self.thread, self.place = block, thread, place
        where = f"block {_index(block)}" + (f", thread {_index(thread)}" if thread else "")
        super().__init__(f"{kernel}: {where}{f', {place}' if place else ''}: {message}")


def _index(index: tuple[int, int, int]) -> str:
    return "({},{},{})".format(*index)
