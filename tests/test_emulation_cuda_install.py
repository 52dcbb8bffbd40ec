"""The emulation as the cupy backend's driver: installed, captured, without CuPy, unavailable."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
import torch

from pagedattn.backends.cupy import driver
from pagedattn.conformance.emulation.cuda import RawModule, install
from pagedattn.device import DeviceInfo

SOURCE = r"""
extern "C" __global__ void fill(float* o, float value) { o[threadIdx.x] = value; }
__global__ void halves(const __half* in, __half* o) { o[threadIdx.x] = in[threadIdx.x]; }
__global__ void arch(int* o) { o[0] = __CUDA_ARCH__; }
"""


@pytest.fixture
def seam(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The cupy backend's driver module, as it was again after the test."""
    monkeypatch.setattr(driver, "DRIVER", driver.DRIVER)
    return driver


def test_install_replaces_the_backends_driver(seam: ModuleType) -> None:
    emulation = install()
    assert str(emulation.judged) == "kernels emulated"
    assert emulation.device == DeviceInfo.of(emulation.device)
    kernels = seam.DRIVER.load(SOURCE, ("-DX",), ("fill", "arch"), "sm_80")
    assert list(kernels) == ["fill", "arch"]
    out = torch.zeros(1, dtype=torch.int32)
    kernels["arch"]((1,), (1,), (out,), 0, seam.DRIVER.stream(out.device))
    assert out.item() == 800


def test_capture_replays_the_very_arguments(seam: ModuleType) -> None:
    emulation = install()
    assert emulation.device.type == "cuda"
    assert emulation.device.sm == (9, 0)
    out, value = torch.zeros(4), 1.0
    module = RawModule(code=SOURCE)
    fill, halves = module.get_function("fill"), module.get_function("halves")
    source, target = torch.zeros(4, dtype=torch.half), torch.zeros(4, dtype=torch.half)

    def launch() -> None:
        fill((1,), (4,), (out, np.float32(value)))
        halves((1,), (4,), (source, target))

    assert emulation.capture is not None
    replay: Callable[[], None] = emulation.capture(launch)
    assert out.tolist() == [1.0] * 4
    value = 2.0  # a scalar that changed after capture is not seen, contents of tensors are
    out.zero_()
    source.fill_(3.0)
    replay()
    assert out.tolist() == [1.0] * 4
    assert target.tolist() == [3.0] * 4
    out.zero_()
    launch()
    assert out.tolist() == [2.0] * 4
    replay()
    assert out.tolist() == [1.0] * 4


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("PAGEDATTN_SIMT_CACHE", "/dev/null/cache", "nothing can be kept in /dev/null/cache"),
        ("CXX", "/bin/false", "g++ 12 or newer is needed, /bin/false is "),
        ("CXX", "/nowhere/g++", "'/nowhere/g++' is no program in PATH; install g++ or set CXX"),
    ],
)
def test_where_nothing_can_be_built_the_backend_is_unavailable(
    variable: str, value: str, said: str
) -> None:
    done = subprocess.run(  # a process of its own: every emulator is installed in it
        [sys.executable, "-m", "pagedattn", "backends", "--json"],
        env={**os.environ, "PAGEDATTN_EMULATE": "1", variable: value},
        capture_output=True,
        text=True,
        check=True,
    )
    (row,) = [row for row in json.loads(done.stdout) if row["name"] == "cupy"]
    assert row["state"] == "unavailable"
    assert said in row["detail"]


def test_cupy_itself_is_not_needed() -> None:
    program = (
        "import runpy, sys\n"
        "sys.modules['cupy'] = None\n"  # an import of it fails, and it counts as not installed
        "sys.argv = ['pagedattn', 'check', 'cupy', '-k', 'core']\n"
        "runpy.run_module('pagedattn', run_name='__main__')"
    )
    for emulate, code, verdict in (("1", 0, r"0 failed"), ("0", 2, "cupy is not installed; pip")):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PAGEDATTN_EMULATE": emulate},
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert verdict in " ".join(done.stdout.split())
