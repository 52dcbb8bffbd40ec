"""What is looked for at every access of a kernel, and how it is compiled for that."""

from __future__ import annotations

import ctypes
import os
import shlex
from enum import IntFlag

from pagedattn.conformance.emulation.cuda.errors import CompileError

__all__ = ["Check", "compile_flags", "link_flags", "require_sanitizer", "wanted"]


class Check(IntFlag):
    """What checked mode looks for at every access.

    BOUNDS         memory that the kernel was not given, writes through const pointers
    RACES          shared memory: two threads, one of them writing, no barrier between
    UNINITIALISED  shared memory read before any thread of the block wrote it
    SANITIZERS     what g++'s AddressSanitizer and UndefinedBehaviorSanitizer look for: memory that
                   is no live object's, signed overflow, shifts too far, null pointers, ...; not
                   together with the others, and only where AddressSanitizer was preloaded

    All of them also find misaligned accesses and indices outside arrays of known size.
    """

    BOUNDS = 1
    RACES = 2
    UNINITIALISED = 4
    SANITIZERS = 8


# dwarf-4: of version 5, addr2line up to 2.40 takes the first file name for the second.
_HOOKS = (
    "-g1",
    "-gdwarf-4",
    "-fsanitize=thread,bounds,alignment",
    "-fno-sanitize-recover=all",
    "--param=tsan-distinguish-volatile=1",
    "--param=tsan-instrument-func-entry-exit=0",
)
# vptr wants run-time types. Accesses are compared with the shadow in place, so that every report
# comes by the runtime; frames stay on the fiber's stack.
_SANITIZERS = (
    "-g1",
    "-gdwarf-4",
    "-fsanitize=address,undefined",
    "-fno-sanitize=vptr",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
    "--param=asan-instrumentation-with-call-threshold=1000000000",
    "--param=asan-use-after-return=0",
)
_LIBRARY_CALLS = ("memcpy", "memset", "memmove")
_ADDRESS_CALLS = (
    "__asan_handle_no_return",
    *(f"__asan_report_{a}{size}" for a in ("load", "store") for size in (1, 2, 4, 8, 16, "_n")),
)


def wanted(given: bool | Check | None) -> Check:
    """The checks of a module that was given checked=; None asks the environment.

    Raises ValueError for sanitizers together with other checks."""
    if given is None and _is_set("PAGEDATTN_SIMT_SANITIZE"):
        given = Check.SANITIZERS
    if given is None:
        given = _is_set("PAGEDATTN_SIMT_CHECKED")
    if not isinstance(given, Check):
        return Check.BOUNDS | Check.RACES if given else Check(0)
    if Check.SANITIZERS in given and given != Check.SANITIZERS:
        raise ValueError(f"checked={given!r}: the sanitizers go with no other check; run twice")
    return given


def _is_set(name: str) -> bool:
    return os.environ.get(name, "") not in ("", "0")


def compile_flags(checks: Check) -> tuple[str, ...]:
    """For the compiler of kernels."""
    if not checks:
        return ()
    return _SANITIZERS if checks & Check.SANITIZERS else _HOOKS


def link_flags(checks: Check) -> tuple[str, ...]:
    """For the linker: calls that the runtime (runtime/checks.cpp, sanitizers.cpp) answers."""
    calls = [*_LIBRARY_CALLS, *(_ADDRESS_CALLS if checks & Check.SANITIZERS else ())]
    return tuple(f"-Wl,--wrap={call}" for call in calls) if checks else ()


def require_sanitizer(name: str) -> None:
    """CompileError, with what to type, unless AddressSanitizer came before everything else."""
    if hasattr(ctypes.CDLL(None), "__asan_region_is_poisoned"):
        return
    line = "python -m pagedattn.conformance.emulation.cuda.sanitized"
    raise CompileError(
        name,
        "Check.SANITIZERS (PAGEDATTN_SIMT_SANITIZE=1) needs AddressSanitizer in the process from "
        f"its start, and it is not there; start the program by `{line} PROGRAM ...`, "
        f"e.g. `{line} {shlex.join(['python', '-m', 'pytest', 'test_my_kernel.py'])}`",
    )
