"""Files under the user's cache directory: where they lie, how they appear there, and which of them
to believe.

A folder may be shared: one user writes, others read. Files are made as the umask says, but never
for others to write. What is executed later (compiled kernels) is read by read_trusted() alone.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path

__all__ = ["cache_path", "read_trusted", "replace_file", "sweep", "trusted"]

_PARTIAL = ".pagedattn-{}.partial"
_ABANDONED = 24 * 3600.0
"""Seconds after which nobody writes at a temporary file any more."""


def cache_path(name: str, *, variable: str) -> Path:
    """What the environment's `variable` names, else pagedattn/<name> in the cache directory of the
    user: XDG_CACHE_HOME or ~/.cache, on macOS ~/Library/Caches, on Windows LOCALAPPDATA."""
    if given := os.environ.get(variable):
        return Path(given)
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "pagedattn" / name


def replace_file(path: Path, data: bytes) -> None:
    """Writes the file by a rename: whoever reads sees the old one or the new one, whole. Folders
    are made; a failure, or an interrupt, leaves nothing behind, and what a killed process left is
    swept a day later.

    Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path.parent, _PARTIAL.format("*"))
    temporary = path.parent / _PARTIAL.format(os.urandom(8).hex())
    try:
        # The umask is the system's to apply. Nobody needs to write: the next version is a new file.
        with open(temporary, "xb", opener=lambda name, how: os.open(name, how, 0o644)) as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def read_trusted(path: Path) -> bytes:
    """The file's bytes. Raises OSError: PermissionError when another user may have written them."""
    with open(path, "rb") as file:
        if not trusted(os.fstat(file.fileno()), path.parent):
            raise PermissionError(f"{path} may have been written by another user")
        return file.read()


def trusted(file: os.stat_result, folder: Path) -> bool:
    """Whether to execute what is in a file of `folder`: it is this user's or root's, and nobody
    else may write to it.

    The folder's owner is believed too, who could replace everything there, unless all the world
    could have made that folder (/tmp/kernels). Who may only write to the folder is not. On Windows
    this is left to the system."""
    if sys.platform == "win32":
        return True
    if file.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return False
    if file.st_uid in (os.geteuid(), 0):
        return True
    place = folder.resolve()
    return file.st_uid == place.stat().st_uid and not place.parent.stat().st_mode & stat.S_IWOTH


def sweep(folder: Path, pattern: str) -> None:
    """Removes the files and folders of that pattern that were last changed a day ago or earlier:
    what killed processes left behind."""
    oldest = time.time() - _ABANDONED
    for path in folder.glob(pattern):
        with suppress(OSError):
            found = path.lstat()
            if found.st_mtime >= oldest:
                continue
            if stat.S_ISDIR(found.st_mode):
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()
