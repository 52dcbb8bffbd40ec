"""Blocks that move between a write and a read: copy-on-write, swapping, several layers, scratch
that is shared. Whatever a backend remembers of an earlier call, it reads what is there now."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pagedattn.attention import AttentionOp
from pagedattn.batch import KVCache
from pagedattn.conformance.attention.basics import lengths
from pagedattn.conformance.attention.build import attention_case
from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.execute import Produced, execute
from pagedattn.conformance.attention.judge import Measures, compare, joined
from pagedattn.conformance.attention.place import Step, place
from pagedattn.conformance.attention.placing import Placing
from pagedattn.conformance.attention.pools import as_bytes
from pagedattn.conformance.attention.subject import AttentionSubject
from pagedattn.conformance.case import Case, CaseFailure
from pagedattn.copies import copy_blocks
from pagedattn.spec import KVQuant, Layout

__all__ = ["CASES"]

INT8_TOKENS = {"kv_dtype": torch.int8, "kv_quant": KVQuant.PER_TOKEN_HEAD}


def _placed(
    wanted: dict[str, Any], subject: AttentionSubject, seed: int
) -> tuple[Step, AttentionOp]:
    """One decode row over two blocks and a bit, with as many blocks to spare."""
    spec = subject.spec(wanted)
    content = Content.random(spec, [1], [2 * spec.block_size + 2], seed)
    step = place(content, subject.device, Placing(seed=seed, spare_blocks=9))
    return step, subject.open(spec, step.limits)


def _spare(step: Step) -> list[int]:
    own = set(step.tables[0])
    return [b for b in range(step.limits.num_blocks) if b not in own][: len(step.tables[0])]


def _own(step: Step) -> list[int]:
    return [block for block in step.tables[0] if block is not None]


def _through(step: Step, blocks: list[int]) -> Step:
    """The step with its keys in other blocks."""
    table = step.batch.block_table.clone()
    table[0, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
    batch = dataclasses.replace(step.batch, block_table=table, slot_mapping=None)
    return dataclasses.replace(step, batch=batch)


def _rows(step: Step, device: torch.device, count: int) -> tuple[Tensor, Tensor | None]:
    """The last `count` keys and values, as write() takes them."""
    content, spec = step.content, step.spec
    k, v = (x(0)[-count:].to(spec.dtype).to(device) for x in (content.real_k, content.real_v))
    return k, None if spec.shared_kv else v


def _copied(wanted: dict[str, Any], subject: AttentionSubject, seed: int) -> Measures:
    """write, copy, read the copy, write over the original, read the copy again: each call sees the
    ones before it."""
    step, op = _placed(wanted, subject, seed)
    size, device, n = step.spec.block_size, subject.device, step.content.seq_lens[0]
    own, spare = _own(step), _spare(step)
    last = own[-1] * size + (n - 1) % size
    k, v = _rows(step, device, 1)
    as_bytes(step.cache.k)[last // size, last % size] = 0
    op.write(k, v, step.cache, torch.tensor([last], device=device))
    measures = compare(step.content, execute(op, step))
    copy_blocks(step.cache, step.cache, list(zip(own, spare, strict=True)))
    moved = _through(step, spare)
    measures = joined(compare(moved.content, execute(op, moved)), measures)
    slots = torch.tensor([b * size for b in own], device=device)
    loud = [None if x is None else x[:1].expand(len(own), -1, -1) * 0 + 3.0 for x in (k, v)]
    assert loud[0] is not None
    op.write(loud[0], loud[1], step.cache, slots)
    return joined(compare(moved.content, execute(op, moved)), measures)


def _swapped(wanted: dict[str, Any], subject: AttentionSubject, seed: int) -> Measures:
    """Out to a host cache of other strides, the blocks given to somebody else, in again elsewhere:
    the copies hold what the blocks held when they were made."""
    step, op = _placed(wanted, subject, seed)
    measures = compare(step.content, execute(op, step))
    own, spare = _own(step), _spare(step)
    host = KVCache.allocate(step.spec, len(own), "cpu")
    for mine, other in ((host.k_scale, step.cache.k_scale), (host.v_scale, step.cache.v_scale)):
        if mine is not None and other is not None and mine.dim() < 3:
            mine.copy_(other)
    away = list(enumerate(own))
    copy_blocks(step.cache, host, [(block, i) for i, block in away])
    for block in own:
        as_bytes(step.cache.k)[block] = 77
        as_bytes(step.cache.v)[block] = 77
    copy_blocks(host, step.cache, [(i, spare[i]) for i, _ in away])
    moved = _through(step, spare)
    return joined(compare(moved.content, execute(op, moved)), measures)


def _layers(wanted: dict[str, Any], subject: AttentionSubject, seed: int) -> Measures:
    """One plan for two layers in turn, each with a cache, scales, sinks and slopes of its own."""
    spec = subject.spec(wanted)
    query_lens, seq_lens = lengths("decode", spec.block_size)
    contents = [Content.random(spec, query_lens, seq_lens, seed + i) for i in range(2)]
    second = contents[1]
    if second.slopes is not None:
        contents[1] = dataclasses.replace(second, slopes=second.slopes * 0.7)
    if isinstance(second.k_scale, Tensor) and isinstance(second.v_scale, Tensor):
        contents[1] = dataclasses.replace(
            second, k_scale=second.k_scale * 1.7, v_scale=second.v_scale * 0.6
        )
    steps = [place(c, subject.device, Placing(seed=seed)) for c in contents]
    steps[1] = dataclasses.replace(steps[1], batch=steps[0].batch)
    op = subject.open(spec, steps[0].limits)
    plan = op.plan(steps[0].batch)
    measures: Measures = {}
    for turn, layer in enumerate((0, 1, 0, 1)):
        step = steps[layer]
        step.out[: sum(query_lens)] = float("nan")
        try:
            measures = joined(compare(step.content, execute(op, step, plan)), measures)
        except CaseFailure as failure:
            said = f"layer {layer} of two, call {turn + 1} of the plan: {failure}"
            raise CaseFailure(said) from failure
    return measures


def _two_ops(subject: AttentionSubject, seed: int) -> Measures:
    """Two ops of one backend, alive together and used in turn, of other shapes and scales: nothing
    of the second may be kept where the first looks for its own."""
    first = subject.spec({"scale": 0.3})
    heads, other = first.num_kv_heads, 1 if first.group_size > 1 else 4
    spec = subject.spec({"scale": 0.05, "group_size": other, "dtype": first.dtype})
    if spec.num_kv_heads == heads == 1:
        spec = dataclasses.replace(first, scale=0.05)
    contents = [
        Content.random(s, [1, 1], [s.block_size + n, n], seed + n)
        for s, n in ((first, 5), (spec, 7))
    ]
    steps = [place(c, subject.device, Placing(seed=seed)) for c in contents]
    ops = [subject.open(s.spec, s.limits) for s in steps]
    plans = [op.plan(s.batch) for op, s in zip(ops, steps, strict=True)]
    measures: Measures = {}
    for turn, i in enumerate((0, 1, 0)):
        steps[i].out[:2] = float("nan")
        try:
            produced = execute(ops[i], steps[i], plans[i])
            measures = joined(compare(contents[i], produced), measures)
        except CaseFailure as failure:
            said = f"op {i + 1} of two that are open, call {turn + 1}: {failure}"
            raise CaseFailure(said) from failure
    return measures


def _scratch(subject: AttentionSubject, seed: int) -> Measures:
    """The workspace is anybody's between two calls: nothing that plan() derived may live there."""
    spec = subject.spec()
    content = Content.random(spec, *lengths("decode", spec.block_size), seed)
    step = place(content, subject.device, Placing(seed=seed))
    subject.open(spec, step.limits)
    needed = subject.backend.workspace_bytes(spec, step.limits, subject.info)
    memory = torch.zeros(needed, dtype=torch.uint8, device=subject.device)
    op = subject.backend.open(spec, step.limits, device=subject.device, workspace=memory)
    plan = op.plan(step.batch)
    measures: Measures = {}
    for byte in (0, 255, 1):
        memory.fill_(byte)
        step.out[: sum(content.query_lens)] = float("nan")
        try:
            produced: Produced = execute(op, step, plan)
            measures = joined(compare(content, produced), measures)
        except CaseFailure as failure:
            said = f"after another op filled the shared workspace with {byte}: {failure}"
            raise CaseFailure(said) from failure
    return {**measures, "workspace": needed}


def _cases() -> list[Case]:
    cases = []
    shared = {
        "head_dim": 96, "head_dim_v": 64, "shared_kv": True, "num_heads": 8, "num_kv_heads": 1,
    }  # fmt: skip
    options: tuple[tuple[str, dict[str, Any]], ...] = (
        ("plain", {}),
        ("hnd", {"layout": Layout.HND}),
        ("int8", INT8_TOKENS),
        ("shared-kv", shared),
    )
    for id, wanted in options:
        core = id == "plain"
        judge_it = partial(_copied, wanted)
        faults = ("KH-52", "AH-25")
        cases.append(attention_case(f"step/copy/{id}", "write", judge_it, faults=faults, core=core))
        judge_it = partial(_swapped, wanted)
        rule = "copy-blocks"
        cases.append(
            attention_case(f"step/swap/{id}", rule, judge_it, faults=("AH-33",), core=core)
        )
    per_head = {"kv_dtype": torch.int8, "kv_quant": KVQuant.PER_HEAD}
    per_tensor = {"kv_dtype": torch.int8, "kv_quant": KVQuant.PER_TENSOR}
    layers: tuple[tuple[str, dict[str, Any]], ...] = (
        ("plain", {}), ("int8-tensor", per_tensor), ("int8-head", per_head), ("int8", INT8_TOKENS),
        ("sinks", {"sinks": True}), ("alibi", {"alibi": True}),
    )  # fmt: skip
    for id, wanted in layers:
        judge_it = partial(_layers, wanted)
        cases.append(attention_case(f"plans/layers/{id}", "plan", judge_it, core=id == "plain"))
    cases.append(attention_case("plans/two-ops", "plan", _two_ops, core=True))
    cases.append(attention_case("plans/scratch", "plan", _scratch, core=True))
    return cases


CASES = _cases()
