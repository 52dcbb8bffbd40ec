"""install(): Triton's interpreter, repaired, under the name of a GPU."""

from __future__ import annotations

import os
import sys
import warnings

from pagedattn.conformance.emulation.device import emulated_gpu
from pagedattn.emulation import Emulation
from pagedattn.errors import NotReady

__all__ = ["VERIFIED", "install"]

VERIFIED = ("3.6.0", "3.7.0", "3.7.1", "3.8.0", "3.9.0")
"""Versions of Triton for which every repair was seen to be needed or harmless, and to hold."""

_DEVICE = emulated_gpu(num_sms=8)
_installed: list[Emulation] = []


def install() -> Emulation:
    """Sets TRITON_INTERPRET=1, imports Triton and repairs its interpreter. A second call changes
    nothing.

    Raises NotReady when Triton was imported before without interpreting, or is too old. Warns of
    a version that is not in VERIFIED."""
    if _installed:
        return _installed[0]
    before = "triton" in sys.modules
    os.environ["TRITON_INTERPRET"] = "1"
    import triton
    from triton.runtime import interpreter

    if not isinstance(triton.language.sum, interpreter.InterpretedFunction):
        assert before, "TRITON_INTERPRET=1 had no effect on the import of triton"
        raise NotReady(
            "emulator",
            "triton",
            "unusable",
            "triton was imported before with TRITON_INTERPRET unset, and its functions are bound "
            "to the compiler; start the process with TRITON_INTERPRET=1",
        )
    _require_known(triton.__version__)
    from pagedattn.conformance.emulation.triton import (
        arithmetic,
        capture,
        language,
        launch,
        memory,
        reductions,
        speed,
    )

    arithmetic.install(interpreter.InterpreterBuilder)
    memory.install(interpreter.InterpreterBuilder)
    reductions.install()
    speed.install()
    language.install()
    launch.install()
    _installed.append(Emulation(device=_DEVICE, capture=capture.capture))
    return _installed[0]


def _require_known(version: str) -> None:
    if version in VERIFIED:
        return
    verified = ", ".join(VERIFIED)
    if tuple(map(int, version.split(".")[:2])) < (3, 6):
        raise NotReady(
            "emulator", "triton", "unusable", f"triton {version} is too old; verified: {verified}"
        )
    warnings.warn(
        f"the repair of Triton's interpreter was not verified for triton {version}, only for "
        f"{verified}: run tests/test_emulation_triton.py before you trust its results",
        stacklevel=3,
    )
