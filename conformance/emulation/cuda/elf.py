"""The thread-local symbols of an ELF file: what a kernel's shared memory is made of."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

__all__ = ["TlsSymbol", "tls_symbols"]

_SYMTAB, _TLS = 2, 6


@dataclass(frozen=True)
class TlsSymbol:
    """name (mangled), offset in the TLS segment, size in bytes, and whether the file defines it."""

    name: str
    offset: int
    size: int
    defined: bool


def tls_symbols(path: Path) -> list[TlsSymbol]:
    """The thread-local symbols of a 64-bit little-endian object file or shared library."""
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{path} is not a 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", data, 0x28)
    entry_size, count = struct.unpack_from("<HH", data, 0x3A)
    sections = [
        struct.unpack_from("<IIQQQQIIQQ", data, table + i * entry_size) for i in range(count)
    ]
    symbols = []
    for section in sections:
        if section[1] != _SYMTAB:
            continue
        names = sections[section[6]][4]
        for entry in struct.iter_unpack("<IBBHQQ", data[section[4] : section[4] + section[5]]):
            name, info, _, index, value, size = entry
            if info & 0xF == _TLS:
                end = data.index(b"\0", names + name)
                text = data[names + name : end].decode()
                symbols.append(TlsSymbol(text, value, size, index != 0))
    return symbols
