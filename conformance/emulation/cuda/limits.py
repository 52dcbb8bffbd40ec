"""What the hardware allows a launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pagedattn.conformance.emulation.cuda.errors import LaunchError
from pagedattn.device import SHARED_MEM

__all__ = ["DEFAULT_SHARED", "MAX_THREADS", "Limit", "check", "of"]

MAX_THREADS = 1024
MAX_BLOCK = (1024, 1024, 64)
MAX_GRID = (2**31 - 1, 65535, 65535)
DEFAULT_SHARED = 48 * 1024  # more only after max_dynamic_shared_size_bytes was raised


@dataclass(frozen=True)
class Limit:
    """An architecture and the shared memory, in bytes, that a block may have there."""

    arch: str
    shared: int


def of(arch: int) -> Limit:
    """Of a compute capability times ten; ValueError for one that is unknown."""
    sm = divmod(arch, 10)
    if sm not in SHARED_MEM:
        known = ", ".join(f"sm_{major}{minor}" for major, minor in sorted(SHARED_MEM))
        raise ValueError(f"sm_{arch}: known are {known}")
    return Limit(f"sm_{arch}", SHARED_MEM[sm])


def check(
    grid: Sequence[int], block: Sequence[int], shared_mem: int, allowed: int
) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Grid and block as three numbers each; LaunchError when the launch is not allowed."""
    grid3, block3 = _three("grid", grid, MAX_GRID), _three("block", block, MAX_BLOCK)
    threads = block3[0] * block3[1] * block3[2]
    if threads > MAX_THREADS:
        raise LaunchError(f"block {block3} has {threads} threads, {MAX_THREADS} are allowed")
    if not 0 <= shared_mem <= allowed:
        raise LaunchError(
            f"{shared_mem} bytes of dynamic shared memory, {allowed} are allowed: set the "
            "function's max_dynamic_shared_size_bytes first"
        )
    return grid3, block3


def _three(what: str, given: Sequence[int], most: tuple[int, int, int]) -> tuple[int, int, int]:
    if not 1 <= len(given) <= 3:
        raise LaunchError(f"{what} has {len(given)} dimensions, 1 to 3 are allowed")
    x, y, z = (*(int(n) for n in given), 1, 1)[:3]
    for axis, n, limit in zip("xyz", (x, y, z), most, strict=True):
        if not 1 <= n <= limit:
            raise LaunchError(f"{what}.{axis} is {n}, outside 1 to {limit}")
    return x, y, z
