"""The variables of an ELF file: shared memory is made of the thread-local ones."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Symbol", "global_symbols", "tls_symbols"]

_SYMTAB, _OBJECT, _TLS = 2, 1, 6


@dataclass(frozen=True)
class Symbol:
    """name (mangled), offset (in the TLS segment, or from where the library is loaded), size in
    bytes, and whether the file defines it."""

    name: str
    offset: int
    size: int
    defined: bool


def tls_symbols(path: Path) -> list[Symbol]:
    """The thread-local symbols of a 64-bit little-endian object file or shared library."""
    return _symbols(path, _TLS)


def global_symbols(path: Path) -> list[Symbol]:
    """Variables of the whole program, of static storage too."""
    return _symbols(path, _OBJECT)


def _symbols(path: Path, wanted: int) -> list[Symbol]:
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
            if info & 0xF == wanted:
                end = data.index(b"\0", names + name)
                text = data[names + name : end].decode()
                symbols.append(Symbol(text, value, size, index != 0))
    return symbols
