"""Hugging Face causal language models as pagedattn model runners.

    from pagedattn_transformers import load_model

The names are lazy: the plugin's hooks live here too, and discovery must not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pagedattn_transformers.load import load_model as load_model
    from pagedattn_transformers.runner import TransformersRunner as TransformersRunner

_HOME = {"TransformersRunner": "runner", "load_model": "load"}

__all__ = ["TransformersRunner", "load_model"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
