"""RawModule and its launches: arguments, limits, options, compiling."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from pagedattn.conformance.emulation.cuda import (
    CompileError,
    KernelFault,
    LaunchError,
    RawModule,
    memory,
)
from pagedattn.conformance.emulation.cuda.build import kernel_names
from pagedattn.conformance.emulation.cuda.options import Options

SOURCE = r"""
__global__ void scalars(double* o, int i, long long l, float f, double d, bool b, __half h,
                        unsigned char u) {
  o[0] = i, o[1] = l, o[2] = f, o[3] = d, o[4] = b, o[5] = float(h), o[6] = u;
}
extern "C" __global__ void fill(float* o, float value) { o[threadIdx.x] = value; }
__global__ void brain(float* o, __nv_bfloat16 x) { o[0] = x; }
__global__ void integer(int* o, int i) { o[0] = i; }
__global__ void halves(const __half* in, __half* o) { o[threadIdx.x] = in[threadIdx.x]; }
__global__ void raw(const void* in, unsigned char* o) {
  o[threadIdx.x] = static_cast<const unsigned char*>(in)[threadIdx.x];
}
struct Target { int index; float* to; };
__global__ void structure(const Target t) { t.to[t.index] = 1.f; }
__global__ void indirect(float** table) { *table[0] = 4.f; }
__global__ void arch(int* o) { o[0] = __CUDA_ARCH__; }
__global__ void shared(float* o) {
  __shared__ float s[1024];
  s[threadIdx.x] = 1;
  __syncthreads();
  o[threadIdx.x] = s[threadIdx.x ^ 1];
}
__global__ void copy_bytes(float* o, const float* in, int bytes) { memcpy(o, in, bytes); }
"""


@pytest.fixture(scope="module")
def module() -> RawModule:
    return RawModule(code=SOURCE)


def test_every_kind_of_scalar_arrives(module: RawModule) -> None:
    out = torch.zeros(7, dtype=torch.float64)
    args = (out, np.int32(-3), -(2**40), np.float32(0.1), 0.1, True, np.float16(1.5), np.uint8(200))
    module.get_function("scalars")((1,), (1,), args)
    assert out.tolist() == [-3, -(2**40), float(np.float32(0.1)), 0.1, 1, 1.5, 200]


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (0, torch.zeros(7), "argument 0 is a pointer to a float of 8 bytes, an array of float32"),
        (0, 1.5, "argument 0 is a pointer, 1.5 .float. was given"),
        (1, 2**31, "argument 1 is a signed integer of 4 bytes"),
        (1, 1.0, "argument 1 is a signed integer of 4 bytes, 1.0 .float. was given"),
        (2, np.int32(1), "argument 2 is a signed integer of 8 bytes.*CuPy would pass other bits"),
        (3, 0.1, "argument 3 is a float of 4 bytes, 0.1 .float. was given"),
        (4, np.float32(1), "argument 4 is a float of 8 bytes"),
        (5, 3, "argument 5 is a bool of 1 byte, 3"),
        (6, np.float32(1), "argument 6 is a __half of 2 bytes"),
        (7, -1, "argument 7 is an unsigned integer of 1 byte, -1"),
        (7, "x", "argument 7 is an unsigned integer of 1 byte, 'x' .str. was given"),
    ],
)
def test_a_wrong_argument_is_named(
    module: RawModule, position: int, value: object, message: str
) -> None:
    out = torch.full((7,), -1.0, dtype=torch.float64)
    args: list[object] = [out, 1, 1, np.float32(1), 1.0, True, np.float16(1), 1]
    args[position] = value
    with pytest.raises(LaunchError, match=message):
        module.get_function("scalars")((1,), (1,), args)
    assert (out == -1).all()


def test_what_numpy_has_no_type_for_comes_as_bytes(module: RawModule) -> None:
    kernel, out = module.get_function("brain"), torch.zeros(1)
    kernel((1,), (1,), (out, torch.tensor(2.5).bfloat16().view(torch.int16).numpy().tobytes()))
    assert out.item() == 2.5
    with pytest.raises(LaunchError, match=r"argument 1 is a __nv_bfloat16 of 2 bytes, .*2\.5"):
        kernel((1,), (1,), (out, np.float16(2.5)))


def test_a_bool_is_a_number_only_in_python(module: RawModule) -> None:
    kernel, out = module.get_function("integer"), torch.zeros(1, dtype=torch.int32)
    kernel((1,), (1,), (out, True))
    assert out.item() == 1
    with pytest.raises(LaunchError, match="signed integer of 4 bytes"):
        kernel((1,), (1,), (out, np.bool_(True)))


def test_a_wrong_number_of_arguments(module: RawModule) -> None:
    with pytest.raises(LaunchError, match="fill: takes 2 arguments, 3 were given"):
        module.get_function("fill")((1,), (1,), (torch.zeros(1), np.float32(1), 2))


def test_pointers_of_raw_bits_take_any_array(module: RawModule) -> None:
    out = torch.zeros(8, dtype=torch.uint8)
    for array in (torch.arange(8).to(torch.uint8), np.arange(8, dtype=np.int8).view(np.float32)):
        out.zero_()
        module.get_function("raw")((1,), (8,), (array, out))
        assert out.tolist() == list(range(8))
    x = torch.zeros(4, dtype=torch.bfloat16)
    with pytest.raises(LaunchError, match=r"__half of 2 bytes, an array of bfloat16"):
        module.get_function("halves")((1,), (4,), (x, x))


class CupyLike:
    """The part of cupy.ndarray that an argument needs: data.ptr, shape, strides, dtype."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype, self.itemsize = tuple(tensor.shape), np.dtype("f4"), 4
        self.strides = tuple(4 * s for s in tensor.stride())
        self.data = type("Memory", (), {"ptr": tensor.data_ptr()})()


@pytest.mark.parametrize("checked", [False, True])
def test_what_counts_as_a_pointer(checked: bool) -> None:
    fill = RawModule(code=SOURCE, checked=checked).get_function("fill")
    out = torch.zeros(4)
    address = out.data_ptr()
    given: list[object] = [out, out.numpy(), CupyLike(out), address, np.uint64(address)]
    given.append(ctypes.c_void_p(address))
    for number, pointer in enumerate(given, 1):
        fill((1,), (4,), (pointer, np.float32(number)))
        assert out.tolist() == [number] * 4


@pytest.mark.parametrize(
    ("grid", "block", "message"),
    [
        ((1,), (1025,), "block.x is 1025, outside 1 to 1024"),
        ((1,), (32, 33), r"block \(32, 33, 1\) has 1056 threads, 1024 are allowed"),
        ((1,), (1, 1, 65), "block.z is 65, outside 1 to 64"),
        ((2**31,), (1,), "grid.x is 2147483648, outside 1 to 2147483647"),
        ((1, 65536), (1,), "grid.y is 65536, outside 1 to 65535"),
        ((1, 1, 65536), (1,), "grid.z is 65536, outside 1 to 65535"),
        ((0,), (1,), "grid.x is 0"),
        ((1,), (1, 0), "block.y is 0"),
        ((1, 1, 1, 1), (1,), "grid has 4 dimensions"),
        ((), (1,), "grid has 0 dimensions"),
    ],
)
def test_launch_limits(
    module: RawModule, grid: tuple[int, ...], block: tuple[int, ...], message: str
) -> None:
    with pytest.raises(LaunchError, match=message):
        module.get_function("fill")(grid, block, (torch.zeros(1), np.float32(1)))


def test_shared_memory_limits() -> None:
    names = ["shared"]
    kernel = RawModule(code=SOURCE, name_expressions=names).get_function("shared")
    assert kernel.shared_size_bytes == 4096
    out = torch.zeros(1024)
    most = 48 * 1024 - 4096
    assert kernel.max_dynamic_shared_size_bytes == most
    kernel((1,), (1024,), (out,), most)
    with pytest.raises(LaunchError, match=rf"{most + 1} bytes of dynamic.*{most} are allowed"):
        kernel((1,), (1024,), (out,), most + 1)
    kernel.max_dynamic_shared_size_bytes = 232448 - 4096
    kernel((1,), (1024,), (out,), 232448 - 4096)
    assert out.tolist() == [1.0] * 1024
    with pytest.raises(LaunchError, match="sm_90 allows 228352"):
        kernel.max_dynamic_shared_size_bytes = 228353
    older = RawModule(code=SOURCE, name_expressions=names, options=("-arch=sm_86",))
    with pytest.raises(LaunchError, match="sm_86 allows 97280"):
        older.get_function("shared").max_dynamic_shared_size_bytes = 97281


def test_checked_mode_wants_to_know_how_far_a_pointer_goes() -> None:
    module = RawModule(code=SOURCE, checked=True)
    mine = ctypes.create_string_buffer(64)  # memory that no tensor holds
    with pytest.raises(LaunchError, match="argument 0 is a bare pointer into no live torch tensor"):
        module.get_function("fill")((1,), (1,), (ctypes.addressof(mine), np.float32(1)))
    target = torch.zeros(1)
    table = torch.tensor([target.data_ptr()])
    with pytest.raises(KernelFault, match="outside the memory that the kernel was given"):
        module.get_function("indirect")((1,), (1,), (table.data_ptr(),))
    with memory(target):
        module.get_function("indirect")((1,), (1,), (table.data_ptr(),))
    assert target.item() == 4


class Target(ctypes.Structure):
    _fields_ = (("index", ctypes.c_int), ("to", ctypes.c_void_p))


def test_checked_mode_follows_the_pointers_of_a_structure() -> None:
    kernel = RawModule(code=SOURCE, checked=True).get_function("structure")
    out = torch.zeros(4)
    kernel((1,), (1,), (Target(3, out.data_ptr()),))
    assert out.tolist() == [0.0, 0.0, 0.0, 1.0]
    with pytest.raises(KernelFault, match="byte 16 of the 16 bytes of argument 0"):
        kernel((1,), (1,), (Target(4, out.data_ptr()),))


def test_views_count_from_their_first_to_their_last_element() -> None:
    fill = RawModule(code=SOURCE, checked=True).get_function("fill")
    base = torch.zeros(12)
    fill((1,), (4,), (base[4:8], np.float32(1)))
    assert base.tolist() == [0.0] * 4 + [1.0] * 4 + [0.0] * 4
    with pytest.raises(KernelFault, match="byte 16 of the 16 bytes of argument 0"):
        fill((1,), (5,), (base[4:8], np.float32(1)))


def test_library_calls_are_watched_too() -> None:
    copy = RawModule(code=SOURCE, checked=True).get_function("copy_bytes")
    out, data = torch.zeros(8), torch.arange(8.0)
    copy((1,), (1,), (out, data, np.int32(32)))
    assert torch.equal(out, data)
    with pytest.raises(KernelFault, match="read of 33 bytes outside"):
        copy((1,), (1,), (out, data, np.int32(33)))


def test_options_of_nvrtc() -> None:
    options = ["--std=c++11", "-DA=1", "-D", "B", "--define-macro=C=2", "-arch=sm_80", "-lineinfo"]
    options += ["-I/x", "--include-path=/y", "-I", "/z", "--use_fast_math", "-UD"]
    parsed = Options.parse([*options, "--ptxas-options=-v", "--maxrregcount=128", "-std=c++20"])
    assert parsed.arch == 80
    assert parsed.include == (Path("/x"), Path("/y"), Path("/z"))
    assert parsed.definitions == ("-DA=1", "-DB", "-DC=2", "-UD")
    assert parsed.standard == "c++20"
    assert Options.parse(["-std=c++03"]).standard == Options.parse([]).standard == "c++17"
    with pytest.raises(ValueError, match=r"option '--fantasy'.*does not know"):
        Options.parse(["--fantasy"])
    with pytest.raises(ValueError, match="option '-D' needs a value"):
        Options.parse(["-D"])


@pytest.mark.parametrize(("options", "wanted"), [((), 900), (("-arch=sm_80",), 800)])
def test_the_architecture_is_seen_by_the_source(options: tuple[str, ...], wanted: int) -> None:
    out = torch.zeros(1, dtype=torch.int32)
    module = RawModule(code=SOURCE, options=options)
    module.get_function("arch")((1,), (1,), (out,))
    assert out.item() == wanted


def test_an_unknown_architecture() -> None:
    with pytest.raises(ValueError, match="sm_77: known are sm_70"):
        RawModule(code=SOURCE, options=("-arch=sm_77",)).get_function("arch")


def test_kernels_are_found_in_the_source() -> None:
    text = "// __global__ void no();\n__global__ void __launch_bounds__(64) a(int x) {}\n"
    text += 'extern "C" __global__ void b() {} /* __global__ void c() {} */ __device__ void d() {}'
    assert kernel_names(text) == ["a", "b"]
    with pytest.raises(ValueError, match="declares no __global__ function"):
        RawModule(code="int x;")
    with pytest.raises(ValueError, match="no kernel 'z' in this module; it has a, b"):
        RawModule(code=text).get_function("z")
    with pytest.raises(TypeError, match="either code= or path="):
        RawModule()


def test_compile_errors_name_the_kernels_own_lines() -> None:
    with pytest.raises(CompileError, match=r"mine\.cu:2:\d+: error: .*undefined_name") as caught:
        RawModule(code="\n__global__ void k() { undefined_name(); }", name="mine.cu").compile()
    assert "undefined_name" in caught.value.log


def test_sources_with_includes(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text(
        '#include "value.cuh"\n__global__ void k(int* o) { o[0] = VALUE; }'
    )
    for value in (3, 4):  # a changed header is another kernel
        (tmp_path / "value.cuh").write_text(f"#define VALUE {value}")
        out = torch.zeros(1, dtype=torch.int32)
        RawModule(path=tmp_path / "k.cu").get_function("k")((1,), (1,), (out,))
        assert out.item() == value


LAUNCH = """
import torch
from pagedattn.conformance.emulation.cuda import RawModule
o = torch.zeros(1, dtype=torch.int32)
RawModule(code="__global__ void k(int* o) { o[0] = 17; }").get_function("k")((1,), (1,), (o,))
assert o.item() == 17
"""


def test_inline_ptx_is_named_as_such() -> None:
    code = """__global__ void k(unsigned* o) {
      asm volatile("mov.u32 %0, %%laneid;" : "=r"(o[0]));
    }"""
    with pytest.raises(CompileError, match=r"inline PTX, which a CPU cannot run(?s:.)*kernel.cu:2"):
        RawModule(code=code).compile()


@pytest.mark.slow
def test_concurrent_processes_share_a_fresh_cache(tmp_path: Path) -> None:
    env = os.environ | {"PAGEDATTN_SIMT_CACHE": str(tmp_path)}
    started = [
        subprocess.Popen([sys.executable, "-c", LAUNCH], env=env, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    for process in started:
        _, errors = process.communicate()
        assert process.returncode == 0, errors.decode()
    kinds = sorted(p.name.split("-")[0] for p in tmp_path.iterdir())
    assert kinds == ["kernel", "prefix", "runtime"]


@pytest.mark.slow
def test_a_crash_in_the_middle_of_a_build_does_no_harm(tmp_path: Path) -> None:
    compiler = tmp_path / "compiler"  # compiles, then ends the process that called it
    compiler.write_text(
        '#!/bin/sh\ncase "$*" in *--version*) exec g++ "$@";; esac\ng++ "$@"\nkill -9 $PPID\n'
    )
    compiler.chmod(0o755)
    env = os.environ | {"PAGEDATTN_SIMT_CACHE": str(tmp_path / "cache")}
    killed = subprocess.run([sys.executable, "-c", LAUNCH], env=env | {"CXX": str(compiler)})
    assert killed.returncode == -9
    assert all(p.name.startswith(".") for p in (tmp_path / "cache").iterdir())
    assert subprocess.run([sys.executable, "-c", LAUNCH], env=env).returncode == 0


@pytest.mark.slow
def test_damaged_files_of_the_cache_are_built_again(tmp_path: Path) -> None:
    env = os.environ | {"PAGEDATTN_SIMT_CACHE": str(tmp_path)}
    assert subprocess.run([sys.executable, "-c", LAUNCH], env=env).returncode == 0
    built = {f.relative_to(tmp_path) for f in tmp_path.rglob("*")}
    for file in [*tmp_path.rglob("*.so"), *tmp_path.rglob("*.gch")]:
        os.truncate(file, 1000)
    assert subprocess.run([sys.executable, "-c", LAUNCH], env=env).returncode == 0
    assert {f.relative_to(tmp_path) for f in tmp_path.rglob("*")} == built


def test_the_host_reads_and_writes_global_variables() -> None:
    module = RawModule(
        code="""
            __constant__ float table[3] = {1, 2, 3};
            static __constant__ int offset = 4;
            __device__ int launches;
            __global__ void k(float* o) {
              o[threadIdx.x] = table[threadIdx.x] + offset;
              if (threadIdx.x == 0) ++launches;
            }"""
    )
    out = torch.zeros(3)
    kernel = module.get_function("k")
    kernel((1,), (3,), (out,))
    assert out.tolist() == [5, 6, 7]
    module.get_global("table").view(np.float32)[:] = [10, 20, 30]
    module.get_global("offset").view(np.int32)[0] = 1
    kernel((1,), (3,), (out,))
    assert out.tolist() == [11, 21, 31]
    assert module.get_global("launches").view(np.int32).tolist() == [2]
    with pytest.raises(ValueError, match="no __constant__ or __device__ variable 'tabel'"):
        module.get_global("tabel")


def test_the_environment_sets_order_and_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    source = "__global__ void last(int* o) { o[0] = blockIdx.x * 100 + threadIdx.x; }"
    out = torch.zeros(1, dtype=torch.int32)
    seen = {}
    for order in ("0", "1", "2", "3"):
        monkeypatch.setenv("PAGEDATTN_SIMT_ORDER", order)
        kernel = RawModule(code=source).get_function("last")
        kernel((7,), (64,), (out,))
        seen[order] = out.item()
        kernel((7,), (64,), (out,))
        assert out.item() == seen[order]
    assert (seen["0"], seen["1"]) == (663, 0)
    assert len(set(seen.values())) == 4
    monkeypatch.setenv("PAGEDATTN_SIMT_CHECKED", "1")
    assert RawModule(code=source).checks
    monkeypatch.setenv("PAGEDATTN_SIMT_CHECKED", "0")
    assert not RawModule(code=source).checks
