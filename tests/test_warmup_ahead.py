"""`pagedattn warmup cupy --device sm_90` on a machine without a GPU: real kernels, by NVRTC."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import pagedattn as pa
from pagedattn.backends.cupy import cache, compiler, driver
from pagedattn.backends.cupy.backend import CupyBackend, CupyWgmmaBackend
from pagedattn.cli import build_app
from pagedattn.device import DeviceInfo
from pagedattn.emulation import Emulation
from pagedattn.errors import NotReady, Unsupported

LIMITS = pa.Limits(max_requests=4, max_tokens=64, max_seq_len=256, num_blocks=64)
DECODE = pa.AttentionSpec(
    num_heads=4,
    num_kv_heads=4,
    head_dim=64,
    block_size=16,
    dtype=torch.float16,
    scale=0.125,
    max_query_len=1,
)
"""Its three kernels compile in a few seconds."""
SM80 = DeviceInfo.of("sm_80")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAGEDATTN_KERNEL_CACHE", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that NVRTC was really given, with the architecture."""
    made: list[str] = []
    real = cache.compile_source

    def counted(text: str, options: Any, names: Any, arch: str) -> compiler.Binary:
        made.append(f"{names[0]} {arch}")
        return real(text, options, names, arch)

    monkeypatch.setattr(cache, "compile_source", counted)
    return made


def whole(folder: Path) -> dict[str, bytes]:
    """Name -> cubin of every entry. None may be broken."""
    entries = {}
    for path in folder.glob("*.cubin"):
        binary = cache._unpacked(path.read_bytes(), path.stem)
        assert binary is not None, f"{path} is broken"
        assert binary.cubin[:4] == b"\x7fELF"
        (name,) = binary.symbols
        entries[name] = binary.cubin
    return entries


def warmup(*arguments: str) -> Any:
    return CliRunner().invoke(build_app(), ["warmup", *arguments], catch_exceptions=True)


LAYER = ("num_heads=4", "num_kv_heads=4", "head_dim=64", "dtype=float16", "max_query_len=1")


def test_kernels_land_in_the_cache_and_a_second_run_compiles_nothing(
    folder: Path, calls: list[str]
) -> None:
    result = warmup("cupy", "--spec", LAYER[0], *LAYER[1:], "--device", "sm_80", "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["device"] == "cuda sm80"
    assert facts["kernels"] == calls
    assert len(calls) == 3
    assert {f"{name} sm_80" for name in whole(folder)} == set(calls)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    again = warmup("cupy", *LAYER, "--device", "sm_80")
    assert again.exit_code == 0
    assert "second_compile_s" in again.stdout
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    assert len(calls) == 3


@pytest.mark.parametrize("backend", [CupyBackend, CupyWgmmaBackend], ids=lambda b: b.name)
def test_open_on_the_real_gpu_finds_what_was_compiled_ahead(
    folder: Path,
    calls: list[str],
    monkeypatch: pytest.MonkeyPatch,
    backend: type[CupyBackend],
) -> None:
    """The GPU that open() sees says more of itself than its architecture."""
    spec = pa.AttentionSpec(
        num_heads=8, num_kv_heads=2, head_dim=64, block_size=16, dtype=torch.bfloat16, scale=0.125
    )
    monkeypatch.setattr(cache, "compile_source", _named(calls))
    asked = list(backend().compile_ahead(spec, LIMITS, DeviceInfo.of("sm_90")))
    assert asked == calls
    assert any(name.endswith("sm_90a") for name in asked) is (backend is CupyWgmmaBackend)

    loaded: list[str] = []

    class Loader(driver.CupyDriver):
        def load(self, source: str, options: Any, names: Any, arch: str) -> dict[str, Any]:
            loaded.extend(f"{name} {arch}" for name in names)
            cache.compiled(source, options, names, arch)
            kernel = type("Kernel", (), {"max_dynamic_shared_size_bytes": 0})
            return {name: kernel() for name in names}

    monkeypatch.setattr(driver, "DRIVER", Loader())
    opened = backend()
    h200 = DeviceInfo("cuda", (9, 0), "NVIDIA H200", num_sms=132, shared_mem=232448, real=True)
    opened.emulated = Emulation(h200)
    opened.open(spec, LIMITS, device="cpu")
    assert sorted(loaded) == sorted(asked)
    assert len(calls) == len(asked), "open() compiled"


def _named(calls: list[str]) -> Any:
    """A compiler that takes no time."""

    def compile_now(text: str, options: Any, names: Any, arch: str) -> compiler.Binary:
        calls.append(f"{names[0]} {arch}")
        return compiler.Binary(b"cubin", {names[0]: "symbol"}, "")

    return compile_now


def _ahead(results: Any) -> None:
    results.put(list(CupyBackend().compile_ahead(DECODE, LIMITS, SM80)))


def test_four_processes_at_once(folder: Path, calls: list[str]) -> None:
    fork = multiprocessing.get_context("fork")
    results = fork.Queue()
    processes = [fork.Process(target=_ahead, args=(results,)) for _ in range(4)]
    for process in processes:
        process.start()
    seen = [results.get(timeout=240) for _ in processes]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert len({tuple(names) for names in seen}) == 1
    assert len(whole(folder)) == 3
    assert len(list(folder.iterdir())) == 3
    CupyBackend().compile_ahead(DECODE, LIMITS, SM80)
    assert calls == []  # of this process


def _killed_at(moment: str) -> None:
    """Ends itself: before the first file is complete, or between two of them."""
    real = os.replace

    def replace(*names: Any) -> None:
        if moment == "after":
            real(*names)
        os.kill(os.getpid(), signal.SIGKILL)

    os.replace = replace  # type: ignore[assignment]  # in a process of its own
    CupyBackend().compile_ahead(DECODE, LIMITS, SM80)


@pytest.mark.parametrize(("moment", "left"), [("before", 0), ("after", 1), ("any", None)])
def test_a_kill_in_the_middle_leaves_no_broken_entry(
    folder: Path, calls: list[str], moment: str, left: int | None
) -> None:
    fork = multiprocessing.get_context("fork")
    if moment == "any":
        process = fork.Process(target=_ahead, args=(fork.Queue(),))
        process.start()
        time.sleep(0.05)  # wherever the compiler is then
        process.kill()
    else:
        process = fork.Process(target=_killed_at, args=(moment,))
        process.start()
    process.join(timeout=120)
    assert process.exitcode == -signal.SIGKILL
    found = whole(folder) if folder.exists() else {}
    assert left is None or len(found) == left
    CupyBackend().compile_ahead(DECODE, LIMITS, SM80)
    assert len(calls) == 3 - len(found)
    assert len(whole(folder)) == 3


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("cupy", "--device", "sm_75"), "sm80 and newer"),
        (("cupy", "--device", "sm_99"), "sm_90, "),
        (("cupy", "--device", "cuda"), "name the GPU by its architecture"),
        (("cupy:wgmma", "--device", "sm_80"), "sm90"),
        (("cupy", "head_dim=1000", "--device", "sm_90"), "head_dim"),
        (("reference", "--device", "sm_90"), "does not compile without the device"),
    ],
)
def test_what_cannot_be_compiled_ahead_is_refused_with_reasons(
    folder: Path, arguments: tuple[str, ...], reason: str
) -> None:
    if arguments[-1] == "cuda" and torch.cuda.is_available():
        pytest.skip("cuda is a device of this machine")
    result = warmup(*arguments)
    assert isinstance(result.exception, Unsupported)
    assert reason in str(result.exception)
    assert not folder.exists()


def test_a_cache_that_cannot_be_written_is_an_error_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("PAGEDATTN_KERNEL_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(cache, "compile_source", _named([]))
    with pytest.raises(NotReady, match=r"kernels cannot be kept in .*PAGEDATTN_KERNEL_CACHE"):
        CupyBackend().compile_ahead(DECODE, LIMITS, SM80)
