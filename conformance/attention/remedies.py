"""In which tamer memory a failing step comes out right: what the backend does not honour."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from pagedattn.conformance.attention.placing import Order, Placing, Poison, Rows, Storage

__all__ = ["remedy"]

REMEDIES: tuple[tuple[dict[str, object], str], ...] = (
    ({"lengths_slack": 0}, "seq_lens_host equals seq_lens: the bound is taken for the length"),
    ({"tree_gap": 0}, "no bytes lie between the trees of two requests: tree_indptr is not read"),
    ({"table_gap": 0}, "the table is contiguous: its row stride is not honoured"),
    ({"padding_rows": 0}, "q and out have no rows beyond the batch: they are not left alone"),
    ({"q_rows": Rows.PLAIN}, "q is contiguous: its strides are not honoured"),
    ({"out_rows": Rows.PLAIN}, "out is contiguous: its strides are not honoured"),
    ({"storage": Storage.PLAIN}, "the pools are contiguous: their strides are not honoured"),
    ({"extra_columns": 0}, "the table ends with the longest sequence: entries beyond it are read"),
    ({"order": Order.ASCENDING}, "blocks lie one behind the other: ids are not taken as they are"),
    ({"poison": Poison.ZERO}, "slots that nobody owns hold 0: one of them is read"),
)
"""What of a Placing is made tame, and what it means when that helps."""


def remedy(placing: Placing, passes: Callable[[Placing], bool]) -> str:
    """ "right when ...", or "" when no single change helps."""
    for change, meaning in REMEDIES:
        tamer = dataclasses.replace(placing, **change)  # type: ignore[arg-type]
        if tamer != placing and passes(tamer):
            return f"right when {meaning}"
    return ""
