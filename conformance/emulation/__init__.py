"""How backends of GPU kernels execute on a machine without a GPU.

One package per kernel language, each installed by the backend of its name when PAGEDATTN_EMULATE=1
(hook pagedattn_emulators): `triton` repairs Triton's interpreter, `cuda` runs CUDA C++ on the CPU,
`flash_attn` stands in for a compiled extension. What they prove is what a kernel computes
and what it touches. They say nothing of speed, registers or shared memory: that is for
pagedattn.conformance.compile, and for a GPU.
"""
