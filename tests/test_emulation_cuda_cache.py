"""The cache of what the CUDA emulation built: shared folders, and what killed builds left."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pagedattn.conformance.emulation.cuda import toolchain

KEY = "kernel-0123"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAGEDATTN_SIMT_CACHE", str(tmp_path / "simt"))
    monkeypatch.setattr(toolchain, "_whole", set())  # every call looks, as a new process does
    return tmp_path / "simt"


def build(text: str) -> Callable[[Path], None]:
    def fill(work: Path) -> None:
        (work / "kernel.so").write_text(text)

    return fill


def test_a_build_sweeps_the_folders_of_killed_ones(folder: Path) -> None:
    ages = {".kernel-old.a": 90_000, ".kernel-new.b": 80_000, ".other": 90_000}
    for name, age in ages.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "kernel.so").write_text("half")
        os.utime(folder / name, (time.time() - age,) * 2)
    toolchain.build_once(KEY, build("whole"))
    assert sorted(p.name for p in folder.iterdir()) == [".kernel-new.b", ".other", KEY]


@pytest.mark.parametrize(
    ("umask", "mode"), [(0o022, 0o755), (0o002, 0o755), (0, 0o755), (0o077, 0o700)]
)
def test_others_may_read_as_the_umask_says_and_never_write(
    folder: Path, umask: int, mode: int
) -> None:
    before = os.umask(umask)
    try:
        place = toolchain.build_once(KEY, build("first"))
    finally:
        os.umask(before)
    assert place.stat().st_mode & 0o777 == mode
    for file in place.iterdir():
        assert file.stat().st_mode & 0o777 == mode & 0o666
    toolchain._whole.clear()
    toolchain.build_once(KEY, build("second"))
    assert (place / "kernel.so").read_text() == "first"


@pytest.mark.parametrize("part", [".", "kernel.so", "contents"])
def test_what_another_user_may_have_written_is_built_anew(folder: Path, part: str) -> None:
    place = toolchain.build_once(KEY, build("first"))
    (place / part).chmod(0o777)
    toolchain._whole.clear()
    toolchain.build_once(KEY, build("second"))
    assert (place / "kernel.so").read_text() == "second"
    assert (place / part).stat().st_mode & 0o022 == 0
