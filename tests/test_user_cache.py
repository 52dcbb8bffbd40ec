"""Where cached files lie, and that nobody ever sees half of one."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from pagedattn import user_cache
from pagedattn.user_cache import cache_path, replace_file

VARIABLES = ("XDG_CACHE_HOME", "LOCALAPPDATA", "MY_CACHE")


@pytest.mark.parametrize(
    ("platform", "variables", "place"),
    [
        ("linux", {}, "/home/me/.cache/pagedattn/kernels"),
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/pagedattn/kernels"),
        ("linux", {"XDG_CACHE_HOME": ""}, "/home/me/.cache/pagedattn/kernels"),
        ("linux", {"MY_CACHE": "/y", "XDG_CACHE_HOME": "/x"}, "/y"),
        ("darwin", {"XDG_CACHE_HOME": "/x"}, "/home/me/Library/Caches/pagedattn/kernels"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/pagedattn/kernels"),
        ("win32", {}, "/home/me/AppData/Local/pagedattn/kernels"),
    ],
)
def test_places(
    monkeypatch: pytest.MonkeyPatch, platform: str, variables: dict[str, str], place: str
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setattr(user_cache.sys, "platform", platform)
    assert cache_path("kernels", variable="MY_CACHE") == Path(place)


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file"
    for data in (b"first", b"second, longer", b""):
        replace_file(path, data)
        assert path.read_bytes() == data
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError])
def test_a_failure_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: type[BaseException]
) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old")

    def fail(*_: object) -> None:
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(user_cache.os, "replace", fail)
        with pytest.raises(failure):
            replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_killed_writer_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path, whole = tmp_path / "file", (b"a" * 20_000_000, b"b" * 20_000_000)
    program = (
        "import sys; from pathlib import Path; from pagedattn.user_cache import replace_file\n"
        "print('ready', flush=True)\n"
        "while True:\n"
        "    for letter in b'ab': replace_file(Path(sys.argv[1]), bytes([letter]) * 20_000_000)"
    )
    for wait in (0.003, 0.01, 0.03):
        command = [sys.executable, "-c", program, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            while not path.exists():
                time.sleep(0.001)
            time.sleep(wait)
            writer.kill()
        assert path.read_bytes() in whole
