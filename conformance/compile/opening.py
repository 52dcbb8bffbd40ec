"""What the cupy backend loads when it opens an op, noted instead of compiled: the kernels that
open() itself asks for, and no list of ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import torch

from pagedattn.backends.cupy import driver, loader, op
from pagedattn.backends.cupy.backend import CupyBackend
from pagedattn.backends.cupy.heuristics import Kernel
from pagedattn.backends.cupy.loader import Launch
from pagedattn.conformance.compile.specs import ModelSpec
from pagedattn.device import DeviceInfo
from pagedattn.emulation import Emulation

__all__ = ["Loaded", "loaded"]


@dataclass(frozen=True)
class Loaded:
    """A kernel, and what the compiler is given for it: source, options, architecture (sm_90)."""

    kernel: Kernel
    source: str
    options: tuple[str, ...]
    arch: str


class _Recorder:
    """Stands for the driver and for loader.load() while an op is opened."""

    def __init__(self) -> None:
        self.found: list[Loaded] = []
        self._given: tuple[str, tuple[str, ...], str] | None = None

    def load(
        self, source: str, options: Sequence[str], names: Sequence[str], arch: str
    ) -> dict[str, Any]:
        self._given = source, tuple(options), arch
        return {name: SimpleNamespace(max_dynamic_shared_size_bytes=0) for name in names}

    def stream(self, device: torch.device) -> int:
        raise RuntimeError("open() launches a kernel")

    def note(self, kernel: Kernel, info: DeviceInfo, device: torch.device) -> Launch:
        """loader.load()"""
        self._given = None
        launch = loader.load(kernel, info, device)
        if self._given is not None:  # else this op has loaded it before
            self.found.append(Loaded(kernel, *self._given))
        return launch


def loaded(
    backend: type[CupyBackend], model: ModelSpec, device: DeviceInfo, tuning: Mapping[str, int]
) -> list[Loaded]:
    """What the backend loads for a model's op on a GPU that may be made up, each kernel once."""
    opened = backend()
    opened.emulated = Emulation(device)
    with _recording() as recorder:
        opened.open(model.spec, model.limits, device="cpu", tuning=tuning)
    return recorder.found


@contextmanager
def _recording() -> Iterator[_Recorder]:
    recorder, seam = _Recorder(), cast(Any, op)
    before = driver.DRIVER, seam.load
    driver.DRIVER, seam.load = recorder, recorder.note
    try:
        yield recorder
    finally:
        driver.DRIVER, seam.load = before
