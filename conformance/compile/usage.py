"""What one compiled kernel takes of a chip, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from pagedattn.device import SHARED_MEM

__all__ = ["CHIPS", "Chip", "Usage", "faults"]


@dataclass(frozen=True)
class Chip:
    """A compile target.

    name    as in tables     backend, arch, warp  what Triton calls it
    shared  bytes of shared memory that one CTA may use
    """

    name: str
    backend: str
    arch: int | str
    warp: int
    shared: int


CHIPS: Mapping[str, Chip] = MappingProxyType(
    {
        "sm_80": Chip("sm_80", "cuda", 80, 32, SHARED_MEM[8, 0]),
        "sm_90": Chip("sm_90", "cuda", 90, 32, SHARED_MEM[9, 0]),
        "sm_100": Chip("sm_100", "cuda", 100, 32, SHARED_MEM[10, 0]),
        "gfx942": Chip("gfx942", "hip", "gfx942", 64, 65_536),
    }
)


@dataclass(frozen=True)
class Usage:
    """One compiled kernel.

    registers   of a thread (AMD: vector registers)
    shared      bytes of shared memory of a CTA, static and dynamic
    stack       bytes of local memory of a thread
    spills      instructions that move registers to local memory or back (AMD: spilled registers)
    mma         matrix instructions by kind, e.g. {"HMMA.16816.F32.BF16": 128}
    loads       loads from global memory by width in bits, e.g. {128: 16, 32: 4}
    """

    registers: int
    shared: int
    stack: int = 0
    spills: int = 0
    mma: Mapping[str, int] = field(default_factory=dict)
    loads: Mapping[int, int] = field(default_factory=dict)

    @property
    def load_width(self) -> int:
        """Bits of the loads that move most bytes, 0 without loads: those of K and V where a
        kernel reads a cache."""
        return max(self.loads, key=lambda bits: (bits * self.loads[bits], bits), default=0)

    def bytes_loaded(self, at_least: int) -> int:
        """Bytes of a thread in loads of `at_least` so many bits, each instruction counted once."""
        return sum(bits // 8 * count for bits, count in self.loads.items() if bits >= at_least)

    @property
    def mma_kinds(self) -> str:
        """The kinds without their counts, "-" for none."""
        return ", ".join(sorted(self.mma)) or "-"


def faults(usage: Usage, chip: Chip, *, mma: bool, load_width: int | None = None) -> list[str]:
    """What is wrong with a kernel on this chip, in words; empty when nothing is.

    mma         whether it multiplies matrices that tensor cores (matrix cores) take
    load_width  the least width in bits of the loads that move most bytes
    """
    found = []
    if usage.spills or usage.stack:
        found.append(
            f"spills: {usage.spills} spill instructions, {usage.stack} bytes of stack a thread "
            f"({usage.registers} registers); take a smaller tile or more warps"
        )
    if usage.shared > chip.shared:
        found.append(
            f"{usage.shared:,} bytes of shared memory, {chip.name} has {chip.shared:,}; take a "
            "smaller tile or fewer stages"
        )
    if mma and not usage.mma:
        found.append("no tensor-core instruction, although the dtype has one")
    if load_width is not None and usage.load_width < load_width:
        found.append(
            f"most bytes are loaded {usage.load_width} bits at a time, {load_width} are possible; "
            "look for a lost alignment hint"
        )
    return found
