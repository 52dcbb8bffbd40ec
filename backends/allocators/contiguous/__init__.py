"""Contiguous allocators: the baselines that paging is measured against.

space.py     one address space of blocks, first fit
base.py      what they share: a sequence is one extent, used from its start
reserve.py   contiguous_max: the longest possible length, reserved at open
exact.py     contiguous_exact: told the final length in advance, an oracle
pow2.py      contiguous_pow2: doubles when full, moving when it cannot grow in place
"""

from pagedattn.backends.allocators.contiguous.base import ContiguousAllocator, NoExtent
from pagedattn.backends.allocators.contiguous.exact import ContiguousExact
from pagedattn.backends.allocators.contiguous.pow2 import ContiguousPow2
from pagedattn.backends.allocators.contiguous.reserve import ContiguousMax

__all__ = [
    "ContiguousAllocator",
    "ContiguousExact",
    "ContiguousMax",
    "ContiguousPow2",
    "NoExtent",
]
