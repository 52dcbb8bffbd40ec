"""What a backend must not remember: other strides, other contents and other objects come at the
pointer, the shape or the id of an earlier call."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pagedattn.batch import AttentionBatch, KVCache
from pagedattn.conformance.attention.basics import lengths
from pagedattn.conformance.attention.build import attention_case
from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.execute import execute
from pagedattn.conformance.attention.judge import Measures, compare, joined
from pagedattn.conformance.attention.place import Step, place
from pagedattn.conformance.attention.placing import Placing, Storage
from pagedattn.conformance.attention.subject import AttentionSubject
from pagedattn.conformance.case import Case, CaseFailure
from pagedattn.errors import InvalidTensor
from pagedattn.spec import AttentionSpec

__all__ = ["CASES"]

ALIVE = 9
"""Plans kept at once: more than any ring of buffers that a backend may take for enough."""


def _clear(step: Step) -> None:
    step.out[: sum(step.content.query_lens)] = float("nan")


def _each(turns: Iterator[tuple[str, Callable[[], Measures]]]) -> Measures:
    """All turns, the failing one named."""
    measures: Measures = {}
    for what, turn in turns:
        try:
            measures = joined(turn(), measures)
        except CaseFailure as failure:
            raise CaseFailure(f"{what}: {failure}") from failure
    return measures


# -- strides -------------------------------------------------------------------------------------


def _layers(subject: AttentionSubject, seed: int) -> Measures:
    """One plan for three layers whose pools have other strides each."""
    spec = subject.spec()
    content = Content.random(spec, *lengths("decode", spec.block_size), seed)
    steps = [place(content, subject.device, Placing(seed=seed, storage=s)) for s in Storage]
    steps = [dataclasses.replace(step, batch=steps[0].batch) for step in steps]
    op = subject.open(spec, steps[0].limits)
    plan = op.plan(steps[0].batch)

    def turn(step: Step) -> Measures:
        _clear(step)
        try:
            return compare(content, execute(op, step, plan))
        except InvalidTensor:
            if step.placing.storage is Storage.PLAIN:
                raise
            return {}

    return _each(
        (f"the pools of layer {i} are {steps[i].placing.storage.value}", partial(turn, steps[i]))
        for i in (0, 1, 2, 0, 1)
    )


def _strides(rows: int, heads: int, dim: int) -> dict[str, tuple[int, int, int]]:
    """Three ways in which [rows, heads, dim] lie from one pointer on."""
    return {
        "contiguous": (heads * dim, dim, 1),
        "a slice of wider rows": ((heads + 3) * dim, dim, 1),
        "transposed": (dim, rows * dim, 1),
    }


def _rows(subject: AttentionSubject, seed: int) -> Measures:
    """q and out come at the same pointers and of the same shape, with other strides."""
    spec = subject.spec()
    content = Content.random(spec, *lengths("decode", spec.block_size), seed)
    step = place(content, subject.device, Placing(seed=seed))
    op = subject.open(spec, step.limits)
    plan = op.plan(step.batch)
    tokens, heads = sum(content.query_lens), spec.num_heads
    memory = {
        name: torch.zeros(tokens * (heads + 3) * dim, dtype=dtype, device=subject.device)
        for name, dim, dtype in (
            ("q", spec.head_dim, spec.dtype),
            ("out", spec.head_dim_v, spec.out_dtype),
        )
    }

    def turn(how: str) -> Measures:
        q, out = (
            memory[name].as_strided((tokens, heads, dim), _strides(tokens, heads, dim)[how])
            for name, dim in (("q", spec.head_dim), ("out", spec.head_dim_v))
        )
        q.copy_(step.q)
        out.fill_(float("nan"))
        guards = [guard for guard in step.guards if guard.name not in ("q", "out")]
        try:
            moved = dataclasses.replace(step, q=q, out=out, guards=guards)
            return compare(content, execute(op, moved, plan))
        except InvalidTensor:
            if how == "contiguous":
                raise
            return {}

    return _each(
        (f"q and out are {how}", partial(turn, how)) for how in (*_strides(1, 1, 1), "contiguous")
    )


# -- objects and contents ------------------------------------------------------------------------


def _caches(subject: AttentionSubject, seed: int) -> Measures:
    """Caches that come and go: a new KVCache often gets the id of one that is gone, and its pools
    may begin where those of another began."""
    spec = subject.spec()
    content = Content.random(spec, *lengths("decode", spec.block_size), seed)
    steps = [place(content, subject.device, Placing(seed=seed, storage=s)) for s in Storage]
    op = subject.open(spec, steps[0].limits)
    plan = op.plan(steps[0].batch)
    swapped = None
    if spec.head_dim == spec.head_dim_v:
        swapped = dataclasses.replace(content, k=content.v, v=content.k)

    def turn(step: Step, k: Tensor, v: Tensor, expected: Content) -> Measures:
        _clear(step)
        cache = KVCache(k=k, v=v)  # dies at the end of the turn
        moved = dataclasses.replace(step, cache=cache, batch=steps[0].batch)
        try:
            return compare(expected, execute(op, moved, plan))
        except InvalidTensor:
            if step.placing.storage is Storage.PLAIN:
                raise
            return {}

    def turns() -> Iterator[tuple[str, Callable[[], Measures]]]:
        for step in (*steps, steps[0]):
            pools = step.cache.k, step.cache.v
            name = f"a new cache over {step.placing.storage.value} pools"
            yield name, partial(turn, step, *pools, content)
            if swapped is not None:
                yield f"{name}, K and V exchanged", partial(turn, step, *pools[::-1], swapped)
        plain = steps[0].cache
        other = dataclasses.replace(content, v=tuple(-x for x in content.v))
        yield "a new V beside an old K", partial(turn, steps[0], plain.k, -plain.v, other)
        twice = [x.repeat_interleave(2, 0) for x in (plain.k, plain.v)]
        n = plain.num_blocks
        for i, (name, k, v) in enumerate(
            (
                ("every second block of some pools", twice[0][::2], twice[1][::2]),
                ("the first half of the same pools", twice[0][:n], twice[1][:n]),
            )
        ):
            if i:
                k.copy_(plain.k)
                v.copy_(plain.v)
            yield name, partial(turn, steps[0], k, v, content)

    return _each(turns())


def _parameters(field: str, subject: AttentionSubject, seed: int) -> Measures:
    """Sinks and slopes are read when run() is called, whatever lay there before."""
    spec = subject.spec({field: True})
    content = Content.random(spec, *lengths("decode", spec.block_size), seed)
    step = place(content, subject.device, Placing(seed=seed))
    op = subject.open(spec, step.limits)
    plan = op.plan(step.batch)

    def turn(factor: float) -> Measures:
        _clear(step)
        name = "sinks" if field == "sinks" else "slopes"
        values = getattr(content, name) * factor
        getattr(step, name).copy_(values)
        return compare(dataclasses.replace(content, **{name: values}), execute(op, step, plan))

    return _each((f"{field} times {x:g}, in place", partial(turn, x)) for x in (1.0, 0.25, 0.75))


# -- plans ---------------------------------------------------------------------------------------


def _steps(
    spec: AttentionSpec, query_lens: list[int], subject: AttentionSubject, seed: int
) -> list[Step]:
    """Steps of equal B, T, longest query, longest and total length: no summary tells them apart."""
    a, b, c = query_lens
    n = 2 * spec.block_size + 3
    shapes = (([a, b, c], [n, 4, n - 2]), ([c, a, b], [4, n, n - 2]), ([b, c, a], [n - 2, 4, n]))
    return [
        place(
            Content.random(spec, *shape, seed + i),
            subject.device,
            Placing(seed=seed + i, extra_columns=0),
        )
        for i, shape in enumerate(shapes)
    ]


def _same_memory(query_lens: list[int], subject: AttentionSubject, seed: int) -> Measures:
    """A new batch each step over the same tensors, as engines keep them: a plan is made of what is
    there now."""
    spec = subject.spec(rows=max(query_lens))
    steps = _steps(spec, query_lens, subject, seed)
    op = subject.open(spec, dataclasses.replace(steps[0].limits, num_blocks=_most_blocks(steps)))
    memory = {
        field.name: None if tensor is None else tensor.clone()
        for field in dataclasses.fields(AttentionBatch)
        for tensor in (getattr(steps[0].batch, field.name),)
    }

    def turn(step: Step) -> Measures:
        for name, target in memory.items():
            if target is not None:
                target.copy_(getattr(step.batch, name))
        _clear(step)
        batch = AttentionBatch(**memory)  # type: ignore[arg-type]
        return compare(step.content, execute(op, dataclasses.replace(step, batch=batch)))

    # The last one has the lengths of the first and another table.
    again = place(steps[0].content, subject.device, Placing(seed=seed + 7, extra_columns=0))
    return _each((f"step {i + 1}", partial(turn, s)) for i, s in enumerate((*steps, again)))


def _alive(subject: AttentionSubject, seed: int) -> Measures:
    """Nine plans are made before the first is run, and each is run twice."""
    spec = subject.spec()
    bs = spec.block_size
    steps = []
    for i in range(ALIVE):
        seq_lens = [1 + (5 * i + 7 * r) % (2 * bs) for r in range(1 + i % 3)]
        content = Content.random(spec, [1] * len(seq_lens), seq_lens, seed + i)
        steps.append(place(content, subject.device, Placing(seed=seed + i)))
    limits = dataclasses.replace(
        steps[0].limits,
        max_requests=3,
        max_tokens=3,
        max_seq_len=2 * bs,
        num_blocks=_most_blocks(steps),
    )
    op = subject.open(spec, limits)
    plans = [op.plan(step.batch) for step in steps]

    def turn(i: int) -> Measures:
        _clear(steps[i])
        return compare(steps[i].content, execute(op, steps[i], plans[i]))

    order = [*range(ALIVE), *reversed(range(ALIVE))]
    return _each((f"plan {i + 1} of {ALIVE} that are alive", partial(turn, i)) for i in order)


def _most_blocks(steps: list[Step]) -> int:
    return max(step.limits.num_blocks for step in steps)


def _many_layers(subject: AttentionSubject, seed: int) -> Measures:
    """One plan, run as often as a deep model has layers."""
    spec = subject.spec()
    content = Content.random(spec, [1, 1], [3, spec.block_size + 1], seed)
    step = place(content, subject.device, Placing(seed=seed))
    op = subject.open(spec, step.limits)
    plan = op.plan(step.batch)

    def turn() -> Measures:
        _clear(step)
        return compare(content, execute(op, step, plan))

    return _each((f"layer {i} of one plan", turn) for i in range(40))


def _cases() -> list[Case]:
    table: tuple[tuple[str, str, Any, tuple[str, ...]], ...] = (
        ("plans/layers/other-strides", "plan", _layers, ("KH-24",)),
        ("plans/layers/many", "plan", _many_layers, ()),
        ("plans/rows/other-strides", "strides", _rows, ("KH-25", "KH-26")),
        ("plans/caches-come-and-go", "plan", _caches, ()),
        ("plans/same-memory/decode", "plan", partial(_same_memory, [1, 1, 1]), ("AH-38",)),
        ("plans/same-memory/mixed", "plan", partial(_same_memory, [3, 1, 2]), ("AH-38",)),
        ("plans/nine-alive", "plan", _alive, ("AH-38",)),
    )
    cases = [
        attention_case(id, rule, judge_it, faults=faults, core=True)
        for id, rule, judge_it, faults in table
    ]
    for field in ("sinks", "alibi"):
        judge_it = partial(_parameters, field)
        cases.append(attention_case(f"plans/in-place/{field}", "plan", judge_it))
    return cases


CASES = _cases()
