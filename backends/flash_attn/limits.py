"""What each variant can do: one row of data per variant, read from its sources.

No torch and no kernel library is imported here, so that a listing costs nothing. capabilities(),
the refusals, the checks of what is installed and docs/backends/flash_attn.md all come from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["FAMILY", "VARIANTS", "Variant", "variant"]

FAMILY = "flash_attn"
"""Name of the backend that chooses between the variants."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Variant:
    """One library, or one generation of it.

    name           second half of the backend's name, flash_attn:<name>
    title          for people
    distributions  names under which it may be installed; the first one found counts
    modules        where `functions` are; the first one that exists counts
    extension      compiled module without which the package cannot compute, "" when there is none
    functions      public functions that are called -> parameters that are passed by name
    known          [first, end) versions whose functions and kernels were read
    install        what to do when it is missing
    architectures  major CUDA compute capabilities

    block_size, head_dim ... are Capabilities rows; names stand for torch dtypes and enums.

    keyless_rows   ragged kernels may be given rows that see no key; else these are left out
    in_place       the library writes into the caller's tensor; else its result is copied
    lse            how the library returns it
    why            row -> where the limit comes from, for refusals and the table
    sources        what was read
    """

    name: str
    title: str
    distributions: tuple[str, ...]
    modules: tuple[str, ...]
    functions: Mapping[str, tuple[str, ...]]
    known: tuple[str, str]
    install: str
    architectures: tuple[int, ...]
    head_dim: range
    block_size: range
    extension: str = ""
    dtype: tuple[str, ...] = ("float16", "bfloat16")
    layout: tuple[str, ...] = ("NHD", "HND")
    mask: tuple[str, ...] = ("CAUSAL", "FULL")
    window: tuple[bool, bool] = (False, False)
    softcap: bool = False
    sinks: bool = False
    alibi: bool = False
    return_lse: bool = True
    batch_invariant: bool = False
    graph: str = "NEVER"
    keyless_rows: bool = True
    in_place: bool = False
    lse: str = "[Hq, T], natural"
    why: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[str, ...] = ()


FA2 = Variant(
    name="fa2",
    title="FlashAttention-2",
    distributions=("flash-attn",),
    modules=("flash_attn.flash_attn_interface",),
    extension="flash_attn_2_cuda",
    functions={
        "flash_attn_varlen_func": (
            "q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k",
            "softmax_scale", "causal", "window_size", "softcap", "alibi_slopes",
            "return_attn_probs", "block_table",
        ),
        "flash_attn_with_kvcache": (
            "q", "k_cache", "v_cache", "cache_seqlens", "block_table", "softmax_scale", "causal",
            "window_size", "softcap", "alibi_slopes", "num_splits", "return_softmax_lse",
        ),
    },
    known=("2.8.0", "2.8.4"),
    install="pip install flash-attn (needs a CUDA toolkit), or a wheel: docs/offline-gpu.md",
    architectures=(8, 9, 10, 12),
    head_dim=range(8, 257, 8),
    block_size=range(256, 65537, 256),
    window=(True, True),
    softcap=True,
    alibi=True,
    batch_invariant=True,
    graph="ANY",
    keyless_rows=False,
    lse="[Hq, T] (varlen) or [B, Hq, 1] (kvcache), natural; +inf for a row without keys",
    why={
        "block_size": "the kernels index pages of multiples of 256 tokens",
        "head_dim": "multiples of 8 up to 256; others would copy the whole pool to pad it",
        "dtype": "float16 and bfloat16 kernels only",
        "sinks": "its functions take no sink logits",
        "kv_quant": "its kernels read 16-bit caches only",
        "alibi": "CAUSAL counts from key 0, not from the row: the LSE is converted",
        "batch_invariant": "served by the ragged function: one split, key tiles counted from key "
        "0, bounds from Limits; read from its kernel, not yet measured on a GPU",
        "graph": "bounds and grids from Limits, lengths on the device, rows of nobody are kept by "
        "a select; read from its host code, not yet measured on a GPU",
        "known": "later releases wait for the device in flash_attn_with_kvcache",
    },
    sources=(
        "flash_attn/flash_attn_interface.py; csrc/flash_attn/flash_api.cpp; flash_fwd_kernel.h, "
        "flash_fwd_launch_template.h, block_info.h and alibi.h beside it, of 2.8.3.post2; issue "
        "2842 about rows without keys",
    ),
)  # fmt: skip

FA3 = Variant(
    name="fa3",
    title="FlashAttention-3",
    distributions=("flash_attn_3", "flash-attn-3", "flashattn-hopper"),
    modules=("flash_attn_interface", "flash_attn_3.flash_attn_interface"),
    functions={
        "flash_attn_with_kvcache": (
            "q", "k_cache", "v_cache", "cache_seqlens", "page_table", "cu_seqlens_q",
            "max_seqlen_q", "softmax_scale", "causal", "window_size", "softcap",
            "return_softmax_lse",
        ),
    },
    known=("3.0.0b1", "3.1"),
    install="build hopper/ of the flash-attention repository, or a wheel: docs/offline-gpu.md",
    architectures=(9,),
    head_dim=range(8, 257, 8),
    block_size=range(1, 64),
    softcap=True,
    why={
        "block_size": "larger pages may go through TMA, which multiplies what lies behind the last "
        "token by 0: NaN there would reach the output",
        "head_dim": "multiples of 8 up to 256",
        "dtype": "8-bit inputs have scales of another kind than KVQuant",
        "window": "a key tile spans several pages, freed ones before the window among them",
        "alibi": "its functions take no slopes",
        "sinks": "its functions take no sink logits",
        "batch_invariant": "splits and packing follow the batch; a fixed setting is not verified",
        "graph": "not verified",
    },
    sources=(
        "hopper/flash_attn_interface.py, flash_api.cpp, tile_size.h and paged_kv.h at 0251105a",
    ),
)  # fmt: skip

FA4 = Variant(
    name="fa4",
    title="FlashAttention-4 (CuTe DSL)",
    distributions=("flash-attn-4",),
    modules=("flash_attn.cute",),
    functions={
        "flash_attn_varlen_func": (
            "q", "k", "v", "cu_seqlens_q", "max_seqlen_q", "max_seqlen_k", "seqused_k",
            "page_table", "softmax_scale", "causal", "learnable_sink", "softcap", "num_splits",
            "return_lse",
        ),
    },
    known=("4.0.0b36", "4.1"),
    install="pip install --pre flash-attn-4",
    architectures=(9, 10),
    head_dim=range(8, 129, 8),
    block_size=range(1, 64),
    softcap=True,
    sinks=True,
    lse="[Hq, T], natural; the sink for a row without keys",
    why={
        "architectures": "paged caches are refused on SM 8.x and 12.x, and SM 11.x was not read",
        "block_size": "larger pages may go through TMA, whose documentation asks for finite rows "
        "behind the last token",
        "head_dim": "multiples of 8 up to 128, the range that SM 9.0 and SM 10.x share",
        "dtype": "8-bit inputs have scales of another kind than KVQuant",
        "window": "a key tile spans several pages, freed ones before the window among them",
        "alibi": "only through a score_mod, which is another kernel",
        "batch_invariant": "not verified",
        "graph": "not verified",
    },
    sources=("flash_attn/cute/interface.py and paged_kv.py of 4.0.0b36",),
)  # fmt: skip

TORCH_VARLEN = Variant(
    name="torch_varlen",
    title="torch.nn.attention.varlen",
    distributions=("torch",),
    modules=("torch.nn.attention.varlen",),
    functions={
        "varlen_attn_out": (
            "out", "query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k", "scale",
            "window_size", "enable_gqa", "seqused_k", "block_table", "num_splits",
        ),
    },
    known=("2.12", "2.14"),
    install="install a CUDA build of torch 2.12 or 2.13",
    architectures=(8, 9, 10, 12),
    head_dim=range(8, 257, 8),
    block_size=range(256, 65537, 256),
    window=(True, True),
    return_lse=False,
    keyless_rows=False,
    in_place=True,
    lse="its documentation says [T, Hq], its fake implementation [Hq, T]",
    why={
        "block_size": "torch carries FlashAttention-2: pages of multiples of 256 tokens",
        "head_dim": "multiples of 8 up to 256",
        "dtype": "float16 and bfloat16 kernels only",
        "softcap": "its functions take no softcap",
        "alibi": "its functions take no slopes",
        "sinks": "its functions take no sink logits",
        "return_lse": "documentation and implementation disagree on the layout",
        "batch_invariant": "num_splits=1 promises it for one query length only; not verified",
        "graph": "not verified",
        "known": "later releases may take cuDNN instead",
    },
    sources=("torch/nn/attention/varlen.py of torch 2.12.1, 2.13.0 and 2.14.1",),
)  # fmt: skip

VARIANTS: tuple[Variant, ...] = (FA3, FA4, FA2, TORCH_VARLEN)
"""In the order in which the family tries them."""


def variant(name: str) -> Variant:
    """The variant of that name ("fa2")."""
    return next(v for v in VARIANTS if v.name == name)
