"""Where a measurement was made: whatever a reader needs to judge or repeat it."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch

import pagedattn
from pagedattn.benchmarks.roofline import last_level_cache_bytes
from pagedattn.measured import device_name

__all__ = ["environment"]


def environment(device: torch.device) -> dict[str, Any]:
    """Plain JSON values; what cannot be known is None."""
    return {
        "device": device_name(device),
        "device_type": device.type,
        "last_level_cache_bytes": last_level_cache_bytes(device),
        "threads": torch.get_num_threads(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "governor": _first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "pagedattn": pagedattn.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def _first_line(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()[0]
    except (OSError, IndexError):
        return None
