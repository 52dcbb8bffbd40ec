"""CUDA C++ kernels on a CPU: for whoever writes raw kernels and has no GPU, or wants more from a
run than a GPU says.

    from pagedattn.conformance.emulation.cuda import RawModule

    module = RawModule(code=source, name_expressions=["scale<float>"])
    module.get_function("scale<float>")((4,), (128,), (tensor, np.int32(n), np.float32(2)))

The source is compiled by the host's g++ and every CUDA thread runs as a fiber: barriers, warp
operations, shared memory, mma.sync, ldmatrix and cp.async behave as on the GPU, and what a GPU
leaves undefined is reported with block, thread and line. docs/emulation-cuda.md says what is found
in which mode, and what is not modelled.
"""

from pagedattn.conformance.emulation.cuda.checks import Check
from pagedattn.conformance.emulation.cuda.driver import EmulatedDriver, install
from pagedattn.conformance.emulation.cuda.errors import CompileError, KernelFault, LaunchError
from pagedattn.conformance.emulation.cuda.extents import memory
from pagedattn.conformance.emulation.cuda.function import Function, recording
from pagedattn.conformance.emulation.cuda.module import RawModule

__all__ = [
    "Check",
    "CompileError",
    "EmulatedDriver",
    "Function",
    "KernelFault",
    "LaunchError",
    "RawModule",
    "install",
    "memory",
    "recording",
]
