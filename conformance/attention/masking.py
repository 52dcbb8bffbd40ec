"""Which keys a row sees: alignment, chunks, windows, trees, rows that see none."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from pagedattn.conformance.attention.build import attention_case
from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.execute import same_bits
from pagedattn.conformance.attention.judge import Measures, compare, joined, judge, needs, produce
from pagedattn.conformance.attention.oracle import RULES
from pagedattn.conformance.attention.placing import Placing
from pagedattn.conformance.attention.subject import AttentionSubject
from pagedattn.conformance.case import Case, CaseFailure
from pagedattn.spec import Mask

__all__ = ["CASES", "counting"]

HUGE = 2**31 - 2
"""The largest bound that is not the same as none: position + bound leaves 32 bits."""

NO_LEFT_SHIFT = dataclasses.replace(RULES, left_shift=1)


def counting(content: Content) -> Content:
    """The same step with queries 0 (so that weights are equal) and key j's value j + 1 (from 0 in
    odd heads): the output tells which keys were seen."""
    q = tuple(torch.zeros_like(x) for x in content.q)
    k = [torch.zeros(x.shape) for x in content.k]
    v = []
    for x in content.v:
        v.append((torch.arange(x.shape[0]) + 1.0)[:, None, None].expand(x.shape).contiguous())
    return dataclasses.replace(content, q=q).storing(k, v)


def _rows(
    query_lens: Sequence[int],
    seq_lens: Sequence[int],
    wanted: dict[str, Any],
    subject: AttentionSubject,
    seed: int,
) -> Measures:
    """Random and counting values."""
    spec = subject.spec(wanted, rows=max(query_lens))
    content = Content.random(spec, query_lens, seq_lens, seed)
    first = judge(subject, content, Placing(seed=seed))
    return joined(first, judge(subject, counting(content), Placing(seed=seed)))


def _alignment(subject: AttentionSubject, seed: int) -> Measures:
    """q=2 over 5 keys: rows average keys 1..4 and 1..5; q=1 over 9: all nine."""
    spec = subject.spec(rows=2)
    content = counting(Content.random(spec, [2, 1], [5, 9], seed))
    needs(content, dataclasses.replace(RULES, bottom_right=False))
    produced = produce(subject, content, Placing(seed=seed))
    for request, row, expected in ((0, 0, 2.5), (0, 1, 3.0), (1, 0, 5.0)):
        got = float(produced.out[request][row, 0, 0])
        if not abs(got - expected) < 0.05:
            raise CaseFailure(
                f"row {row} of request {request} averages to {got:g}; with bottom-right causal "
                f"alignment the visible keys average to {expected:g}"
            )
    return compare(content, produced)


def _future(subject: AttentionSubject, seed: int) -> Measures:
    """Keys after the row are huge: they must not change a bit."""
    spec = subject.spec(rows=4)
    n = spec.block_size + 5
    content = Content.random(spec, [4, 1], [n, 3], seed)
    k, v = content.k[0].float().clone(), content.v[0].float().clone()
    k[-3:], v[-3:] = k[-3:] * 20, 1000.0
    loud = content.storing([k, content.k[1].float()], [v, content.v[1].float()])
    quiet = produce(subject, content, Placing(seed=seed))
    noisy = produce(subject, loud, Placing(seed=seed))
    for one in (quiet, noisy):
        one.out[0] = one.out[0][:1]
        if one.lse is not None:
            one.lse[0] = one.lse[0][:1]
    same_bits(quiet, noisy, "keys after a row (its own position excluded)")
    return judge(subject, loud, Placing(seed=seed))


def _chunks(chunk: int, wanted: dict[str, Any], subject: AttentionSubject, seed: int) -> Measures:
    """A prompt in chunks over its cached prefix: every row equals the oracle's row of the whole."""
    spec = subject.spec(wanted, rows=chunk)
    total = 2 * min(spec.block_size, 16) + 5
    whole = Content.random(spec, [total], [total], seed)
    measures: Measures = {}
    # The last chunks, over a long prefix, and the first ones; every start is a chunk boundary.
    starts = list(range(0, total, chunk))
    for start in {*starts[:2], *starts[-3:]}:
        end = min(start + chunk, total)
        part = whole.cut(0, slice(start, end), slice(0, end))
        measures = joined(judge(subject, part, Placing(seed=seed + start)), measures)
    return measures


def _window(left: str, phase: str, subject: AttentionSubject, seed: int) -> Measures:
    """Left bounds around the edges of blocks and of the sequence."""
    rows = 1 if phase == "decode" else 7
    bs = subject.spec(rows=rows).block_size
    n = 2 * bs + 2
    bound = {
        "0": 0,
        "1": 1,
        "3": 3,
        "bs-1": bs - 1,
        "bs": bs,
        "bs+1": bs + 1,
        "n-2": n - 2,
        "n-1": n - 1,
        "n": n,
        "max": HUGE,
    }[left]
    spec = subject.spec({"window": (bound, None), "block_size": bs}, rows=rows)
    content = Content.random(spec, [rows, rows, 1, 0], [n, min(n, rows + 2), 1, 4], seed)
    if bound + rows < n - 1 and bound < 64:
        needs(content, NO_LEFT_SHIFT)
    loud = _loud_before_window(content, bound)
    return joined(
        judge(subject, content, Placing(seed=seed)), judge(subject, loud, Placing(seed=seed))
    )


def _loud_before_window(content: Content, left: int) -> Content:
    """Keys of request 0 that no row sees have values of 1000."""
    hidden = max(0, content.seq_lens[0] - content.query_lens[0] - left)
    v = [x.float().clone() for x in content.v]
    v[0][:hidden] = 1000.0
    return content.storing([x.float() for x in content.k], v)


def _window_phases(subject: AttentionSubject, seed: int) -> Measures:
    """A prefill with window 3 and the decode of each of its rows see the same keys."""
    spec = subject.spec({"window": (3, None)}, rows=12)
    whole = counting(Content.random(spec, [12], [12], seed))
    measures = judge(subject, whole, Placing(seed=seed))
    for p in (0, 3, 4, 11):
        row = whole.cut(0, slice(p, p + 1), slice(0, p + 1))
        measures = joined(measures, judge(subject, row, Placing(seed=seed)))
    return measures


def _window_low_scores(score: float, subject: AttentionSubject, seed: int) -> Measures:
    """The first tiles hold no visible key, and every visible score is very negative: a finite
    stand-in for -inf would let hidden keys in."""
    spec = subject.spec({"window": (7, None)}, rows=3)
    n = max(200, 3 * spec.block_size)
    content = Content.random(spec, [3, 1], [n, n - 1], seed)
    q = tuple(torch.ones_like(x) for x in content.q)
    # The mean of the keys sets the score: sum over D of scale * k. Kept exact in 16 bits.
    base = score / (spec.scale * spec.head_dim)
    random = torch.Generator().manual_seed(seed)
    k = []
    for x in content.k:
        low = torch.full(x.shape, float(base))
        low[..., :4] *= 1 + torch.randn(x.shape[:2], generator=random)[..., None] * 2.0**-9
        k.append(low)
    content = dataclasses.replace(content, q=q).storing(k, [x.float() for x in content.v])
    return judge(subject, _loud_before_window(content, 7), Placing(seed=seed))


def _both_sides(
    window: tuple[int | None, int | None], subject: AttentionSubject, seed: int
) -> Measures:
    spec = subject.spec({"window": window, "mask": Mask.FULL}, rows=5)
    content = Content.random(spec, [5, 3, 1], [spec.block_size + 9, 3, 12], seed)
    right = window[1]
    if right is not None and right < 5:
        needs(content, dataclasses.replace(RULES, right_shift=1))
    return judge(subject, content, Placing(seed=seed))


def _tree(subject: AttentionSubject, seed: int) -> Measures:
    """Trees of 3, 9 and 20 rows (not multiples of 8 bits) after a prefix; one request without."""
    spec = subject.spec({"mask": Mask.TREE}, rows=20)
    lens = [3, 9, 4, 20]
    content = Content.random(spec, lens, [spec.block_size + 6, 9, 10, 37], seed)
    needs(content, dataclasses.replace(RULES, use_tree=False))
    return judge(subject, content, Placing(seed=seed))


def _tree_sibling(subject: AttentionSubject, seed: int) -> Measures:
    """Two drafts at one depth: neither sees the other. A row may also see a later column."""
    spec = subject.spec({"mask": Mask.TREE}, rows=3)
    content = Content.random(spec, [3, 3], [8, 3], seed)
    siblings = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]]).bool()
    forward = torch.tensor([[0, 1, 0], [1, 1, 0], [0, 0, 0]]).bool()
    content = counting(dataclasses.replace(content, trees=(siblings, forward)))
    return judge(subject, content, Placing(seed=seed))


def _tree_before_keys(subject: AttentionSubject, seed: int) -> Measures:
    """Trees of more rows than keys (a padded step): the columns before the first key have none, and
    the last column is always the last key. Beside them a plain causal request of that kind."""
    spec = subject.spec({"mask": Mask.TREE}, rows=5)
    content = Content.random(spec, [5, 4, 5, 3], [2, 0, 3, 3], seed)
    full = torch.ones(5, 5).bool().tril()
    trees = (full, torch.ones(4, 4).bool(), None, torch.ones(3, 3).bool())
    content = dataclasses.replace(content, trees=trees)
    measures = judge(subject, content, Placing(seed=seed))
    odd = torch.tensor([[0, 0, 0, 0, 1]] * 3 + [[1, 1, 1, 1, 0], [0, 0, 0, 0, 0]]).bool()
    content = dataclasses.replace(counting(content), trees=(odd, *trees[1:]))
    return joined(judge(subject, content, Placing(seed=seed)), measures)


def _tree_gaps(subject: AttentionSubject, seed: int) -> Measures:
    """tree_indptr says where a request's bits begin; bytes of nobody lie between them."""
    spec = subject.spec({"mask": Mask.TREE}, rows=9)
    content = Content.random(spec, [3, 9, 4, 5], [spec.block_size + 6, 9, 10, 21], seed)
    return judge(subject, content, Placing(seed=seed, tree_gap=3))


def _long_prefill(wanted: dict[str, Any], subject: AttentionSubject, seed: int) -> Measures:
    """Rows and keys for several tiles of any size, beside a request that begins within a tile."""
    spec = subject.spec(wanted, rows=300)
    content = Content.random(spec, [5, 300, 1], [9, 333, 40], seed)
    return judge(subject, content, Placing(seed=seed))


def _cases() -> list[Case]:
    def case(id: str, rule: str, judge_it: Any, *faults: str, core: bool = False) -> Case:
        return attention_case(id, rule, judge_it, faults=faults, core=core)

    cases = [
        case("causal/alignment", "causal", _alignment, "KH-29", core=True),
        case("causal/future-keys", "causal", _future, "KH-34", core=True),
    ]
    for rows in range(1, 7):  # 5 and 6 rows over 4 keys: the first rows see none
        judge_it = partial(_rows, [rows, 1], [4, 7], {})
        cases.append(case(f"causal/rows-{rows}-keys-4", "causal", judge_it, "KH-30", core=True))
    for chunk in (1, 3, 7, 16):
        judge_it = partial(_chunks, chunk, {})
        id = f"chunk/{chunk}"
        cases.append(case(id, "causal", judge_it, "KH-31", "KH-32", "KH-52", core=True))
    cases.append(
        case("chunk/window", "window", partial(_chunks, 5, {"window": (6, None)}), "KH-33")
    )
    empties: tuple[tuple[str, list[int], list[int], tuple[str, ...]], ...] = (
        ("middle", [15, 0, 15], [20, 10, 30], ("KH-10",)),
        ("first", [0, 4, 1], [6, 9, 3], ("KH-10",)),
        ("last", [4, 1, 0], [9, 3, 6], ("KH-10",)),
        ("all", [0, 0, 0], [4, 0, 17], ("KH-10",)),
        ("decode", [0, 1, 0, 1], [0, 3, 0, 5], ("KH-11",)),
        ("decode-hole", [1, 0, 1], [7, 4, 2], ("KH-11",)),
        ("no-keys-decode", [1, 1, 1], [0, 5, 0], ("KH-53",)),
        ("no-keys-mixed", [3, 1, 2], [0, 5, 1], ("KH-53",)),
        ("no-requests", [], [], ()),
    )
    for id, query_lens, seq_lens, faults in empties:
        empty = partial(_rows, query_lens, seq_lens, {}) if query_lens else _no_requests
        cases.append(case(f"empty/{id}", "empty-rows", empty, *faults, core=True))
    for left in ("0", "1", "3", "bs-1", "bs", "bs+1", "n-2", "n-1", "n", "max"):
        for phase in ("decode", "prefill"):
            judge_it = partial(_window, left, phase)
            cases.append(case(f"window/left-{left}/{phase}", "window", judge_it, "KH-34", "KH-36"))
    cases.append(case("window/phases-agree", "window", _window_phases, "KH-33"))
    for score in (-2000.0, -20000.0):
        judge_it = partial(_window_low_scores, score)
        cases.append(case(f"window/low-scores{score:.0f}", "window", judge_it, "KH-35"))
    full = partial(_rows, [5, 1, 3], [9, 20, 3], {"mask": Mask.FULL})
    cases.append(case("full/mixed", "full-mask", full))
    for window in ((None, 0), (None, 2), (3, 2), (0, 0), (4, None), (HUGE, HUGE)):
        name = "-".join("max" if w == HUGE else str(w).lower() for w in window)
        cases.append(case(f"full/window-{name}", "window", partial(_both_sides, window)))
    short = partial(_rows, [6, 3], [2, 0], {"mask": Mask.FULL})
    cases.append(case("full/more-rows-than-keys", "full-mask", short))
    cases.append(case("tree/random", "tree", _tree))
    cases.append(case("tree/siblings", "tree", _tree_sibling))
    cases.append(case("tree/more-rows-than-keys", "tree", _tree_before_keys))
    cases.append(case("tree/gaps", "tree", _tree_gaps))
    for id, wanted in (("plain", {}), ("window", {"window": (70, None)})):
        judge_it = partial(_long_prefill, wanted)
        faults = ("KH-31",)
        cases.append(case(f"chunk/300-rows/{id}", "causal", judge_it, *faults, core=id == "plain"))
    return cases


def _no_requests(subject: AttentionSubject, seed: int) -> Measures:
    return judge(subject, Content.random(subject.spec(), [], [], seed), Placing(seed=seed))


CASES = _cases()
