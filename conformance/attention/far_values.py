"""Numbers far from 1: sinks of 0, steep slopes, values near the end of 16-bit floats, LSE far below
0; and out, which is the nearest number to the sum."""

from __future__ import annotations

import dataclasses
from functools import partial

import torch

from pagedattn.conformance.attention.build import attention_case
from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.judge import Measures, compare, judge, produce
from pagedattn.conformance.attention.placing import Placing
from pagedattn.conformance.attention.subject import AttentionSubject
from pagedattn.conformance.case import Case, CaseFailure
from pagedattn.spec import KVQuant

__all__ = ["CASES"]


def _zero_sinks(subject: AttentionSubject, seed: int) -> Measures:
    """A sink of 0 is a logit like others: with q = 0 it counts as one more key."""
    spec = subject.spec({"sinks": True})
    content = Content.random(spec, [1, 1], [spec.block_size + 2, 3], seed, spread=0.0)
    content = dataclasses.replace(content, sinks=torch.zeros(spec.num_heads))
    return judge(subject, content, Placing(seed=seed))


def _steep(subject: AttentionSubject, seed: int) -> Measures:
    """Slopes above 1, and one that is negative: nearer keys weigh less there."""
    spec = subject.spec({"alibi": True})
    content = Content.random(spec, [1, 1], [spec.block_size + 2, 5], seed)
    slopes = torch.tensor([1.5, -0.75, 4.0, 12.25])
    slopes = slopes.repeat(-(-spec.num_heads // 4))[: spec.num_heads].contiguous()
    return judge(subject, dataclasses.replace(content, slopes=slopes), Placing(seed=seed))


def _large_values(dtype: torch.dtype, subject: AttentionSubject, seed: int) -> Measures:
    """Values of tens of thousands, whose sum over the keys is no number of 16 bits."""
    spec = subject.spec({"dtype": dtype})
    content = Content.random(spec, [1, 1], [3 * spec.block_size, 4], seed, spread=0.1)
    random = torch.Generator().manual_seed(seed)
    values = [45000 + 15000 * torch.rand(x.shape, generator=random) for x in content.v]
    content = content.storing([x.float() for x in content.k], values)
    return judge(subject, content, Placing(seed=seed))


def _far_below(subject: AttentionSubject, seed: int) -> Measures:
    """Every score is about -20000, and so is the LSE."""
    spec = subject.spec({"return_lse": True, "scale": 1.0})
    content = Content.random(spec, [1, 1], [spec.block_size + 3, 2], seed)
    dim = spec.head_dim
    q = tuple(torch.full_like(x, 16.0) for x in content.q)
    k = [-1250.0 / dim + x.float() / dim for x in content.k]
    content = dataclasses.replace(content, q=q).storing(k, [x.float() for x in content.v])
    return judge(subject, content, Placing(seed=seed))


def _nearest(dtype: torch.dtype, subject: AttentionSubject, seed: int) -> Measures:
    """The mean of two values, whose sum is exact: out is a nearest number to it, not the one
    below."""
    spec = subject.spec({"dtype": dtype})
    if spec.kv_quant is not KVQuant.NONE:
        return {}
    content = Content.random(spec, [1], [2], seed, spread=0.0)
    produced = produce(subject, content, Placing(seed=seed))
    measures = compare(content, produced)
    group = spec.num_heads // spec.num_kv_heads
    mean = content.v[0].double().mean(0).repeat_interleave(group, 0)
    got = produced.out[0][0]
    best = (mean.to(dtype).double() - mean).abs()
    worse = (got.double() - mean).abs() > best
    if bool(worse.any()):
        head, dim = worse.nonzero()[0].tolist()
        raise CaseFailure(
            f"{int(worse.sum())} of {worse.numel()} numbers are no nearest ones: of head "
            f"{head}, dim {dim} the mean is {mean[head, dim]:.9g} and out is {got[head, dim]:.9g}"
        )
    return measures


def _cases() -> list[Case]:
    cases = [
        attention_case("sinks/zero", "sinks", _zero_sinks, faults=("KH-40",)),
        attention_case("alibi/steep", "alibi", _steep, faults=("KH-41",)),
        attention_case("lse/far-below", "lse", _far_below, faults=("KH-35",)),
    ]
    for dtype in (torch.float16, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        large, nearest = partial(_large_values, dtype), partial(_nearest, dtype)
        cases += [
            attention_case(f"range/values-60000/{name}", "dtypes", large, faults=("KH-45",)),
            attention_case(f"dtype/{name}-to-nearest", "dtypes", nearest, faults=("KH-46",)),
        ]
    return cases


CASES = _cases()
