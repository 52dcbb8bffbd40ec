"""Files under the user's cache directory: where they lie, and how they appear there."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

__all__ = ["cache_path", "replace_file"]


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
    are made; a failure, or an interrupt, leaves nothing behind.

    Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".partial")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
