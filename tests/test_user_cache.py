"""Where cached files lie, and that nobody ever sees half of one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pagedattn import user_cache
from pagedattn.user_cache import cache_path, read_trusted, replace_file, sweep, trusted

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


# -- shared folders ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o027, 0o640), (0o002, 0o644), (0, 0o644)]
)
def test_files_get_the_umasks_mode_and_nobody_else_writes(
    tmp_path: Path, umask: int, mode: int
) -> None:
    before = os.umask(umask)
    try:
        replace_file(tmp_path / "file", b"data")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode
    assert read_trusted(tmp_path / "file") == b"data"


ME, OTHER, THIRD = 70001, 70002, 70003


def status(uid: int, mode: int = 0o100644) -> os.stat_result:
    return os.stat_result((mode, 0, 0, 1, uid, 0, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("owner", "mode", "folder_owner", "parent_mode", "believed"),
    [
        (ME, 0o100644, OTHER, 0o041777, True),
        (0, 0o100644, OTHER, 0o041777, True),
        (ME, 0o100664, ME, 0o040755, False),
        (0, 0o100646, ME, 0o040755, False),
        (OTHER, 0o100644, ME, 0o040755, False),
        (OTHER, 0o100644, OTHER, 0o040755, True),
        (OTHER, 0o100644, OTHER, 0o041777, False),
        (OTHER, 0o100664, OTHER, 0o040755, False),
        (THIRD, 0o100644, OTHER, 0o040755, False),
    ],
    ids=[
        "mine-anywhere",
        "roots-anywhere",
        "mine-but-the-group-writes",
        "roots-but-all-write",
        "planted-in-my-folder",
        "in-the-folder-of-its-owner",
        "in-a-folder-that-anybody-could-have-made",
        "its-owners-but-the-group-writes",
        "planted-in-the-folder-of-another",
    ],
)
def test_what_is_believed(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    owner: int,
    mode: int,
    folder_owner: int,
    parent_mode: int,
    believed: bool,
) -> None:
    folder = tmp_path.resolve() / "kernels"
    found = {folder: status(folder_owner, 0o040775), folder.parent: status(0, parent_mode)}
    monkeypatch.setattr(user_cache.os, "geteuid", lambda: ME)
    monkeypatch.setattr(Path, "stat", lambda path: found[path])
    assert trusted(status(owner, mode), folder) is believed


def test_a_file_that_others_may_write_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace_file(path, b"data")
    path.chmod(0o666)
    with pytest.raises(PermissionError, match=r"file may have been written by another user"):
        read_trusted(path)


def test_only_what_was_left_behind_a_day_ago_is_swept(tmp_path: Path) -> None:
    day = 24 * 3600
    ages = {".kernel-old.x": day + 60, ".kernel-new.x": day - 600, "kernel-old": 9 * day}
    for name, age in ages.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "kernel.so").write_text("half")
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    (tmp_path / ".kernel-link").symlink_to(tmp_path / "kernel-old")
    os.utime(tmp_path / ".kernel-link", (0, 0), follow_symlinks=False)
    sweep(tmp_path, ".kernel-*")
    assert sorted(p.name for p in tmp_path.iterdir()) == [".kernel-new.x", "kernel-old"]
    assert (tmp_path / "kernel-old" / "kernel.so").exists()


def test_a_write_sweeps_what_killed_writers_left(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from pagedattn.user_cache import replace_file\n"
        "os.replace = lambda *_: os.kill(os.getpid(), 9)\n"
        "replace_file(Path(sys.argv[1]), b'half')"
    )
    path = tmp_path / "file"
    assert subprocess.run([sys.executable, "-c", program, str(path)]).returncode == -9
    (left,) = tmp_path.iterdir()
    assert left != path
    (tmp_path / ".mine.partial").touch()  # somebody else's
    replace_file(path, b"new")
    assert left.exists()  # its writer may be alive
    for other in tmp_path.iterdir():
        os.utime(other, (0, 0))
    replace_file(path, b"newer")
    assert sorted(p.name for p in tmp_path.iterdir()) == [".mine.partial", "file"]
