"""Compiles the module of FlashInfer that the adapter's plan asks for. No GPU is needed.

    python -m pagedattn_flashinfer.modules max_query_len=1 num_kv_heads=32
    python -m pagedattn_flashinfer.modules --to aot head_dim=64 window=4095,-

The fields are those of `pagedattn explain`. FlashInfer's own wrapper plans a small step as the
adapter gives it; what it wants to load is compiled for one GPU and read back. It fails when the
library takes no such plan, when nothing compiles, when there is no code for that GPU and, with
--no-spills, when a kernel spills. Needs the host's C++ compiler, and nvcc from CUDA_HOME, PATH or
the wheels nvidia-cuda-nvcc (with nvidia-nvvm and nvidia-cuda-crt) and nvidia-cuda-runtime.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import pagedattn as pa
from pagedattn.cli.spec_options import parse_spec
from pagedattn.conformance.compile import sass
from pagedattn.emulation import Emulation, Judged
from pagedattn_flashinfer.backend import FlashInferBackend, fault

__all__ = ["main", "wanted"]


class _Wanted(Exception):
    """Thrown in place of loading a module, which takes a driver."""


def wanted(spec: pa.AttentionSpec, sm: tuple[int, int]) -> Any:
    """What FlashInfer would compile for a plan of the adapter: its JitSpec (name, build(), path).

    Raises Unsupported, and whatever the library raises about such a plan."""
    specs = importlib.import_module("flashinfer.jit.core").JitSpec
    empty = torch.empty

    def stop(module: Any) -> None:
        raise _Wanted(module)

    def unpinned(*sizes: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        return empty(*sizes, **options)  # memory is pinned by a driver

    backend = FlashInferBackend()
    backend.emulated = Emulation(pa.DeviceInfo("cuda", sm=sm, real=True), Judged.ADAPTER)
    op = backend.open(spec, pa.Limits(2, 2, 64 * spec.block_size, 8), device="cpu")
    batch = pa.AttentionBatch.build(
        query_lens=[1, 1],
        seq_lens=[1, spec.block_size + 1],
        block_tables=[[1], [2, 3]],
        block_size=spec.block_size,
    )
    with (
        mock.patch.object(torch, "empty", unpinned),
        mock.patch.object(specs, "build_and_load", stop),
    ):
        try:
            op.plan(batch)
        except _Wanted as found:
            return found.args[0]
    raise RuntimeError("FlashInfer planned without a module of its own")


def toolkit() -> Path:
    """The CUDA toolkit: a folder with bin/nvcc. Raises FileNotFoundError."""
    wheels = [Path(folder, "nvidia/cu13") for folder in sys.path]
    on_path = [Path(nvcc).resolve().parents[1]] if (nvcc := shutil.which("nvcc")) else []
    given = [Path(home)] if (home := os.environ.get("CUDA_HOME")) else []
    for home_of in (*given, *wheels, *on_path):
        if (home_of / "bin/nvcc").is_file():
            return home_of
    raise FileNotFoundError(
        "nvcc was not found: set CUDA_HOME, or pip install nvidia-cuda-nvcc nvidia-cuda-runtime"
    )


def link_with(home: Path, folder: Path) -> None:
    """Puts what the linker looks for into a folder: the driver's library is where a driver is, and
    wheels carry the runtime under its full name."""
    stub = ["-shared", "-Wl,-soname,libcuda.so.1", "-o", str(folder / "libcuda.so"), "-xc"]
    subprocess.run([os.environ.get("CC", "cc"), *stub, os.devnull], check=True)
    if runtimes := sorted((home / "lib").glob("libcudart.so.*")):
        (folder / "libcudart.so").symlink_to(runtimes[0])


def read_back(library: Path, arch: str, *, no_spills: bool) -> str:
    """What was compiled, in words. Raises ValueError about code for another GPU, and spills."""
    text = sass.disassemble(library.read_bytes())
    if f"arch = sm_{arch}" not in text:
        raise ValueError(f"{library.name} has no code for sm_{arch}")
    kernels = sass.parse(text)
    spilled = [name for name, usage in kernels.items() if usage.spills or usage.stack]
    if spilled and no_spills:
        raise ValueError(f"{len(spilled)} of {len(kernels)} kernels spill, {spilled[0]} among them")
    most = max(usage.registers for usage in kernels.values())
    return (
        f"{len(kernels)} kernels for sm_{arch}, at most {most} registers, "
        f"{len(spilled) or 'none'} with spills"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when the module was made, 1 when it was not, 2 when the library or nvcc is not here."""
    options = _parser().parse_args(arguments)
    major, _, minor = options.arch.partition(".")
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("FLASHINFER_WORKSPACE_BASE", folder)  # read at import
        if sentence := fault():
            print(sentence, file=sys.stderr)
            return 2
        try:
            home = toolkit()
        except FileNotFoundError as error:
            print(error, file=sys.stderr)
            return 2
        link_with(home, Path(folder))
        os.environ.update(
            CUDA_HOME=str(home),
            FLASHINFER_CUDA_ARCH_LIST=options.arch,
            FLASHINFER_EXTRA_LDFLAGS=f"-L{folder}",
        )
        try:
            module = wanted(parse_spec(options.fields), (int(major), int(minor.rstrip("af") or 0)))
            began = time.monotonic()
            module.build()
            library = Path(module.jit_library_path)
            found = read_back(library, options.arch.replace(".", ""), no_spills=options.no_spills)
        except Exception as error:  # whatever library and compiler raise is a finding
            print(f"FAILED {type(error).__name__}: {error}", file=sys.stderr)
            return 1
        size, seconds = library.stat().st_size, time.monotonic() - began
        print(f"{module.name}: {found}; {size:,} bytes, {seconds:.0f} s")
        if options.to:
            place = options.to / module.name
            place.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, place)
            print(place / library.name)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pagedattn_flashinfer.modules")
    parser.add_argument("fields", nargs="*", metavar="FIELD=VALUE", help="of the AttentionSpec")
    parser.add_argument("--arch", default="9.0a", help="GPU, as FlashInfer names it (%(default)s)")
    parser.add_argument("--no-spills", action="store_true", help="fail when a kernel spills")
    parser.add_argument("--to", type=Path, metavar="DIR", help="keep the library in DIR/NAME/")
    return parser


if __name__ == "__main__":
    sys.exit(main())
