"""The required core, dtypes and lengths."""

from __future__ import annotations

from functools import partial

import torch

from pagedattn.conformance.attention.build import attention_case, edges
from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.judge import Measures, judge
from pagedattn.conformance.attention.placing import Placing
from pagedattn.conformance.attention.subject import AttentionSubject
from pagedattn.conformance.case import Case

__all__ = ["CASES", "PHASES", "lengths", "rows_of"]

PHASES = ("decode", "prefill", "mixed")


def rows_of(phase: str) -> int:
    """The longest query of lengths(phase), whatever the block size."""
    return 1 if phase == "decode" else 1024


def lengths(phase: str, block_size: int) -> tuple[list[int], list[int]]:
    """(query_lens, seq_lens) of a small step of that phase: B > 1, block edges, empty requests."""
    bs, rows = block_size, min(block_size, 16)  # large blocks: no more rows than needed
    if phase == "decode":
        return [1, 1, 1, 0, 1, 1], [bs + 1, 1, bs, 3, 2 * bs - 1, bs - 1 or 1]
    if phase == "prefill":
        return [5, rows + 1, 0, 1], [5, bs + 1, 0, 1]
    return [1, 6, 0, 1, rows], [2 * bs, bs + 3 if bs > 3 else 6, 0, 1, 2 * bs + 1]


def _phase(phase: str, wanted: dict[str, object], subject: AttentionSubject, seed: int) -> Measures:
    rows = rows_of(phase)
    spec = subject.spec(wanted, rows=rows)
    query_lens, seq_lens = lengths(phase, spec.block_size)
    content = Content.random(spec, query_lens, seq_lens, seed)
    return judge(subject, content, Placing(seed=seed))


def _one_length(keys: int, rows: int, subject: AttentionSubject, seed: int) -> Measures:
    """keys: index into edges(); alone and beside a longer request."""
    spec = subject.spec(rows=rows)
    n = edges(spec.block_size)[keys]
    rows = min(rows, n)
    content = Content.random(spec, [rows, 1, rows], [n, 2 * spec.block_size + 3, n], seed)
    return judge(subject, content, Placing(seed=seed))


def _alone(subject: AttentionSubject, seed: int) -> Measures:
    spec = subject.spec()
    return judge(
        subject, Content.random(spec, [1], [spec.block_size + 2], seed), Placing(seed=seed)
    )


def _many(subject: AttentionSubject, seed: int) -> Measures:
    """40 requests of mixed lengths, ids scattered over a pool much larger than needed."""
    spec = subject.spec()
    seq_lens = [1 + (7 * r * r) % (3 * spec.block_size) for r in range(40)]
    content = Content.random(spec, [1] * 40, seq_lens, seed)
    return judge(subject, content, Placing(seed=seed, spare_blocks=400))


def _tiles(rows: int, subject: AttentionSubject, seed: int) -> Measures:
    """Lengths around multiples of the numbers of keys that kernels take at once."""
    spec = subject.spec(rows=rows)
    seq_lens = [n + d for n in (32, 64, 96, 128, 192, 256, 384, 512) for d in (-1, 0, 1)]
    content = Content.random(spec, [rows] * len(seq_lens), seq_lens, seed)
    return judge(subject, content, Placing(seed=seed))


def _crowd(subject: AttentionSubject, seed: int) -> Measures:
    """200 requests of a few keys each."""
    spec = subject.spec({"group_size": 1})
    seq_lens = [1 + (5 * r) % 23 for r in range(200)]
    content = Content.random(spec, [1] * 200, seq_lens, seed)
    return judge(subject, content, Placing(seed=seed))


def _block_size(size: int, subject: AttentionSubject, seed: int) -> Measures:
    rows = 1 if subject.capabilities.max_query_len == 1 else 4
    spec = subject.spec({"block_size": size}, rows=rows)
    seq_lens = [size + 1, max(rows, 5), max(rows, size)]
    content = Content.random(spec, [1, rows, rows], seq_lens, seed)
    return judge(subject, content, Placing(seed=seed))


def _cases() -> list[Case]:
    cases = []
    for phase in PHASES:
        for dim in (64, 128):
            for group in (1, 4):
                cases.append(
                    attention_case(
                        f"core/{phase}/dim-{dim}/group-{group}",
                        "required-core",
                        partial(_phase, phase, {"head_dim": dim, "group_size": group}),
                        core=True,
                    )
                )
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        name = str(dtype).removeprefix("torch.")
        for phase in PHASES:
            judge_dtype = partial(_phase, phase, {"dtype": dtype})
            cases.append(attention_case(f"dtype/{name}/{phase}", "dtypes", judge_dtype))
    for out in (torch.float32, torch.bfloat16):
        name = str(out).removeprefix("torch.")
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            if dtype is not out:
                own = str(dtype).removeprefix("torch.")
                wanted: dict[str, object] = {"dtype": dtype, "out_dtype": out}
                cases.append(
                    attention_case(
                        f"dtype/{own}-to-{name}", "dtypes", partial(_phase, "mixed", wanted)
                    )
                )
    labels = ("1", "bs-1", "bs", "bs+1", "2bs-1", "2bs", "2bs+1")
    for i, label in enumerate(labels):
        for phase, rows in (("decode", 1), ("prefill", 3)):
            cases.append(
                attention_case(
                    f"length/{label}/{phase}",
                    "position",
                    partial(_one_length, i, rows),
                    faults=("KH-14", "KH-15"),
                    core=phase == "decode",
                )
            )
    cases.append(attention_case("length/alone", "position", _alone, core=True))
    cases.append(
        attention_case("length/many-requests", "block-table", _many, faults=("KH-18",), core=True)
    )
    for phase, rows in (("decode", 1), ("prefill", 2)):
        judge_it = partial(_tiles, rows)
        faults = ("KH-14", "KH-18")
        cases.append(
            attention_case(
                f"length/tiles/{phase}", "position", judge_it, faults=faults, core=rows == 1
            )
        )
    cases.append(
        attention_case("length/200-requests", "position", _crowd, faults=("KH-54",), core=True)
    )
    for size in (1, 2, 8, 15, 16, 24, 32, 48, 64, 100, 128, 256, 544, 768):
        cases.append(
            attention_case(
                f"block-size/{size}",
                "block-size",
                partial(_block_size, size),
                faults=("KH-13", "KH-16", "KH-17"),
            )
        )
    return cases


CASES = _cases()
