"""Soft caps far above every score: nearly nothing changes, but tanh is taken where it is nearly 0.

A tanh that is made of exp loses its digits there, and the cap multiplies what is lost.
"""

from __future__ import annotations

from functools import partial

import torch

from pagedattn.conformance.attention.build import attention_case
from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.judge import Measures, judge
from pagedattn.conformance.attention.placing import Placing
from pagedattn.conformance.attention.subject import AttentionSubject
from pagedattn.conformance.case import Case

__all__ = ["CASES"]


def _large(cap: float, dtype: torch.dtype, subject: AttentionSubject, seed: int) -> Measures:
    spec = subject.spec({"softcap": cap, "dtype": dtype})
    lengths = [spec.block_size + 4, 40, 1, 5]
    content = Content.random(spec, [1] * len(lengths), lengths, seed, spread=4.0)
    return judge(subject, content, Placing(seed=seed))


def _cases() -> list[Case]:
    cases = []
    for exponent in (3, 4, 5, 7, 30):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            name = f"softcap/large-1e{exponent}/{str(dtype).removeprefix('torch.')}"
            judge_it = partial(_large, 10.0**exponent, dtype)
            cases.append(attention_case(name, "softcap", judge_it))
    return cases


CASES = _cases()
