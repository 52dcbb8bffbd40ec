"""triton.language bound to the interpreter once, instead of at every launch and function call.

The interpreter replaces the members of triton.language before every launch, restores them after,
and replaces them again at every call of a @triton.jit function, tl.max and tl.sum among them: most
of the time of a small kernel. In a process that only interprets they may stay.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import triton.language as tl
from triton.runtime import interpreter

__all__ = ["install"]


class _Kept:
    """Stands for the interpreter's record of replaced members; nothing is restored."""

    def set_attr(self, owner: Any, name: str, value: Any) -> None:
        setattr(owner, name, value)

    def restore(self) -> None:
        pass


def _index(self: Any) -> int:
    return int(self.handle.data.reshape(-1)[0])  # NumPy >= 2.4 takes int() of a 0-d array only


def _truth(self: Any) -> bool:
    """Of a scalar. The interpreter calls every block true; the compiler refuses it."""
    data = self.handle.data
    if sys._getframe(1).f_globals.get("__name__") == "triton.language.semantic":
        return True  # which asks `other if other else None`, also of a scalar 0
    if data.size != 1:
        raise TypeError(
            f"the truth value of a block of shape {data.shape}: `if`, `and`, `or` and `not` take "
            "scalars; use tl.where, & and |"
        )
    return bool(data.reshape(-1)[0])


def _multiple_of(input: Any, values: Any) -> Any:
    """Checks the promise for scalars: the compiler builds wide loads on it."""
    values = values if isinstance(values, list | tuple) else [values]
    values = [getattr(v, "value", v) for v in values]
    if isinstance(input, tl.tensor) and not input.type.is_block():
        found = _index(input)
        if found % values[0]:
            raise ValueError(f"tl.multiple_of promises a multiple of {values[0]}, it is {found}")
    return input


def install() -> None:
    """Binds triton.language for good."""
    scope = _Kept()
    original_scope = interpreter._LangPatchScope
    interpreter._LangPatchScope = lambda: scope
    try:
        visible = types.SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
        interpreter._patch_lang(visible)
    finally:
        interpreter._LangPatchScope = original_scope
    tl.tensor.__index__, tl.tensor.__bool__ = _index, _truth
    for module in (tl, tl.core):
        module.multiple_of = _multiple_of
    interpreter._patch_lang = lambda fn: scope
