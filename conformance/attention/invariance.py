"""What may not change a bit: where blocks lie, what neighbours hold, calling again. And what may
change no more than rounding: the order of requests, padding, an upper bound of the lengths."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import torch

from pagedattn.conformance.attention.basics import lengths, rows_of
from pagedattn.conformance.attention.build import attention_case
from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.execute import Produced, execute, same_bits
from pagedattn.conformance.attention.judge import Measures, compare, joined, judge, produce
from pagedattn.conformance.attention.place import place
from pagedattn.conformance.attention.placing import Order, Placing
from pagedattn.conformance.attention.subject import AttentionSubject
from pagedattn.conformance.case import Case
from pagedattn.spec import KVQuant, Mask

__all__ = ["CASES"]


def _content(phase: str, wanted: dict[str, Any], subject: AttentionSubject, seed: int) -> Content:
    spec = subject.spec(wanted, rows=rows_of(phase))
    return Content.random(spec, *lengths(phase, spec.block_size), seed)


def _placement(phase: str, subject: AttentionSubject, seed: int) -> Measures:
    """Ascending, descending and two random placements."""
    content = _content(phase, {}, subject, seed)
    first = produce(subject, content, Placing(seed=seed))
    for placing in (
        Placing(seed=seed + 1),
        Placing(order=Order.ASCENDING),
        Placing(order=Order.DESCENDING),
    ):
        same_bits(first, produce(subject, content, placing), "other block ids")
    return compare(content, first)


def _again(phase: str, subject: AttentionSubject, seed: int) -> Measures:
    """The same call ten times on one plan, on a second plan and on a second op."""
    content = _content(phase, {}, subject, seed)
    step = place(content, subject.device, Placing(seed=seed))
    op = subject.open(step.spec, step.limits)
    plan = op.plan(step.batch)
    first = _copied(execute(op, step, plan))
    for _ in range(9):
        step.out[: sum(content.query_lens)] = float("nan")
        same_bits(first, execute(op, step, plan), "the same call again")
    same_bits(first, execute(op, step), "the same call through another plan")
    other = subject.open(step.spec, step.limits)
    same_bits(first, execute(other, step), "the same call on another op")
    return compare(content, first)


def _copied(produced: Produced) -> Produced:
    lse = None if produced.lse is None else [x.clone() for x in produced.lse]
    return Produced([x.clone() for x in produced.out], lse)


def _two_plans(subject: AttentionSubject, seed: int) -> Measures:
    """Two plans of one op, alive together, used in turn."""
    first = _content("decode", {}, subject, seed)
    second = Content.random(first.spec, *lengths("decode", first.spec.block_size), seed + 1)
    second = second.pick([3, 1, 0])
    steps = [place(c, subject.device, Placing(seed=seed)) for c in (first, second)]
    limits = [
        max(getattr(s.limits, f.name) for s in steps) for f in dataclasses.fields(steps[0].limits)
    ]
    op = subject.open(first.spec, type(steps[0].limits)(*limits))
    plans = [op.plan(s.batch) for s in steps]
    measures: Measures = {}
    for step, plan in (*zip(steps, plans, strict=True), (steps[0], plans[0])):
        measures = joined(compare(step.content, execute(op, step, plan)), measures)
    return measures


def _neighbours(phase: str, subject: AttentionSubject, seed: int) -> Measures:
    """Other queries, keys and values in every request but one: that one keeps its bits."""
    content = _content(phase, {}, subject, seed)
    spec = content.spec
    other = Content.random(spec, content.query_lens, content.seq_lens, seed + 1, spread=3.0)
    keep = 4 if phase == "decode" else 1
    mixed = dataclasses.replace(
        other,
        q=tuple(content.q[r] if r == keep else x for r, x in enumerate(other.q)),
        k=tuple(content.k[r] if r == keep else x for r, x in enumerate(other.k)),
        v=tuple(content.v[r] if r == keep else x for r, x in enumerate(other.v)),
    )
    alone = produce(subject, content, Placing(seed=seed))
    beside = produce(subject, mixed, Placing(seed=seed))
    same_bits(_only(alone, keep), _only(beside, keep), "what other requests hold")
    return compare(mixed, beside)


def _only(produced: Produced, request: int) -> Produced:
    lse = None if produced.lse is None else [produced.lse[request]]
    return Produced([produced.out[request]], lse)


def _order(phase: str, subject: AttentionSubject, seed: int) -> Measures:
    content = _content(phase, {}, subject, seed)
    back = content.pick(list(reversed(range(len(content.q)))))
    return joined(
        judge(subject, content, Placing(seed=seed)), judge(subject, back, Placing(seed=seed))
    )


def _batch_invariant(wanted: dict[str, Any], subject: AttentionSubject, seed: int) -> Measures:
    """A row alone, in batches, in a prefill, beside a long one, under a wider table: the same bits,
    as claimed."""
    spec = subject.spec({"batch_invariant": True, **wanted}, rows=70)
    rows = spec.max_query_len or 70
    n = 4 * spec.block_size + 3
    content = Content.random(spec, [4, 1, 4], [n, 9, 11], seed)
    batch = produce(subject, content, Placing(seed=seed))
    measures = compare(content, batch)
    prefill = Content.random(spec, [rows, 4], [max(rows, 75), 9], seed + 1)
    company = content.pick([0]).beside(prefill)
    same_bits(_only(batch, 0), _only(produce(subject, company), 0), "a long prefill in the batch")
    for row in range(4):
        end = n - 3 + row
        one = content.cut(0, slice(row, row + 1), slice(0, end))
        alone = produce(subject, one, Placing(seed=seed + row, extra_columns=7))
        same_bits(_row(batch, row), alone, "company")
        if row in (0, 3):
            crowd = produce(subject, one.pick([0] * (8, 40)[row // 3]), Placing(seed=seed))
            for request in range(len(crowd.out)):
                same_bits(alone, _only(crowd, request), "a batch of copies")
    return measures


def _batch_invariant_long(subject: AttentionSubject, seed: int) -> Measures:
    """Long enough that a split chosen from the batch size would move."""
    spec = subject.spec({"batch_invariant": True})
    content = Content.random(spec, [1], [1500], seed)
    alone = produce(subject, content, Placing(seed=seed))
    for copies in (2, 9):
        crowd = produce(subject, content.pick([0] * copies), Placing(seed=seed))
        for request in range(copies):
            same_bits(alone, _only(crowd, request), f"a batch of {copies} copies")
    return compare(content, alone)


def _row(produced: Produced, row: int) -> Produced:
    """One row of request 0."""
    rows = slice(row, row + 1)
    lse = None if produced.lse is None else [produced.lse[0][rows]]
    return Produced([produced.out[0][rows]], lse)


def _padding(rows: int, requests: str, subject: AttentionSubject, seed: int) -> Measures:
    """A step padded for a captured graph: q rows beyond the batch are NaN and nothing is written
    there; padding requests have no rows, or one row and no keys."""
    spec = subject.spec()
    query_lens, seq_lens = [1, 1, 1], [20, spec.block_size, 3]
    if requests == "no-rows":
        query_lens, seq_lens = [*query_lens, *[0] * 5], [*seq_lens, *[0] * 5]
    elif requests == "no-keys":
        query_lens, seq_lens = [*query_lens, *[1] * 5], [*seq_lens, *[0] * 5]
    content = Content.random(spec, query_lens, seq_lens, seed)
    return judge(subject, content, Placing(seed=seed, padding_rows=rows))


def _padded_prefill(wanted: dict[str, Any], subject: AttentionSubject, seed: int) -> Measures:
    """One prompt of 21 rows in tensors of 24."""
    spec = subject.spec(wanted, rows=21)
    content = Content.random(spec, [21], [21], seed)
    return judge(subject, content, Placing(seed=seed, padding_rows=3))


def _upper_bound(
    slack: int, phase: str, wanted: dict[str, Any], subject: AttentionSubject, seed: int
) -> Measures:
    """seq_lens_host is only an upper bound: results depend on seq_lens alone."""
    content = _content(phase, {"async_lengths": True, **wanted}, subject, seed)
    return judge(subject, content, Placing(seed=seed, lengths_slack=slack))


def _no_keys(subject: AttentionSubject, seed: int) -> Measures:
    """Requests without keys, whatever the bound says, and one that ends where a split of the bound
    would."""
    spec = subject.spec({"async_lengths": True})
    content = Content.random(spec, [1, 1, 1, 1], [0, 5, 0, 2 * spec.block_size], seed)
    slack = 2 * spec.block_size
    return judge(subject, content, Placing(seed=seed, lengths_slack=slack))


def _cases() -> list[Case]:
    cases = []

    def add(id: str, rule: str, judge_it: Any, *faults: str, core: bool = True) -> None:
        cases.append(attention_case(id, rule, judge_it, faults=faults, core=core))

    for phase in ("decode", "mixed"):
        add(f"placement/{phase}", "determinism", partial(_placement, phase), "KH-16", "KH-18")
        add(f"again/{phase}", "determinism", partial(_again, phase), "KH-25")
        add(f"neighbours/{phase}", "neighbours", partial(_neighbours, phase), "KH-56")
        add(f"request-order/{phase}", "position", partial(_order, phase))
        for slack in (1, 40):
            judge_it = partial(_upper_bound, slack, phase, {})
            add(f"async/bound-plus-{slack}/{phase}", "async-lengths", judge_it, core=False)
        for id, wanted in (
            ("window", {"window": (5, None)}), ("alibi", {"alibi": True, "return_lse": True}),
            ("full", {"mask": Mask.FULL}), ("full-window", {"mask": Mask.FULL, "window": (3, 2)}),
            ("int8", {"kv_dtype": torch.int8, "kv_quant": KVQuant.PER_TOKEN_HEAD}),
        ):  # fmt: skip
            judge_it = partial(_upper_bound, 40, phase, wanted)
            add(f"async/{id}/{phase}", "async-lengths", judge_it, core=False)
    add("plans/two-alive", "plan", _two_plans)
    options: tuple[tuple[str, dict[str, Any]], ...] = (
        ("rows", {}), ("lse", {"return_lse": True}), ("window", {"window": (20, None)}),
        ("int8", {"kv_dtype": torch.int8, "kv_quant": KVQuant.PER_TOKEN_HEAD}),
        ("sinks", {"sinks": True, "return_lse": True}), ("bfloat16", {"dtype": torch.bfloat16}),
    )  # fmt: skip
    for id, wanted in options:
        judge_it = partial(_batch_invariant, wanted)
        add(f"batch-invariance/{id}", "batch-invariance", judge_it, "KH-55", core=False)
    add("async/no-keys", "async-lengths", _no_keys, core=False)
    judge_it = partial(_upper_bound, 40, "mixed", {"mask": Mask.TREE})
    add("async/tree", "async-lengths", judge_it, core=False)
    add("batch-invariance/long", "batch-invariance", _batch_invariant_long, "KH-55", core=False)
    for rows, requests in ((3, "none"), (0, "no-rows"), (5, "no-rows"), (0, "no-keys")):
        judge_it = partial(_padding, rows, requests)
        add(f"padding/{rows}-rows/{requests}", "padding-rows", judge_it, "KH-06", "KH-53")
    add("padding/prefill", "padding-rows", partial(_padded_prefill, {}), "KH-06")
    add(
        "padding/lse", "padding-rows", partial(_padded_prefill, {"return_lse": True}), "KH-06",
        core=False,
    )  # fmt: skip
    for dtype in (torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        judge_it = partial(_padded_prefill, {"dtype": dtype})
        add(f"padding/{name}", "padding-rows", judge_it, "KH-06", core=False)
    return cases


CASES = _cases()
