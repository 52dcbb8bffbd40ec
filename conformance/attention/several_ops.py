"""Several ops of one backend, which differ in one field of their specs: what one of them compiled,
derived or remembered is no other's."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import torch

from pagedattn.conformance.attention.basics import lengths
from pagedattn.conformance.attention.build import attention_case
from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.execute import execute
from pagedattn.conformance.attention.judge import Measures, compare, joined
from pagedattn.conformance.attention.place import place
from pagedattn.conformance.attention.placing import Placing
from pagedattn.conformance.attention.subject import AttentionSubject
from pagedattn.conformance.case import Case, CaseFailure
from pagedattn.spec import KVQuant, Layout

__all__ = ["CASES"]

INT8 = {"kv_dtype": torch.int8}

PAIRS: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("scale", {"scale": 0.3}, {"scale": 0.05}),
    ("window", {"window": (3, None)}, {"window": (8, None)}),
    ("no-window", {"window": (3, None)}, {}),
    ("softcap", {"softcap": 2.0}, {"softcap": 9.0}),
    ("no-softcap", {"softcap": 2.0}, {}),
    ("block-size", {"block_size": 16}, {"block_size": 32}),
    ("kv-heads", {"num_heads": 4, "num_kv_heads": 1}, {"num_heads": 4, "num_kv_heads": 2}),
    ("head-dim", {"head_dim": 64}, {"head_dim": 128}),
    ("value-dim", {"head_dim": 64}, {"head_dim": 64, "head_dim_v": 128}),
    ("dtype", {"dtype": torch.float16}, {"dtype": torch.bfloat16}),
    ("out-dtype", {"dtype": torch.bfloat16}, {"dtype": torch.bfloat16, "out_dtype": torch.float32}),
    ("layout", {"layout": Layout.NHD}, {"layout": Layout.HND}),
    ("sinks", {"sinks": True}, {}),
    ("alibi", {"alibi": True}, {}),
    ("lse", {"return_lse": True}, {}),
    ("quant", {**INT8, "kv_quant": KVQuant.PER_HEAD}, {**INT8, "kv_quant": KVQuant.PER_TOKEN_HEAD}),
)


def _two(
    first: dict[str, Any], second: dict[str, Any], subject: AttentionSubject, seed: int
) -> Measures:
    """Both are opened and planned before the first runs; then A, B, A."""
    specs = [subject.spec(wanted) for wanted in (first, second)]
    contents = [
        Content.random(s, *lengths("decode", s.block_size), seed + i) for i, s in enumerate(specs)
    ]
    steps = [place(c, subject.device, Placing(seed=seed)) for c in contents]
    ops = [subject.open(s.spec, s.limits) for s in steps]
    plans = [op.plan(s.batch) for op, s in zip(ops, steps, strict=True)]
    measures: Measures = {}
    for i in (0, 1, 0):
        live = sum(contents[i].query_lens)
        step = dataclasses.replace(steps[i])
        step.out[:live] = float("nan")
        try:
            measures = joined(compare(contents[i], execute(ops[i], step, plans[i])), measures)
        except CaseFailure as failure:
            one, other = (first, second) if i == 0 else (second, first)
            raise CaseFailure(f"an op of {one} beside one of {other}: {failure}") from failure
    return measures


def _cases() -> list[Case]:
    core = ("scale", "head-dim")
    return [
        attention_case(f"plans/two-ops/{id}", "plan", partial(_two, one, two), core=id in core)
        for id, one, two in PAIRS
    ]


CASES = _cases()
