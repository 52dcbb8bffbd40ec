"""The CuPy backend's compiler and its cache on disk, without a GPU."""

from __future__ import annotations

import ctypes
import hashlib
import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pagedattn.backends.cupy import cache, compiler, driver, loader
from pagedattn.backends.cupy.compiler import Binary, KernelCompileError, compile_source
from pagedattn.backends.cupy.heuristics import Kernel
from pagedattn.backends.cupy.params import AttentionParams, WriteParams
from pagedattn.backends.cupy.source import KERNELS, OPTIONS, source
from pagedattn.errors import NotReady
from pagedattn.user_cache import cache_path

SOURCE = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2.f; }\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAGEDATTN_KERNEL_CACHE", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Compilations, which take no time here: the cubin is a text that names them."""
    made: list[tuple[Any, ...]] = []

    def compile_now(text: str, options: Any, names: Any, arch: str) -> Binary:
        made.append((text, tuple(options), tuple(names), arch))
        cubin = f"cubin {len(made)}: {text} {arch}\n\n".encode()
        return Binary(cubin, {n: f"_{n}" for n in names}, "log")

    monkeypatch.setattr(cache, "compile_source", compile_now)
    return made


# -- NVRTC ---------------------------------------------------------------------------------------


def test_nvrtc_makes_a_whole_elf_file() -> None:
    binary = compile_source(SOURCE, OPTIONS, ["twice"], "sm_80")
    assert binary.cubin[:4] == b"\x7fELF"
    sections = int.from_bytes(binary.cubin[40:48], "little")
    size, count = (int.from_bytes(binary.cubin[at : at + 2], "little") for at in (58, 60))
    assert sections + size * count <= len(binary.cubin)
    assert binary.symbols == {"twice": "twice"}


def test_a_compile_error_carries_the_log_with_file_and_line() -> None:
    broken = f'#line 7 "mine.cu"\n{SOURCE.replace("2.f", "nonsense")}'
    with pytest.raises(KernelCompileError, match=r"twice for sm_90") as caught:
        compile_source(broken, OPTIONS, ["twice"], "sm_90")
    assert 'mine.cu(7): error: identifier "nonsense" is undefined' in caught.value.log
    assert caught.value.log.strip() in str(caught.value)


def test_sources_hold_each_header_once_and_keep_line_numbers() -> None:
    text = source("decode.cu")
    assert '#include "' not in text.replace('#include "simt.h"', "")
    assert text.count("struct AttentionParams {") == 1
    marker = "extern __shared__ uint4 shared[];"
    number = (KERNELS / "decode.cu").read_text().splitlines().index(f"  {marker}") + 1
    start, before = text.index(marker), text[: text.index(marker)]
    last = before.rindex("#line ")
    counted = int(before[last:].split()[1]) + before[last:start].count("\n") - 1
    assert counted == number


def test_structs_have_the_layout_that_the_device_compiler_gives_them() -> None:
    checks = []
    for struct in (AttentionParams, WriteParams):
        checks.append(f"sizeof({struct.__name__}) == {ctypes.sizeof(struct)}")
        for name, *_ in struct._fields_:
            offset = getattr(struct, name).offset
            checks.append(f"__INTADDR__(&((({struct.__name__}*)0)->{name})) == {offset}")
    asserts = "\n".join(f'static_assert({check}, "{check}");' for check in checks)
    compile_source(source("params.cuh") + SOURCE + asserts, OPTIONS, ["twice"], "sm_90")
    assert len(checks) > 60


def test_no_nvrtc_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    from cupy.cuda import nvrtc

    def missing() -> tuple[int, int]:
        raise RuntimeError("libnvrtc.so.13 cannot be opened")

    monkeypatch.setattr(nvrtc, "getVersion", missing)
    with pytest.raises(NotReady, match="pip install nvidia-cuda-nvrtc"):
        compiler.nvrtc_version()


# -- the cache -----------------------------------------------------------------------------------


def test_the_second_time_reads_what_the_first_wrote(folder: Path, calls: list[Any]) -> None:
    first = cache.compiled("a", OPTIONS, ["k<1>"], "sm_90")
    assert cache.compiled("a", OPTIONS, ["k<1>"], "sm_90") == first
    assert len(calls) == 1
    assert [p.suffix for p in folder.iterdir()] == [".cubin"]


@pytest.mark.parametrize(
    "other",
    [
        ("b", OPTIONS, ["k"], "sm_90"),
        ("a", (*OPTIONS, "-DX"), ["k"], "sm_90"),
        ("a", OPTIONS, ["k<2>"], "sm_90"),
        ("a", OPTIONS, ["k"], "sm_80"),
    ],
)
def test_everything_that_is_compiled_is_part_of_the_key(
    folder: Path, calls: list[Any], other: tuple[Any, ...]
) -> None:
    first = cache.compiled("a", OPTIONS, ["k"], "sm_90")
    assert cache.compiled(*other).cubin != first.cubin
    assert cache.compiled("a", OPTIONS, ["k"], "sm_90") == first
    assert len(calls) == 2


def test_another_nvrtc_compiles_anew(
    folder: Path, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.compiled("a", OPTIONS, ["k"], "sm_90")
    monkeypatch.setattr(cache, "nvrtc_version", lambda: (99, 1))
    cache.compiled("a", OPTIONS, ["k"], "sm_90")
    assert len(calls) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: data[:9] + bytes([data[9] ^ 1]) + data[10:],
        lambda data: bytes(len(data)),
    ],
    ids=["empty", "half", "one-byte-short", "one-bit", "zeros"],
)
def test_a_damaged_file_is_compiled_again(
    folder: Path, calls: list[Any], damage: Callable[[bytes], bytes]
) -> None:
    cache.compiled("a", OPTIONS, ["k"], "sm_90")
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    again = cache.compiled("a", OPTIONS, ["k"], "sm_90")
    assert len(calls) == 2
    assert again.cubin.startswith(b"cubin 2")
    assert cache.compiled("a", OPTIONS, ["k"], "sm_90") == again
    assert len(calls) == 2


def sealed(body: bytes) -> bytes:
    return body + hashlib.sha256(body).digest()


@pytest.mark.parametrize(
    "head",
    [b"no JSON", b"\xff\xfe", b"[]", b"7", b"{}", b'{"key": "other", "symbols": {}, "log": ""}'],
    ids=["text", "bytes", "list", "number", "empty", "another-key"],
)
def test_a_right_digest_over_something_else_is_compiled_again(
    folder: Path, calls: list[Any], head: bytes
) -> None:
    first = cache.compiled("a", OPTIONS, ["k"], "sm_90")
    (path,) = folder.iterdir()
    path.write_bytes(sealed(head + b"\n" + first.cubin))
    assert cache.compiled("a", OPTIONS, ["k"], "sm_90").cubin.startswith(b"cubin 2")
    assert len(calls) == 2


def test_a_kernel_under_the_name_of_another_is_compiled_again(
    folder: Path, calls: list[Any]
) -> None:
    cache.compiled("a", OPTIONS, ["k"], "sm_90")
    (moved,) = folder.iterdir()
    wanted = cache.compiled("b", OPTIONS, ["k"], "sm_90")
    (place,) = set(folder.iterdir()) - {moved}
    moved.replace(place)
    again = cache.compiled("b", OPTIONS, ["k"], "sm_90")
    assert len(calls) == 3
    assert again.cubin == wanted.cubin.replace(b"cubin 2", b"cubin 3")


def test_what_another_user_may_have_written_is_compiled_again(
    folder: Path, calls: list[Any]
) -> None:
    cache.compiled("a", OPTIONS, ["k"], "sm_90")
    (path,) = folder.iterdir()
    path.chmod(0o666)
    assert cache.compiled("a", OPTIONS, ["k"], "sm_90").cubin.startswith(b"cubin 2")
    assert path.stat().st_mode & 0o022 == 0  # the new one is nobody else's to write
    cache.compiled("a", OPTIONS, ["k"], "sm_90")
    assert len(calls) == 2


def test_what_a_killed_process_left_behind_is_not_read(folder: Path, calls: list[Any]) -> None:
    folder.mkdir()
    (folder / ".abc.partial").write_bytes(b"half a cubin")
    cache.compiled("a", OPTIONS, ["k"], "sm_90")
    assert len(calls) == 1


def test_a_cache_that_cannot_be_written_costs_only_time(
    tmp_path: Path, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("PAGEDATTN_KERNEL_CACHE", str(tmp_path / "file"))
    for _ in range(2):
        assert cache.compiled("a", OPTIONS, ["k"], "sm_90").symbols == {"k": "_k"}
    assert len(calls) == 2


def test_an_error_is_not_stored(folder: Path) -> None:
    with pytest.raises(KernelCompileError):
        cache.compiled("nonsense", OPTIONS, ["k"], "sm_90")
    assert not folder.exists()


def _compile_and_report(number: int, results: Any) -> None:
    def slow(text: str, options: Any, names: Any, arch: str) -> Binary:
        time.sleep(0.05)
        return Binary(b"x" * 3_000_000, {"k": "_k"}, "")

    cache.compile_source = slow  # type: ignore[assignment]  # in a process of its own
    for _ in range(3):
        binary = cache.compiled("shared", OPTIONS, ["k"], "sm_90")
        results.put((number, len(binary.cubin), set(binary.cubin) == {ord("x")}))


def test_processes_at_the_same_time_see_whole_files(folder: Path) -> None:
    fork = multiprocessing.get_context("fork")
    results = fork.Queue()
    processes = [fork.Process(target=_compile_and_report, args=(i, results)) for i in range(4)]
    for process in processes:
        process.start()
    seen = [results.get(timeout=60) for _ in range(12)]
    for process in processes:
        process.join()
    assert {(size, whole) for _, size, whole in seen} == {(3_000_000, True)}
    assert len(list(folder.iterdir())) == 1


def test_the_default_folder_is_the_users_cache() -> None:
    assert cache.folder() == cache_path("kernels", variable="NOT_SET")


# -- loading and launching ------------------------------------------------------------------------


class FakeModule:
    """Stands for cupy.cuda.function.Module."""

    loaded: list[bytes] = []  # noqa: RUF012
    asked: list[str] = []  # noqa: RUF012

    def load(self, cubin: bytes) -> None:
        self.loaded.append(cubin)

    def get_function(self, symbol: str) -> Any:
        self.asked.append(symbol)
        return type("Function", (), {"ptr": 4711})()


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """CuPy's modules and launches, recorded."""
    from cupy.cuda import driver as cuda_driver, function

    launches: list[tuple[Any, ...]] = []

    def launch(pointer: int, *rest: int) -> None:
        params = ctypes.cast(rest[8], ctypes.POINTER(ctypes.c_void_p))[0]
        assert params is not None
        launches.append((pointer, rest[:8], ctypes.string_at(params, ctypes.sizeof(WriteParams))))

    monkeypatch.setattr(FakeModule, "loaded", [])
    monkeypatch.setattr(FakeModule, "asked", [])
    monkeypatch.setattr(function, "Module", FakeModule)
    monkeypatch.setattr(cuda_driver, "launchKernel", launch)
    return launches


def test_the_compiled_bytes_reach_the_driver(
    folder: Path, fake_cuda: list[tuple[Any, ...]]
) -> None:
    names = ("attention_write_kernel", "attention_write_converted_kernel")
    kernels = driver.CupyDriver().load(source("write.cu"), OPTIONS, names, "sm_90")
    binary = cache.compiled(source("write.cu"), OPTIONS, names, "sm_90")
    assert FakeModule.loaded == [binary.cubin]
    assert binary.cubin[:4] == b"\x7fELF"
    assert FakeModule.asked == [binary.symbols[n] for n in names]
    assert set(kernels) == set(names)


def test_a_launch_passes_the_struct_by_value(
    folder: Path, fake_cuda: list[tuple[Any, ...]]
) -> None:
    kernels = driver.CupyDriver().load(SOURCE, OPTIONS, ("twice",), "sm_90")
    params = WriteParams()
    params.num_slots, params.k_row = 77, -5
    kernel = Kernel("twice.cu", "twice", 2048, threads=256)
    loader.Launch(kernels["twice"], kernel)(3, 2, params, 99)
    ((pointer, geometry, data),) = fake_cuda
    assert pointer == 4711
    assert geometry == (3, 2, 1, 256, 1, 1, 2048, 99)
    assert data == bytes(params)


def test_shared_memory_is_asked_for_by_attribute(
    folder: Path, fake_cuda: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from cupy.cuda import driver as cuda_driver

    attributes: dict[int, int] = {}
    monkeypatch.setattr(
        cuda_driver, "funcSetAttribute", lambda f, kind, value: attributes.update({kind: value})
    )
    monkeypatch.setattr(cuda_driver, "funcGetAttribute", lambda kind, f: attributes.get(kind, 0))
    kernel = driver.CupyDriver().load(SOURCE, OPTIONS, ("twice",), "sm_90")["twice"]
    kernel.max_dynamic_shared_size_bytes = 100_000
    assert kernel.max_dynamic_shared_size_bytes == 100_000
    kind = cuda_driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    assert attributes == {kind: 100_000}


def test_nothing_is_loaded_into_a_graph_that_is_being_captured(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(NotReady, match="open the op before the capture"):
        driver.CupyDriver().load(SOURCE, OPTIONS, ("twice",), "sm_90")
    assert not folder.exists()


def test_launches_go_to_the_current_stream_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = type("Stream", (), {"cuda_stream": 1234})()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    assert driver.CupyDriver().stream(torch.device("cuda", 0)) == 1234


def test_the_environment_of_these_tests_is_clean() -> None:
    assert "PAGEDATTN_KERNEL_CACHE" not in os.environ
