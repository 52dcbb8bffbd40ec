"""The truth: attention by its definition, in float64, one request at a time.

Independent of every backend. The rules are parameters so that a wrong answer can be recognised:
diagnose.py recomputes it under common misreadings and says which one fits. The same code run in
the backend's dtype is "the plain computation", whose error sets the allowed one (budget.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pagedattn.conformance.attention.content import Content
from pagedattn.spec import Mask

__all__ = ["RULES", "Answer", "Rules", "answer", "plain", "truth", "visible"]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The contract, as switches; every default is what docs/SPEC.md says."""

    causal: bool = True
    bottom_right: bool = True
    left_shift: int = 0  # the left window is this much wider
    right_shift: int = 0
    use_window: bool = True
    use_softcap: bool = True
    cap_masked: bool = False  # masked keys keep a score of -softcap
    use_alibi: bool = True
    alibi_sign: int = 1
    alibi_from_row: bool = True  # origin of the bias: the row, else key 0
    sinks: int = 1  # how often they enter the denominator
    lse_sinks: bool = True
    lse_base: float = math.e
    use_scale: bool = True
    dims: int | None = None  # only the first dims of q and k
    interleaved_heads: bool = False  # h % Hkv instead of h // group
    use_tree: bool = True
    tree_shifted: bool = True  # the last column of a tree is the last key
    kv_scales: bool = True
    v_scale_of_k: bool = False
    cap_first: bool = False  # softcap before the scale
    sinks_scaled: bool = False
    slopes_of_paper: bool = False  # 2^(-8 (h + 1) / Hq), whatever is given
    own_key: bool = True  # the step's own last key is there


RULES = Rules()


@dataclass(frozen=True, eq=False)
class Answer:
    """out [Tq, Hq, Dv] and lse [Tq, Hq] of each request; top is the largest |logit| that counts."""

    out: tuple[Tensor, ...]
    lse: tuple[Tensor, ...]
    top: float


def truth(content: Content, rules: Rules = RULES) -> Answer:
    """float64."""
    return answer(content, torch.float64, rules)


def plain(content: Content, order: int = 0) -> Answer:
    """The same formula with every intermediate rounded to the backend's dtype, as anyone would
    write it in PyTorch; out rounded to out_dtype.

    order   0: dims and keys are summed as they come; other numbers: in another order"""
    result = answer(content, content.spec.dtype, RULES, order)
    out = tuple(x.to(content.spec.out_dtype) for x in result.out)
    return Answer(out, result.lse, result.top)


def answer(content: Content, work: torch.dtype, rules: Rules, order: int = 0) -> Answer:
    """The definition in `work` precision under `rules`."""
    outs, lses, top = [], [], 0.0
    for r in range(len(content.q)):
        out, lse, largest = _request(content, r, work, rules, order)
        outs.append(out)
        lses.append(lse)
        top = max(top, largest)
    return Answer(tuple(outs), tuple(lses), top)


def visible(content: Content, request: int, rules: Rules = RULES) -> Tensor:
    """bool [Tq, n]: row sees key."""
    spec = content.spec
    rows, keys = len(content.q[request]), len(content.k[request])
    row, j = torch.arange(rows)[:, None], torch.arange(keys)[None, :]
    p = row + (keys - rows if rules.bottom_right else 0)
    seen = torch.ones(rows, keys, dtype=torch.bool)
    if spec.mask is not Mask.FULL and rules.causal:
        causal = j <= p
        tree = content.trees[request] if content.trees is not None else None
        if spec.mask is Mask.TREE and tree is not None and rules.use_tree:
            own = j - (keys - rows if rules.tree_shifted else max(0, keys - rows))
            causal = (own < 0) | tree[row, own.clamp(0, rows - 1)]
        seen &= causal
    left, right = spec.window
    if left is not None and rules.use_window:
        seen &= j >= p - left - rules.left_shift
    if right is not None and rules.use_window:
        seen &= j <= p + right + rules.right_shift
    if not rules.own_key:
        seen &= j < keys - 1
    return seen


def _request(
    content: Content, request: int, work: torch.dtype, rules: Rules, order: int
) -> tuple[Tensor, Tensor, float]:
    spec = content.spec
    rows, keys = len(content.q[request]), len(content.k[request])
    head = torch.arange(spec.num_heads)
    source = head % spec.num_kv_heads if rules.interleaved_heads else head // spec.group_size
    real_k, real_v = content.real_k(request), content.real_v(request)
    if rules.v_scale_of_k:
        real_v = replace(content, v_scale=content.k_scale).real_v(request)
    if not rules.kv_scales:
        real_k, real_v = content.k[request].double(), content.v[request].double()
    q = content.q[request].to(work).transpose(0, 1)  # [Hq, Tq, D]
    k = real_k.to(work)[:, source].permute(1, 2, 0)  # [Hq, D, n]
    v = real_v.to(work)[:, source].transpose(0, 1)  # [Hq, n, Dv]
    if rules.dims is not None:
        q, k = q[..., : rules.dims], k[:, : rules.dims]
    if order:
        dims = _order(q.shape[-1], order)
        q, k = q[..., dims], k[:, dims]
    score = q @ k
    scale = spec.scale if rules.use_scale else 1.0
    if not rules.cap_first:
        score = score * scale
    if spec.softcap is not None and rules.use_softcap:
        score = spec.softcap * torch.tanh(score / spec.softcap)
    if rules.cap_first:
        score = score * scale
    if content.slopes is not None and rules.use_alibi:
        distance = torch.arange(keys) - (torch.arange(rows)[:, None] + keys - rows)
        if not rules.alibi_from_row:
            distance = torch.arange(keys).expand(rows, keys)
        if spec.mask is Mask.FULL:
            distance = -distance.abs()
        slopes = content.slopes
        if rules.slopes_of_paper:
            slopes = 2.0 ** (-8 * (head + 1) / spec.num_heads)
        slope = rules.alibi_sign * slopes.to(work)
        score = score + slope[:, None, None] * distance.to(work)
    seen = visible(content, request, rules)
    hidden = float("-inf")
    if rules.cap_masked and spec.softcap is not None:
        hidden = -spec.softcap
    score = score.masked_fill(~seen, hidden)
    if order:
        other = _order(keys, order)
        score, v = score[..., other], v[:, other]
    logits = torch.cat((score, _sinks(content, score, rules)), dim=-1)
    out, lse = _softmax_v(score, logits, v, rules)
    return out.transpose(0, 1), lse.transpose(0, 1), _largest_that_counts(logits)


def _sinks(content: Content, score: Tensor, rules: Rules) -> Tensor:
    """[Hq, Tq, 1], or [Hq, Tq, 0] without sinks."""
    heads, rows, _ = score.shape
    if content.sinks is None:
        return score.new_empty(heads, rows, 0)
    sinks = content.sinks.to(score.dtype)
    if rules.sinks_scaled:
        sinks = sinks * content.spec.scale
    return sinks[:, None, None].expand(heads, rows, rules.sinks)


def _softmax_v(score: Tensor, logits: Tensor, v: Tensor, rules: Rules) -> tuple[Tensor, Tensor]:
    """out [Hq, Tq, Dv] and lse [Hq, Tq]; `logits` is score [Hq, Tq, n] and the sinks. A row without
    a logit gives 0 and -inf."""
    heads, rows, keys = score.shape
    nothing = score.new_full((heads, rows), float("-inf"))
    if not logits.shape[-1]:
        return v.new_zeros(heads, rows, v.shape[-1]), nothing
    empty = (logits == float("-inf")).all(-1)
    weight = torch.softmax(logits, dim=-1).masked_fill(empty[..., None], 0.0)
    of_lse = logits if rules.lse_sinks else score
    lse = torch.logsumexp(of_lse, dim=-1) if of_lse.shape[-1] else nothing
    return weight[..., :keys] @ v, lse / math.log(rules.lse_base)


def _largest_that_counts(logits: Tensor) -> float:
    """The largest |logit| among those with a weight that a float32 sum can notice."""
    if not logits.numel():
        return 0.0
    counts = (logits > logits.amax(-1, keepdim=True) - 20) & logits.isfinite()
    return float(logits[counts].abs().max()) if bool(counts.any()) else 0.0


def _order(size: int, order: int) -> Tensor:
    """A permutation: reversed, then random ones."""
    if order == 1:
        return torch.arange(size).flip(0)
    return torch.randperm(size, generator=torch.Generator().manual_seed(order))
