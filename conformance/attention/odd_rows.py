"""Rows of q, out and lse as callers may give them: longer than the step, of unequal lengths, with
equal rows in one place, with strides of dimensions that are 1."""

from __future__ import annotations

import dataclasses
from functools import partial

import torch
from torch import Tensor

from pagedattn.conformance.attention.basics import lengths
from pagedattn.conformance.attention.build import attention_case
from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.execute import execute
from pagedattn.conformance.attention.judge import Measures, compare
from pagedattn.conformance.attention.place import place
from pagedattn.conformance.attention.placing import Placing
from pagedattn.conformance.attention.subject import AttentionSubject
from pagedattn.conformance.case import Case
from pagedattn.errors import InvalidTensor

__all__ = ["CASES"]


def _longer(x: Tensor, rows: int) -> Tensor:
    """`x` with so many rows of NaN behind it."""
    tail = torch.full((rows, *x.shape[1:]), float("nan"), dtype=x.dtype, device=x.device)
    return torch.cat((x, tail))


def _uneven(slack: tuple[int, int, int], subject: AttentionSubject, seed: int) -> Measures:
    """q, out and lse have so many rows more than the step, each another number."""
    spec = subject.spec({"return_lse": True})
    content = Content.random(spec, *lengths("decode", spec.block_size), seed)
    step = place(content, subject.device, Placing(seed=seed))
    assert step.lse is not None
    q, out, lse = map(_longer, (step.q, step.out, step.lse), slack)
    guards = [guard for guard in step.guards if guard.name not in ("q", "out", "lse")]
    changed = dataclasses.replace(step, q=q, out=out, lse=lse, guards=guards)
    return compare(content, execute(subject.open(spec, step.limits), changed))


def _equal_rows(heads: bool, subject: AttentionSubject, seed: int) -> Measures:
    """All heads of q (or all its rows) are equal and lie in one place: stride 0."""
    spec = subject.spec()
    content = Content.random(spec, [1, 1, 1], [spec.block_size + 3, 5, 2], seed)
    q = torch.cat(content.q)
    q = (q[:, :1] if heads else q[:1]).expand_as(q)
    content = dataclasses.replace(content, q=tuple(q[r : r + 1].clone() for r in range(len(q))))
    step = place(content, subject.device, Placing(seed=seed))
    one = (step.q[:, :1] if heads else step.q[:1]).expand_as(step.q)
    op = subject.open(spec, step.limits)
    try:
        return compare(content, execute(op, dataclasses.replace(step, q=one)))
    except InvalidTensor:
        return {}


def _one_row(subject: AttentionSubject, seed: int) -> Measures:
    """One row: its stride is never used and may be any number, of q and of out."""
    spec = subject.spec()
    content = Content.random(spec, [1], [spec.block_size + 3], seed)
    step = place(content, subject.device, Placing(seed=seed))
    op = subject.open(spec, step.limits)

    def strange(x: Tensor) -> Tensor:
        return x.as_strided(x.shape, (3, *x.stride()[1:]))

    changed = dataclasses.replace(step, q=strange(step.q), out=strange(step.out))
    try:
        return compare(content, execute(op, changed))
    except InvalidTensor:
        return {}


def _cases() -> list[Case]:
    cases = [
        attention_case("padding/long", "padding-rows", partial(_uneven, (900, 900, 900))),
        attention_case("padding/uneven", "padding-rows", partial(_uneven, (7, 0, 3))),
        attention_case("padding/uneven-out", "padding-rows", partial(_uneven, (0, 5, 0))),
    ]
    for id, judge_it in (
        ("memory/q-equal-heads", partial(_equal_rows, True)),
        ("memory/q-equal-rows", partial(_equal_rows, False)),
        ("memory/one-row", _one_row),
    ):
        cases.append(attention_case(id, "strides", judge_it, faults=("KH-26",), core=True))
    return cases


CASES = _cases()
