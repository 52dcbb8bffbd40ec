"""An option that is lost where another one is on: paths that were tested one by one."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pagedattn.conformance.mutants.honest import HonestOp, QueryRow
from pagedattn.conformance.mutants.planting import Garden
from pagedattn.spec import KVQuant, Mask

__all__ = ["MUTANTS"]

garden = Garden()


class _Lost(HonestOp):
    """The class attributes name an option and the one beside which it is lost."""

    option = ""
    beside = ""

    def lost(self, option: str) -> bool:
        spec = self.spec
        on = {
            "window": spec.window != (None, None),
            "softcap": spec.softcap is not None,
            "sinks": spec.sinks,
            "alibi": spec.alibi,
            "tree": spec.mask is Mask.TREE,
            "full": spec.mask is Mask.FULL,
            "8-bit": spec.kv_quant is not KVQuant.NONE,
            "many-keys": self._keys > 2048,
        }
        return option == self.option and on[self.beside]

    def visible(self, row: QueryRow, position: int) -> Tensor:
        self._keys = row.keys
        return super().visible(row, position)

    def log_sum(self, top: Tensor, total: Tensor) -> Tensor:
        found = super().log_sum(top, total)
        return found / math.log(2.0) if self.lost("lse") else found

    def left(self, row: QueryRow) -> int | None:
        return None if self.lost("window") else super().left(row)

    def cap(self, score: Tensor) -> Tensor:
        return score if self.lost("softcap") else super().cap(score)

    def bias(self, keys: Tensor, position: int) -> Tensor:
        bias = super().bias(keys, position)
        return torch.zeros_like(bias) if self.lost("alibi") else bias

    def in_tree(self, row: QueryRow, position: int, key: int) -> bool:
        return key <= position if self.lost("tree") else super().in_tree(row, position, key)

    def weigh(self, score: Tensor, v: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
        return super().weigh(score, v, None if self.lost("sinks") else sinks)

    def scales(self, scale: Tensor, block: Tensor, offset: Tensor) -> Tensor:
        found = super().scales(scale, block, offset)
        return torch.ones_like(found) if self.lost("8-bit") else found


for _option, _beside, _faults in (
    ("window", "softcap", ("KH-34",)),
    ("window", "8-bit", ("KH-34",)),
    ("alibi", "window", ("KH-41",)),
    ("alibi", "8-bit", ("KH-41",)),
    ("tree", "8-bit", ()),
    ("softcap", "8-bit", ("KH-38",)),
    ("softcap", "tree", ("KH-38",)),
    ("softcap", "sinks", ("KH-38",)),
    ("sinks", "tree", ("KH-40",)),
    ("sinks", "alibi", ("KH-40",)),
    ("sinks", "window", ("KH-40",)),
    ("8-bit", "alibi", ("KH-47",)),
    ("softcap", "full", ("KH-38",)),
    ("sinks", "full", ("KH-40",)),
    ("window", "many-keys", ("KH-34",)),
    ("softcap", "many-keys", ("KH-38",)),
    ("sinks", "many-keys", ("KH-39", "KH-40")),
    ("alibi", "many-keys", ("KH-41",)),
    ("8-bit", "many-keys", ("KH-47",)),
    ("lse", "many-keys", ("KH-43",)),
):
    garden.op(
        f"{_option}-lost-with-{_beside}",
        f"{_option} is dropped where {_beside} is on as well",
        *_faults,
    )(type("_Lost", (_Lost,), {"option": _option, "beside": _beside}))

MUTANTS = tuple(garden.mutants)
