"""Number range, long sequences, merging by LSE, quantised caches."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import torch

from pagedattn.conformance.attention.basics import lengths, rows_of
from pagedattn.conformance.attention.build import attention_case
from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.execute import Produced, execute, same_bits
from pagedattn.conformance.attention.judge import (
    Measures,
    compare,
    joined,
    judge,
    needs,
    produce,
    shrinking,
)
from pagedattn.conformance.attention.oracle import RULES
from pagedattn.conformance.attention.place import place
from pagedattn.conformance.attention.placing import Guard, Placing, Poison, Storage
from pagedattn.conformance.attention.pools import make_cache
from pagedattn.conformance.attention.subject import AttentionSubject
from pagedattn.conformance.attention.writing_8_bit import QUANTISED
from pagedattn.conformance.case import Case
from pagedattn.spec import Layout, Limits
from pagedattn.states import merge_states

__all__ = ["CASES"]


def _large_products(dtype: torch.dtype, subject: AttentionSubject, seed: int) -> Measures:
    """q = k = 300 in eight dims: products of 90000 exceed float16, scores reach +-90000."""
    spec = subject.spec({"dtype": dtype, "scale": 0.125})
    content = Content.random(spec, [1, 1], [spec.block_size + 4, 2], seed)
    q = tuple(x.clone() * 0.01 for x in content.q)
    k = [x.float().clone() * 0.01 for x in content.k]
    for x in q:
        x[..., :8] = 300.0
    for x in k:
        x[0, :, :8], x[1, :, :8] = 300.0, -300.0
    content = dataclasses.replace(content, q=q).storing(k, [x.float() for x in content.v])
    return judge(subject, content, Placing(seed=seed))


def _scores(size: float, subject: AttentionSubject, seed: int) -> Measures:
    """Scores of hundreds of either sign: without the maximum taken off, exp overflows."""
    spec = subject.spec()
    content = Content.random(spec, [1, 1, 1], [spec.block_size + 4, 40, 1], seed, spread=size)
    return judge(subject, content, Placing(seed=seed))


def _tiny_weights(wanted: dict[str, Any], subject: AttentionSubject, seed: int) -> Measures:
    """4096 nearly equal weights, values near 1: a 16-bit running sum stalls far below."""
    spec = subject.spec({**wanted, "group_size": 1})
    content = Content.random(spec, [1], [4096], seed, spread=0.01)
    v = [1.0 + 0.01 * x.float() for x in content.v]
    return judge(subject, content.storing([x.float() for x in content.k], v), Placing(seed=seed))


def _long(keys: int, subject: AttentionSubject, seed: int) -> Measures:
    """One long request beside a request of one key. The last keys weigh most, so a reduction that
    forgets the end is seen."""
    spec = subject.spec()
    content = Content.random(spec, [1, 1], [keys, 1], seed)
    k, v = content.k[0].float().clone(), content.v[0].float().clone()
    direction = content.q[0][0].float().reshape(spec.num_kv_heads, spec.group_size, -1)[:, 0]
    k[-2:] = direction / direction.norm(dim=-1, keepdim=True) * 40.0
    v[-2:] = 5.0
    content = content.storing([k, content.k[1].float()], [v, content.v[1].float()])
    return judge(subject, content, Placing(seed=seed))


def _long_crowd(subject: AttentionSubject, seed: int) -> Measures:
    """Long and short requests together, more of them than the splits of one."""
    spec = subject.spec()
    seq_lens = [2500, 3, 900, 1, 1700, 64, 0, 700]
    content = Content.random(spec, [1] * 6 + [0, 1], seq_lens, seed, spread=3.0)
    return judge(subject, content, Placing(seed=seed))


def _merge(
    cuts: tuple[int, ...], wanted: dict[str, Any], subject: AttentionSubject, seed: int
) -> Measures:
    """One decode row over parts of its keys, merged by LSE, equals the whole. Parts may be empty;
    with sinks exactly the first part gets them."""
    spec = subject.spec({"return_lse": True, **wanted})
    n = 3 * 16 + 5
    content = Content.random(spec, [1], [n], seed)
    total: tuple[torch.Tensor, torch.Tensor] | None = None
    for i, (begin, end) in enumerate(zip((0, *cuts), (*cuts, n), strict=True)):
        part = content.cut(0, slice(0, 1), slice(min(begin, n), min(end, n)))
        if part.sinks is not None and i:
            part = dataclasses.replace(part, sinks=torch.full_like(part.sinks, float("-inf")))
        # A neighbour: parts of other requests are run in the same call.
        filler = Content.random(spec, [1], [7], seed + i)
        both = _beside(part, filler)
        produced = produce(subject, both, Placing(seed=seed + i))
        assert produced.lse is not None
        state = produced.out[0], produced.lse[0]
        total = state if total is None else merge_states(*total, *state)
    assert total is not None
    return compare(content, Produced([total[0]], [total[1]]))


def _beside(one: Content, other: Content) -> Content:
    return dataclasses.replace(
        one, q=(*one.q, *other.q), k=(*one.k, *other.k), v=(*one.v, *other.v)
    )


def _prefix_parts(subject: AttentionSubject, seed: int) -> Measures:
    """Two prefixes of 8 and 40 keys in parts of 16: the shorter one runs out, its part is
    (0, -inf) in buffers that held NaN."""
    spec = subject.spec({"return_lse": True})
    content = Content.random(spec, [1, 1], [8, 40], seed)
    total: list[tuple[torch.Tensor, torch.Tensor]] = []
    for begin in range(0, 40, 16):
        parts = [
            content.cut(r, slice(0, 1), slice(min(begin, n), min(begin + 16, n)))
            for r, n in enumerate(content.seq_lens)
        ]
        produced = produce(subject, _beside(*parts), Placing(seed=seed))
        assert produced.lse is not None
        states = list(zip(produced.out, produced.lse, strict=True))
        total = (
            states
            if not total
            else [merge_states(*a, *b) for a, b in zip(total, states, strict=True)]
        )
    return compare(content, Produced([out for out, _ in total], [lse for _, lse in total]))


def _quantised(
    wanted: dict[str, Any], phase: str, subject: AttentionSubject, seed: int
) -> Measures:
    spec = subject.spec(wanted, rows=rows_of(phase))
    content = Content.random(spec, *lengths(phase, spec.block_size), seed)
    needs(content, dataclasses.replace(RULES, kv_scales=False))
    clean = produce(subject, content, Placing(seed=seed, poison=Poison.ZERO))
    dirty = produce(subject, content, Placing(seed=seed))
    with shrinking(subject, content, Placing(seed=seed)):
        measures = compare(content, dirty)
    same_bits(clean, dirty, "what unowned slots and their scales hold")
    return measures


def _quantised_option(
    wanted: dict[str, Any], storage: Storage, subject: AttentionSubject, seed: int
) -> Measures:
    """The first 8-bit cache that the backend serves, together with another option."""
    spec = subject.spec(_some_quantised(subject, wanted))
    content = Content.random(spec, *lengths("decode", spec.block_size), seed, spread=2.0)
    return judge(subject, content, Placing(seed=seed, storage=storage))


def _some_quantised(subject: AttentionSubject, wanted: dict[str, Any]) -> dict[str, Any]:
    for _, quantised in QUANTISED:
        if not subject.refusals(subject.spec({**quantised, **wanted})):
            return {**quantised, **wanted}
    return {**QUANTISED[0][1], **wanted}


def _write_then_run(wanted: dict[str, Any], subject: AttentionSubject, seed: int) -> Measures:
    """A request grows token by token from an empty, poisoned pool: write, then read, through
    scattered blocks. Every row sees its own key."""
    spec = subject.spec(wanted)
    n = min(2 * spec.block_size + 2, 34)
    whole = Content.random(spec, [n], [n], seed)
    columns = -(-n // spec.block_size)
    num_blocks = columns + 4
    guards: list[Guard] = []
    cache = make_cache(spec, num_blocks, subject.device, Placing(), guards)
    table = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(seed))[:columns]
    op = subject.open(spec, Limits(1, 1, n, num_blocks))
    measures: Measures = {}
    for p in range(n):
        slot = int(table[p // spec.block_size]) * spec.block_size + p % spec.block_size
        k, v = (x[0][p : p + 1].to(subject.device) for x in (whole.k, whole.v))
        op.write(k, v, cache, torch.tensor([slot], device=subject.device))
        if p not in (0, 1, spec.block_size - 1, spec.block_size, n - 1):
            continue
        part = whole.cut(0, slice(p, p + 1), slice(0, p + 1))
        step = place(part, subject.device, Placing(seed=seed))
        own = table.to(torch.int32).to(subject.device)[None]
        batch = dataclasses.replace(step.batch, block_table=own, slot_mapping=None)
        step = dataclasses.replace(step, cache=cache, batch=batch, guards=step.guards + guards)
        measures = joined(compare(part, execute(op, step)), measures)
    return measures


def _cases() -> list[Case]:
    cases = []
    faults: tuple[str, ...]

    def add(id: str, rule: str, judge_it: Any, *faults: str, core: bool = False) -> None:
        cases.append(attention_case(id, rule, judge_it, faults=faults, core=core))

    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        name = str(dtype).removeprefix("torch.")
        add(f"range/products-90000/{name}", "dtypes", partial(_large_products, dtype), "KH-45")
        add(
            f"range/tiny-weights/{name}",
            "dtypes",
            partial(_tiny_weights, {"dtype": dtype}),
            "KH-46",
        )
    for size in (30.0, 300.0):
        add(f"range/scores-{size:.0f}", "score-order", partial(_scores, size), "KH-45", core=True)
    for keys in (1023, 1024, 1025, 4097, 16385, 33000):
        faults = ("KH-55", "KH-58", "KH-59")
        add(f"long/{keys}", "determinism", partial(_long, keys), *faults, core=True)
    add("long/crowd", "determinism", _long_crowd, "KH-55", "KH-59", core=True)
    for name, cuts in (
        ("halves", (26,)), ("uneven", (1, 50)), ("empty-first", (0, 20)), ("empty-last", (53,)),
        ("blocks", (16, 32, 48)),
    ):  # fmt: skip
        add(f"merge/{name}", "merge", partial(_merge, cuts, {}), "KH-42", "KH-43", "KH-44")
    add("merge/sinks", "merge", partial(_merge, (20, 40), {"sinks": True}), "KH-39")
    add("merge/prefix-parts", "merge", _prefix_parts, "KH-12")
    for id, wanted in QUANTISED:
        for phase in ("decode", "mixed"):
            faults = ("KH-47", "KH-48")
            add(f"quant/{id}/{phase}", "quantisation", partial(_quantised, wanted, phase), *faults)
    for name, option in (
        ("sinks", {"sinks": True}), ("softcap", {"softcap": 2.0}),
        ("window", {"window": (5, None)}),
        ("lse", {"return_lse": True}), ("hnd", {"layout": Layout.HND}),
        ("bfloat16", {"dtype": torch.bfloat16}), ("float16", {"dtype": torch.float16}),
        ("dim-128", {"head_dim": 128}),
    ):  # fmt: skip
        judge_it = partial(_quantised_option, option, Storage.PLAIN)
        add(f"quant/with-{name}", "quantisation", judge_it, "KH-40", "KH-47")
    judge_it = partial(_quantised_option, {}, Storage.INTERLEAVED)
    add("quant/interleaved", "quantisation", judge_it, "KH-24")
    add("step/write-then-run", "write", partial(_write_then_run, {}), "KH-50", "KH-52", core=True)
    judge_it = partial(_write_then_run, {"layout": Layout.HND})
    add("step/write-then-run/hnd", "write", judge_it, "KH-27", "KH-50", "KH-52")
    return cases


CASES = _cases()
