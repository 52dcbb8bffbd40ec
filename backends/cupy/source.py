"""The CUDA sources as single strings: `#include "x.cuh"` is resolved here, each file once.

A compiler then needs no include path, the cache key covers every byte that is compiled, and #line
keeps file names and line numbers in the compiler's messages.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

__all__ = ["KERNELS", "OPTIONS", "source"]

KERNELS = Path(__file__).parent / "kernels"

OPTIONS = ("-std=c++17",)
"""Of every compilation; the architecture is added by the compiler."""

_INCLUDE = re.compile(r'^#include "([\w.]+\.cuh)"\n', re.MULTILINE)


@cache
def source(name: str) -> str:
    """The text of kernels/<name> with its own headers in place."""
    return _resolved(name, set())


def _resolved(name: str, seen: set[str]) -> str:
    if name in seen:
        return ""
    seen.add(name)
    text = (KERNELS / name).read_text().replace("#pragma once\n", "\n")
    out, line = [f'#line 1 "{name}"\n'], 1
    position = 0
    for match in _INCLUDE.finditer(text):
        before = text[position : match.start()]
        line += before.count("\n") + 1
        out += [before, _resolved(match[1], seen), f'#line {line} "{name}"\n']
        position = match.end()
    return "".join([*out, text[position:]])
