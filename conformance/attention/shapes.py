"""Heads, head widths and the memory layout of q, out and the pools."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import torch

from pagedattn.conformance.attention.basics import lengths, rows_of
from pagedattn.conformance.attention.build import attention_case
from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.execute import same_bits
from pagedattn.conformance.attention.judge import (
    Measures,
    compare,
    joined,
    judge,
    judge_memory,
    needs,
    produce,
)
from pagedattn.conformance.attention.oracle import RULES
from pagedattn.conformance.attention.placing import Placing, Rows, Storage
from pagedattn.conformance.attention.subject import AttentionSubject
from pagedattn.conformance.case import Case, CaseFailure
from pagedattn.spec import Layout

__all__ = ["CASES"]


def _heads(
    heads: tuple[int, int], phase: str, wanted: dict[str, Any], subject: AttentionSubject, seed: int
) -> Measures:
    spec = subject.spec(
        {"num_heads": heads[0], "num_kv_heads": heads[1], **wanted},
        rows=1 if phase == "decode" else 7,
    )
    rows = 1 if phase == "decode" else 7
    content = Content.random(spec, [1, rows], [50, max(7, rows)], seed)
    return judge(subject, content, Placing(seed=seed))


def _mapping(subject: AttentionSubject, seed: int) -> Measures:
    """Head g of V is g + 1 everywhere, so the output names the kv head that each head read."""
    spec = subject.spec({"group_size": 4})
    content = Content.random(spec, [1, 1], [spec.block_size + 3, 5], seed)
    if spec.num_kv_heads > 1:
        needs(content, dataclasses.replace(RULES, interleaved_heads=True))
    heads = torch.arange(spec.num_kv_heads)[None, :, None] + 1.0
    v = [heads.expand(x.shape) for x in content.v]
    content = content.storing([x.float() for x in content.k], v)
    produced = produce(subject, content, Placing(seed=seed))
    expected = torch.arange(spec.num_heads) // spec.group_size + 1.0
    got = produced.out[0][0, :, 0].float()
    if bool(got.isfinite().all()) and not torch.allclose(got, expected, atol=0.05):
        raise CaseFailure(
            f"the heads read kv heads {(got - 1).round().int().tolist()}; head h reads kv head "
            f"h // {spec.group_size}: {(expected - 1).int().tolist()}"
        )
    return compare(content, produced)


def _upper_half(subject: AttentionSubject, seed: int) -> Measures:
    """q and k are 0 in dims 0..63 and random in 64..127."""
    spec = subject.spec({"head_dim": 128})
    content = Content.random(spec, [1, 1], [20, spec.block_size + 4], seed, spread=2.0)
    q = [x.clone() for x in content.q]
    k = [x.float().clone() for x in content.k]
    for x in (*q, *k):
        x[..., :64] = 0
    content = dataclasses.replace(content, q=tuple(q)).storing(k, [x.float() for x in content.v])
    needs(content, dataclasses.replace(RULES, dims=64))
    return judge(subject, content, Placing(seed=seed))


def _dim(dim: int, wanted: dict[str, Any], subject: AttentionSubject, seed: int) -> Measures:
    """Rows of q and of the pools are wider than D, poison in between."""
    spec = subject.spec({"head_dim": dim, **wanted}, rows=3)
    content = Content.random(spec, [3, 1], [20, spec.block_size + 1], seed)
    placing = Placing(seed=seed, storage=Storage.GAPS, q_rows=Rows.WIDE, out_rows=Rows.WIDE)
    measures, _ = judge_memory(subject, content, placing)
    return joined(judge(subject, content, Placing(seed=seed)), measures)


def _memory(
    placing: Placing, phase: str, wanted: dict[str, Any], subject: AttentionSubject, seed: int
) -> Measures:
    """Right, and the bits of the same step in plain memory where that is aligned alike; or
    InvalidTensor before the launch."""
    spec = subject.spec(wanted, rows=rows_of(phase))
    content = Content.random(spec, *lengths(phase, spec.block_size), seed)
    plain = produce(subject, content, Placing(seed=seed))
    measures, other = judge_memory(subject, content, dataclasses.replace(placing, seed=seed))
    odd = Rows.ODD in (placing.q_rows, placing.out_rows) or placing.storage is Storage.ODD
    if other is not None and not odd:
        same_bits(plain, other, "the memory layout of the tensors")
    return measures


def _square_hnd(subject: AttentionSubject, seed: int) -> Measures:
    """As many kv heads as slots in a block: no shape tells the layouts apart."""
    size = subject.spec({"layout": Layout.HND}).block_size
    size = size if size <= 16 else 16
    spec = subject.spec(
        {"layout": Layout.HND, "num_heads": size, "num_kv_heads": size, "block_size": size}
    )
    content = Content.random(spec, [1, 1], [size + 3, size - 1 or 1], seed)
    return judge(subject, content, Placing(seed=seed))


def _value_dim(dims: tuple[int, int], subject: AttentionSubject, seed: int) -> Measures:
    spec = subject.spec({"head_dim": dims[0], "head_dim_v": dims[1]}, rows=rows_of("mixed"))
    content = Content.random(spec, *lengths("mixed", min(spec.block_size, 16)), seed)
    return judge(subject, content, Placing(seed=seed))


def _shared_kv(phase: str, subject: AttentionSubject, seed: int) -> Measures:
    """Absorbed MLA: one kv head, V is the first 64 columns of K. Small and as DeepSeek has it."""
    spec = subject.spec(
        {"head_dim": 96, "head_dim_v": 64, "shared_kv": True, "num_heads": 8, "num_kv_heads": 1},
        rows=rows_of(phase),
    )
    content = Content.random(spec, *lengths(phase, min(spec.block_size, 16)), seed)
    return judge(subject, content, Placing(seed=seed))


def _mla(subject: AttentionSubject, seed: int) -> Measures:
    spec = subject.spec(
        {"head_dim": 576, "head_dim_v": 512, "shared_kv": True, "num_heads": 16, "num_kv_heads": 1}
    )
    content = Content.random(spec, [1, 1], [spec.block_size + 5, 3], seed)
    return judge(subject, content, Placing(seed=seed))


def _shared_heads(heads: int, dim_v: int, subject: AttentionSubject, seed: int) -> Measures:
    """As many heads as a model of that kind has, and V that is the whole of K."""
    spec = subject.spec(
        {
            "head_dim": 96, "head_dim_v": dim_v, "shared_kv": True,
            "num_heads": heads, "num_kv_heads": 1,
        }
    )  # fmt: skip
    content = Content.random(spec, [1, 1], [spec.block_size + 5, 3], seed)
    return judge(subject, content, Placing(seed=seed))


HEADS = (
    (4, 4), (9, 3), (8, 2), (8, 1), (32, 8), (10, 2), (12, 2), (14, 2),
    (28, 4), (32, 2), (64, 4), (24, 1), (48, 1), (71, 1), (40, 40), (128, 8),
    (1, 1), (24, 2), (20, 2), (30, 2), (17, 1),
)  # fmt: skip

MEMORY: tuple[tuple[str, Placing, tuple[str, ...]], ...] = (
    ("q-fused", Placing(q_rows=Rows.FUSED), ("KH-26",)),
    ("q-transposed", Placing(q_rows=Rows.TRANSPOSED), ("KH-25",)),
    ("q-wide", Placing(q_rows=Rows.WIDE), ("KH-26",)),
    ("out-fused", Placing(out_rows=Rows.FUSED), ("KH-25",)),
    ("out-transposed", Placing(out_rows=Rows.TRANSPOSED), ("KH-25",)),
    ("out-wide", Placing(out_rows=Rows.WIDE), ("KH-25",)),
    ("kv-interleaved", Placing(storage=Storage.INTERLEAVED), ("KH-24",)),
    ("kv-gaps", Placing(storage=Storage.GAPS), ("KH-19", "KH-24")),
    ("q-odd", Placing(q_rows=Rows.ODD), ("KH-26",)),
    ("out-odd", Placing(out_rows=Rows.ODD), ("KH-25",)),
    ("kv-odd", Placing(storage=Storage.ODD), ("KH-24",)),
    ("table-odd", Placing(table_skip=1, table_gap=2), ("KH-26",)),
    (
        "everything",
        Placing(
            storage=Storage.INTERLEAVED, q_rows=Rows.FUSED, out_rows=Rows.TRANSPOSED, table_gap=3
        ),
        ("KH-24", "KH-26"),
    ),
)


def _cases() -> list[Case]:
    cases = [attention_case("gqa/mapping", "gqa", _mapping, faults=("KH-23",), core=True)]
    for heads in HEADS:
        for phase in ("decode", "mixed"):
            id = f"gqa/{heads[0]}-{heads[1]}/{phase}"
            judge_it = partial(_heads, heads, phase, {})
            ratios = ("KH-21", "KH-22", "KH-23")
            cases.append(attention_case(id, "gqa", judge_it, faults=ratios))
    for dim in (16, 32, 64, 72, 80, 96, 112, 120, 128, 160, 192, 256):
        cases.append(
            attention_case(
                f"head-dim/{dim}",
                "head-dim",
                partial(_dim, dim, {}),
                faults=("KH-19",),
                core=dim in (64, 128),
            )
        )
    cases.append(
        attention_case("head-dim/upper-half", "head-dim", _upper_half, faults=("KH-20",), core=True)
    )
    for dims in ((64, 128), (128, 64), (192, 128)):
        id = f"head-dim/{dims[0]}-v-{dims[1]}"
        cases.append(attention_case(id, "head-dim", partial(_value_dim, dims)))
    for name, placing, faults in MEMORY:
        rule = "layout" if name.startswith("kv") else "strides"
        for phase in ("decode", "mixed"):
            strided = partial(_memory, placing, phase, {})
            id = f"memory/{name}/{phase}"
            cases.append(attention_case(id, rule, strided, faults=faults, core=True))
    for name, placing in (
        ("plain", Placing()),
        ("interleaved", Placing(storage=Storage.INTERLEAVED)),
        ("gaps", Placing(storage=Storage.GAPS)),
    ):
        for phase in ("decode", "mixed"):
            strided = partial(_memory, placing, phase, {"layout": Layout.HND})
            id = f"layout/hnd-{name}/{phase}"
            cases.append(attention_case(id, "layout", strided, faults=("KH-24", "KH-28")))
    odd = partial(_heads, (9, 3), "mixed", {"layout": Layout.HND})
    cases.append(attention_case("layout/hnd-9-3", "layout", odd, faults=("KH-23", "KH-28")))
    cases.append(attention_case("layout/hnd-square", "layout", _square_hnd, faults=("KH-28",)))
    for phase in ("decode", "mixed"):
        cases.append(attention_case(f"shared-kv/{phase}", "shared-kv", partial(_shared_kv, phase)))
    cases.append(attention_case("shared-kv/576-512", "shared-kv", _mla))
    for id, q_heads, dim_v in (("many-heads", 40, 64), ("whole", 8, 96)):
        judge_it = partial(_shared_heads, q_heads, dim_v)
        cases.append(attention_case(f"shared-kv/{id}", "shared-kv", judge_it, faults=("KH-22",)))
    return cases


CASES = _cases()
