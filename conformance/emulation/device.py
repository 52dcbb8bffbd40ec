"""The GPU that a backend is told of under emulation."""

from __future__ import annotations

from pagedattn.device import SHARED_MEM, DeviceInfo

__all__ = ["emulated_gpu"]


def emulated_gpu(num_sms: int) -> DeviceInfo:
    """An sm_90 of the CPU. num_sms: few, where every program costs; the work is split for so many.

    It counts as real: the backend may probe what it finds in its place."""
    sm = (9, 0)
    name = "sm_90 emulated on the CPU"
    return DeviceInfo(
        "cuda", sm=sm, name=name, num_sms=num_sms, shared_mem=SHARED_MEM[sm], real=True
    )
