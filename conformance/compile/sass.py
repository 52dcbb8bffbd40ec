"""Reads a cubin: registers, stack, spills, shared memory, matrix instructions, width of loads.

Needs cuobjdump, of a CUDA toolkit on PATH or of the Triton wheel; no GPU and no driver.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from pagedattn.conformance.compile.usage import Usage

__all__ = ["disassemble", "find_cuobjdump", "parse", "read"]

_RESOURCES = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
_FUNCTION = re.compile(r"^\s*Function : (\S+)", re.MULTILINE)
# An instruction: its address as a comment, a predicate perhaps, the opcode with its modifiers.
_OPCODE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P[T\d]+\s+)?([A-Z][A-Z0-9]*(?:\.\w+)*)")
_MATRIX = re.compile(r"[A-Z]*(?:HMMA|IMMA|DMMA|GMMA|QMMA|OMMA|BMMA)$")
_WIDTHS = {"64": 64, "128": 128, "256": 256, "U8": 8, "S8": 8, "U16": 16, "S16": 16}


@functools.cache
def find_cuobjdump() -> str:
    """Path of cuobjdump. Raises FileNotFoundError."""
    if found := shutil.which("cuobjdump"):
        return found
    triton = importlib.util.find_spec("triton")
    for folder in (triton.submodule_search_locations or []) if triton else []:
        path = Path(folder) / "backends/nvidia/bin/cuobjdump"
        if path.is_file():
            return str(path)
    raise FileNotFoundError(
        "cuobjdump was not found: put a CUDA toolkit on PATH, or install triton, whose wheel has it"
    )


def disassemble(cubin: bytes) -> str:
    """Resource usage and SASS of every function of a cubin, as text."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [find_cuobjdump(), "--dump-resource-usage", "-sass", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or "Function" not in done.stdout:
        raise ValueError(f"cuobjdump cannot read this cubin ({len(cubin)} bytes): {done.stderr}")
    return done.stdout


def read(cubin: bytes, *, shared: int | None = None) -> dict[str, Usage]:
    """Usage by function name. `shared`: bytes of static and dynamic shared memory together, which
    a cubin does not tell; static alone when None."""
    return parse(disassemble(cubin), shared=shared)


def parse(text: str, *, shared: int | None = None) -> dict[str, Usage]:
    """Usage by function name, of what disassemble() returns."""
    opcodes = _opcodes(text)
    found = {}
    for name, *numbers in _RESOURCES.findall(text):
        registers, stack, static, local = map(int, numbers)
        codes = opcodes.get(name, Counter())
        found[name] = Usage(
            registers=registers,
            shared=static if shared is None else shared,
            stack=max(stack, local),
            spills=sum(n for code, n in codes.items() if code.split(".")[0] in ("LDL", "STL")),
            mma={c: n for c, n in codes.items() if _MATRIX.fullmatch(c.split(".")[0])},
            loads=_loads(codes),
        )
    return found


def _opcodes(text: str) -> dict[str, Counter[str]]:
    """Opcodes by function."""
    starts = [*_FUNCTION.finditer(text)]
    ends = [m.start() for m in starts[1:]] + [len(text)]
    return {
        start[1]: Counter(_OPCODE.findall(text, start.end(), end))
        for start, end in zip(starts, ends, strict=True)
    }


def _loads(codes: Counter[str]) -> dict[int, int]:
    """Loads from global memory, into registers or straight to shared memory, by width in bits."""
    widths: Counter[int] = Counter()
    for code, count in codes.items():
        name, *modifiers = code.split(".")
        if name in ("LDG", "LDGSTS"):
            widths[next((_WIDTHS[m] for m in modifiers if m in _WIDTHS), 32)] += count
    return dict(widths)
