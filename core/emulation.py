"""Emulation: how a backend of GPU kernels executes on a CPU.

PAGEDATTN_EMULATE=1 switches on the emulators that plugins offer (hook pagedattn_emulators), each
for the backend of its name. Such a backend is told of a GPU, computes on tensors of the CPU, and
says so: its row is `emulated`, select() never picks it and nobody may time it.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable
from dataclasses import dataclass

from pagedattn.device import DeviceInfo

__all__ = ["Emulation", "Judged", "wanted"]


class Judged(enum.StrEnum):
    """What a right answer under emulation says something about: the kernels, whose own source was
    executed, or the adapter alone, because a stand-in computed in place of a kernel library."""

    KERNELS = "kernels emulated"
    ADAPTER = "adapter verified"

    @property
    def limit(self) -> str:
        """What no verdict may hide."""
        return "nothing ran on a GPU" if self is Judged.KERNELS else "CUDA kernel not run"


@dataclass(frozen=True)
class Emulation:
    """What an emulator gives to core once it is installed.

    device    the GPU that the backend is told of wherever the device is the CPU
    judged    what runs under this emulation
    capture   runs a callable once and records its kernel launches; what it returns launches the
              same again, with the very pointers, scalars and grids, as a replayed CUDA graph does.
              None when the emulator cannot.
    replaces  what the backend's offer requires and does without here: names of modules
    """

    device: DeviceInfo
    judged: Judged = Judged.KERNELS
    capture: Callable[[Callable[[], None]], Callable[[], None]] | None = None
    replaces: frozenset[str] = frozenset()


def wanted() -> bool:
    """Whether the environment asks for emulation."""
    return os.environ.get("PAGEDATTN_EMULATE", "") not in ("", "0")
