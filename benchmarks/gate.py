"""The correctness gate: no time is reported for a backend that computes something else.

Rows are sampled from a replica and computed in float64 from the very cache that the backend reads.
An element may be off by twice the error that the same computation makes in the spec's own dtype
plus one unit of rounding of the largest value; four times with an 8-bit cache. Every other row must
at least be finite (the output starts as NaN).
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from pagedattn.attention import AttentionOp, Plan
from pagedattn.batch import KVCache
from pagedattn.benchmarks.inputs import Inputs
from pagedattn.spec import AttentionSpec, KVQuant, Mask
from pagedattn.write import dequantise

__all__ = ["Check", "Truth", "check_write", "make_truth", "run_and_check"]

MAX_REQUESTS, MAX_ROWS = 2, 8
MAX_ELEMENTS = 2**24  # of a gathered K or V: long contexts in float64 are large


@dataclass(frozen=True)
class Check:
    """Outcome of the gate.

    wrong   the first differing element as a sentence; "" when right
    error   largest error found      budget  largest error allowed
    """

    wrong: str
    error: float
    budget: float


@dataclass(frozen=True, eq=False)
class Truth:
    """Sampled rows of one replica: rows i64 [n], out f64 [n, Hq, Dv], lse f64 [n, Hq]."""

    rows: Tensor
    out: Tensor
    lse: Tensor
    out_budget: float
    lse_budget: float


def make_truth(inputs: Inputs, replica: int, *, most: int = MAX_REQUESTS) -> Truth:
    """The float64 answer for sampled rows of up to `most` requests, and the error budget."""
    workload, spec = inputs.workload, inputs.workload.spec
    pick = random.Random(workload.seed + replica)
    requests = _sample(pick, workload.num_requests, most)
    starts = [0]
    for n in workload.query_lens:
        starts.append(starts[-1] + n)
    rows: list[int] = []
    exact: list[tuple[Tensor, Tensor]] = []
    plain: list[tuple[Tensor, Tensor]] = []
    for r in requests:
        own = _sample(pick, workload.query_lens[r], MAX_ROWS)
        rows += [starts[r] + row for row in own]
        for dtype, into in ((torch.float64, exact), (spec.dtype, plain)):
            into.append(_attend(inputs, replica, r, starts[r], own, dtype))
    out, lse = (torch.cat(parts) for parts in zip(*exact, strict=True))
    rough_out, rough_lse = (torch.cat(parts) for parts in zip(*plain, strict=True))
    factor = 2.0 if spec.kv_quant is KVQuant.NONE else 4.0

    def budget(truth: Tensor, rough: Tensor, eps: float) -> float:
        rounding = eps * float(truth.abs().max())
        return factor * (float((rough.double() - truth).abs().max()) + rounding)

    return Truth(
        rows=torch.tensor(rows, device=inputs.device),
        out=out,
        lse=lse,
        out_budget=budget(out, rough_out.to(spec.out_dtype), torch.finfo(spec.out_dtype).eps),
        lse_budget=budget(lse, rough_lse, torch.finfo(torch.float32).eps),
    )


def check_run(truth: Truth, out: Tensor, lse: Tensor | None) -> Check:
    """Judge what run() left in out [T, Hq, Dv] and lse [T, Hq]."""
    results = [("out", out, truth.out, truth.out_budget)]
    if lse is not None:
        results.append(("lse", lse, truth.lse, truth.lse_budget))
    check = Check("", 0.0, truth.out_budget)
    for name, got, expected, budget in results:
        unwritten = ~got.isfinite()
        if bool(unwritten.any()):
            where = _first(unwritten)
            return Check(f"{name}{where} is {float(got[tuple(where)])}", float("inf"), budget)
        error = (got[truth.rows].double() - expected).abs()
        bad = error > budget
        if bool(bad.any()):
            index = _first(bad)
            where = [int(truth.rows[index[0]]), *index[1:]]
            return Check(
                f"{name}{where} is {float(got[tuple(where)]):.6g}, not "
                f"{float(expected[tuple(index)]):.6g} (allowed error {budget:.2g})",
                float(error.max()),
                budget,
            )
        if name == "out":
            check = Check("", float(error.max()), budget)
    return check


def check_write(op: AttentionOp, inputs: Inputs) -> Check:
    """Judge write(): empty the slots of replica 0's new tokens, have them written again, and find
    the cache as it was. Stored bits may differ by one step of an 8-bit format, no more."""
    cache, slots = inputs.cache, inputs.batches[0].slot_mapping
    assert slots is not None
    size = inputs.workload.spec.block_size
    blocks = torch.tensor(sorted(set((slots // size).tolist())), device=inputs.device)
    inner = torch.searchsorted(blocks, slots // size), slots % size
    parts = {"k": (cache.k, cache.k_scale), "v": (cache.v, cache.v_scale)}
    if inputs.workload.spec.shared_kv:
        del parts["v"]
    before = {name: _stored(inputs, pool, scale, blocks) for name, (pool, scale) in parts.items()}
    for pool, _ in parts.values():
        _bytes(pool)[slots // size, slots % size] = 0
    op.write(inputs.k, inputs.v, cache, slots)
    worst = 0.0
    for name, (pool, scale) in parts.items():
        expected, got = before[name], _stored(inputs, pool, scale, blocks)
        allowed = torch.zeros_like(expected)
        if inputs.workload.spec.kv_quant is not KVQuant.NONE:
            step = 1 / 127 if pool.dtype is torch.int8 else torch.finfo(pool.dtype).eps
            allowed[inner] = step * expected[inner].abs().amax(-1, keepdim=True)
        error = (got - expected).abs()
        bad = ~((error <= allowed) | (got.isnan() & expected.isnan()))  # unowned slots hold NaN
        if bool(bad.any()):
            block, offset, *rest = index = _first(bad)
            where = [int(blocks[block]), offset, *rest]
            return Check(
                f"write: {name}{where} is {float(got[tuple(index)]):.6g}, not "
                f"{float(expected[tuple(index)]):.6g}",
                float(error.max()),
                float(allowed.max()),
            )
        worst = max(worst, float(error.nan_to_num(0.0).max()))
    return Check("", worst, 0.0)


def run_and_check(op: AttentionOp, plan: Plan, inputs: Inputs, truth: Truth) -> Check:
    """run() into a NaN-filled output, judged."""
    out, lse = inputs.empty_out()
    op.run(
        inputs.q,
        inputs.cache,
        plan,
        out=out,
        lse=lse,
        sinks=inputs.sinks,
        alibi_slopes=inputs.alibi_slopes,
    )
    return check_run(truth, out, lse)


def _attend(
    inputs: Inputs, replica: int, request: int, start: int, rows: list[int], dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """(out [n, Hq, Dv], lse [n, Hq]) of rows of a request, computed plainly in `dtype`."""
    spec, workload = inputs.workload.spec, inputs.workload
    keys, device = workload.seq_lens[request], inputs.device
    table = inputs.batches[replica].block_table[request]
    j = torch.arange(keys, device=device)
    block, offset = table[j // spec.block_size].long(), j % spec.block_size
    row = torch.tensor(rows, device=device)
    distance = j - (keys - workload.query_lens[request] + row)[:, None]
    hidden = ~_visible(spec, distance)
    outs, lses = [], []
    together = max(1, MAX_ELEMENTS // (keys * spec.head_dim))
    for first in range(0, spec.num_kv_heads, together):
        kv_heads = slice(first, min(first + together, spec.num_kv_heads))
        k, v = (
            _read(inputs.cache, name, spec, block, offset, kv_heads, dtype) for name in ("k", "v")
        )
        heads = slice(kv_heads.start * spec.group_size, kv_heads.stop * spec.group_size)
        q = inputs.q[start + row, heads].to(dtype)
        q = q.reshape(len(rows), -1, spec.group_size, spec.head_dim)
        score = torch.einsum("thgd,jhd->thgj", q, k).flatten(1, 2) * spec.scale
        if spec.softcap is not None:
            score = spec.softcap * torch.tanh(score / spec.softcap)
        if inputs.alibi_slopes is not None:
            bias = -distance.abs() if spec.mask is Mask.FULL else distance
            score = score + inputs.alibi_slopes[heads, None].to(dtype) * bias[:, None].to(dtype)
        score = score.masked_fill(hidden[:, None], float("-inf"))
        if inputs.sinks is not None:  # one more column of scores, without a value
            sink = inputs.sinks[heads, None].to(dtype).expand(len(rows), -1, 1)
            score = torch.cat([score, sink], dim=-1)
        lses.append(torch.logsumexp(score, -1))
        weight = score.softmax(-1)[..., :keys].reshape(len(rows), -1, spec.group_size, keys)
        outs.append(torch.einsum("thgj,jhd->thgd", weight, v).flatten(1, 2))
    return torch.cat(outs, 1), torch.cat(lses, 1)


def _visible(spec: AttentionSpec, distance: Tensor) -> Tensor:
    """bool [n, keys] from key position - row position."""
    left, right = spec.window
    seen = distance <= 0 if spec.mask is Mask.CAUSAL else torch.ones_like(distance).bool()
    if left is not None:
        seen = seen & (distance >= -left)
    return seen if right is None else seen & (distance <= right)


def _read(
    cache: KVCache,
    name: str,
    spec: AttentionSpec,
    block: Tensor,
    offset: Tensor,
    heads: slice,
    dtype: torch.dtype,
) -> Tensor:
    """[keys, kv heads, width], dequantised."""
    pool, scale = getattr(cache, name), getattr(cache, f"{name}_scale")
    stored = _bytes(pool)[block, offset, heads].view(pool.dtype)
    if spec.kv_quant is KVQuant.NONE:
        return stored.to(dtype)
    if spec.kv_quant is KVQuant.PER_TOKEN_HEAD:
        scale = scale[block, offset]
    return dequantise(stored, scale.expand(len(block), pool.shape[2])[:, heads, None], dtype)


def _stored(inputs: Inputs, pool: Tensor, scale: Tensor | None, blocks: Tensor) -> Tensor:
    """f64 [n, block_size, Hkv, width]: what these blocks mean."""
    stored = _bytes(pool)[blocks].view(pool.dtype).double()
    if scale is None:
        return stored
    if inputs.workload.spec.kv_quant is KVQuant.PER_TOKEN_HEAD:
        return stored * scale[blocks][..., None].double()
    return stored * scale.expand(pool.shape[2])[..., None].double()


def _bytes(x: Tensor) -> Tensor:
    """8-bit floats as uint8, which torch indexes on every device."""
    return x.view(torch.uint8) if x.dtype.itemsize == 1 else x


def _first(bad: Tensor) -> list[int]:
    """Index of the first True."""
    return [int(i) for i in bad.nonzero()[0]]


def _sample(pick: random.Random, n: int, most: int) -> list[int]:
    """Up to `most` of range(n), ascending, the first and the last among them."""
    if n <= most:
        return list(range(n))
    return sorted({0, n - 1, *pick.sample(range(1, n - 1), most - 2)})
