"""Raw CUDA C++ kernels, compiled by NVRTC on demand and launched through CuPy on torch's stream."""

from pagedattn.backends.cupy.backend import CupyBackend

__all__ = ["CupyBackend"]
