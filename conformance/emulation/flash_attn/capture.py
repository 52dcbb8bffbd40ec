"""A CUDA graph modelled on the CPU: launches are recorded with their very arguments and run again.

Tensor operations are seen by a dispatch mode, calls of the extension by `launched`; what a call
does inside counts as its kernel and is not recorded. Replaying writes into the tensors that the
recorded launches wrote to, so a Python number that changed since is not seen, contents are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

__all__ = ["capture", "launched"]

P = ParamSpec("P")
R = TypeVar("R")


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Launches in order: (function, arguments, keywords, result)."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.launches: list[tuple[Callable[..., Any], Any, Any, Any]] = []
        self.inside = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("run() waits for the device inside a captured graph")
        return self.launch(func, args, kwargs or {})

    def launch(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self.inside = True
        try:
            result = function(*args, **kwargs)
        finally:
            self.inside = False
        self.launches.append((function, args, kwargs, result))
        return result

    def replay(self) -> None:
        for function, args, kwargs, recorded in self.launches:
            again = function(*args, **kwargs)
            for old, new in zip(_tensors(recorded), _tensors(again), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


_active: list[Recorder] = []


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor)]


def launched(kernel: Callable[P, R]) -> Callable[P, R]:
    """A kernel: while something is captured, a call is recorded as one launch. What it makes lies
    on the CPU, whatever torch's default device is."""

    @functools.wraps(kernel)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not _active or _active[-1].inside:  # inside: an operator that is recorded itself
            with torch.device("cpu"):
                return kernel(*args, **kwargs)
        with _disable_current_modes():
            result: R = _active[-1].launch(kernel, args, kwargs)
        return result

    return call


def capture(launch: Callable[[], None]) -> Callable[[], None]:
    """Record what `launch` launches; the returned callable runs the same again.

    A first run warms up, as for a CUDA graph: what is checked once is not part of a launch."""
    launch()
    recorder = Recorder()
    _active.append(recorder)
    try:
        with recorder:
            launch()
    finally:
        _active.remove(recorder)
    return recorder.replay
