"""What is rounded, when and to what: dtypes that differ between q, the cache and out."""

from __future__ import annotations

import dataclasses
from functools import partial

import torch
from torch import Tensor

from pagedattn.conformance.attention.basics import lengths, rows_of
from pagedattn.conformance.attention.build import attention_case
from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.judge import Measures, compare, joined, judge, produce
from pagedattn.conformance.attention.placing import Placing
from pagedattn.conformance.attention.subject import AttentionSubject
from pagedattn.conformance.case import Case, CaseFailure

__all__ = ["CASES"]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _cache_dtype(
    dtype: torch.dtype, stored: torch.dtype, subject: AttentionSubject, seed: int
) -> Measures:
    """A cache of another floating-point dtype than q."""
    wanted = {"dtype": dtype, "kv_dtype": stored}
    measures: Measures = {}
    for phase in ("decode", "mixed"):
        spec = subject.spec(wanted, rows=rows_of(phase))
        content = Content.random(spec, *lengths(phase, min(spec.block_size, 16)), seed)
        measures = joined(judge(subject, content, Placing(seed=seed)), measures)
    return measures


def _rounded_once(dtype: torch.dtype, subject: AttentionSubject, seed: int) -> Measures:
    """out in float32 holds what q's dtype cannot: the sum was not rounded on the way."""
    spec = subject.spec({"dtype": dtype, "out_dtype": torch.float32})
    content = Content.random(spec, *lengths("decode", spec.block_size), seed)
    produced = produce(subject, content, Placing(seed=seed))
    measures = compare(content, produced)
    _not_all_fit("out", produced.out[0], dtype)  # of many keys: a sum
    return measures


def _lse_rounded_once(dtype: torch.dtype, subject: AttentionSubject, seed: int) -> Measures:
    spec = subject.spec({"dtype": dtype, "return_lse": True})
    content = Content.random(spec, *lengths("decode", spec.block_size), seed)
    produced = produce(subject, content, Placing(seed=seed))
    measures = compare(content, produced)
    assert produced.lse is not None
    _not_all_fit("lse", torch.cat(produced.lse), dtype)
    return measures


def _not_all_fit(name: str, x: Tensor, dtype: torch.dtype) -> None:
    if torch.equal(x.to(dtype).to(x.dtype), x):
        raise CaseFailure(
            f"{name} is float32, but each of its {x.numel()} numbers is one of {_name(dtype)}: it "
            f"was rounded to q's dtype first; round once, from the accumulator to {name}"
        )


def _used_as_stored(dtype: torch.dtype, subject: AttentionSubject, seed: int) -> Measures:
    """Keys and values of float32 under 16-bit queries, out in float32. With one key out is that
    value; two keys that q's dtype cannot tell apart have different weights."""
    spec = subject.spec(
        {"dtype": dtype, "kv_dtype": torch.float32, "out_dtype": torch.float32, "scale": 0.125}
    )
    content = Content.random(spec, [1, 1], [1, 2], seed)
    q = (content.q[0], torch.full_like(content.q[1], 64.0))
    k = [x.float().clone() for x in content.k]
    k[1][:], k[1][1, :, :16] = 0.5, 0.5 + 2.0**-10
    content = dataclasses.replace(content, q=q).storing(k, [x.float() for x in content.v])
    produced = produce(subject, content, Placing(seed=seed))
    measures = compare(content, produced)
    own = content.v[0][0].repeat_interleave(spec.group_size, 0).float()
    if not torch.allclose(produced.out[0][0], own, rtol=1e-6, atol=0):
        head, dim = ((produced.out[0][0] - own).abs() > 1e-6 * own.abs()).nonzero()[0].tolist()
        raise CaseFailure(
            f"over one key out is its value, {float(own[head, dim]):.8g} at head {head}, dim "
            f"{dim}, but out is {float(produced.out[0][0, head, dim]):.8g}: values of float32 "
            f"were rounded to {_name(dtype)}"
        )
    # scale * q . (k1 - k0) = 0.125 * 64 * 16 * 2**-10 = 0.125
    weight = torch.sigmoid(torch.tensor(0.125))
    v = content.v[1].repeat_interleave(spec.group_size, 1).float()
    expected = (1 - weight) * v[0] + weight * v[1]
    if not torch.allclose(produced.out[1][0], expected, rtol=0, atol=1e-3):
        raise CaseFailure(
            "two keys that differ by 2^-10 in 16 of their dims weigh the same: keys of float32 "
            f"were rounded to {_name(dtype)}"
        )
    return measures


def _beyond_range(subject: AttentionSubject, seed: int) -> Measures:
    """Keys of 90000 in a float32 cache, which are infinite in float16."""
    spec = subject.spec({"dtype": torch.float16, "kv_dtype": torch.float32})
    content = Content.random(spec, [1, 1], [spec.block_size + 4, 3], seed)
    q = tuple((x.float() * 2.0**-14).to(spec.dtype) for x in content.q)
    k = [x.float() * 90000.0 for x in content.k]
    content = dataclasses.replace(content, q=q).storing(k, [x.float() for x in content.v])
    produced = produce(subject, content, Placing(seed=seed))
    if not all(bool(x.isfinite().all()) for x in produced.out):
        raise CaseFailure(
            "keys of 90000, which the float32 cache holds, gave an infinite or NaN result: they "
            "were rounded to float16"
        )
    return {"dtype": "float16"}


def _cases() -> list[Case]:
    cases = []
    half = (torch.bfloat16, torch.float16)
    pairs = [(d, torch.float32) for d in half] + [(torch.float32, d) for d in half] + [half]
    for dtype, stored in pairs:
        judge_it = partial(_cache_dtype, dtype, stored)
        id = f"dtype/{_name(dtype)}-over-{_name(stored)}"
        cases.append(attention_case(id, "dtypes", judge_it))
    for dtype in half:
        for id, judge_once in (
            (f"dtype/{_name(dtype)}-rounded-once", _rounded_once),
            (f"lse/{_name(dtype)}-rounded-once", _lse_rounded_once),
            (f"dtype/{_name(dtype)}-as-stored", _used_as_stored),
        ):
            judge_it = partial(judge_once, dtype)
            cases.append(attention_case(id, "dtypes", judge_it, faults=("KH-46",)))
    cases.append(attention_case("range/wide-keys", "dtypes", _beyond_range, faults=("KH-45",)))
    return cases


CASES = _cases()
