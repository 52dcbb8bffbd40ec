"""From CUDA source to a shared library: entry points, includes, the shared-memory segment."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pagedattn.conformance.emulation.cuda import toolchain
from pagedattn.conformance.emulation.cuda.checks import Check, link_flags
from pagedattn.conformance.emulation.cuda.elf import tls_symbols
from pagedattn.conformance.emulation.cuda.errors import CompileError
from pagedattn.conformance.emulation.cuda.options import Options
from pagedattn.device import SHARED_MEM

__all__ = ["DYNAMIC_BYTES", "GUARD_BYTES", "Source", "build", "kernel_names"]

DYNAMIC_BYTES = max(SHARED_MEM.values())
GUARD_BYTES = 4096  # canaries behind it

_EXPORT = '__attribute__((visibility("default")))'
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">]+)[">]', re.MULTILINE)
_GLOBAL = re.compile(r"\b__global__\b[^;{}]*?\bvoid\b[^;{}]*?\b(\w+)\s*\(")
_BOUNDS = re.compile(r"__\w+__\s*\([^()]*\)")  # __launch_bounds__(...) and the like
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


@dataclass(frozen=True)
class Source:
    """A kernel's source: its text, the name that messages use, and the folder of its includes."""

    text: str
    name: str
    folder: Path | None = None


def kernel_names(text: str) -> list[str]:
    """Names of the functions that `text` itself declares __global__."""
    return list(dict.fromkeys(_GLOBAL.findall(_BOUNDS.sub("", _COMMENT.sub("", text)))))


def build(source: Source, names: tuple[str, ...], options: Options, *, checks: Check) -> Path:
    """The shared library of these kernels: simt_kernel_0, ... in the order of the names."""
    given = toolchain.flags(options.standard, checks)
    folders = ((source.folder,) if source.folder else ()) + options.include
    text = _with_entries(source, names)
    defined = (f"-D__CUDA_ARCH__={options.arch * 10}", *options.definitions)
    linked = link_flags(checks)
    key = toolchain.key_of(text, *defined, *given, *linked, *_included(source.text, folders))

    def compile_to(work: Path) -> None:
        file, obj = work / "kernel.cpp", work / "kernel.o"
        file.write_text(text)
        gcc = toolchain.compiler()[0]
        command = [gcc, *given, *defined, "-include", str(toolchain.prefix(given))]
        command.append(f"-fdebug-prefix-map={work}=.")
        for folder in (toolchain.INCLUDE, *folders):  # cuda_fp16.h and the like are ours
            command += ["-I", str(folder.resolve())]
        toolchain.run([*command, "-c", str(file), "-o", str(obj)], name=source.name, folder=work)
        stub = work / "shared.s"
        stub.write_text(_shared_segment(obj, source.name))
        link = [gcc, *linked, "-shared", str(obj), str(stub)]
        link += ["-o", str(work / "kernel.so")]
        toolchain.run(link, name=source.name, folder=work)
        obj.unlink()

    return toolchain.build_once(f"kernel-{key}", compile_to) / "kernel.so"


def _with_entries(source: Source, names: tuple[str, ...]) -> str:
    entries = "\n".join(
        f'extern "C" {_EXPORT} const simt::Kernel *simt_kernel_{i}() {{\n'
        f"  static constexpr simt::Kernel kernel = simt::kernel<&{name}>();\n"
        "  return &kernel;\n}"
        for i, name in enumerate(names)
    )
    return (
        f'#line 1 "{source.name}"\n{source.text}\n#line 1 "name expressions"\n{entries}\n'
        "extern thread_local char simt_dynamic[];\n"
        f'extern "C" {_EXPORT} char *simt_dynamic_shared() {{ return simt_dynamic; }}\n'
    )


def _shared_segment(obj: Path, name: str) -> str:
    """Assembly that defines every `extern __shared__` array of the object: one and the same place,
    between two guards."""
    arrays = [s.name for s in tls_symbols(obj) if not s.defined]
    lines = ['.section .tbss.simt,"awT",@nobits', ".balign 128", ".globl simt_guard"]
    lines += [".type simt_guard,@object", "simt_guard:", ".zero 128", ".size simt_guard, 128"]
    for array in arrays:
        lines += [f".globl {array}", f".hidden {array}", f".type {array},@object", f"{array}:"]
    lines += [f".zero {DYNAMIC_BYTES + GUARD_BYTES}"]
    lines += [f".size {array}, {DYNAMIC_BYTES + GUARD_BYTES}" for array in arrays]
    if "simt_dynamic" not in arrays:
        raise CompileError(name, "the kernel defines simt_dynamic: that name is the emulation's")
    return "\n".join([*lines, '.section .note.GNU-stack,"",%progbits', ""])


def _included(text: str, folders: tuple[Path, ...]) -> list[str]:
    """The texts of all files that `text` includes, directly or not, from `folders`."""
    texts: list[str] = []
    seen: set[Path] = set()
    todo = [(text, folders)]
    while todo:
        here, search = todo.pop()
        for name in _INCLUDE.findall(here):
            for folder in search:
                path = (folder / name).resolve()
                if path.is_file():
                    if path not in seen:
                        seen.add(path)
                        texts += [str(path), path.read_text()]
                        todo.append((texts[-1], (path.parent, *folders)))
                    break
    return texts
