"""What this machine can do at best, measured in the same run and between the same samples.

A decode step cannot be faster than reading its keys and values once; a prefill cannot be faster
than its matrix products. Both limits are measured with torch on the device's own threads: a linear
read of memory that no cache holds, and torch.mm in the workload's dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from pagedattn.benchmarks.timing import Clock, Task

__all__ = ["Roof", "available_bytes", "last_level_cache_bytes", "matmul_roof", "read_roof"]

MiB = 2**20


@dataclass(frozen=True)
class Roof:
    """A probe to be timed beside the backends: `amount` bytes or FLOPs a call."""

    task: Task
    amount: int
    method: str


@cache
def last_level_cache_bytes(device: torch.device) -> int:
    """Size of the largest cache in front of the device's memory; 32 MiB when it cannot be known."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    known = [text.strip() for text in (path.read_text() for path in sizes)]
    return max(
        (int(t[:-1]) * units[t[-1]] for t in known if t[:-1].isdigit() and t[-1] in units),
        default=32 * MiB,
    )


def available_bytes(device: torch.device) -> int:
    """Memory that can be allocated now; 4 GiB when it cannot be known."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 4 * 2**30
    return next(
        (int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")),
        4 * 2**30,
    )


def read_roof(device: torch.device, clock: Clock, *, buffer_bytes: int | None = None) -> Roof:
    """Linear read of a buffer larger than the last-level cache, a slice at a time.

    The fastest of several torch reductions is chosen by a short trial: which one is not limited by
    arithmetic depends on the build and the machine."""
    size = buffer_bytes or _probe_bytes(device)
    columns = 4096
    pieces = 8 if device.type == "cpu" else 1  # a GPU needs all of it to hide the launch
    rows = max(1, size // (4 * columns * pieces))
    buffer = torch.ones(pieces, rows, columns, device=device)
    weights = torch.ones(columns, device=device)
    methods: dict[str, Callable[[Tensor], object]] = {
        "torch.sum float32": lambda x: x.sum(),
        "torch.sum int64": lambda x: x.view(torch.int64).sum(),
        "torch.mv float32": lambda x: torch.mv(x, weights),
    }

    def trial(method: str) -> float:
        read = methods[method]
        read(buffer[0])
        return min(clock.seconds(read, list(buffer)) for _ in range(2))

    best = min(methods, key=trial)
    task = Task("read probe", methods[best], lambda i: buffer[i % pieces])
    return Roof(task, buffer[0].nbytes, best)


def matmul_roof(device: torch.device, dtype: torch.dtype) -> Roof:
    """torch.mm of square matrices in `dtype`, large enough to reach the peak."""
    n = 2048 if device.type == "cpu" else 8192
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(n, n, generator=generator).to(device, dtype) for _ in range(2))
    out = torch.empty_like(a)
    return Roof(
        Task("matmul probe", lambda _: torch.mm(a, b, out=out)), 2 * n**3, f"torch.mm {n}x{n}"
    )


def _probe_bytes(device: torch.device) -> int:
    wanted = max(256 * MiB, 3 * last_level_cache_bytes(device) // 2)
    return min(wanted, available_bytes(device) // 8)
