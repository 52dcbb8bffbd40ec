"""What the contract says is never read: unowned slots, garbage in tables, dead requests."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import torch

from pagedattn.conformance.attention.basics import lengths, rows_of
from pagedattn.conformance.attention.build import attention_case
from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.execute import execute, same_bits
from pagedattn.conformance.attention.judge import Measures, compare, judge, produce, shrinking
from pagedattn.conformance.attention.place import place
from pagedattn.conformance.attention.placing import INT_MAX, Order, Placing, Poison
from pagedattn.conformance.attention.subject import AttentionSubject
from pagedattn.conformance.case import Case
from pagedattn.spec import Mask

__all__ = ["CASES"]


def _poison(
    poison: Poison, phase: str, wanted: dict[str, Any], subject: AttentionSubject, seed: int
) -> Measures:
    """The result is right and has the bits of the same step over zeroed slots."""
    spec = subject.spec(wanted, rows=rows_of(phase))
    content = Content.random(spec, *lengths(phase, spec.block_size), seed)
    clean = produce(subject, content, Placing(seed=seed, poison=Poison.ZERO))
    dirty = produce(subject, content, Placing(seed=seed, poison=poison))
    with shrinking(subject, content, Placing(seed=seed, poison=poison)):
        measures = compare(content, dirty)
    same_bits(clean, dirty, f"what unowned slots hold (zeros, then {poison.name})")
    return measures


def _short_full(subject: AttentionSubject, seed: int) -> Measures:
    """Three rows each over one and three keys, not causal: nearly the whole block is a tail."""
    spec = subject.spec({"mask": Mask.FULL, "group_size": 1}, rows=3)
    content = Content.random(spec, [1, 3], [1, 3], seed)
    return judge(subject, content, Placing(seed=seed))


def _filler(
    filler: int, phase: str, wanted: dict[str, Any], subject: AttentionSubject, seed: int
) -> Measures:
    """Entries that no row can see hold `filler`: INT_MAX, -1, or a block of somebody else."""
    spec = subject.spec(wanted, rows=rows_of(phase))
    content = Content.random(spec, *lengths(phase, spec.block_size), seed)
    placing = Placing(seed=seed, filler=filler, extra_columns=3, order=Order.DESCENDING)
    result = produce(subject, content, placing)
    exact = produce(subject, content, dataclasses.replace(placing, extra_columns=0))
    with shrinking(subject, content, placing):
        measures = compare(content, result)
    same_bits(exact, result, f"table columns beyond the sequence (filled with {filler})")
    return measures


def _extra_block(subject: AttentionSubject, seed: int) -> Measures:
    """Lengths that fill their blocks exactly, and one more valid column full of huge numbers."""
    spec = subject.spec()
    bs = spec.block_size
    content = Content.random(spec, [1, 1, 1], [bs, 2 * bs, 3 * bs], seed)
    return judge(
        subject, content, Placing(seed=seed, filler=0, order=Order.DESCENDING, poison=Poison.HUGE)
    )


def _no_columns(subject: AttentionSubject, seed: int) -> Measures:
    """A table of shape [B, 0]: nobody has a key, so every row is 0."""
    spec = subject.spec()
    content = Content.random(spec, [1, 0, 1], [0, 0, 0], seed)
    return judge(subject, content, Placing(seed=seed, extra_columns=0))


def _strided_table(subject: AttentionSubject, seed: int) -> Measures:
    """The table is a slice of a wider one, as engines keep it."""
    spec = subject.spec()
    content = Content.random(spec, *lengths("decode", spec.block_size), seed)
    return judge(subject, content, Placing(seed=seed, table_gap=5))


def _shared_blocks(subject: AttentionSubject, seed: int) -> Measures:
    """Three requests over the same blocks (a shared prefix), one of them shorter."""
    spec = subject.spec()
    n = 2 * spec.block_size + 1
    one = Content.random(spec, [1, 1, 1], [n, n, n], seed)
    keys = (one.k[0], one.k[0], one.k[0][: spec.block_size])
    values = (one.v[0], one.v[0], one.v[0][: spec.block_size])
    content = dataclasses.replace(one, k=keys, v=values)
    return judge(subject, content, Placing(seed=seed, reuse=(0, 0, 0)))


def _all_shared(
    wanted: dict[str, Any], query_lens: list[int], subject: AttentionSubject, seed: int
) -> Measures:
    """Every request has the same table: what all share may be read once, but each row has its own
    mask over it."""
    spec = subject.spec(wanted, rows=max(query_lens))
    n = 3 * spec.block_size - 1
    one = Content.random(spec, query_lens, [n] * len(query_lens), seed)
    content = dataclasses.replace(one, k=one.k[:1] * len(query_lens), v=one.v[:1] * len(query_lens))
    return judge(subject, content, Placing(seed=seed, reuse=(0,) * len(query_lens)))


def _shared_prefix(subject: AttentionSubject, seed: int) -> Measures:
    """Three requests with the same first block, which go on in blocks of their own."""
    spec = subject.spec()
    bs = spec.block_size
    one = Content.random(spec, [1, 1, 1], [2 * bs + 3, 2 * bs + 1, bs + 2], seed)

    def prefixed(x: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return tuple(torch.cat((x[0][:bs], own[bs:])) for own in x)

    content = dataclasses.replace(one, k=prefixed(one.k), v=prefixed(one.v))
    step = place(content, subject.device, Placing(seed=seed))
    step.batch.block_table[:, 0] = step.batch.block_table[0, 0].clone()
    return compare(content, execute(subject.open(spec, step.limits), step))


def _no_rows(subject: AttentionSubject, seed: int) -> Measures:
    """Requests with keys and without rows: nobody reads their blocks, so their row of the table
    may hold anything."""
    spec = subject.spec()
    bs = spec.block_size
    content = Content.random(spec, [0, 1, 0, 1, 0], [bs + 1, 5, 2 * bs, bs, 1], seed)
    step = place(content, subject.device, Placing(seed=seed))
    step.batch.block_table[0::2] = torch.tensor([INT_MAX, -1, 10**6])[:, None].int()
    return compare(content, execute(subject.open(spec, step.limits), step))


def _repeated_block(subject: AttentionSubject, seed: int) -> Measures:
    """One block twice in the same row of the table, beside one that is there once: its keys count
    twice."""
    spec = subject.spec()
    bs = spec.block_size
    one = Content.random(spec, [1, 1], [3 * bs, 2 * bs], seed)

    def doubled(x: torch.Tensor) -> torch.Tensor:
        return torch.cat((x[: 2 * bs], x[:bs]))

    k, v = (doubled(one.k[0]), one.k[1]), (doubled(one.v[0]), one.v[1])
    content = dataclasses.replace(one, k=k, v=v)
    step = place(content, subject.device, Placing(seed=seed))
    step.batch.block_table[0, 2] = step.batch.block_table[0, 0]
    return compare(content, execute(subject.open(spec, step.limits), step))


def _zero_filler(subject: AttentionSubject, seed: int) -> Measures:
    """A padded batch: two live requests, two dead ones, all filler is block 0, which is poison."""
    spec = subject.spec()
    content = Content.random(spec, [1, 1, 0, 0], [spec.block_size + 1, 5, 0, 0], seed)
    return judge(subject, content, Placing(seed=seed, filler=0, order=Order.DESCENDING))


def _cases() -> list[Case]:
    cases = []
    hostile = [p for p in Poison if p is not Poison.ZERO]
    for poison in hostile:
        for phase in ("decode", "mixed"):
            name = poison.name.lower().replace("_", "-")
            cases.append(
                attention_case(
                    f"poison/{name}/{phase}",
                    "unowned-slots",
                    partial(_poison, poison, phase, {}),
                    faults=("KH-03", "KH-04"),
                    core=phase == "decode",
                )
            )
    for dtype in (torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        cases.append(
            attention_case(
                f"poison/mixed/{name}",
                "unowned-slots",
                partial(_poison, Poison.MIXED, "decode", {"dtype": dtype}),
                faults=("KH-04",),
            )
        )
    cases.append(
        attention_case(
            "poison/dim-128",
            "unowned-slots",
            partial(_poison, Poison.MIXED, "decode", {"head_dim": 128}),
            faults=("KH-04",),
            core=True,
        )
    )
    cases.append(
        attention_case("poison/short-full", "unowned-slots", _short_full, faults=("KH-03",))
    )
    for filler, name in (
        (-1, "minus-one"),
        (2**31 - 1, "int-max"),
        (0, "block-0"),
        (-(2**31), "int-min"),
    ):
        for phase in ("decode", "mixed"):
            cases.append(
                attention_case(
                    f"table/filler-{name}/{phase}",
                    "block-table",
                    partial(_filler, filler, phase, {}),
                    faults=("KH-07",),
                    core=phase == "decode",
                )
            )
    for id, judge_it, faults in (
        ("table/extra-block", _extra_block, ("KH-08",)),
        ("table/no-columns", _no_columns, ("KH-07",)),
        ("table/strided", _strided_table, ("KH-26",)),
        ("table/shared-blocks", _shared_blocks, ()),
        ("table/all-shared/decode", partial(_all_shared, {}, [1, 1, 1]), ()),
        ("table/all-shared/prefill", partial(_all_shared, {}, [4, 3, 4]), ("KH-29",)),
        ("table/repeated-block", _repeated_block, ()),
        ("table/shared-prefix", _shared_prefix, ("KH-50",)),
        ("table/no-rows", _no_rows, ("KH-07", "KH-10")),
        ("table/zero-filler", _zero_filler, ("KH-05",)),
    ):
        cases.append(attention_case(id, "block-table", judge_it, faults=faults, core=True))
    windowed = partial(_all_shared, {"window": (4, None)}, [2, 1, 3])
    cases.append(attention_case("table/all-shared/window", "window", windowed, faults=("KH-33",)))
    return cases


CASES = _cases()
