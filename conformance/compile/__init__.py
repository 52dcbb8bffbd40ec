"""Compiling kernels for real GPUs on a machine without one, and judging what the compiler made.

specs.py    attention layers of 20 models that people serve: what the launchers are asked for
usage.py    what one compiled kernel takes of a chip, and what is wrong with it
sass.py     reads it from a cubin (NVIDIA)          amdgcn.py   from assembly (AMD)
table.py    the Markdown table that is checked in
recording.py, judging.py   what a Triton backend compiles, and each of it compiled and judged
triton.py, cuda.py   the gates: python -m pagedattn.conformance.compile.triton --check
"""
