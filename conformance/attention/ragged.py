"""Ragged batches of chance, shrunk to the smallest that fails.

Every case fixes a spec and opens it once; the batch, its values and its place in memory are drawn.
The case's id is the seed, so that the id reproduces the search."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from pagedattn.conformance.attention.build import attention_case
from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.execute import execute, same_bits
from pagedattn.conformance.attention.judge import Measures, compare, joined
from pagedattn.conformance.attention.place import place
from pagedattn.conformance.attention.placing import INT_MAX, Order, Placing, Poison
from pagedattn.conformance.attention.subject import AttentionSubject
from pagedattn.conformance.case import Case
from pagedattn.conformance.searching import search
from pagedattn.spec import AttentionSpec, KVQuant, Layout, Limits, Mask

__all__ = ["CASES", "Ragged"]

EXAMPLES = 12
MOST_REQUESTS = 5
MOST_ROWS = 9


@dataclass(frozen=True)
class Ragged:
    """One drawn step; its repr is what a failure shows.

    requests  (query_len, seq_len) of each
    spread    of the queries
    """

    requests: tuple[tuple[int, int], ...]
    values: int
    spread: float
    placing: Placing


def _strategy(spec: AttentionSpec, rows: int) -> Any:
    from hypothesis import strategies as st

    longest = 2 * spec.block_size + 2
    seeds = st.integers(0, 2**16)
    return st.builds(
        Ragged,
        requests=st.lists(
            st.tuples(st.integers(0, rows), st.integers(0, longest)),
            min_size=1,
            max_size=MOST_REQUESTS,
        ).map(tuple),
        values=seeds,
        spread=st.sampled_from((1.0, 6.0)),
        placing=st.builds(
            Placing,
            seed=seeds,
            poison=st.sampled_from(Poison),
            order=st.sampled_from((Order.ASCENDING, Order.SHUFFLED, Order.DESCENDING)),
            filler=st.sampled_from((0, -1, INT_MAX)),
            extra_columns=st.integers(0, 3),
            table_gap=st.integers(0, 3),
            padding_rows=st.integers(0, 3),
            lengths_slack=st.integers(0, 40 if spec.async_lengths else 0),
            tree_gap=st.integers(0, 2 if spec.mask is Mask.TREE else 0),
        ),
    )


def _ragged(wanted: dict[str, Any], rows: int, subject: AttentionSubject, seed: int) -> Measures:
    """Right, and the same bits in ascending blocks of a pool of zeros."""
    spec = subject.spec(wanted, rows=rows)
    longest = 2 * spec.block_size + 2 + 40
    columns = -(-longest // spec.block_size)
    limits = Limits(MOST_REQUESTS, MOST_REQUESTS * rows, longest, MOST_REQUESTS * columns + 5)
    op = subject.open(spec, limits)
    measures: Measures = {}

    def judge(example: Ragged) -> None:
        nonlocal measures
        query_lens, seq_lens = zip(*example.requests, strict=True)
        content = Content.random(spec, query_lens, seq_lens, example.values, spread=example.spread)
        plain = dataclasses.replace(example.placing, poison=Poison.ZERO, order=Order.ASCENDING)
        quiet = execute(op, place(content, subject.device, plain))
        produced = execute(op, place(content, subject.device, example.placing))
        measures = joined(compare(content, produced), measures)
        same_bits(quiet, produced, "where blocks lie and what unowned slots hold")

    search(seed, _strategy(spec, rows), judge, examples=EXAMPLES)
    return measures


def _cases() -> list[Case]:
    int8, fp8 = torch.int8, torch.float8_e4m3fn
    every: tuple[tuple[str, dict[str, Any], int], ...] = (
        ("plain/decode", {}, 1),
        ("plain/mixed", {}, MOST_ROWS),
        ("window/decode", {"window": (5, None)}, 1),
        ("window/mixed", {"window": (5, None)}, MOST_ROWS),
        ("softcap", {"softcap": 2.0, "return_lse": True}, MOST_ROWS),
        ("sinks", {"sinks": True, "return_lse": True}, MOST_ROWS),
        ("alibi", {"alibi": True, "return_lse": True}, MOST_ROWS),
        ("full", {"mask": Mask.FULL}, MOST_ROWS),
        ("full-window", {"mask": Mask.FULL, "window": (3, 2)}, MOST_ROWS),
        ("tree", {"mask": Mask.TREE}, MOST_ROWS),
        ("hnd", {"layout": Layout.HND}, MOST_ROWS),
        ("float16", {"dtype": torch.float16}, MOST_ROWS),
        ("bfloat16", {"dtype": torch.bfloat16}, MOST_ROWS),
        ("int8-token-head", {"kv_dtype": int8, "kv_quant": KVQuant.PER_TOKEN_HEAD}, MOST_ROWS),
        ("fp8-head", {"kv_dtype": fp8, "kv_quant": KVQuant.PER_HEAD}, MOST_ROWS),
        ("block-1", {"block_size": 1}, MOST_ROWS),
        ("block-5", {"block_size": 5}, MOST_ROWS),
        ("group-7", {"group_size": 7}, MOST_ROWS),
        ("async", {"async_lengths": True}, MOST_ROWS),
    )
    faults = ("KH-03", "KH-10", "KH-14", "KH-15", "KH-30", "KH-53")
    return [
        attention_case(
            f"random/{id}",
            "position",
            partial(_ragged, wanted, rows),
            faults=faults,
            core=id.startswith("plain/"),
        )
        for id, wanted, rows in every
    ]


CASES = _cases()
