"""plan(): batches that break the contract, and refreshing a plan in place."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pagedattn.attention import AttentionOp, Plan
from pagedattn.batch import AttentionBatch
from pagedattn.conformance.attention.basics import lengths
from pagedattn.conformance.attention.build import attention_case
from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.execute import execute, same_bits
from pagedattn.conformance.attention.judge import Measures, compare, joined
from pagedattn.conformance.attention.place import Step, place
from pagedattn.conformance.attention.placing import Placing
from pagedattn.conformance.attention.subject import AttentionSubject
from pagedattn.conformance.case import Case, CaseFailure
from pagedattn.errors import InvalidBatch

__all__ = ["CASES", "opened"]

Change = Callable[[Step], AttentionBatch]


def opened(subject: AttentionSubject, seed: int) -> tuple[AttentionOp, Step]:
    """A decode step of the plainest spec and an op for it."""
    spec = subject.spec()
    content = Content.random(spec, *lengths("decode", spec.block_size), seed)
    step = place(content, subject.device, Placing(seed=seed))
    return subject.open(spec, step.limits), step


@contextlib.contextmanager
def _looking() -> Iterator[None]:
    """Contents on a device are looked at in debug mode only."""
    before = os.environ.get("PAGEDATTN_DEBUG")
    os.environ["PAGEDATTN_DEBUG"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PAGEDATTN_DEBUG"]
        else:
            os.environ["PAGEDATTN_DEBUG"] = before


# -- malformed batches ---------------------------------------------------------------------------


def _invalid(field: str, change: Change, subject: AttentionSubject, seed: int) -> Measures:
    """plan() raises InvalidBatch naming the field; a good batch still runs on the op."""
    op, step = opened(subject, seed)
    with _looking():
        try:
            op.plan(change(step))
        except InvalidBatch as error:
            if field not in error.field:
                raise CaseFailure(
                    f"InvalidBatch names {error.field!r}, the fault is in {field!r}: {error}"
                ) from error
        else:
            raise CaseFailure(f"plan() accepts a batch whose {field} breaks the contract")
    try:
        return compare(step.content, execute(op, step))
    except CaseFailure as failure:
        raise CaseFailure(f"refused as it should be; then the good batch: {failure}") from failure


def _edited(name: str, edit: Callable[[Tensor], Tensor]) -> Change:
    """The batch with one tensor changed, the host copy too."""

    def change(step: Step) -> AttentionBatch:
        values = {name: edit(getattr(step.batch, name).clone())}
        if name in ("query_start_loc", "seq_lens"):
            values[f"{name}_host"] = values[name].cpu()
        return dataclasses.replace(step.batch, **values)

    return change


def _set(index: Any, value: int) -> Callable[[Tensor], Tensor]:
    def edit(x: Tensor) -> Tensor:
        x[index] = value
        return x

    return edit


def _beyond_pool(step: Step) -> AttentionBatch:
    table = step.batch.block_table.clone()
    table[0, 0] = step.limits.num_blocks
    return dataclasses.replace(step.batch, block_table=table)


def _too_wide_length(step: Step) -> AttentionBatch:
    """More keys than the table has columns for, within the Limits."""
    one = step.batch
    return dataclasses.replace(one, block_table=one.block_table[:, :1].contiguous())


def _column_major(x: Tensor) -> Tensor:
    return x.t().contiguous().t()


INVALID: tuple[tuple[str, str, Change, tuple[str, ...]], ...] = (
    ("negative-id", "block_table", _edited("block_table", _set((0, 0), -1)), ("KH-07",)),
    ("id-beyond-pool", "block_table", _beyond_pool, ("KH-07",)),
    ("length-beyond-table", "seq_lens", _too_wide_length, ("KH-09",)),
    ("length-beyond-limits", "seq_lens", _edited("seq_lens", _set(0, 10**6)), ("KH-09",)),
    ("negative-length", "seq_lens", _edited("seq_lens", _set(1, -1)), ()),
    ("int64-lengths", "seq_lens", _edited("seq_lens", lambda x: x.long()), ("KH-26",)),
    ("int64-table", "block_table", _edited("block_table", lambda x: x.long()), ("KH-26",)),
    ("int64-starts", "query_start_loc", _edited("query_start_loc", lambda x: x.long()), ()),
    ("starts-not-zero", "query_start_loc", _edited("query_start_loc", _set(0, 1)), ()),
    ("starts-descend", "query_start_loc", _edited("query_start_loc", _set(2, 0)), ()),
    ("too-many-tokens", "query", _edited("query_start_loc", _set(-1, 10**6)), ()),
    ("short-starts", "query_start_loc", _edited("query_start_loc", lambda x: x[:-1]), ()),
    ("flat-table", "block_table", _edited("block_table", lambda x: x.flatten()), ()),
    ("strided-columns", "block_table", _edited("block_table", _column_major), ("KH-26",)),
    ("slot-twice", "slot_mapping", _edited("slot_mapping", lambda x: torch.full_like(x, 3)), ()),
    ("slot-beyond-pool", "slot_mapping", _edited("slot_mapping", _set(0, 10**9)), ()),
    (
        "host-lengths-differ",
        "seq_lens_host",
        lambda step: dataclasses.replace(step.batch, seq_lens_host=step.batch.seq_lens.cpu() - 1),
        (),
    ),
)  # fmt: skip


# -- plan(into=) ---------------------------------------------------------------------------------


def _tensors(value: Any, depth: int = 6) -> Iterator[Tensor]:
    """Every tensor in plan.data, whatever it is made of."""
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item, depth - 1)
    elif depth and isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item, depth - 1)
    elif depth and (hasattr(value, "__dict__") or hasattr(value, "__slots__")):
        names = [*getattr(value, "__dict__", ()), *getattr(value, "__slots__", ())]
        for name in names:
            yield from _tensors(getattr(value, name, None), depth - 1)


def _pointers(plan: Plan) -> list[tuple[int, torch.Size]]:
    return [(t.data_ptr(), t.shape) for t in _tensors(plan.data)]


def _overwrite(batch: AttentionBatch, other: AttentionBatch) -> None:
    """Put another step's contents into the same memory, host copies too."""
    for field in dataclasses.fields(AttentionBatch):
        target, source = getattr(batch, field.name), getattr(other, field.name)
        if target is not None:
            target.copy_(source)


def _refresh(subject: AttentionSubject, seed: int) -> Measures:
    """The same tensors with other contents: the plan answers for the new step, its memory stays."""
    spec = subject.spec()
    bs = spec.block_size
    first = Content.random(spec, [1, 1, 1, 0], [bs + 1, 3, 2 * bs, 5], seed)
    second = Content.random(spec, [1, 0, 1, 1], [2, bs, 3 * bs - 1, 2 * bs + 1], seed + 1)
    return _refreshed(subject, first, second, seed)


def _other_rows(subject: AttentionSubject, seed: int) -> Measures:
    """As many rows as before, otherwise shared out: one request has most of them now."""
    spec = subject.spec(rows=7)
    bs = spec.block_size
    first = Content.random(spec, [2, 3, 3, 1], [bs + 2, 3, bs, 5], seed)
    second = Content.random(spec, [0, 1, 7, 1], [2, bs, bs + 7, 2 * bs + 1], seed + 1)
    return _refreshed(subject, first, second, seed)


def _refreshed(subject: AttentionSubject, first: Content, second: Content, seed: int) -> Measures:
    spec = first.spec
    bs = spec.block_size
    steps = [place(c, subject.device, Placing(seed=seed, extra_columns=4)) for c in (first, second)]
    width = min(s.batch.block_table.shape[1] for s in steps)
    steps = [_narrowed(s, width) for s in steps]
    limits = steps[1].limits
    biggest = max(s.limits.num_blocks for s in steps)
    op = subject.open(spec, dataclasses.replace(limits, max_seq_len=4 * bs, num_blocks=biggest))
    plan = op.plan(steps[0].batch)
    measures = compare(first, execute(op, steps[0], plan))
    before = _pointers(plan)
    _overwrite(steps[0].batch, steps[1].batch)
    if op.plan(steps[0].batch, into=plan) is not plan:
        raise CaseFailure("plan(batch, into=p) must return p itself")
    if _pointers(plan) != before:
        raise CaseFailure(
            "plan(into=) moved the plan's tensors; a captured graph reads the old ones: "
            "update them in place"
        )
    return joined(measures, compare(second, execute(op, steps[1], plan)))


def _narrowed(step: Step, width: int) -> Step:
    batch = step.batch
    table = batch.block_table[:, :width].contiguous()
    return dataclasses.replace(step, batch=dataclasses.replace(batch, block_table=table))


def _failed_refresh(subject: AttentionSubject, seed: int) -> Measures:
    """A refresh that raises leaves the plan as it was."""
    op, step = opened(subject, seed)
    plan = op.plan(step.batch)
    before = execute(op, step, plan)
    pointers = _pointers(plan)
    kept = step.batch.seq_lens.clone()
    for target in (step.batch.seq_lens, step.batch.seq_lens_host):
        assert target is not None
        target[0] = 10**6
    try:
        op.plan(step.batch, into=plan)
    except InvalidBatch:
        pass
    else:
        raise CaseFailure("plan(into=) accepts a length beyond the Limits")
    step.batch.seq_lens.copy_(kept)
    assert step.batch.seq_lens_host is not None
    step.batch.seq_lens_host.copy_(kept)
    if _pointers(plan) != pointers:
        raise CaseFailure("a failed plan(into=) moved the plan's tensors")
    fresh = place(step.content, subject.device, step.placing)
    after = execute(op, dataclasses.replace(fresh, batch=step.batch), plan)
    same_bits(before, after, "a failed refresh of the plan")
    return compare(step.content, after)


def _other_memory(subject: AttentionSubject, seed: int) -> None:
    """Another tensor of equal contents is not the memory that a captured graph reads."""
    op, step = opened(subject, seed)
    plan = op.plan(step.batch)
    other = dataclasses.replace(step.batch, seq_lens=step.batch.seq_lens.clone())
    try:
        op.plan(other, into=plan)
    except InvalidBatch as error:
        if "seq_lens" not in error.field:
            raise CaseFailure(
                f"the fault is in seq_lens, the error names {error.field!r}"
            ) from error
    else:
        raise CaseFailure("plan(into=) accepts a batch whose seq_lens lies in other memory")


def _cases() -> list[Case]:
    cases = []
    for name, field, change, faults in INVALID:
        judge_it = partial(_invalid, field, change)
        id = f"plan/{name}"
        cases.append(attention_case(id, "invalid-batch", judge_it, faults=faults, core=True))
    for id, judge_plan in (
        ("into/refresh", _refresh),
        ("into/other-rows", _other_rows),
        ("into/failed-refresh", _failed_refresh),
        ("into/other-memory", _other_memory),
    ):
        cases.append(attention_case(id, "plan-into", judge_plan, core=True))
    return cases


CASES = _cases()
