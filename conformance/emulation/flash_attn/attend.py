"""The attention that the kernels compute for one request, on the CPU, to the letter of their rules.

Sums are made in float64, so that bits do not follow the shape of a matrix product; weights are
rounded to 16 bits before they meet the values, as the kernels do.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Rules", "attend", "key_range", "starts_without_keys"]

TILE_ROWS = 64


@dataclass(frozen=True)
class Rules:
    """Options of a launch, after the host code has normalised them.

    left, right   window in keys, -1 open; `causal` is the special case (-1, 0)
    longest       bound of the keys: what an open side of a window counts
    slopes        ALiBi slopes f32 [Hq], or None
    """

    scale: float
    left: int
    right: int
    longest: int
    softcap: float
    slopes: Tensor | None

    @classmethod
    def of(
        cls,
        *,
        scale: float,
        causal: bool,
        window: tuple[int, int],
        longest: int,
        softcap: float,
        slopes: Tensor | None,
    ) -> Rules:
        left, right = window
        if causal:
            right = 0
        left, right = (-1 if bound >= longest else bound for bound in (left, right))
        return cls(scale, left, right, longest, softcap, slopes)

    @property
    def causal(self) -> bool:
        return self.left < 0 and self.right == 0

    @property
    def local(self) -> bool:
        return not self.causal and (self.left >= 0 or self.right >= 0)

    @property
    def bounds(self) -> tuple[int, int]:
        """(left, right) of a local mask: an open side beside a closed one counts `longest`."""
        left = self.longest if self.left < 0 <= self.right else self.left
        right = self.longest if self.right < 0 <= self.left else self.right
        return left, right


def key_range(rules: Rules, rows: int, keys: int, tile: int) -> range:
    """Keys whose tiles the kernel visits, for the whole request."""
    first, end = 0, keys
    left, right = rules.bounds
    if rules.local:
        first = max(0, (keys - rows - left) // tile * tile)
    if rules.causal or rules.local:
        padded = -(-rows // TILE_ROWS) * TILE_ROWS
        end = min(keys, -(-max(0, padded + keys - rows + right) // tile) * tile)
    return range(first, max(first, end))


def starts_without_keys(rules: Rules, rows: int, keys: int) -> bool:
    """Whether a kernel for ragged paged batches finds no key tile for the first tile of rows.

    It then leaves early, and writes the LSE of these rows where that of a batch of equal lengths
    would be: into other rows, or beyond the tensor (flash-attention issue 2842)."""
    if rows == 0 or keys == 0:
        return rows > 0
    return (rules.causal or rules.local) and TILE_ROWS + keys - rows + rules.bounds[1] <= 0


def attend(
    rules: Rules, q: Tensor, k: Tensor, v: Tensor, seen: range, keys: int
) -> tuple[Tensor, Tensor]:
    """(out [rows, Hq, D], lse f64 [rows, Hq]); +inf is the LSE of a row without keys, and of one
    whose sum is NaN.

    q [rows, Hq, D]; k, v [len(seen), Hkv, D] are the keys `seen` of a request of `keys` keys."""
    rows, heads, dim = q.shape
    shared = (rows, k.shape[1], heads // k.shape[1])
    grouped = q.double().reshape(*shared, dim)
    score = torch.einsum("rhgd,nhd->rhgn", grouped, k.double()).reshape(rows, heads, len(seen))
    score = score * rules.scale
    if rules.softcap > 0:
        score = rules.softcap * torch.tanh(score / rules.softcap)
    row = torch.arange(rows)[:, None] + keys - rows
    key = torch.arange(seen.start, seen.stop)
    if rules.slopes is not None:
        # Without a window a causal kernel adds slope * key; the others count from the row.
        bias = (key + 0 * row) if rules.causal else -(row - key).abs()
        score = score + rules.slopes.double()[:, None] * bias[:, None, :]
    left, right = rules.bounds
    keep = torch.ones(rows, len(seen), dtype=torch.bool)
    if rules.causal:
        keep &= key <= row
    elif rules.local:
        keep &= (key >= row - left) & (key <= row + right)
    score = score.masked_fill(~keep[:, None], float("-inf"))
    top = (
        score.amax(-1, keepdim=True) if len(seen) else score.new_full((rows, heads, 1), -torch.inf)
    )
    top = torch.where(top == -torch.inf, 0.0, top)
    weight = torch.exp(score - top)
    total = weight.sum(-1)
    rounded = weight.to(q.dtype).double().reshape(*shared, len(seen))
    mixed = torch.einsum("rhgn,nhd->rhgd", rounded, v.double()).reshape(rows, heads, dim)
    out = mixed / torch.where(total == 0, 1.0, total)[..., None]
    numberless = (total == 0) | total.isnan()
    lse = torch.where(numberless, torch.inf, top[..., 0] + torch.log(total))
    return out.to(q.dtype), lse
