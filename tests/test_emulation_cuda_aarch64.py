"""The emulation on aarch64: built by g++'s cross compiler, run by qemu, and the same bits come out
as on this machine.

    apt-get install g++-aarch64-linux-gnu qemu-user-static

Not run where those are missing.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from pagedattn.conformance.emulation.cuda import RawModule, toolchain
from pagedattn.conformance.emulation.cuda.build import Source, build
from pagedattn.conformance.emulation.cuda.checks import Check
from pagedattn.conformance.emulation.cuda.elf import tls_symbols
from pagedattn.conformance.emulation.cuda.options import Options

GCC = shutil.which("aarch64-linux-gnu-g++")
QEMU = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
THREADS, DYNAMIC = 96, 2048

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not GCC or not QEMU, reason="no cross compiler for aarch64, or no qemu"),
    pytest.mark.skipif(platform.machine() == "aarch64", reason="this machine is one"),
]

# Barriers, shuffles, votes, atomics, both kinds of shared memory, halves, mma.sync, cp.async.
RIGHT = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>
__constant__ float scale[2] = {0.3f, 7.f};
__device__ __align__(16) float table[512];
__global__ void everything(unsigned* o) {
  __shared__ __half halves[96];
  __shared__ unsigned count;
  extern __shared__ __align__(16) float dynamic[];
  const int i = threadIdx.x, lane = i % 32;
  if (i == 0) count = 0;
  table[i] = i * scale[0];
  halves[i] = __float2half(i * 0.37f);
  __syncthreads();
  atomicAdd(&count, i);
  if (i < 24) simt::cp_async_16(dynamic + 4 * i, table + 4 * i);
  simt::cp_async_commit();
  simt::cp_async_wait(0);
  __syncthreads();
  float v = dynamic[95 - i] + __half2float(halves[(i * 7) % 96]) * __expf(-lane * 0.1f);
  for (int d = 16; d; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
  float acc[4] = {v, 0, 1, 2};
  unsigned a[4], b[2];
  for (int k = 0; k < 4; ++k) {
    const __half2 pair = __floats2half2_rn(lane * 0.11f + k, v - k);
    a[k] = simt::bit_cast<unsigned>(pair), b[k / 2] = a[k];
  }
  simt::mma_m16n8k16(acc, a, b, false);
  o[4 * i] = __float_as_uint(acc[0]) ^ __float_as_uint(acc[3]);
  o[4 * i + 1] = __ballot_sync(0xffffffffu, i % 3 == 0) + count;
  o[4 * i + 2] = __float_as_uint(__bfloat162float(__float2bfloat16(acc[1])));
  o[4 * i + 3] = __syncthreads_count(acc[2] > 0.f);
}
"""
DIVERGENT = "__global__ void k(unsigned* o) {\n  if (threadIdx.x < 32) __syncthreads();\n}"
DEEP = r"""
__device__ int depth(int n, unsigned* o) {
  volatile int big[256];
  big[n & 255] = n;
  o[0] += big[0];
  return depth(n + 1, o) + big[n & 255];
}
__global__ void k(unsigned* o) { if (threadIdx.x == 5) o[1] = depth(0, o); }
"""


class Machine:
    """aarch64: a compiler in the place of g++, and a program that launches kernels."""

    def __init__(self, folder: Path) -> None:
        self.compiler = folder / "g++"
        self.compiler.write_text(
            '#!/bin/bash\nexec aarch64-linux-gnu-g++ "${@/#-march=native/-march=armv8.2-a+fp16}"\n'
        )
        self.compiler.chmod(0o755)
        self.program = folder / "launch"
        self.folder = folder
        include = ["-I", str(toolchain.RUNTIME), "-I", str(toolchain.INCLUDE)]
        source = str(Path(__file__).parent / "emulated_launch.cpp")
        command = [str(self.compiler), "-std=c++17", "-DSIMT_RUNTIME", *include, source]
        subprocess.run([*command, "-o", str(self.program), "-ldl"], check=True)

    def launch(self, code: str, name: str, order: int) -> subprocess.CompletedProcess[str]:
        """Builds by what this machine builds by, and runs one block of THREADS threads."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PAGEDATTN_SIMT_CACHE", str(self.folder / "cache"))
            patch.setattr(toolchain, "compiler", lambda: (str(self.compiler), "for aarch64"))
            source = Source(code, "kernel.cu")
            path = build(source, (name,), Options.parse(()), checks=Check(0))
            runtime = toolchain.runtime()
        symbols = {s.name: s.offset for s in tls_symbols(path)}
        assert QEMU
        command = [QEMU, "-L", "/usr/aarch64-linux-gnu", str(self.program), str(runtime), str(path)]
        numbers = (symbols["simt_guard"], symbols["simt_dynamic"], DYNAMIC, THREADS, order)
        return subprocess.run([*command, *map(str, numbers)], capture_output=True, text=True)


@pytest.fixture(scope="module")
def aarch64(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tmp_path_factory.mktemp("aarch64"))


def test_the_same_bits_in_every_order(aarch64: Machine) -> None:
    kernel = RawModule(code=RIGHT, checked=False).get_function("everything")
    wanted = torch.zeros(4 * THREADS, dtype=torch.int32)
    kernel((1,), (THREADS,), (wanted,), shared_mem=DYNAMIC)
    assert len(set(wanted.tolist())) > 50
    for order in range(4):
        done = aarch64.launch(RIGHT, "everything", order)
        assert done.returncode == 0, done.stdout + done.stderr
        given = torch.tensor([int(word) for word in done.stdout.split()])
        assert torch.equal(given, wanted.long() & 0xFFFFFFFF)


def test_faults_are_named(aarch64: Machine) -> None:
    done = aarch64.launch(DIVERGENT, "k", 0)
    assert done.returncode == 1, done.stderr
    message = done.stdout
    assert "32 of 96 threads wait at __syncthreads() kernel.cu:2" in message
    assert "64 of 96 threads have exited (thread (32,0,0) to (95,0,0))" in message
    done = aarch64.launch(DEEP, "k", 1)
    assert done.returncode == 1, done.stderr
    assert "thread (5,0,0)" in done.stdout
    assert "stack overflow" in done.stdout
