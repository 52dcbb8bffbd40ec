"""The options of NVRTC, and what they mean on a CPU."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Options"]

# Long forms, with their value behind = or in the next word.
_LONG = {"--include-path": "-I", "--define-macro": "-D", "--undefine-macro": "-U"}
_ARCH = re.compile(r"(?:--gpu-architecture|-arch)=(?:sm|compute)_(\d+)[af]?$")
_STANDARD = re.compile(r"--?std=(c\+\+\d\d)$")
# Without meaning on a CPU.
_FLAGS = {
    "--use_fast_math", "-use_fast_math", "--restrict", "-restrict", "--minimal", "-minimal",
    "--generate-line-info", "-lineinfo", "--device-debug", "-G", "--disable-warnings", "-w",
    "--device-as-default-execution-space", "-default-device", "--extra-device-vectorization",
    "-extra-device-vectorization", "--device-int128", "-device-int128", "--no-source-include",
    "-no-source-include",
}  # fmt: skip
_VALUED = {
    "ptxas-options", "maxrregcount", "ftz", "prec-sqrt", "prec-div", "fmad", "dopt", "diag-error",
    "relocatable-device-code", "rdc", "split-compile", "diag-suppress", "diag-warn",
}  # fmt: skip


@dataclass(frozen=True)
class Options:
    """Options that matter here.

    arch         compute capability times ten; __CUDA_ARCH__ is ten times as much
    include      folders
    definitions  -D and -U, for the host compiler
    standard     the language, at least C++17: simt.h needs that
    """

    arch: int
    include: tuple[Path, ...]
    definitions: tuple[str, ...]
    standard: str

    @classmethod
    def parse(cls, options: Iterable[str]) -> Options:
        """ValueError for an option that is unknown: it might change what the kernel means."""
        arch, standard = 90, "c++17"
        include: list[Path] = []
        definitions: list[str] = []
        words = iter(options)
        for word in words:
            name, equals, value = word.partition("=")
            if found := _ARCH.match(word):
                arch = int(found[1])
            elif found := _STANDARD.match(word):
                standard = max(found[1].replace("c++03", "c++17"), "c++17")
            elif name in _LONG or word[:2] in ("-I", "-D", "-U"):
                short = _LONG.get(name, word[:2])
                given = value if name in _LONG else word[2:]
                given = given or next(words, "")
                if not given:
                    raise ValueError(f"option {word!r} needs a value")
                if short == "-I":
                    include.append(Path(given))
                else:
                    definitions.append(short + given)
            elif word not in _FLAGS and not (equals and name.lstrip("-") in _VALUED):
                raise ValueError(f"option {word!r}: the emulation does not know what it means")
        return cls(arch, tuple(include), tuple(definitions), standard)
