"""What an instantiation of a kernel knows of a spec beforehand: Spec<...> of kernels/spec.cuh.

Every instantiation is a compilation of seconds, in open() or in a warmup. So the values that models
have get kernels of their own, and all others share those that look at run time.
"""

from __future__ import annotations

import enum

from pagedattn.spec import AttentionSpec, KVQuant, Mask

__all__ = ["BLOCK_SIZES", "COMMON", "HEAD_DIMS", "Option", "options_of", "spec_type"]

HEAD_DIMS = frozenset({64, 128, 256})
BLOCK_SIZES = frozenset({16, 32, 64, 128})


class Option(enum.Flag):
    """enum Option of kernels/spec.cuh; the names are what the compiler is given."""

    WINDOW = enum.auto()
    BIDIRECTIONAL = enum.auto()
    TREES = enum.auto()
    SOFTCAP = enum.auto()
    SLOPES = enum.auto()
    TOKEN_SCALES = enum.auto()
    SHARED_KV = enum.auto()


COMMON = frozenset(
    {
        Option(0),
        Option.WINDOW,
        Option.SOFTCAP,
        Option.WINDOW | Option.SOFTCAP,
        Option.TREES,
        Option.SLOPES,
        Option.TOKEN_SCALES,
        Option.SHARED_KV,
    }
)
"""Sets of options that models have."""


def options_of(spec: AttentionSpec) -> Option:
    """The options that the spec makes use of."""
    present = {
        Option.WINDOW: spec.window[0] is not None,
        Option.BIDIRECTIONAL: spec.mask is Mask.FULL,
        Option.TREES: spec.mask is Mask.TREE,
        Option.SOFTCAP: spec.softcap is not None,
        Option.SLOPES: spec.alibi,
        Option.TOKEN_SCALES: spec.kv_quant is KVQuant.PER_TOKEN_HEAD,
        Option.SHARED_KV: spec.shared_kv,
    }
    found = Option(0)
    for option, there in present.items():
        if there:
            found |= option
    return found


def spec_type(spec: AttentionSpec, looked_at: Option) -> str:
    """ "Spec<128, 16, WINDOW | SOFTCAP>" for a kernel that looks at these options."""
    one_width = spec.head_dim == spec.head_dim_v
    width = spec.head_dim if one_width and spec.head_dim in HEAD_DIMS else 0
    block = spec.block_size if spec.block_size in BLOCK_SIZES else 0
    options = options_of(spec) & looked_at
    return f"Spec<{width}, {block}, {_text(options) if options in COMMON else 'ANY'}>"


def _text(options: Option) -> str:
    return " | ".join(o.name or "" for o in Option if o in options) or "NONE"
