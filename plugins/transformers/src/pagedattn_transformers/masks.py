"""The mask function that transformers calls: it builds no mask but says which one was asked for.

A model makes its mask once a step and hands it to each layer, which hands it to the attention
function. What it gets here is a CausalMask with the window; any other kind of mask is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from pagedattn.errors import Refusal, Unsupported

__all__ = ["CausalMask", "describe_mask", "refuse"]


@dataclass(frozen=True)
class CausalMask:
    """Stands for a mask: key j is kept iff p - window_left <= j <= p (None: unbounded).

    It is no tensor: a model that adds, cuts or looks into its mask does attention of its own and
    is refused at that place."""

    window_left: int | None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python itself looks for
            raise AttributeError(name)
        raise self._touched(f".{name}")

    def __getitem__(self, key: object) -> Any:
        raise self._touched("[...]")

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: object, args: object = (), kwargs: object = None
    ) -> Any:
        raise cls._touched(f" in {func.__name__}")

    @staticmethod
    def _touched(how: str) -> Unsupported:
        return refuse(
            "mask",
            f"a model that computes with its mask (mask{how})",
            "models that hand it on to the attention function",
        )


def refuse(code: str, requested: object, supported: str, hint: str = "") -> Unsupported:
    """An Unsupported error in the name of this plugin."""
    return Unsupported(Refusal("transformers", code, requested, supported, hint))


def describe_mask(
    *args: Any,
    mask_function: Callable[..., Any],
    local_size: int | None = None,
    use_vmap: bool = False,
    **_: Any,
) -> CausalMask:
    """Called by transformers with what its own mask functions get; the sizes do not matter here.

    mask_function  (batch, head, query, key) -> whether query sees key
    local_size     the sliding window W, which keeps W keys, the token itself included (or the
                   chunk size of chunked attention, which is refused)
    use_vmap       true when the model has put a function of its own on top
    """
    if use_vmap or args or not _is_causal(mask_function, local_size):
        raise refuse(
            "mask",
            f"a model-specific mask (local_size={local_size})",
            "causal, or causal with a sliding window",
            "this model cannot run on a paged cache yet",
        )
    return CausalMask(None if local_size is None else local_size - 1)


def _is_causal(mask_function: Callable[..., Any], local_size: int | None) -> bool:
    """Compare the function with the mask it should be, at positions around every edge."""
    size = 8 if local_size is None else local_size
    query = torch.tensor([0, 1, size - 1, size, size + 1, 2 * size, 3 * size + 1])[:, None]
    offset = torch.tensor([-size - 1, -size, -size + 1, -(size // 2), -1, 0, 1, size])
    key = (query + offset).clamp(min=0)
    zero = torch.zeros((), dtype=torch.int64)
    expected = key <= query
    if local_size is not None:
        expected = expected & (key > query - local_size)
    seen = torch.as_tensor(mask_function(zero, zero, query, key))
    return torch.equal(seen.expand_as(expected), expected)
