"""The edges of what a backend declares: the last value inside is computed right, the first one
outside is refused, and so are batches one beyond the Limits."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from functools import partial
from typing import Any

from pagedattn.conformance.attention.build import attention_case
from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.judge import Measures, joined, judge
from pagedattn.conformance.attention.place import place
from pagedattn.conformance.attention.placing import Placing
from pagedattn.conformance.attention.subject import AttentionSubject
from pagedattn.conformance.case import Case, CaseFailure, Declined
from pagedattn.errors import InvalidBatch
from pagedattn.spec import Limits

__all__ = ["CASES", "edges_of"]

AXES: dict[str, tuple[int, ...]] = {
    # what is tried where every value is declared
    "head_dim": (8, 40, 59, 264),
    "head_dim_v": (8, 59, 264),
    "block_size": (1, 7, 33, 272),
    "group_size": (1, 11, 33),
    "num_heads": (1, 5),
    "num_kv_heads": (1, 5, 9),
}

MOST = 1024
"""Larger values are not tried: one head of 2**16 dims says nothing new."""


def edges_of(declared: Collection[int]) -> tuple[list[int], list[int]]:
    """(inside, outside): both ends, and the neighbours of ends and gaps that are not declared."""
    values = sorted(v for v in declared if v <= MOST)
    if not values:
        return [], []
    inside = sorted({values[0], values[-1], values[len(values) // 2]})
    near = {v + step for v in inside for step in (-1, 1)}
    outside = sorted(v for v in near if v > 0 and v not in declared)
    return inside, outside


def _wanted(axis: str, value: int) -> dict[str, Any]:
    if axis == "num_heads":
        return {"num_heads": value, "num_kv_heads": 1}
    if axis == "num_kv_heads":
        return {"num_kv_heads": value, "group_size": 1}
    return {axis: value}


def _axis(axis: str, subject: AttentionSubject, seed: int) -> Measures:
    declared = getattr(subject.capabilities, axis)
    inside, outside = (list(AXES[axis]), []) if declared is None else edges_of(declared)
    base = subject.spec()
    measures = _compute(subject, {}, seed)
    for value in inside:
        spec = subject.spec(_wanted(axis, value))
        if axis in ("num_heads", "num_kv_heads") and subject.refusals(spec):
            continue  # another row refuses the number of heads that goes with it
        try:
            measures = joined(_compute(subject, _wanted(axis, value), seed), measures)
        except CaseFailure as failure:
            raise CaseFailure(f"{axis}={value} is declared: {failure}") from failure
    for value in outside:
        if axis == "head_dim_v" and value == base.head_dim:
            continue  # the same as head_dim is always served
        try:
            subject.open(subject.spec(_wanted(axis, value)), Limits(4, 16, 64, 64))
        except Declined as declined:
            if axis not in {r.code for r in declined.refusals}:
                raise CaseFailure(
                    f"{axis}={value} is refused for other reasons only: {declined}"
                ) from declined
        else:
            raise CaseFailure(f"{axis}={value} is not declared, but open() serves it")
    return {**measures, "inside": inside, "outside": outside}


def _compute(subject: AttentionSubject, wanted: dict[str, Any], seed: int) -> Measures:
    spec = subject.spec(wanted)
    content = Content.random(spec, [1, 1], [spec.block_size + 1, 3], seed)
    return judge(subject, content, Placing(seed=seed))


def _query_length(subject: AttentionSubject, seed: int) -> Measures:
    """A declared max_query_len is reached; one more row, or no bound, is refused."""
    longest = subject.capabilities.max_query_len
    rows = 33 if longest is None else min(longest, 33)
    spec = subject.spec({} if longest is None else {"max_query_len": longest})
    content = Content.random(spec, [rows, 1], [rows + 2, 3], seed)
    measures = judge(subject, content, Placing(seed=seed))
    if longest is not None:
        for more in (longest + 1, None):
            try:
                subject.open(
                    dataclasses.replace(spec, max_query_len=more),
                    Limits(4, 4 * longest + 4, 64, 64),
                )
            except Declined as declined:
                if "max_query_len" not in {r.code for r in declined.refusals}:
                    raise CaseFailure(f"refused for other reasons only: {declined}") from declined
            else:
                raise CaseFailure(f"max_query_len={more} is not declared, but open() serves it")
    return measures


def _limits(name: str, subject: AttentionSubject, seed: int) -> Measures:
    """A batch at a limit is computed right, one beyond it is an InvalidBatch."""
    spec = subject.spec()
    content = Content.random(spec, [1, 1, 1], [spec.block_size + 1, 3, 1], seed)
    measures = judge(subject, content, Placing(seed=seed))
    step = place(content, subject.device, Placing(seed=seed))
    tight = dataclasses.replace(step.limits, **{name: getattr(step.limits, name) - 1})
    op = subject.open(spec, tight)
    try:
        op.plan(step.batch)
    except InvalidBatch:
        return measures
    raise CaseFailure(f"plan() accepts a batch that is one beyond the limit {name}")


CASES: list[Case] = [
    *(
        attention_case(
            f"honesty/edges-{axis.replace('_', '-')}",
            "refusals",
            partial(_axis, axis),
            faults=("KH-17", "KH-19", "KH-21"),
            core=True,
        )
        for axis in AXES
    ),
    attention_case("honesty/edges-max-query-len", "refusals", _query_length, core=True),
    *(
        attention_case(
            f"plan/one-beyond-{name.replace('_', '-')}",
            "invalid-batch",
            partial(_limits, name),
            faults=("KH-09",),
            core=True,
        )
        for name in ("max_requests", "max_tokens", "max_seq_len")
    ),
]
