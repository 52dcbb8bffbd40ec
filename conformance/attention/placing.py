"""Where a step lies in memory, as values; see place.py."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

__all__ = ["CANARY", "GAP", "INT_MAX", "Guard", "Order", "Placing", "Poison", "Rows", "Storage"]

INT_MAX = 2**31 - 1
CANARY = 1234.5
GAP = 16
"""Elements between heads (Storage.GAPS): keeps 16-byte alignment in every dtype."""


class Poison(enum.Enum):
    """What unowned slots hold: (pattern of k, pattern of v), repeated over the elements."""

    ZERO = ((0.0,), (0.0,))
    NAN = ((float("nan"),), (float("nan"),))
    MIXED = (
        (float("nan"), float("inf"), float("-inf")),
        (float("-inf"), float("nan"), float("inf")),
    )
    K_NAN = ((float("nan"),), (0.0,))
    V_NAN = ((0.0,), (float("nan"),))
    K_INF = ((float("inf"),), (0.0,))
    V_INF = ((0.0,), (float("-inf"), float("inf")))
    HUGE = ((100.0, -100.0), (1000.0,))


class Storage(enum.Enum):
    """How the pools lie in memory. All have the index order [block, offset, head, dim]."""

    PLAIN = "plain"
    INTERLEAVED = "interleaved"  # k and v are views of one [N, 2, ...] tensor
    GAPS = "gaps"  # a head is wider than D, poison in between
    ODD = "odd"  # wider by one element, so that no head begins on 16 bytes


class Rows(enum.Enum):
    """How q and out lie in memory."""

    PLAIN = "plain"
    FUSED = "fused"  # heads of a wider [T, H + others, D] tensor
    TRANSPOSED = "transposed"  # [H, T, D] seen as [T, H, D]
    WIDE = "wide"  # [T, H, D + gap], cut to D
    ODD = "odd"  # [T, H, D + 1], cut to its last D: no head begins on 16 bytes


class Order(enum.Enum):
    """Which physical blocks a request gets."""

    SHUFFLED = "shuffled"
    ASCENDING = "ascending"
    DESCENDING = "descending"


@dataclass(frozen=True, kw_only=True)
class Placing:
    """Where and how a step lies in memory; nothing here may change a bit of the result.

    filler         what table entries that no row can see hold
    extra_columns  table columns beyond the longest request
    table_gap      columns between the rows of the table that belong to nobody
    table_skip     columns before its first one that belong to nobody
    spare_blocks   blocks of the pool beyond the owned ones
    padding_rows   rows of q, out and lse beyond query_start_loc[B]
    lengths_slack  seq_lens_host exceeds seq_lens by this (async_lengths)
    tree_gap       bytes of tree_mask behind each request's that belong to nobody
    reuse          requests with equal keys share blocks: entry r names the request whose table it
                   copies
    """

    seed: int = 0
    poison: Poison = Poison.MIXED
    storage: Storage = Storage.PLAIN
    order: Order = Order.SHUFFLED
    q_rows: Rows = Rows.PLAIN
    out_rows: Rows = Rows.PLAIN
    filler: int = INT_MAX
    extra_columns: int = 2
    table_gap: int = 0
    table_skip: int = 0
    spare_blocks: int = 5
    padding_rows: int = 0
    lengths_slack: int = 0
    tree_gap: int = 0
    reuse: tuple[int, ...] | None = None

    def __repr__(self) -> str:
        """What differs from the usual, so that a failure's line can be read."""
        said = [f"seed={self.seed}"]
        for field in dataclasses.fields(self)[1:]:
            value = getattr(self, field.name)
            if value != field.default:
                said.append(f"{field.name}={getattr(value, 'name', value)}")
        return f"Placing({', '.join(said)})"


@dataclass(frozen=True, eq=False)
class Guard:
    """Memory whose bytes must not change.

    view   the part of `base` that run() may change
    slots  for a pool, its views [N, block_size, ...] that write() may change slot by slot
    """

    name: str
    rule: str
    base: Tensor
    view: Callable[[Tensor], Tensor] | None = None
    slots: Callable[[Tensor], list[Tensor]] | None = None
