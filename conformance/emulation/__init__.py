"""How backends of GPU kernels execute on a machine without a GPU.

One package per kernel language, installed by the registry when PAGEDATTN_EMULATE=1, before it looks
at the backends (hook pagedattn_emulators): `triton` repairs Triton's interpreter, `cuda` runs CUDA
C++ on the CPU, `flash_attn` stands in for a compiled extension. What they prove is what a kernel
computes and what it touches. They say nothing of speed, registers or shared memory: that is for
pagedattn.conformance.compile, and for a GPU.
"""
