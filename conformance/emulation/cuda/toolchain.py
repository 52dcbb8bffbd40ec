"""The host compiler, its flags, and the cache of what it built.

Everything built is kept under PAGEDATTN_SIMT_CACHE (default: ~/.cache/pagedattn/simt), under a name
that depends on all that goes into it: source and every file it includes, flags, compiler, processor
and this package's own headers. Folders appear there by rename and hold a digest of their files, so
that concurrent processes, a crash in the middle and a damaged file do no harm. What another user
may have written is not loaded (user_cache.trusted()).
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from pagedattn.conformance.emulation.cuda.checks import (
    Check,
    compile_flags,
    require_sanitizer,
    wanted,
)
from pagedattn.conformance.emulation.cuda.errors import CompileError
from pagedattn.errors import NotReady
from pagedattn.user_cache import cache_path, sweep, trusted

__all__ = [
    "INCLUDE",
    "build_once",
    "compiler",
    "digest",
    "flags",
    "headers",
    "probe",
    "run",
]

ROOT = Path(__file__).parent
INCLUDE = ROOT / "include"
RUNTIME = ROOT / "runtime"

# no-strict-aliasing: kernels read float4 from arrays of anything. fp-contract: as on the GPU.
# no-extern-tls-init: `extern __shared__` arrays need no initialiser.
_FLAGS = (
    "-O1",
    "-march=native",
    "-fPIC",
    "-fno-plt",
    "-fno-strict-aliasing",
    "-fno-extern-tls-init",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-stack-protector",
    "-fno-exceptions",
    "-fvisibility=hidden",
    "-Wno-unknown-pragmas",
    "-Wno-attributes",
)


def flags(standard: str, checks: Check) -> tuple[str, ...]:
    """The compiler flags of kernels in this version of C++."""
    return (f"-std={standard}", *_FLAGS, *compile_flags(checks))


@functools.cache
def compiler() -> tuple[str, str]:
    """The g++ to use (CXX, else g++ in PATH) and its version."""
    name = os.environ.get("CXX", "g++")
    path = shutil.which(name)
    if path is None:
        raise CompileError("the CUDA emulation", f"no C++ compiler: {name!r} is not in PATH")
    done = subprocess.run([path, "--version"], capture_output=True, text=True)
    version = (done.stdout.splitlines() or ["something else"])[0]
    if done.returncode or "Free Software Foundation" not in done.stdout:
        raise CompileError("the CUDA emulation", f"g++ 12 or newer is needed, {path} is {version}")
    return path, version


def probe() -> None:
    """NotReady, with what to do, when kernels could not be built here."""
    try:
        if wanted(None) & Check.SANITIZERS:
            require_sanitizer("the CUDA emulation")
    except CompileError as error:
        raise NotReady("emulator", "cupy", "unavailable", error.log) from error
    try:
        compiler()
        cache().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache()):
            pass
    except CompileError as error:
        raise NotReady("emulator", "cupy", "unavailable", f"{error.log}; set CXX") from error
    except OSError as error:
        detail = f"nothing can be kept in {cache()} ({error}); set PAGEDATTN_SIMT_CACHE"
        raise NotReady("emulator", "cupy", "unavailable", detail) from error


@functools.cache
def _processor() -> str:
    """What -march=native depends on."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        text = ""
    found = re.search(r"^(?:flags|Features)\s*:.*$", text, re.MULTILINE)
    return platform.machine() + (found[0] if found else "")


@functools.cache
def headers() -> str:
    """A digest of this package's own headers."""
    files = sorted(INCLUDE.rglob("*.h"))
    return digest(*(part for f in files for part in (str(f.relative_to(ROOT)), f.read_text())))


def digest(*parts: str) -> str:
    """One hex digest of several texts."""
    h = hashlib.sha256()
    for part in parts:
        h.update(f"{len(part)}:".encode())
        h.update(part.encode())
    return h.hexdigest()[:24]


def cache() -> Path:
    """The folder of everything built."""
    return cache_path("simt", variable="PAGEDATTN_SIMT_CACHE")


def build_once(key: str, build: Callable[[Path], None]) -> Path:
    """The cache's folder `key`; when it is not there whole, `build` fills it, in a temporary
    place."""
    place = cache() / key
    if _is_whole(place):
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    sweep(place.parent, f".{key.partition('-')[0]}-*")
    work = place.parent / f".{key}.{os.urandom(8).hex()}"
    work.mkdir(mode=0o755)  # as the umask says, but nobody else writes
    try:
        build(work)
        (work / _SEAL).write_text(_contents(work))
        for file in work.iterdir():
            file.chmod(file.stat().st_mode & ~0o022)
        for attempt in range(4):  # other processes do the same
            try:
                work.rename(place)
                break
            except OSError:
                if _is_whole(place):  # another process was faster
                    break
                if attempt == 3:
                    raise
                shutil.rmtree(place, ignore_errors=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return place


_SEAL = "contents"
_whole: set[Path] = set()  # what this process found whole: a library in use is not read again


def _contents(folder: Path) -> str:
    """Name and digest of each file."""
    files = sorted(f for f in folder.iterdir() if f.name != _SEAL)
    return "".join(f"{hashlib.sha256(f.read_bytes()).hexdigest()}  {f.name}\n" for f in files)


def _is_whole(folder: Path) -> bool:
    """Whether the files are there as they were built. A truncated library would end the process."""
    if folder in _whole:
        return folder.is_dir()
    try:
        if not all(trusted(path.stat(), folder.parent) for path in (folder, *folder.iterdir())):
            return False
        whole = (folder / _SEAL).read_text() == _contents(folder)
    except (OSError, UnicodeDecodeError):
        return False
    if whole:
        _whole.add(folder)
    return whole


_PTX = (
    "inline PTX, which a CPU cannot run: where PAGEDATTN_SIMT is defined, call the model in "
    "include/simt/ptx.h or wgmma.h, or plain C++"
)


def run(command: Sequence[str], *, name: str, folder: Path) -> None:
    """Runs the compiler in `folder`, without what was preloaded into this process; CompileError
    with its log, from which that folder's name is cut away."""
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=plain)
    if done.returncode:
        log = done.stderr.replace(f"{folder}/", "")
        if "no such instruction" in log or "Assembler messages" in log:
            log = f"{_PTX}\n{log}"
        raise CompileError(name, log)


def key_of(*parts: str) -> str:
    """A cache key that also depends on the compiler, the processor, the headers and where they
    are: what is built knows its source lines."""
    return digest(compiler()[1], _processor(), headers(), str(INCLUDE), *parts)


def prefix(kernel_flags: tuple[str, ...]) -> Path:
    """The precompiled simt.h for these flags: what to name after -include."""

    def build(work: Path) -> None:
        (work / "prefix.h").write_text('#include "simt.h"\n')
        command = [compiler()[0], *kernel_flags, "-I", str(INCLUDE), "-x", "c++-header"]
        run(
            [*command, str(work / "prefix.h"), "-o", str(work / "prefix.h.gch")],
            name="simt.h",
            folder=work,
        )

    return build_once(f"prefix-{key_of(*kernel_flags)}", build) / "prefix.h"


def runtime() -> Path:
    """The runtime library: fibers, barriers, warps, checks."""
    sources = sorted(RUNTIME.glob("*.cpp"))
    texts = [f.read_text() for f in sorted(RUNTIME.iterdir()) if f.suffix in (".cpp", ".h")]

    def build(work: Path) -> None:
        command = [compiler()[0], "-std=c++17", "-O3", "-march=native", "-fPIC", "-shared"]
        command += ["-fvisibility=hidden", "-fno-strict-aliasing", "-DSIMT_RUNTIME"]
        command += ["-I", str(INCLUDE), *map(str, sources), "-o", str(work / "runtime.so")]
        run(command, name="the emulation's runtime", folder=work)

    return build_once(f"runtime-{key_of(*texts)}", build) / "runtime.so"
