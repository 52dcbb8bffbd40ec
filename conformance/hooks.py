"""What the conformance suite offers to the rest of pagedattn."""

from __future__ import annotations

import os
import shutil

from pagedattn.hooks import Offer, hookimpl


@hookimpl
def pagedattn_emulators() -> list[Offer]:
    return [
        Offer(
            "triton",
            "pagedattn.conformance.emulation.triton:install",
            summary="Triton's interpreter, repaired and bounds-checked",
            requires=("triton",),
            install="pip install 'pagedattn[triton]'",
        ),
        Offer(
            "cupy",
            "pagedattn.conformance.emulation.cuda:install",
            summary="the same CUDA C++ source, compiled for the CPU",
            missing=_no_compiler,
        ),
        Offer(
            "flash_attn",
            "pagedattn.conformance.emulation.flash_attn:install",
            summary="the package's own Python functions over a stand-in of its compiled extension",
            requires=("flash_attn",),
            install="pip install 'pagedattn[flash-attn]'",
        ),
    ]


def _no_compiler() -> str | None:
    name = os.environ.get("CXX", "g++")
    if shutil.which(name):
        return None
    return f"no C++ compiler: {name!r} is no program in PATH; install g++ or set CXX to one"


@hookimpl
def pagedattn_commands() -> list[Offer]:
    return [
        Offer(
            "check",
            "pagedattn.conformance.cli:check",
            summary="judge backends and allocators by the conformance suite",
        ),
        Offer(
            "matrix",
            "pagedattn.conformance.matrix_cli:matrix",
            summary="stored reports side by side: who serves what",
        ),
    ]
