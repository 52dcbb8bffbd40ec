"""Values at the ends of what an option allows: huge sinks, any scale, wide trees, far ALiBi."""

from __future__ import annotations

import dataclasses
from functools import partial

import torch

from pagedattn.conformance.attention.build import attention_case
from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.judge import Measures, judge, needs
from pagedattn.conformance.attention.oracle import RULES
from pagedattn.conformance.attention.placing import Placing
from pagedattn.conformance.attention.subject import AttentionSubject
from pagedattn.spec import Mask

__all__ = ["CASES"]


def _sinks(subject: AttentionSubject, seed: int) -> Measures:
    """Sinks far above and below every score: the maximum that is taken off must know them. Under a
    huge sink the output is nearly 0; the LSE, where it is served, shows more."""
    with_lse = {"sinks": True, "return_lse": True}
    refused = subject.refusals(subject.spec(with_lse))
    spec = subject.spec({"sinks": True} if refused else with_lse)
    content = Content.random(spec, [1, 2], [spec.block_size + 4, 2], seed)
    sinks = torch.tensor([200.0, -200.0, 90.0, -3.0])
    sinks = sinks.repeat(-(-spec.num_heads // 4))[: spec.num_heads].contiguous()
    return judge(subject, dataclasses.replace(content, sinks=sinks), Placing(seed=seed))


def _scale(scale: float, subject: AttentionSubject, seed: int) -> Measures:
    """Any finite scale is legal: a negative one prefers the least alike, 0 makes the mean."""
    spec = subject.spec({"scale": scale})
    content = Content.random(spec, [1, 3], [spec.block_size + 4, 5], seed)
    return judge(subject, content, Placing(seed=seed))


def _wide_tree(rows: int, subject: AttentionSubject, seed: int) -> Measures:
    """More rows than the bits of a word."""
    spec = subject.spec({"mask": Mask.TREE}, rows=rows)
    content = Content.random(spec, [rows, 1], [rows + spec.block_size + 3, 4], seed)
    needs(content, dataclasses.replace(RULES, use_tree=False))
    return judge(subject, content, Placing(seed=seed))


def _far_alibi(subject: AttentionSubject, seed: int) -> Measures:
    """Distances that 16-bit floats cannot tell apart, with slopes so small that they all count."""
    spec = subject.spec({"alibi": True})
    content = Content.random(spec, [1], [4500], seed, spread=0.1)
    slopes = torch.full((spec.num_heads,), 2.0**-10)
    return judge(subject, dataclasses.replace(content, slopes=slopes), Placing(seed=seed))


def _slopes(subject: AttentionSubject, seed: int) -> Measures:
    """Slopes of any value, 0 and no power of two among them, far away and near; every head has its
    own."""
    spec = subject.spec({"alibi": True}, rows=3)
    content = Content.random(spec, [3, 1], [spec.block_size + 9, 600], seed, spread=0.1)
    heads = torch.arange(spec.num_heads)
    slopes = torch.where(heads % 4 == 1, 0.0, 0.0123 * 1.37 ** (heads % 7))
    content = dataclasses.replace(content, slopes=slopes.float())
    needs(content, dataclasses.replace(RULES, use_alibi=False))
    return judge(subject, content, Placing(seed=seed))


def _capped(cap: float, subject: AttentionSubject, seed: int) -> Measures:
    """Scores hundreds of times the cap: tanh is 1 there, and exp of them overflows."""
    spec = subject.spec({"softcap": cap}, rows=3)
    content = Content.random(spec, [1, 3], [spec.block_size + 4, 5], seed, spread=400.0 * cap)
    return judge(subject, content, Placing(seed=seed))


CASES = (
    attention_case("sinks/extreme", "sinks", _sinks, faults=("KH-39",)),
    attention_case("scale/negative", "score-order", partial(_scale, -0.2)),
    attention_case("scale/zero", "score-order", partial(_scale, 0.0)),
    attention_case("tree/wide-40", "tree", partial(_wide_tree, 40)),
    attention_case("tree/wide-70", "tree", partial(_wide_tree, 70)),
    attention_case("alibi/far", "alibi", _far_alibi, faults=("KH-41",)),
    attention_case("alibi/any-slopes", "alibi", _slopes, faults=("KH-38", "KH-41")),
    attention_case("softcap/far-above-1", "softcap", partial(_capped, 1.0), faults=("KH-45",)),
    attention_case("softcap/far-above-30", "softcap", partial(_capped, 30.0), faults=("KH-45",)),
)
