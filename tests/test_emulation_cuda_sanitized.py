"""Kernels under g++'s sanitizers: planted faults, found in a process where AddressSanitizer was
preloaded; and what is said where it was not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from pagedattn.conformance.emulation.cuda import Check, CompileError, RawModule, sanitized

SOURCE = r"""
#include "simt.h"
__global__ void right(float* o) {
  __shared__ float s[64];
  s[threadIdx.x] = threadIdx.x;
  __syncthreads();
  o[threadIdx.x] = s[63 - threadIdx.x];
}
__global__ void write_past_the_end(float* o) { o[threadIdx.x + 1] = 1; }
__global__ void read_before_the_start(float* o) { o[0] = o[(int)threadIdx.x - 1]; }
__global__ void read_of_another_width(float* o) { o[0] = reinterpret_cast<double*>(o)[32]; }
__global__ void copied_past_the_end(float* o) {
  extern __shared__ float4 d4[];
  simt::cp_async_16(d4, o + 64);
}
__global__ void added_past_the_end(float* o) { atomicAdd(o + 64, 1.f); }
__global__ void memory_copied_past_the_end(float* o) { memcpy(o + 60, o, 16 + threadIdx.x); }
__global__ void misaligned_vector(float* o) {
  o[0] = reinterpret_cast<const float4*>(o + 1)->x;
}
__global__ void past_dynamic_shared(float* o) {
  extern __shared__ float d[];
  d[threadIdx.x + 1] = 1;
  o[0] = d[0];
}
__device__ __noinline__ float last(const float* v, int n) { return v[n]; }
__global__ void past_a_local_array(float* o) {
  float v[4] = {1, 2, 3, o[0]};
  o[0] = last(v, 4);
}
__device__ __noinline__ void leaves(float* v, float* o) { v[1] = *o; __trap(); }
__global__ void left_in_the_middle(float* o) { float v[6] = {}; leaves(v, o); o[0] = v[3]; }
__global__ void overflow(float* o) { o[0] = 0x7fffffff + (int)(o[1] + 2.f); }
__global__ void shift(float* o) { o[0] = 1 << (int)(o[1] + 33.f); }
__global__ void null_pointer(float* o) { float* p = o[1] < 0 ? nullptr : o; p[0] = 1; }
__global__ void around_the_end(float* o) { o[0] = *(o + (long long)(o[1] * -4e18f)); }
__global__ void no_value(float* o) { o[0] = __builtin_ctz((int)(o[1] + 1.f)); }
"""

PROGRAM = """
import json, sys, torch
from pagedattn.conformance.emulation.cuda import KernelFault, RawModule
module = RawModule(code=sys.stdin.read(), name="planted.cu")
found = {"checks": int(module.checks)}
for name in ["right", *module.name_expressions, "right"]:
    out = torch.full((64,), -1.0)
    try:
        module.get_function(name)((1,), (64,), (out,), 256)
        found[name] = out.tolist()
    except KernelFault as fault:
        found[name] = [fault.message, fault.place, fault.thread]
gone = torch.zeros(4096)
pointer = gone.data_ptr()
del gone
try:
    module.get_function("right")((1,), (64,), (pointer,), 256)
except KernelFault as fault:
    found["freed"] = [fault.message, fault.place, fault.thread]
print(json.dumps(found))
"""

OUTSIDE = (
    r"of {} bytes of memory that is no live object's \(AddressSanitizer\): byte {} of an object"
)

FAULTS = {
    "write_past_the_end": (63, "write " + OUTSIDE.format(4, "256") + r" of 256 bytes \(heap"),
    "read_before_the_start": (0, "read " + OUTSIDE.format(4, "-4") + r" of 256 bytes \(heap"),
    "read_of_another_width": (0, "read " + OUTSIDE.format(8, "256") + r" of 256 bytes \(heap"),
    "copied_past_the_end": (0, "read " + OUTSIDE.format(16, "256") + r" of 256 bytes \(heap"),
    "added_past_the_end": (0, "atomic " + OUTSIDE.format(4, "256") + r" of 256 bytes \(heap"),
    "memory_copied_past_the_end": (1, "write " + OUTSIDE.format(17, "256")),
    "misaligned_vector": (0, r"misaligned access: type .*float4.* a multiple of 16; address"),
    "past_dynamic_shared": (63, r"write of 4 bytes .*: byte 256 of 256 bytes of dynamic shared"),
    "past_a_local_array": (0, r"read of 4 bytes .*: the local memory of thread \(0,0,0\)"),
    "left_in_the_middle": (0, r"__trap\(\) was called"),
    "overflow": (0, "signed overflow in an addition"),
    "shift": (0, "shift of a negative number, or by its width or more"),
    "null_pointer": (0, "null pointer: type 'float'"),
    "around_the_end": (0, "pointer arithmetic on a null pointer, or around the end of memory"),
    "freed": (63, "write " + OUTSIDE.format(4, "252") + r" of 16384 bytes \(heap"),
    "no_value": (0, "__builtin_clz or __builtin_ctz of 0"),
}


def run(*command: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """`command` by the module that preloads the sanitizer."""
    return subprocess.run(
        [sys.executable, "-m", sanitized.__name__, *command],
        input=stdin, env=os.environ | variables, capture_output=True, text=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def found() -> dict[str, object]:
    done = run(sys.executable, "-c", PROGRAM, stdin=SOURCE)
    assert done.returncode == 0, done.stderr
    assert "Sanitizer" not in done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_a_right_kernel_runs_before_and_after_every_fault(found: dict[str, object]) -> None:
    assert found["checks"] == Check.SANITIZERS
    assert found["right"] == [63.0 - i for i in range(64)]
    assert found.keys() == {"checks", "right", *FAULTS}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(found: dict[str, object], name: str) -> None:
    thread, pattern = FAULTS[name]
    answer = found[name]
    assert isinstance(answer, list)
    message, place, where = answer
    assert re.match(pattern, message), message
    assert where == [thread, 0, 0]
    assert place.startswith("planted.cu:")


def test_the_clean_process_is_left_as_it_was() -> None:
    done = run(sys.executable, "-c", "print(6 * 7)", ASAN_OPTIONS="verbosity=0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "42\n", "")


def test_a_program_is_wanted() -> None:
    for command in ((), ("--help",)):
        done = run(*command)
        assert (done.returncode, done.stdout) == (2, "")
        assert "emulation.cuda.sanitized pagedattn check cupy" in done.stderr
    done = run("no-such-program")
    assert done.returncode == 2
    assert done.stderr.startswith("no-such-program: ")


def test_without_the_library_it_says_how_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    module = RawModule(code=SOURCE, checked=Check.SANITIZERS)
    with pytest.raises(CompileError, match=r"from its start.*\.sanitized PROGRAM \.\.\."):
        module.compile()
    monkeypatch.setenv("PAGEDATTN_SIMT_SANITIZE", "1")
    assert RawModule(code=SOURCE).checks is Check.SANITIZERS
    assert RawModule(code=SOURCE, checked=False).checks == Check(0)
    done = subprocess.run(
        [sys.executable, "-m", "pagedattn", "backends", "--json"],
        env={**os.environ, "PAGEDATTN_EMULATE": "1"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    (row,) = [row for row in json.loads(done.stdout) if row["name"] == "cupy"]
    assert row["state"] == "unavailable"
    assert "start the program by `python -m pagedattn.conformance" in row["detail"]


def test_a_compiler_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitized, "_LIBRARIES", ("libno_such_sanitizer.so",))
    with pytest.raises(CompileError, match=r"comes without libno_such_sanitizer\.so"):
        sanitized.environment()


def test_the_sanitizers_go_with_no_other_check() -> None:
    with pytest.raises(ValueError, match="the sanitizers go with no other check"):
        RawModule(code=SOURCE, checked=Check.SANITIZERS | Check.BOUNDS)
