"""Two options at once, and an option over many keys, where kernels split their work. Each case
asserts that its inputs would show a backend which drops an option, which the rows of pairs.py,
chosen for their number, need not."""

from __future__ import annotations

import dataclasses
from functools import partial
from itertools import combinations
from typing import Any

import torch

from pagedattn.conformance.attention.build import attention_case
from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.judge import Measures, joined, judge, needs
from pagedattn.conformance.attention.oracle import RULES, Rules
from pagedattn.conformance.attention.placing import Placing
from pagedattn.conformance.attention.subject import AttentionSubject
from pagedattn.conformance.case import Case
from pagedattn.spec import KVQuant, Layout, Mask

__all__ = ["CASES"]

OPTIONS: dict[str, tuple[dict[str, Any], Rules | None]] = {
    # the fields, and the rules of a backend that drops the option
    "window": ({"window": (6, None)}, dataclasses.replace(RULES, use_window=False)),
    "softcap": ({"softcap": 2.0}, dataclasses.replace(RULES, use_softcap=False)),
    "sinks": ({"sinks": True}, dataclasses.replace(RULES, sinks=0)),
    "alibi": ({"alibi": True}, dataclasses.replace(RULES, use_alibi=False)),
    "tree": ({"mask": Mask.TREE}, dataclasses.replace(RULES, use_tree=False)),
    "full": ({"mask": Mask.FULL}, None),
    "int8-token-head": (
        {"kv_dtype": torch.int8, "kv_quant": KVQuant.PER_TOKEN_HEAD},
        dataclasses.replace(RULES, kv_scales=False),
    ),
    "fp8-head": (
        {"kv_dtype": torch.float8_e4m3fn, "kv_quant": KVQuant.PER_HEAD},
        dataclasses.replace(RULES, kv_scales=False),
    ),
}

FAULTS = {"window": "KH-34", "softcap": "KH-38", "sinks": "KH-40", "alibi": "KH-41"} | {
    "int8-token-head": "KH-47",
    "fp8-head": "KH-47",
}

NOT_BOTH = {
    ("softcap", "alibi"), ("window", "tree"), ("alibi", "tree"), ("int8-token-head", "fp8-head"),
    ("tree", "full"),
}  # fmt: skip


def _both(names: tuple[str, str], subject: AttentionSubject, seed: int) -> Measures:
    wanted = {k: v for name in names for k, v in OPTIONS[name][0].items()}
    measures: Measures = {}
    for rows in ((5, 4), (1, 1)):
        if "tree" in names and rows == (1, 1):
            continue  # a tree of one row is plain causal
        spec = subject.spec(wanted, rows=rows[0])
        spread = 6.0 if spec.softcap is not None else 1.0
        # The second request has no tree but for its place, and ends inside a block.
        keys = (spec.block_size + 7, 9)
        content = Content.random(spec, rows, keys, seed, spread=spread)
        if content.slopes is not None:  # gentle, and no powers of two: every key counts
            slopes = 0.02 + 0.3 * torch.arange(spec.num_heads) / spec.num_heads
            content = dataclasses.replace(content, slopes=slopes)
        for name in names:
            if (dropped := OPTIONS[name][1]) is not None:
                needs(content, dropped)
        measures = joined(judge(subject, content, Placing(seed=seed)), measures)
    return measures


def _split(name: str, subject: AttentionSubject, seed: int) -> Measures:
    """2500 keys beside 3: the option holds in every part and in what is made of the parts."""
    wanted, dropped = {**OPTIONS, **SPLIT}[name]
    spec = subject.spec(wanted)
    content = Content.random(spec, [1, 1], [2500, 3], seed, spread=3.0)
    if content.sinks is not None:  # as heavy as all of the keys
        content = dataclasses.replace(content, sinks=content.sinks + 10.0)
    if content.slopes is not None:
        slopes = 0.0002 * (1 + torch.arange(spec.num_heads))
        content = dataclasses.replace(content, slopes=slopes)
    if dropped is not None:
        needs(content, dropped)
    return judge(subject, content, Placing(seed=seed))


SPLIT: dict[str, tuple[dict[str, Any], Rules | None]] = {
    "window": ({"window": (1500, None)}, dataclasses.replace(RULES, use_window=False)),
    "lse": ({"return_lse": True}, dataclasses.replace(RULES, lse_base=2.0)),
    "hnd": ({"layout": Layout.HND}, None),
    "group-7": ({"group_size": 7}, None),
}

CASES: list[Case] = [
    attention_case(
        f"together/{one}+{two}",
        "score-order",
        partial(_both, (one, two)),
        faults=tuple(dict.fromkeys(FAULTS[name] for name in (one, two) if name in FAULTS)),
    )
    for one, two in combinations(OPTIONS, 2)
    if (one, two) not in NOT_BOTH
] + [
    attention_case(
        f"long/with-{name}",
        "score-order",
        partial(_split, name),
        faults=("KH-58", *((FAULTS[name],) if name in FAULTS else ())),
    )
    for name in sorted({*OPTIONS, *SPLIT} - {"tree", "full"})
]
