"""Capture and replay: what a CUDA graph keeps of a run, and what it does not.

A captured launch has its pointers, scalars and grid for good; only the contents of tensors may
change before a replay. Torch operations that run meanwhile are kept too, as they would be on a GPU:
what they allocated at capture is filled anew, at the same place. What other threads launch is
theirs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

__all__ = ["capture", "note"]

Step = Callable[[], None]


class _Capturing(threading.local):
    """What the thread captures; None: nothing."""

    steps: list[Step] | None = None


_capturing = _Capturing()


def note(step: Step) -> None:
    """A kernel launch, to be run again by replay() if a capture is under way."""
    if _capturing.steps is not None:
        _capturing.steps.append(step)


def capture(launch: Step) -> Step:
    """Runs `launch` once; the result runs its kernels and torch operations again, with the same
    pointers, scalars and grids. Raises RuntimeError inside of another capture."""
    if _capturing.steps is not None:
        raise RuntimeError("capture() inside capture()")
    steps: list[Step] = []
    _capturing.steps = steps
    try:
        with _Operations():  # type: ignore[no-untyped-call]
            launch()
    finally:
        _capturing.steps = None

    def replay() -> None:
        for step in steps:
            step()

    return replay


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every torch operation."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        options = kwargs or {}
        result = func(*args, **options)
        given = {_memory(t) for t in _tensors((args, options))}
        made = {i: t for i, t in enumerate(_tensors(result)) if _memory(t) not in given}

        def again() -> None:
            fresh = _tensors(func(*args, **options))
            for i, tensor in made.items():
                tensor.copy_(fresh[i])

        note(again)
        return result


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [x for x in tree_flatten(tree)[0] if isinstance(x, torch.Tensor)]


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
