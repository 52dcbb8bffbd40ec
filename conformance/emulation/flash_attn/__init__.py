"""flash-attn 2's own Python functions on a CPU: only its compiled extension is replaced.

What passes verifies the adapter: arguments, layouts, conversions, plans. It says nothing about the
CUDA kernels, which do not run; extension.py answers in their place, and refuses what they refuse.
"""

from pagedattn.conformance.emulation.flash_attn.install import install

__all__ = ["install"]
