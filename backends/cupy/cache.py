"""Compiled kernels on disk, so that a process compiles what no process before it did.

One file an instantiation, under a name that digests everything that goes into it: the source with
its headers, the options, the names, the architecture, and the versions of NVRTC and of this layout.
A file appears by rename and ends with a digest of itself: concurrent processes do the work twice at
worst, and what a crash or a full disk left behind is compiled again.

PAGEDATTN_KERNEL_CACHE names another folder; the default is the user's cache directory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pagedattn.backends.cupy.compiler import Binary, compile_source, nvrtc_version
from pagedattn.user_cache import cache_path, replace_file

__all__ = ["compiled", "folder"]

LAYOUT = "pagedattn-cubin-1"
_DIGEST = hashlib.sha256().digest_size


def folder() -> Path:
    """Where compiled kernels lie."""
    return cache_path("kernels", variable="PAGEDATTN_KERNEL_CACHE")


def compiled(source: str, options: Sequence[str], names: Sequence[str], arch: str) -> Binary:
    """From the cache, or compiled now and stored. A cache that cannot be written is no error.

    Raises KernelCompileError with the compiler's log; nothing is stored then."""
    parts = [LAYOUT, source, *options, arch, *names, repr(nvrtc_version())]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    path = folder() / f"{key}.cubin"
    with suppress(OSError):
        if (binary := _unpacked(path.read_bytes())) is not None:
            return binary
    binary = compile_source(source, options, names, arch)
    with suppress(OSError):
        replace_file(path, _packed(binary))
    return binary


def _packed(binary: Binary) -> bytes:
    """A line of JSON, the cubin, the digest of both."""
    head = json.dumps({"symbols": binary.symbols, "log": binary.log}).encode() + b"\n"
    body = head + binary.cubin
    return body + hashlib.sha256(body).digest()


def _unpacked(data: bytes) -> Binary | None:
    """None for anything that _packed() did not write to its end."""
    body, digest = data[:-_DIGEST], data[-_DIGEST:]
    if hashlib.sha256(body).digest() != digest:
        return None
    head, _, cubin = body.partition(b"\n")
    facts = json.loads(head)
    return Binary(cubin, facts["symbols"], facts["log"])
