"""Sizes at which kernels change their way: one row more than a tile, a few rows over many keys,
wide windows, decodes on either side of a prefill; trees whose bits begin or end where few do."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import torch

from pagedattn.conformance.attention.build import attention_case
from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.execute import execute
from pagedattn.conformance.attention.judge import Measures, compare, judge
from pagedattn.conformance.attention.place import place
from pagedattn.conformance.attention.placing import Placing
from pagedattn.conformance.attention.subject import AttentionSubject
from pagedattn.conformance.case import Case
from pagedattn.spec import Mask

__all__ = ["CASES"]

MANY_KEYS = 16384 + 6


def _rows_and_keys(
    query_lens: list[int],
    seq_lens: list[int],
    wanted: dict[str, Any],
    subject: AttentionSubject,
    seed: int,
) -> Measures:
    spec = subject.spec(wanted, rows=max(query_lens))
    content = Content.random(spec, query_lens, seq_lens, seed)
    return judge(subject, content, Placing(seed=seed))


def _tree_of_one(subject: AttentionSubject, seed: int) -> Measures:
    """Trees of one row: one that does not see itself, with and without earlier keys, one that does,
    and a request without a tree."""
    spec = subject.spec({"mask": Mask.TREE})
    content = Content.random(spec, [1, 1, 1, 1], [7, 1, spec.block_size, 5], seed)
    hidden, seen = torch.zeros(1, 1).bool(), torch.ones(1, 1).bool()
    content = dataclasses.replace(content, trees=(hidden, hidden, seen, None))
    return judge(subject, content, Placing(seed=seed))


def _tree_offset(subject: AttentionSubject, seed: int) -> Measures:
    """The first tree begins behind 300 bytes that belong to nobody: offsets count from the first
    byte and do not fit a byte."""
    spec = subject.spec({"mask": Mask.TREE}, rows=9)
    content = Content.random(spec, [3, 9, 5], [8, 12, 9], seed)
    step = place(content, subject.device, Placing(seed=seed))
    mask, indptr = step.batch.tree_mask, step.batch.tree_indptr
    assert mask is not None
    assert indptr is not None
    before = torch.full((300,), 85, dtype=torch.uint8, device=mask.device)
    batch = dataclasses.replace(
        step.batch, tree_mask=torch.cat((before, mask)), tree_indptr=indptr + 300
    )
    moved = dataclasses.replace(step, batch=batch)
    return compare(content, execute(subject.open(spec, step.limits), moved))


def _tree_wide(subject: AttentionSubject, seed: int) -> Measures:
    """140 rows: more than a tile of 128, and more bits than 16 bits count."""
    spec = subject.spec({"mask": Mask.TREE, "group_size": 1}, rows=140)
    content = Content.random(spec, [140, 2], [145, 4], seed)
    return judge(subject, content, Placing(seed=seed))


def _tree_in_place(subject: AttentionSubject, seed: int) -> Measures:
    """plan(into=) over other trees of the same sizes: the bits are read anew."""
    spec = subject.spec({"mask": Mask.TREE}, rows=9)
    lens = [3, 9, 4, 5]
    first = Content.random(spec, lens, [8, 12, 4, 9], seed)
    assert first.trees is not None
    others = tuple(None if t is None else (t ^ True).tril() for t in first.trees)
    second = dataclasses.replace(first, trees=others)
    one, two = (place(c, subject.device, Placing(seed=seed)) for c in (first, second))
    op = subject.open(spec, one.limits)
    plan = op.plan(one.batch)
    compare(first, execute(op, one, plan))
    assert one.batch.tree_mask is not None
    assert two.batch.tree_mask is not None
    one.batch.tree_mask.copy_(two.batch.tree_mask)
    op.plan(one.batch, into=plan)
    return compare(second, execute(op, dataclasses.replace(two, batch=one.batch), plan))


def _cases() -> list[Case]:
    plain: dict[str, Any] = {}
    wide = {"window": (4200, None)}
    both = {"mask": Mask.FULL, "window": (70, 70), "group_size": 1}
    table: tuple[tuple[str, str, list[int], list[int], dict[str, Any], tuple[str, ...]], ...] = (
        ("chunk/tile-plus-1", "causal", [17, 33, 65], [20, 33, 66], plain, ("KH-32",)),
        (
            "chunk/between-decodes",
            "position",
            [1, 4, 1, 3, 1],
            [9, 12, 19, 3, 30],
            plain,
            ("KH-11",),
        ),
        ("chunk/129-rows", "causal", [129, 1], [131, 6], {"group_size": 1}, ("KH-32",)),
        ("long/chunk", "dtypes", [2, 3], [MANY_KEYS, 1030], {"group_size": 1}, ("KH-58", "KH-59")),
        ("long/wide-window", "window", [1, 1], [4300, 9], wide, ("KH-36",)),
        ("full/wide-window", "full-mask", [150, 1], [150, 90], both, ("KH-36",)),
    )
    cases = []
    for id, rule, query_lens, seq_lens, wanted, faults in table:
        judge_it = partial(_rows_and_keys, query_lens, seq_lens, wanted)
        core = not wanted or ("group_size" in wanted and "mask" not in wanted)
        cases.append(attention_case(id, rule, judge_it, faults=faults, core=core))
    for id, rule, judge_tree in (
        ("tree/one-row", "tree", _tree_of_one),
        ("tree/offset", "tree", _tree_offset),
        ("tree/wide-140", "tree", _tree_wide),
        ("into/trees", "plan-into", _tree_in_place),
    ):
        cases.append(attention_case(id, rule, judge_tree))
    return cases


CASES = _cases()
