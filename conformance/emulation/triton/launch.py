"""Launching a kernel: its arguments as the compiled kernel sees them, its programs in any order.

    arguments   tensors become pointers that know their Extent, floats become float32 scalars (the
                interpreter computes with Python's doubles), booleans int1 (it fails on them)
    grid        checked against CUDA's limits; programs run in an order that PAGEDATTN_TRITON_ORDER
                chooses, one after the other: what waits for another program never ends
    memory      nothing is copied (the interpreter copies every storage back onto itself)
    capture     every launch is told to capture.py
    threads     launches wait for each other, as on one stream

PAGEDATTN_TRITON_ORDER: `shuffled` (the default; another order at every launch of a process),
`shuffled:SEED` (the same order at every launch), `ascending`, `descending`.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import os
import random
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import triton.language as tl
from triton.backends.amd.compiler import HIPOptions
from triton.backends.nvidia.compiler import CUDAOptions
from triton.runtime import interpreter, jit
from triton.tools.tensor_descriptor import TensorDescriptor

from pagedattn.conformance.emulation.triton import capture, memory
from pagedattn.conformance.emulation.triton.memory import Extent, Pointer

__all__ = ["GridTooLarge", "install"]

Grid = tuple[int, int, int]

_GRID_LIMITS = (2**31 - 1, 65535, 65535)
_OPTIONS = {f.name for cls in (CUDAOptions, HIPOptions) for f in dataclasses.fields(cls)}
_NUMBER = re.compile(r"[iu](8|16|32|64)|fp(32|64)")
_counter = itertools.count()
_lock = threading.RLock()  # the interpreter has one grid, and one set of tensors, at a time
_elements: dict[Any, tl.dtype] = {}


class GridTooLarge(ValueError):
    """A grid that no CUDA device launches, of any compute capability."""


@dataclasses.dataclass(frozen=True)
class _Launch:
    """A kernel with its very arguments; calling it runs every program."""

    name: str
    function: Callable[..., None]
    arguments: Mapping[str, Any]
    extents: list[Extent]
    grid: Grid

    def __call__(self) -> None:
        with _lock:
            self._run()

    def _run(self) -> None:
        builder = interpreter.interpreter_builder
        builder.set_grid_dim(*self.grid)
        memory.current[:] = self.extents
        try:
            with np.errstate(all="ignore"):  # a GPU raises nothing for NaN or infinity
                for program in _order(self.grid):
                    builder.set_grid_idx(*program)
                    try:
                        self.function(**self.arguments)
                    except Exception as error:
                        error.add_note(f"in program {program} of {self.name}, grid {self.grid}")
                        raise
        finally:
            memory.current.clear()


def _order(grid: Grid) -> Iterator[Grid]:
    x, y, z = map(range, grid)
    programs = itertools.product(x, y, z)
    wanted, _, seed = os.environ.get("PAGEDATTN_TRITON_ORDER", "shuffled").partition(":")
    if wanted == "ascending":
        return programs
    if wanted not in ("descending", "shuffled"):
        raise ValueError(
            f"PAGEDATTN_TRITON_ORDER={wanted!r}: expected ascending, descending, shuffled or "
            "shuffled:SEED"
        )
    listed = list(programs)
    if wanted == "descending":
        listed.reverse()
    else:
        random.Random(int(seed) if seed else next(_counter)).shuffle(listed)
    return iter(listed)


def _scalar(data: Any, dtype: Any, ty: tl.dtype) -> Any:
    return tl.tensor(interpreter.TensorHandle(np.array([data], dtype), ty), ty)


def _annotated(name: str, value: Any, ty: tl.dtype) -> Any:
    dtype = interpreter._get_np_dtype(ty)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if not limits.min <= value <= limits.max:
            raise OverflowError(f"{name}={value} does not fit its annotation {ty}")
    return _scalar(value, dtype, ty)


def _converted(name: str, value: Any, ty: tl.dtype | None, extents: list[Extent]) -> Any:
    """An argument as the kernel sees it, of the annotated type if there is one; the extents of
    tensors are added."""
    if ty is not None:
        return _annotated(name, value, ty)
    if isinstance(value, bool):
        return _scalar(value, np.bool_, tl.int1)
    if isinstance(value, float):
        return _scalar(value, np.float32, tl.float32)
    if isinstance(value, tuple):
        made = [_converted(f"{name}[{i}]", v, None, extents) for i, v in enumerate(value)]
        return type(value)(*made) if hasattr(value, "_fields") else tuple(made)
    if not hasattr(value, "data_ptr"):
        if isinstance(value, TensorDescriptor):
            extents.append(Extent(name, value.base))
        return interpreter._implicit_cvt(value)
    if value.dtype not in _elements:
        _elements[value.dtype] = tl.str_to_ty(jit.mangle_type(value), None).element_ty
    extent = Extent(name, interpreter._unwrap_tensor(value))
    if extent.owner.device.type != "cpu":
        raise ValueError(f"{name} is on {extent.owner.device}; the emulation computes on the CPU")
    extents.append(extent)
    return _scalar(extent.start, np.uint64, Pointer(_elements[value.dtype], extent))


class _Kernel:
    """What a launch needs to know of an interpreted function, found once."""

    def __init__(self, function: Any) -> None:
        self.signature = inspect.signature(function.fn)
        self.parameters = frozenset(self.signature.parameters)
        notes = {n: jit._normalize_ty(t) for n, t in inspect.get_annotations(function.fn).items()}
        self.constexprs = {name for name, note in notes.items() if note == "constexpr"}
        self.types = {n: tl.str_to_ty(t, None) for n, t in notes.items() if _NUMBER.fullmatch(t)}


def _bound(kernel: _Kernel, name: str, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    if unknown := kwargs.keys() - kernel.parameters - _OPTIONS:
        raise TypeError(
            f"{name} has no parameter {', '.join(sorted(unknown))}, and it is no launch option"
        )
    own = {k: v for k, v in kwargs.items() if k in kernel.parameters}
    bound = kernel.signature.bind(*args, **own)
    bound.apply_defaults()
    return bound.arguments


def _checked(wanted: Any, name: str) -> Grid:
    x, y, z = (*map(int, wanted), 1, 1)[:3]
    if min(x, y, z) < 0 or any(n > m for n, m in zip((x, y, z), _GRID_LIMITS, strict=True)):
        raise GridTooLarge(f"grid {wanted} of {name}; CUDA takes 0 to {_GRID_LIMITS}")
    return x, y, z


def _run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
    kernel = self.__dict__.get("pagedattn_kernel")
    if kernel is None:
        kernel = self.pagedattn_kernel = _Kernel(self)
    arguments = _bound(kernel, self.fn.__name__, args, kwargs)
    if warmup:
        return
    for hook in self.pre_run_hooks:
        hook(*args, **kwargs)
    extents: list[Extent] = []
    converted = {
        name: value
        if name in kernel.constexprs
        else _converted(name, value, kernel.types.get(name), extents)
        for name, value in arguments.items()
    }
    sizes = _checked(grid(arguments) if callable(grid) else grid, self.fn.__name__)
    launch = _Launch(self.fn.__name__, self.rewrite(), converted, extents, sizes)
    capture.note(launch)
    launch()


def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
    return self.rewrite()(*args, **kwargs)


def install() -> None:
    """Launches of interpreted kernels go through this module from here on."""
    function = interpreter.InterpretedFunction
    function.run, function.__call__ = _run, _call
    options = interpreter.InterpreterOptions(sanitize_overflow=False)  # as without debug=True
    interpreter.interpreter_builder.options = options
