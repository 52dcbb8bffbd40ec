"""The memory that a launch may touch, for checked mode."""

from __future__ import annotations

import gc
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pagedattn.conformance.emulation.cuda.arguments import Extent, extent_of, pointer_of
from pagedattn.conformance.emulation.cuda.errors import LaunchError
from pagedattn.conformance.emulation.cuda.library import Kind, Param, Region

__all__ = ["memory", "regions_of"]

_known: list[Extent] = []


@contextmanager
def memory(*arrays: Any) -> Iterator[None]:
    """Within it, kernels may also touch these arrays: those that a kernel reaches by a pointer
    which checked mode does not see (one that lies in another array)."""
    extents = [extent_of(array) for array in arrays]
    _known.extend(extents)
    try:
        yield
    finally:
        for extent in extents:
            _known.remove(extent)


def regions_of(params: Sequence[Param], args: Sequence[Any]) -> list[Region]:
    """What the arguments point to. An array counts from its first to its last element; a bare
    pointer, or one in a structure, gives the whole storage of the live torch tensor it points into.

    Raises LaunchError for a bare pointer into nothing that is known."""
    regions = [Region(begin, end, 1, -1) for begin, end in _known]
    bare: list[tuple[int, int]] = []
    for i, (param, value) in enumerate(zip(params, args, strict=True)):
        if param.kind == Kind.OTHER:
            raw = bytes(value) if not hasattr(value, "tobytes") else value.tobytes()
            words = struct.unpack(f"={len(raw) // 8}Q", raw[: len(raw) // 8 * 8])
            bare += [(i, word) for word in words if word > 0xFFFF]
        elif param.kind != Kind.POINTER or value is None:
            continue
        elif getattr(value, "shape", ()):
            begin, end = extent_of(value)
            regions.append(Region(begin, end, not param.pointee_const, i))
        else:
            bare.append((i, pointer_of(value) or 0))
    if bare:
        storages = list(_live_storages())
        for i, pointer in bare:
            found = {extent for extent in storages if extent[0] <= pointer < extent[1]}
            regions += [Region(begin, end, 1, i) for begin, end in found]
            known = found or any(begin <= pointer < end for begin, end in _known)
            if not known and pointer and params[i].kind == Kind.POINTER:
                raise LaunchError(
                    f"argument {i} is a bare pointer into no live torch tensor: checked mode must "
                    "know how far it goes; pass the array itself, or launch within memory(array)"
                )
    return regions


def _live_storages() -> Iterable[Extent]:
    """The storage of every torch tensor on the CPU that is alive."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, torch.nn.Parameter) and thing.device.type == "cpu":
            storage = thing.untyped_storage()
            begin = storage.data_ptr()
            yield begin, begin + storage.nbytes()
