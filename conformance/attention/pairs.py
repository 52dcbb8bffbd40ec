"""Every pair of values of two spec fields: one case for each row of a covering array.

A row is declined by a backend that does not serve one of its values, and with it go pairs that the
backend does serve. `pairs/left-over` finds those and covers them with rows of the backend's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from pagedattn.conformance.attention.build import attention_case
from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.covering import Axes, Row, cover
from pagedattn.conformance.attention.judge import Measures, joined, judge
from pagedattn.conformance.attention.placing import Placing
from pagedattn.conformance.attention.subject import AttentionSubject
from pagedattn.conformance.case import Case, CaseFailure
from pagedattn.spec import KVQuant, Layout, Mask

__all__ = ["AXES", "CASES", "ROWS", "allowed", "case_id", "left_over", "wanted_of"]

QUANTUMS = (KVQuant.PER_TENSOR, KVQuant.PER_HEAD, KVQuant.PER_TOKEN_HEAD)

VALUES: Mapping[str, Mapping[str, dict[str, Any]]] = {
    "dtype": {
        "f16": {"dtype": torch.float16},
        "bf16": {"dtype": torch.bfloat16},
        "f32": {"dtype": torch.float32},
    },
    "head_dim": {
        **{f"d{d}": {"head_dim": d} for d in (64, 128, 16, 32, 59, 80, 96, 112, 192, 256)},
        "d576v512": {"head_dim": 576, "head_dim_v": 512, "shared_kv": True, "num_kv_heads": 1},
    },
    "group": {f"g{g}": {"group_size": g} for g in (1, 4, 2, 8, 3, 5, 6, 7)},
    "block": {f"b{b}": {"block_size": b} for b in (16, 32, 1, 2, 5, 8, 48, 64, 128, 256)},
    "layout": {"nhd": {}, "hnd": {"layout": Layout.HND}},
    "phase": {"decode": {}, "prefill": {}, "chunked": {}, "mixed": {}, "tree": {}},
    "mask": {"causal": {}, "full": {"mask": Mask.FULL}},
    "window": {"-": {}, "left": {"window": (6, None)}, "both": {"window": (6, 3)}},
    "softcap": {"-": {}, "cap": {"softcap": 4.0}},
    "sinks": {"-": {}, "sinks": {"sinks": True}},
    "alibi": {"-": {}, "alibi": {"alibi": True}},
    "lse": {"-": {}, "lse": {"return_lse": True}},
    "quant": {
        "-": {},
        **{
            f"{name}-{quantum.value.removeprefix('per_').replace('_', '-')}": {
                "kv_dtype": dtype,
                "kv_quant": quantum,
            }
            for name, dtype, quantums in (
                ("int8", torch.int8, QUANTUMS),
                ("e4m3", torch.float8_e4m3fn, QUANTUMS),
                ("e5m2", torch.float8_e5m2, QUANTUMS[:1]),
            )
            for quantum in quantums
        },
    },
    "cache": {
        "-": {},
        "kvf32": {"kv_dtype": torch.float32},
        "kvbf16": {"kv_dtype": torch.bfloat16},
    },
    "out": {"-": {}, "outf32": {"out_dtype": torch.float32}},
    "lengths": {"-": {}, "async": {"async_lengths": True}},
    "batch": {"-": {}, "invariant": {"batch_invariant": True}},
}
"""axis -> name of a value -> the AttentionSpec fields that it stands for"""

AXES: Axes = {axis: tuple(values) for axis, values in VALUES.items()}

SHAPES = ("dtype", "head_dim", "group", "block")
"""Axes without an "off" value: a backend may serve none of the values listed here."""

LENGTHS: Mapping[str, tuple[tuple[int, ...], tuple[tuple[int, int], ...]]] = {
    # query_lens; seq_lens as (blocks, tokens)
    "decode": ((1, 1, 0, 1), ((1, 1), (0, 1), (0, 3), (1, 0))),
    "prefill": ((9, 3), ((0, 9), (0, 3))),
    "chunked": ((5, 3), ((1, 4), (0, 11))),
    "mixed": ((1, 6, 0, 1), ((2, 1), (0, 6), (0, 2), (1, 0))),
    "tree": ((5, 1, 4), ((1, 5), (0, 1), (0, 9))),
}


def allowed(row: Row) -> bool:
    """Whether the contract gives the row a meaning of its own."""
    if row["phase"] == "tree" and (row["mask"], row["window"], row["alibi"]) != (
        "causal",
        "-",
        "-",
    ):
        return False
    if row["window"] == "both" and row["mask"] == "causal":  # CAUSAL forces the right bound to None
        return False
    if "-" not in (row["quant"], row["cache"]):  # one kv_dtype
        return False
    return "-" in (row["softcap"], row["alibi"])


def case_id(row: Row) -> str:
    """ "pairs/f16-d59-g3-b5-hnd-chunked-causal-cap" """
    return "pairs/" + "-".join(value for value in row.values() if value != "-")


def wanted_of(row: Row) -> dict[str, Any]:
    """AttentionSpec fields of a row; an axis may be missing."""
    fields: dict[str, Any] = {}
    for axis, value in row.items():
        fields |= VALUES[axis][value]
    if row["phase"] == "tree":
        fields["mask"] = Mask.TREE
    return fields


def _longest(row: Row) -> int:
    return max(LENGTHS[row["phase"]][0])


def _judge_row(row: Row, subject: AttentionSubject, seed: int) -> Measures:
    spec = subject.spec(wanted_of(row), rows=_longest(row))
    query_lens, ends = LENGTHS[row["phase"]]
    seq_lens = [blocks * spec.block_size + tokens for blocks, tokens in ends]
    spread = 4.0 if spec.softcap is not None else 1.0
    content = Content.random(spec, query_lens, seq_lens, seed, spread=spread)
    return judge(subject, content, Placing(seed=seed, lengths_slack=7))


def left_over(subject: AttentionSubject) -> list[dict[str, str]]:
    """Rows for the pairs that the backend serves in some spec but in none of the cases' rows."""
    axes = dict(AXES)
    rows = {"group": "group_size", "block": "block_size"}
    for axis in SHAPES:
        name = rows.get(axis, axis)
        declared = getattr(subject.capabilities, name)
        values = VALUES[axis]
        axes[axis] = tuple(v for v in values if declared is None or values[v][name] in declared)
        if not axes[axis]:  # none of these: subject.spec() chooses
            del axes[axis]

    def served(row: Row) -> bool:
        if not allowed(row):
            return False
        return not subject.refusals(subject.spec(wanted_of(row), rows=_longest(row)))

    return cover(axes, served, besides=[row for row in ROWS if served(row)])[0]


def _left_over(subject: AttentionSubject, seed: int) -> Measures:
    measures = judge(subject, Content.random(subject.spec(), [1], [3], seed), Placing(seed=seed))
    rows = left_over(subject)
    for row in rows:
        try:
            measures = joined(measures, _judge_row(row, subject, seed))
        except CaseFailure as failure:
            raise CaseFailure(f"{case_id(row)}: {failure}") from failure
    return {**measures, "rows": len(rows)}


ROWS = cover(AXES, allowed)[0]

CASES: list[Case] = [
    *(
        attention_case(case_id(row), "refusals", partial(_judge_row, row), faults=("KH-40",))
        for row in ROWS
    ),
    attention_case("pairs/left-over", "refusals", _left_over, faults=("KH-40",)),
]
