"""DeviceInfo: what a backend needs to know about a device, real or made up."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pagedattn.errors import UnknownName

__all__ = ["DeviceInfo"]

_ARCH = re.compile(r"(?:sm_?|compute_?)(\d{2,3})[a-f]?$")


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
