"""Which slots a write goes to: none, scattered ones, borders of blocks, across them, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

__all__ = ["BLOCKS", "SLOTS"]

BLOCKS = 5


def _scattered(block_size: int, random: torch.Generator) -> list[int]:
    every = torch.randperm(BLOCKS * block_size, generator=random).tolist()
    every.remove(BLOCKS * block_size - 1)  # the slot that index -1 would hit stays unowned
    return every[: min(7, len(every))]


def _skips(block_size: int, random: torch.Generator) -> list[int]:
    chosen = _scattered(block_size, random)
    return [-1, chosen[0], -1, *chosen[1:4], -(2**40), -2]


def _borders(block_size: int, random: torch.Generator) -> list[int]:
    """The first and the last slot of every block, slot 0 and the pool's last one among them."""
    ends = {b * block_size + at for b in range(BLOCKS) for at in (0, block_size - 1)}
    order = torch.randperm(len(ends), generator=random).tolist()
    return [sorted(ends)[i] for i in order]


def _across(block_size: int, random: torch.Generator) -> list[int]:
    """A prompt in blocks 3, 1 and 4: from the last slot of the first to the first of the last."""
    table = (3, 1, 4)
    positions = range(block_size - 1, 2 * block_size + 1)
    return [table[p // block_size] * block_size + p % block_size for p in positions]


def _reversed(block_size: int, random: torch.Generator) -> list[int]:
    """Descending slots, over a border of blocks."""
    return list(range(2 * block_size, block_size - 2 if block_size > 1 else 0, -1))


def _alternate(block_size: int, random: torch.Generator) -> list[int]:
    """Every second row is skipped, the first and the last too."""
    return [slot for own in _across(block_size, random) for slot in (-1, own)] + [-1]


SLOTS: Mapping[str, Callable[[int, torch.Generator], list[int]]] = {
    "scattered": _scattered,
    "skips": _skips,
    "none": lambda block_size, random: [-1, -1, -1],
    "empty": lambda block_size, random: [],
    "borders": _borders,
    "across": _across,
    "reversed": _reversed,
    "alternate": _alternate,
}
"""(block_size, random) -> slot_mapping of a pool of BLOCKS blocks"""
