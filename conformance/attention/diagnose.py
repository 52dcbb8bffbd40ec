"""A guess at what went wrong: the answer is recomputed under common misreadings of the contract,
and the one that fits the backend's output is named."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.oracle import RULES, Rules, truth

__all__ = ["guess"]

MISREADINGS: tuple[tuple[str, Rules], ...] = (
    (
        "top-left causal alignment (the last row must see all keys)",
        replace(RULES, bottom_right=False),
    ),
    ("no causal mask", replace(RULES, causal=False)),
    ("the window is ignored", replace(RULES, use_window=False)),
    ("the left window is one key too wide", replace(RULES, left_shift=1)),
    ("the left window is one key too narrow", replace(RULES, left_shift=-1)),
    ("the right window is one key too wide", replace(RULES, right_shift=1)),
    ("the right window is one key too narrow", replace(RULES, right_shift=-1)),
    ("the row's own key is missing", replace(RULES, own_key=False)),
    ("softcap is ignored", replace(RULES, use_softcap=False)),
    (
        "softcap is applied after the mask, so masked keys keep weight",
        replace(RULES, cap_masked=True),
    ),
    ("softcap is applied before the scale", replace(RULES, cap_first=True)),
    ("ALiBi is ignored", replace(RULES, use_alibi=False)),
    ("the ALiBi bias has the wrong sign", replace(RULES, alibi_sign=-1)),
    (
        "the ALiBi bias counts from key 0 (its origin is the row)",
        replace(RULES, alibi_from_row=False),
    ),
    (
        "the ALiBi slopes are those of the paper, not the given ones",
        replace(RULES, slopes_of_paper=True),
    ),
    ("sinks are ignored", replace(RULES, sinks=0)),
    ("sinks enter the denominator twice", replace(RULES, sinks=2)),
    ("the sinks are multiplied by the scale", replace(RULES, sinks_scaled=True)),
    ("the LSE leaves the sinks out", replace(RULES, lse_sinks=False)),
    ("the LSE is in base 2, off by a factor log2(e)", replace(RULES, lse_base=2.0)),
    ("scale is ignored", replace(RULES, use_scale=False)),
    ("only the first 64 dims are used", replace(RULES, dims=64)),
    (
        "query head h reads kv head h % Hkv (it is h // group)",
        replace(RULES, interleaved_heads=True),
    ),
    ("the tree mask is ignored (plain causal)", replace(RULES, use_tree=False)),
    (
        "column 0 of a tree is taken for key 0 (the last column is the last key)",
        replace(RULES, tree_shifted=False),
    ),
    ("V is dequantised with k_scale", replace(RULES, v_scale_of_k=True)),
    ("k_scale and v_scale are ignored", replace(RULES, kv_scales=False)),
)


def guess(content: Content, out: list[Tensor], lse: list[Tensor] | None, rough: float) -> str:
    """A sentence, or "". out and lse are the backend's, per request; rough: error to ignore."""
    poison = _poisoned([*out, *(lse or [])])
    right = truth(content)
    for sentence, rules in MISREADINGS:
        wrong = truth(content, rules)
        pairs = list(zip(out, wrong.out, right.out, strict=True))
        if lse is not None:
            pairs += zip(lse, wrong.lse, right.lse, strict=True)
        # Elements that are NaN say nothing; the others must tell the misreading from the truth.
        kept = [[x[~mine.isnan()] for x in (mine, other, true)] for mine, other, true in pairs]
        fits = all(_close(mine, other, rough) for mine, other, _ in kept)
        if fits and not all(_close(other, true, rough) for _, other, true in kept):
            return f"looks like this: {sentence}" + (f"; and {poison}" if poison else "")
    return poison


def _poisoned(tensors: list[Tensor]) -> str:
    bad, all_ = sum(int(x.isnan().sum()) for x in tensors), sum(x.numel() for x in tensors)
    if not bad:
        return ""
    return (
        f"{bad} of {all_} elements are NaN: a row that was not written, a poisoned slot that was "
        "read (0 * NaN is NaN), or -inf minus -inf in a row without keys"
    )


def _close(a: Tensor, b: Tensor, rough: float) -> bool:
    a, b = a.double(), b.double()
    both_infinite = (a == b) & a.isinf()
    return bool((both_infinite | ((a - b).abs() <= rough)).all()) if a.numel() else True
