"""NVRTC: CUDA C++ source to a cubin, without nvcc and without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pagedattn.errors import NotReady, PagedAttnError

__all__ = ["Binary", "KernelCompileError", "architectures", "compile_source", "nvrtc_version"]


class KernelCompileError(PagedAttnError, RuntimeError):
    """NVRTC refused a source: `names` is what was asked for, `log` what it said."""

    def __init__(self, names: Sequence[str], arch: str, log: str) -> None:
        self.names, self.arch, self.log = tuple(names), arch, log
        super().__init__(
            f"NVRTC {'.'.join(map(str, nvrtc_version()))} could not compile "
            f"{', '.join(names)} for {arch}; report this with the compiler's log:\n{log.strip()}"
        )


@dataclass(frozen=True)
class Binary:
    """cubin; name expression -> symbol in it; what the compiler said."""

    cubin: bytes
    symbols: dict[str, str]
    log: str


def nvrtc_version() -> tuple[int, int]:
    """(13, 0). Raises NotReady when there is no NVRTC."""
    try:
        from cupy.cuda import nvrtc

        major, minor = nvrtc.getVersion()
    except Exception as error:  # ImportError, or CuPy's own when the library cannot be loaded
        raise NotReady(
            "backend",
            "cupy",
            "unavailable",
            f"NVRTC cannot be loaded ({error}); pip install nvidia-cuda-nvrtc of the CUDA version "
            "that CuPy was built for",
        ) from error
    return major, minor


def architectures() -> tuple[str, ...]:
    """What this NVRTC compiles for: sm_75, ... Raises NotReady when there is no NVRTC."""
    nvrtc_version()
    from cupy.cuda import nvrtc

    return tuple(f"sm_{number}" for number in nvrtc.getSupportedArchs())


def compile_source(
    source: str, options: Sequence[str], names: Sequence[str], arch: str, *, file: str = "kernel.cu"
) -> Binary:
    """Compiles now. Raises KernelCompileError with the log."""
    from cupy.cuda import nvrtc

    program = nvrtc.createProgram(source, file, (), ())
    try:
        for name in names:
            nvrtc.addNameExpression(program, name)
        try:
            nvrtc.compileProgram(program, (*options, f"-arch={arch}"))
        except nvrtc.NVRTCError as error:
            log = nvrtc.getProgramLog(program) or str(error)
            raise KernelCompileError(names, arch, log) from error
        symbols = {name: nvrtc.getLoweredName(program, name) for name in names}
        # CuPy drops the last byte of the ELF file.
        cubin = nvrtc.getCUBIN(program) + b"\0"
        return Binary(cubin, symbols, nvrtc.getProgramLog(program))
    finally:
        nvrtc.destroyProgram(program)
