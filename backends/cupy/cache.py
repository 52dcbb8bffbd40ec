"""Compiled kernels on disk, so that a process compiles what no process before it did.

One file an instantiation, under a name that digests everything that goes into it: the source with
its headers, the options, the names, the architecture, and the versions of NVRTC and of this layout.
A file appears by rename and ends with a digest of itself: concurrent processes do the work twice at
worst, and what a crash or a full disk left behind is compiled again. So is what another user may
have put there (user_cache.trusted()), or moved from another name: the file holds its own.

PAGEDATTN_KERNEL_CACHE names another folder; the default is the user's cache directory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pagedattn.backends.cupy.compiler import Binary, compile_source, nvrtc_version
from pagedattn.errors import NotReady
from pagedattn.user_cache import cache_path, read_trusted, replace_file

__all__ = ["compiled", "folder", "stored"]

LAYOUT = "pagedattn-cubin-2"
_DIGEST = hashlib.sha256().digest_size


def folder() -> Path:
    """Where compiled kernels lie."""
    return cache_path("kernels", variable="PAGEDATTN_KERNEL_CACHE")


def compiled(source: str, options: Sequence[str], names: Sequence[str], arch: str) -> Binary:
    """From the cache, or compiled now and stored. A cache that cannot be written is no error.

    Raises KernelCompileError with the compiler's log; nothing is stored then."""
    key = _key(source, options, names, arch)
    if (found := _read(key)) is not None:
        return found
    binary = compile_source(source, options, names, arch)
    with suppress(OSError):
        _write(key, binary)
    return binary


def stored(source: str, options: Sequence[str], names: Sequence[str], arch: str) -> None:
    """Compiles now what the cache does not hold, for processes to come.

    Raises NotReady when it cannot be kept, KernelCompileError as compiled() does."""
    key = _key(source, options, names, arch)
    if _read(key) is not None:
        return
    binary = compile_source(source, options, names, arch)
    try:
        _write(key, binary)
    except OSError as error:
        detail = f"kernels cannot be kept in {folder()} ({error}); set PAGEDATTN_KERNEL_CACHE"
        raise NotReady("backend", "cupy", "unavailable", detail) from error


def _key(source: str, options: Sequence[str], names: Sequence[str], arch: str) -> str:
    parts = [LAYOUT, source, *options, arch, *names, repr(nvrtc_version())]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _read(key: str) -> Binary | None:
    """None when it is not there whole, or not to be believed."""
    with suppress(OSError):
        return _unpacked(read_trusted(folder() / f"{key}.cubin"), key)
    return None


def _write(key: str, binary: Binary) -> None:
    replace_file(folder() / f"{key}.cubin", _packed(binary, key))


def _packed(binary: Binary, key: str) -> bytes:
    """A line of JSON, the cubin, the digest of both."""
    facts = {"key": key, "symbols": binary.symbols, "log": binary.log}
    body = json.dumps(facts).encode() + b"\n" + binary.cubin
    return body + hashlib.sha256(body).digest()


def _unpacked(data: bytes, key: str) -> Binary | None:
    """None for anything that _packed() did not write to its end for this key."""
    body, digest = data[:-_DIGEST], data[-_DIGEST:]
    if hashlib.sha256(body).digest() != digest:
        return None
    head, _, cubin = body.partition(b"\n")
    try:
        facts = json.loads(head)
        return Binary(cubin, facts["symbols"], facts["log"]) if facts["key"] == key else None
    except (ValueError, TypeError, LookupError):
        return None
