"""DeviceInfo: what a backend needs to know about a device, real or made up."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from pagedattn.errors import UnknownName

__all__ = ["SHARED_MEM", "DeviceInfo", "is_present"]

_ARCH = re.compile(r"(?:sm_?|compute_?)(\d{2,3})[a-f]?$")

_99_KIB, _163_KIB, _227_KIB = 99 * 1024, 163 * 1024, 227 * 1024
SHARED_MEM: Mapping[tuple[int, int], int] = MappingProxyType(
    {(7, 0): 96 * 1024, (7, 5): 64 * 1024}
    | dict.fromkeys([(8, 0), (8, 7)], _163_KIB)
    | dict.fromkeys([(8, 6), (8, 9), (12, 0), (12, 1)], _99_KIB)
    | dict.fromkeys([(9, 0), (10, 0), (10, 3), (11, 0)], _227_KIB)
)
"""Bytes of shared memory that one CTA may use, by compute capability (CUDA C++ Programming Guide,
technical specifications per compute capability)."""


@dataclass(frozen=True)
class DeviceInfo:
    """A device. It may be made up: `explain --device sm90` needs no GPU.

    type         torch device type: "cpu", "cuda", ...
    sm           CUDA compute capability, (9, 0) for sm_90; None elsewhere
    name         for people
    num_sms      multiprocessors (0 when unknown)
    shared_mem   bytes of shared memory that one CTA may use (0 when unknown)
    real         whether this is a device of this machine: only then may check() probe it
    """

    type: str
    sm: tuple[int, int] | None = None
    name: str = ""
    num_sms: int = 0
    shared_mem: int = 0
    real: bool = False

    @property
    def shared_limit(self) -> int:
        """Bytes of shared memory to count on: shared_mem, else what the architecture has, else what
        all since sm_80 have."""
        return self.shared_mem or SHARED_MEM.get(self.sm or (0, 0), _99_KIB)

    def __str__(self) -> str:
        sm = f"sm{self.sm[0]}{self.sm[1]}" if self.sm else ""
        return " ".join(part for part in (self.type, sm, self.name) if part)

    @classmethod
    def of(cls, device: Any) -> DeviceInfo:
        """From a DeviceInfo, a torch.device, or text: "cpu", "cuda", "cuda:1", "sm90".

        Raises UnknownName."""
        import torch

        if isinstance(device, cls):
            return device
        if isinstance(device, str) and (match := _ARCH.match(device)):
            digits = match[1]
            return cls("cuda", sm=(int(digits[:-1]), int(digits[-1])))
        try:
            device = torch.device(device)
        except (RuntimeError, TypeError) as error:
            raise UnknownName("device", str(device), ["cpu", "cuda", "cuda:0", "sm90"]) from error
        if device.type == "cpu":
            return cls("cpu", real=True)
        if device.type == "cuda" and torch.cuda.is_available():
            props = torch.cuda.get_device_properties(device)
            return cls(
                "cuda",
                sm=(props.major, props.minor),
                name=props.name,
                num_sms=props.multi_processor_count,
                shared_mem=getattr(props, "shared_memory_per_block_optin", 0),
                real=True,
            )
        return cls(device.type)


def is_present(device_type: str) -> bool:
    """Whether this machine has a device of a torch type: "cpu", "cuda", "xpu", ..."""
    import torch

    module = getattr(torch, device_type, None)  # torch.cuda and the like; none for "meta"
    return module is not None and bool(module.is_available())
