"""Every test here sees the fake in the place of flashinfer, and a GPU in the place of the CPU."""

import sys
from collections.abc import Iterator

import fake_flashinfer
import pytest
from pagedattn_flashinfer import backend as module
from pagedattn_flashinfer.backend import FlashInferBackend

import pagedattn as pa
from pagedattn.emulation import Emulation

SM90 = pa.DeviceInfo("cuda", sm=(9, 0), name="sm_90 in a test", real=True)


@pytest.fixture(autouse=True)
def flashinfer(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "flashinfer", fake_flashinfer)
    monkeypatch.setattr(module, "installed_version", lambda: "0.7.4")
    monkeypatch.setattr(module, "WORKSPACE_BYTES", 2**16)
    fake_flashinfer.CALLS.clear()
    module.fault.cache_clear()
    yield
    module.fault.cache_clear()


@pytest.fixture
def backend() -> FlashInferBackend:
    made = FlashInferBackend()
    made.emulated = Emulation(SM90)
    return made
