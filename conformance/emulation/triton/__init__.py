"""Triton kernels on the CPU: the interpreter of TRITON_INTERPRET=1, repaired and made strict.

Triton brings an interpreter that runs a kernel's Python source on NumPy arrays, one program after
the other. It is right for float32, and wrong or blind where GPU kernels go wrong. install()
replaces what is wrong in it, for this process:

    arithmetic.py   bf16 and fp8 are computed as numbers, not as the integers that hold them; casts
                    round to nearest even and saturate as a GPU's do; tensor cores read float32 as
                    TF32 unless told otherwise; max and min skip NaN; the least tile of tl.dot
    reductions.py   sums of 16-bit floats round at every step; max skips NaN without warnings
    memory.py       every access is checked against the tensor that its pointer was made of; lanes
                    that a mask without `other` turns off hold poison
    launch.py       arguments have the types of the compiled kernel; programs run in another order
                    at every launch; CUDA's grid limits
    capture.py      capture and replay, as of a CUDA graph
    language.py     `if`, `and` and `or` refuse blocks; tl.multiple_of is checked; triton.language
                    is bound to the interpreter once, not at every call
    speed.py        shapes and types are made once
    formats.py      what the bits of bf16 and fp8 mean

Each repair names what the shipped interpreter does instead; tests/test_emulation_triton.py sees the
shipped behaviour and the repaired one side by side. VERIFIED lists the versions for which all of
it was seen to hold; another version gives a warning.

Not modelled: programs that run at the same time (one that waits for another never ends), races,
shared memory, registers, the order in which tensor cores add, approximate exp2, and 32-bit overflow
between a loop variable and constants alone, which are Python's integers here. The interpreter also
takes Python that the compiler refuses: pagedattn.conformance.compile.triton compiles every kernel.
"""

from pagedattn.conformance.emulation.triton.installing import VERIFIED, install

__all__ = ["VERIFIED", "install"]
