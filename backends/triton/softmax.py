"""Online softmax: the state of a row and how two states become one.

A row's state over a set of keys is (acc, top, total): the largest logit `top`, the sum `total` of
exp(logit - top) and the equally weighted sum of values `acc`. States over disjoint sets merge by
rescaling both to the larger top (Milakov and Gimelshein 2018, "Online normalizer calculation for
softmax"), which is what lets keys be visited in tiles (FlashAttention) and by several programs at
once (Flash-Decoding).

Logits are kept in units of 1 / UNIT: UNIT is 1 for float32, where every rounding shows, and
log2(e) for 16-bit types, where exp2 is one instruction and the factor is part of the scale.
"""

# mypy: ignore-errors
# ruff: noqa: N803

import triton
import triton.language as tl

__all__ = ["finish", "merge", "power", "tanh"]


@triton.jit
def power(x, UNIT: tl.constexpr):
    """e ** (x / UNIT)"""
    if UNIT == 1.0:
        return tl.exp(x)
    else:
        return tl.exp2(x)


@triton.jit
def tanh(x, PRECISE: tl.constexpr):
    """Triton has none for every target. (1 - e^-2x) / (1 + e^-2x) cannot overflow and keeps NaN,
    but loses digits near 0: there an odd polynomial (fitted in x^2 on [-0.6, 0.6]) stands in,
    where that would show, in float32 and under caps far above the scores."""
    small = tl.exp(-2.0 * tl.abs(x))
    far = (1.0 - small) / (1.0 + small)
    far = tl.where(x < 0.0, -far, far)
    if PRECISE:
        z = x * x
        odd = -0.0062421737 * z + 0.0210944805
        odd = (odd * z - 0.0538709126) * z + 0.133328989
        odd = (odd * z - 0.333333313) * z
        return tl.where(z < 0.36, x + x * odd, far)
    else:
        return far


@triton.jit
def merge(acc, top, total, other_acc, other_top, other_total, UNIT: tl.constexpr):
    """The state over both sets of keys; acc [M, Dv], top and total [M].

    fma by name, so that every kernel that merges in one order gets the same bits."""
    new_top = tl.maximum(top, other_top)
    base = tl.where(new_top == float("-inf"), 0.0, new_top)
    mine, theirs = power(top - base, UNIT), power(other_top - base, UNIT)
    factor = tl.broadcast_to(theirs[:, None], acc.shape)
    acc = tl.fma(other_acc, factor, acc * mine[:, None])
    return acc, new_top, tl.fma(other_total, theirs, total * mine)


@triton.jit
def finish(acc, top, total, sink, SINKS: tl.constexpr, UNIT: tl.constexpr):
    """(out [M, Dv], lse [M]) of finished states. sink [M] joins the denominator without a value;
    a row without a key and without a sink gives (0, -inf)."""
    if SINKS:
        new_top = tl.maximum(top, sink * UNIT)
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        mine = power(top - base, UNIT)
        acc = acc * mine[:, None]
        total = total * mine + power(sink * UNIT - base, UNIT)
        top = new_top
    nothing = total == 0.0
    out = acc / tl.where(nothing, 1.0, total)[:, None]
    lse = tl.where(nothing, float("-inf"), top / UNIT + tl.log(tl.where(nothing, 1.0, total)))
    return out, lse
