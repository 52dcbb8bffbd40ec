"""The structs of kernels/params.cuh as ctypes.Structure classes, read from that file."""

from __future__ import annotations

import ctypes
import re

from pagedattn.backends.cupy.source import KERNELS

__all__ = ["AttentionParams", "WriteParams", "structure"]

_STRUCT = re.compile(r"^struct (\w+) \{\n(.*?)^\};", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^\s*([\w ]+?(?:\s*\*)?)\s*(\w+);", re.MULTILINE)

_TYPES: dict[str, type] = {
    "int": ctypes.c_int32,
    "unsigned": ctypes.c_uint32,
    "long long": ctypes.c_int64,
    "float": ctypes.c_float,
}


def structure(name: str) -> type[ctypes.Structure]:
    """The struct of that name; ctypes aligns fields as C++ does."""
    bodies = {found[1]: found[2] for found in _STRUCT.finditer(_text())}
    fields = [
        (field, ctypes.c_void_p if kind.endswith("*") else _TYPES[kind])
        for kind, field in _FIELD.findall(bodies[name])
    ]
    return type(name, (ctypes.Structure,), {"_fields_": fields})


def _text() -> str:
    return (KERNELS / "params.cuh").read_text()


AttentionParams = structure("AttentionParams")
WriteParams = structure("WriteParams")
