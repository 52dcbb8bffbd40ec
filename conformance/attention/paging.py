"""What needs no oracle: the same step in pages of another size, and the last row of a prefill as a
decode."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

from pagedattn.conformance.attention.budget import budget
from pagedattn.conformance.attention.build import attention_case
from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.execute import Produced
from pagedattn.conformance.attention.judge import Measures, compare, produce
from pagedattn.conformance.attention.oracle import truth
from pagedattn.conformance.attention.placing import Placing
from pagedattn.conformance.attention.subject import AttentionSubject
from pagedattn.conformance.case import Case, CaseFailure

__all__ = ["CASES"]

SIZES = (1, 2, 5, 16, 24, 32, 48, 64, 128, 256)
KEYS = 37


def _page_size(wanted: dict[str, Any], subject: AttentionSubject, seed: int) -> Measures:
    """37 keys in pages of every size that is served: equal to the first within rounding, and a
    backend that serves one size only is judged against the truth."""
    base = subject.spec(wanted, rows=5)
    content = Content.random(base, [1, 5], [KEYS, 2 * KEYS], seed)
    first = produce(subject, content, Placing(seed=seed))
    measures = compare(content, first)
    compared = []
    for size in SIZES:
        spec = dataclasses.replace(base, block_size=size)
        if size == base.block_size or subject.refusals(spec):
            continue
        other = produce(subject, dataclasses.replace(content, spec=spec), Placing(seed=seed))
        _agree(content, first, other, f"block_size {base.block_size} and block_size {size}")
        compared.append(size)
    return {**measures, "block_sizes": compared}


def _last_row(wanted: dict[str, Any], subject: AttentionSubject, seed: int) -> Measures:
    """The decode of a position and the last row of the prefill that ends there."""
    spec = subject.spec(wanted, rows=7)
    content = Content.random(spec, [7, 4], [KEYS, 4], seed)
    whole = produce(subject, content, Placing(seed=seed))
    rows = [content.cut(r, slice(n - 1, n), slice(None)) for r, n in enumerate(content.query_lens)]
    alone = [produce(subject, row, Placing(seed=seed)) for row in rows]
    for r, (row, one) in enumerate(zip(rows, alone, strict=True)):
        last = Produced([whole.out[r][-1:]], None if whole.lse is None else [whole.lse[r][-1:]])
        _agree(row, last, one, "the last row of a prefill and the decode of its position")
    return compare(content, whole)


def _agree(content: Content, one: Produced, two: Produced, what: str) -> None:
    """Two roundings of one truth are at most two allowed errors apart."""
    allowed = budget(content, truth(content))
    for r, (a, b) in enumerate(zip(one.out, two.out, strict=True)):
        apart = (a.double() - b.double()).abs()
        if not bool((apart <= 2 * allowed.out[r]).all()):
            raise CaseFailure(
                f"{what} must agree, but out of request {r} differs by "
                f"{float(apart.nan_to_num(float('inf')).max()):.3g} "
                f"(rounding allows {2 * allowed.out[r]:.2g})"
            )
    for r, (a, b) in enumerate(zip(one.lse or [], two.lse or [], strict=True)):
        apart = (a.double() - b.double()).abs()[a != b]
        if not bool((apart <= 2 * allowed.lse).all()):
            raise CaseFailure(f"{what} must agree, but lse of request {r} differs")


def _cases() -> list[Case]:
    cases = []
    faults: tuple[str, ...]
    options: tuple[tuple[str, dict[str, Any]], ...] = (
        ("plain", {}),
        ("window", {"window": (20, None)}),
        ("lse", {"return_lse": True}),
    )
    for id, wanted in options:
        judge_it = partial(_page_size, wanted)
        faults = ("KH-13", "KH-16", "KH-17")
        cases.append(attention_case(f"page-size/{id}", "block-size", judge_it, faults=faults))
        judge_it = partial(_last_row, wanted)
        faults = ("KH-31", "KH-33")
        cases.append(attention_case(f"last-row/{id}", "causal", judge_it, faults=faults))
    return cases


CASES = _cases()
