"""The emulator of the backend named cupy: its one seam, and what core is told."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from pagedattn.conformance.emulation.cuda.function import Function, recording
from pagedattn.conformance.emulation.cuda.module import RawModule
from pagedattn.conformance.emulation.cuda.toolchain import probe
from pagedattn.conformance.emulation.device import emulated_gpu
from pagedattn.emulation import Emulation, Judged

__all__ = ["DEVICE", "EmulatedDriver", "capture", "install"]

DEVICE = emulated_gpu(num_sms=32)
_SEAM = "pagedattn.backends.cupy.driver"


class EmulatedDriver:
    """What the backend asks of CuPy, answered on the CPU."""

    def load(
        self, source: str, options: Sequence[str], names: Sequence[str], arch: str
    ) -> dict[str, Function]:
        """name expression -> kernel; `arch` as in sm_90."""
        module = RawModule(
            code=source, options=(*options, f"-arch={arch}"), name_expressions=tuple(names)
        )
        return {name: module.get_function(name) for name in names}

    def stream(self, device: Any) -> int:
        """The default stream: a launch on the CPU is over when it returns."""
        return 0


def capture(launch: Callable[[], None]) -> Callable[[], None]:
    """Runs `launch`; what it returns makes the same kernel launches again, with the very pointers,
    scalars, grids and blocks."""
    with recording() as launches:
        launch()

    def replay() -> None:
        for again in launches:
            again()

    return replay


def install() -> Emulation:
    """Puts EmulatedDriver in the place of the cupy backend's driver. Raises NotReady when kernels
    cannot be built here."""
    probe()
    seam: Any = importlib.import_module(_SEAM)
    seam.DRIVER = EmulatedDriver()
    return Emulation(
        device=DEVICE, judged=Judged.KERNELS, capture=capture, replaces=frozenset({"cupy"})
    )
