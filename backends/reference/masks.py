"""Which keys a row sees: the mask, the window, the tree."""

from __future__ import annotations

import torch
from torch import Tensor

from pagedattn.batch import AttentionBatch
from pagedattn.spec import AttentionSpec, Mask

__all__ = ["tree_bits", "visible"]


def visible(
    spec: AttentionSpec, distance: Tensor, step_column: Tensor, bits: Tensor | None
) -> Tensor:
    """bool [rows, n]: row sees key.

    distance [rows, n]  key position - row position, j - p
    step_column [n]     index of the key among the step's own tokens; negative for earlier keys
    bits                bool [rows, query_len] of Mask.TREE, None for plain causal
    """
    left, right = spec.window
    mask = torch.ones_like(distance, dtype=torch.bool)
    if left is not None:
        mask &= distance >= -left
    if right is not None:
        mask &= distance <= right
    if spec.mask is Mask.FULL:
        return mask
    if bits is None:
        return mask & (distance <= 0)
    own = bits[:, step_column.clamp(min=0)]
    return mask & torch.where(step_column < 0, True, own)


def tree_bits(batch: AttentionBatch, request: int, query_len: int) -> Tensor | None:
    """bool [query_len, query_len]: row sees the step's own key col; None when the request has no
    tree and is plain causal. Bit row*query_len+col of its bytes, lowest bit first."""
    assert batch.tree_mask is not None
    assert batch.tree_indptr is not None
    begin, end = batch.tree_indptr[request : request + 2].tolist()
    if begin == end:
        return None
    data = batch.tree_mask[begin:end]
    index = torch.arange(query_len * query_len, device=data.device)
    bits = (data[index // 8] >> (index % 8)) & 1
    return bits.reshape(query_len, query_len).bool()
