"""Runs a program with g++'s AddressSanitizer preloaded and the kernels of the emulation compiled
for it:

    python -m pagedattn.conformance.emulation.cuda.sanitized pagedattn check cupy -k decode

Python itself is not instrumented, so the sanitizer must be in the process before it: it then
surrounds every allocation, those of NumPy and torch too, by memory that nobody may touch.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pagedattn.conformance.emulation.cuda.errors import CompileError
from pagedattn.conformance.emulation.cuda.toolchain import compiler

__all__ = ["environment", "main"]

# Python leaves memory to the end of the process; the C++ library comes first because the sanitizer
# looks for its exceptions when it starts.
_OPTIONS = "detect_leaks=0"
_LIBRARIES = ("libasan.so", "libstdc++.so")


def environment() -> Mapping[str, str]:
    """What to set for a program in which Check.SANITIZERS works.

    Raises CompileError when the compiler has no AddressSanitizer."""
    libraries = [_library(name) for name in _LIBRARIES]
    before = os.environ.get("LD_PRELOAD")
    options = os.environ.get("ASAN_OPTIONS")
    return {
        "LD_PRELOAD": ":".join([*libraries, *([before] if before else [])]),
        "ASAN_OPTIONS": f"{_OPTIONS}:{options}" if options else _OPTIONS,
        "PAGEDATTN_SIMT_SANITIZE": "1",
    }


def _library(name: str) -> str:
    command = [compiler()[0], f"-print-file-name={name}"]
    path = Path(subprocess.run(command, capture_output=True, text=True).stdout.strip())
    if not path.is_absolute():  # g++ echoes a name that it does not know
        raise CompileError("the CUDA emulation", f"{compiler()[1]} comes without {name}")
    return str(path.resolve())


def main(arguments: Sequence[str]) -> int:
    """Becomes the program; 2 when it cannot."""
    if not arguments or arguments[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        os.execvpe(arguments[0], list(arguments), {**os.environ, **environment()})
    except (OSError, CompileError) as error:
        print(f"{arguments[0]}: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
