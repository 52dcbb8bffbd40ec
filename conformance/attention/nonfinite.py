"""NaN and infinities in what a request owns: seen where they belong, and nowhere else.

A broken layer makes NaN; a backend that turns it into a number hides the fault, and one that lets
it reach other requests of the batch spoils all of them. Each case spoils one element, says where
the result must be NaN and where it may be, and compares everything else with the truth of the
unspoilt step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pagedattn.conformance.attention.build import attention_case
from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.execute import Produced, execute
from pagedattn.conformance.attention.judge import Measures, compare, joined, produce
from pagedattn.conformance.attention.oracle import truth, visible
from pagedattn.conformance.attention.place import place
from pagedattn.conformance.attention.placing import Placing
from pagedattn.conformance.attention.subject import AttentionSubject
from pagedattn.conformance.case import Case, CaseFailure
from pagedattn.spec import KVQuant, Mask

__all__ = ["CASES"]

NAN = float("nan")


@dataclass(frozen=True, eq=False)
class Spoilt:
    """A step, the same with a bad element, and what that does to request `request`.

    must, may          bool [Tq, Hq, Dv], where out is NaN or may be
    must_lse, may_lse  bool [Tq, Hq]
    """

    clean: Content
    content: Content
    request: int
    must: Tensor
    may: Tensor
    must_lse: Tensor
    may_lse: Tensor

    def judge(self, produced: Produced) -> Measures:
        """Raises CaseFailure where a NaN is missing, or something else is spoilt."""
        true = truth(self.clean)
        out = list(produced.out)
        out[self.request] = self._rest("out", out[self.request], true.out[self.request])
        lse = None if produced.lse is None else list(produced.lse)
        if lse is not None:
            lse[self.request] = self._rest("lse", lse[self.request], true.lse[self.request])
        try:
            return compare(self.clean, Produced(out, lse))
        except CaseFailure as failure:
            raise CaseFailure(f"beside a NaN of request {self.request}: {failure}") from failure

    def _rest(self, name: str, got: Tensor, true: Tensor) -> Tensor:
        """`got` with the truth where it may be NaN or anything."""
        must = self.must if name == "out" else self.must_lse
        may = self.may if name == "out" else self.may_lse
        if bool((must & ~got.isnan()).any()):
            where = [int(i) for i in (must & ~got.isnan()).nonzero()[0]]
            raise CaseFailure(
                f"{name} of request {self.request} hides a NaN: at [row, head, dim] {where} it is "
                f"{got[tuple(where)].item():.7g}; a NaN in its q, or in a key or value that it "
                "sees, must reach it (a maximum that skips NaN, or a sum that is taken for empty?)"
            )
        if name == "out" or not bool(may.any()):
            return torch.where(must | (may & got.isnan()), true.to(got.dtype), got)
        return torch.where(must | may, true.to(got.dtype), got)


def _step(wanted: dict[str, Any], subject: AttentionSubject, seed: int) -> Content:
    """Decode and longer rows, before and behind the request that is spoilt, which is number 1."""
    spec = subject.spec(wanted, rows=6)
    if spec.max_query_len == 1:
        return Content.random(spec, [1, 1, 1, 1], [7, spec.block_size + 5, 3, 20], seed)
    return Content.random(spec, [1, 5, 1, 6], [7, spec.block_size + 5, 3, 20], seed)


def _with(x: Tensor, index: tuple[int, ...], value: float) -> Tensor:
    x = x.clone()
    x[index] = value
    return x


def _of_group(content: Content, kv_head: int) -> Tensor:
    """bool [Hq]"""
    return torch.arange(content.spec.num_heads) // content.spec.group_size == kv_head


def bad_q(content: Content, request: int, value: float = NAN) -> Spoilt:
    """One element of the second last head of the middle row."""
    spec = content.spec
    row, head = len(content.q[request]) // 2, max(0, spec.num_heads - 2)
    q = list(content.q)
    q[request] = _with(q[request], (row, head, spec.head_dim // 3), value)
    lse = torch.zeros(len(q[request]), spec.num_heads, dtype=torch.bool)
    lse[row, head] = True
    out = lse[..., None].expand(-1, -1, spec.head_dim_v)
    spoilt = dataclasses.replace(content, q=tuple(q))
    return Spoilt(content, spoilt, request, out, out, lse, lse)


def bad_k(content: Content, request: int, key: int, value: float = NAN) -> Spoilt:
    """One element of a key of the last kv head. Rows that do not see the key share a tile with
    rows that do, and may be NaN too."""
    spec = content.spec
    head = spec.num_kv_heads - 1
    k, v = list(content.k), list(content.v)
    k[request] = _with(k[request], (key, head, spec.head_dim_v // 3), value)
    if spec.shared_kv:
        v[request] = k[request][..., : spec.head_dim_v]
    mine = _of_group(content, head)[None, :]
    sees = visible(content, request)[:, key, None] & mine
    lse, some = sees, mine.expand_as(sees)
    out, any_dim = (x[..., None].expand(-1, -1, spec.head_dim_v) for x in (sees, some))
    spoilt = dataclasses.replace(content, k=tuple(k), v=tuple(v))
    return Spoilt(content, spoilt, request, out, any_dim, lse, some)


def bad_v(content: Content, request: int, key: int, value: float = NAN) -> Spoilt:
    """One element of a value of kv head 0: its column alone, and the LSE has no part in it."""
    spec = content.spec
    column = spec.head_dim_v // 3
    v = list(content.v)
    v[request] = _with(v[request], (key, 0, column), value)
    of_column = torch.arange(spec.head_dim_v) == column
    mine = _of_group(content, 0)[None, :]
    sees = visible(content, request)[:, key, None] & mine
    must, may = (x[..., None] & of_column for x in (sees, mine.expand_as(sees)))
    spoilt = dataclasses.replace(content, v=tuple(v))
    return Spoilt(content, spoilt, request, must, may, torch.zeros_like(sees), may.any(-1))


Spoil = Callable[[Content], Spoilt]


def _spoil_k(content: Content, ahead: int = 3) -> Spoilt:
    """A key that the last rows of the request see and the first do not."""
    return bad_k(content, 1, len(content.k[1]) - ahead)


def _spoil_v(content: Content) -> Spoilt:
    return bad_v(content, 1, len(content.k[1]) - 3)


def _nan(spoil: Spoil, wanted: dict[str, Any], subject: AttentionSubject, seed: int) -> Measures:
    spoilt = spoil(_step(wanted, subject, seed))
    return spoilt.judge(produce(subject, spoilt.content, Placing(seed=seed)))


def _split(at: float, wanted: dict[str, Any], subject: AttentionSubject, seed: int) -> Measures:
    """A long request whose keys are shared out, beside others that are too: a share with a NaN is
    no empty one. The same op is right again in the next step."""
    spec = subject.spec(wanted)
    clean = Content.random(spec, [1, 1, 1], [1030, 1100, 260], seed)
    spoilt = bad_k(clean, 1, int(1099 * at))
    steps = [place(c, subject.device, Placing(seed=seed)) for c in (spoilt.content, clean)]
    op = subject.open(spec, steps[0].limits)
    measures = spoilt.judge(execute(op, steps[0]))
    try:
        return joined(compare(clean, execute(op, steps[1])), measures)
    except CaseFailure as failure:
        raise CaseFailure(f"in the step after one with a NaN: {failure}") from failure


def _contained(value: float, subject: AttentionSubject, seed: int) -> Measures:
    """Infinities: what they give is theirs alone."""
    content = _step({}, subject, seed)
    measures: Measures = {}
    key = len(content.k[1]) - 3
    for spoilt in (
        bad_q(content, 1, value),
        bad_k(content, 1, key, value),
        bad_v(content, 1, key, value),
    ):
        produced = produce(subject, spoilt.content, Placing(seed=seed))
        out = list(produced.out)
        out[1] = torch.where(spoilt.may, truth(content).out[1].to(out[1].dtype), out[1])
        measures = joined(compare(content, Produced(out, None)), measures)
    return measures


def _some_float8(subject: AttentionSubject) -> dict[str, Any]:
    """An 8-bit cache that can hold NaN."""
    types = (torch.float8_e4m3fn, torch.float8_e5m2)
    kinds = (KVQuant.PER_TENSOR, KVQuant.PER_HEAD)
    choices = [{"kv_dtype": t, "kv_quant": kind} for t in types for kind in kinds]
    served = (c for c in choices if not subject.refusals(subject.spec(c)))
    return next(served, choices[0])


def _float8(subject: AttentionSubject, seed: int) -> Measures:
    return _nan(_spoil_k, _some_float8(subject), subject, seed)


def _cases() -> list[Case]:
    cases = []

    def add(id: str, judge_it: Any, *, core: bool = False) -> None:
        cases.append(attention_case(f"nan/{id}", "non-finite", judge_it, core=core))

    spoils: dict[str, Spoil] = {"q": lambda c: bad_q(c, 1), "k": _spoil_k, "v": _spoil_v}
    for name, spoil in spoils.items():
        add(name, partial(_nan, spoil, {}), core=True)
        for option, wanted in (
            ("lse", {"return_lse": True}),
            ("bfloat16", {"dtype": torch.bfloat16}),
            ("float16", {"dtype": torch.float16}),
            ("softcap", {"softcap": 20.0}),
            ("softcap-bfloat16", {"softcap": 20.0, "dtype": torch.bfloat16}),
            ("sinks", {"sinks": True}),
            ("alibi", {"alibi": True}),
            ("window", {"window": (9, None)}),
            ("full", {"mask": Mask.FULL}),
            ("tree", {"mask": Mask.TREE}),
            ("batch-invariant", {"batch_invariant": True}),
        ):
            if option in ("tree", "full") and name == "q":
                continue  # which keys are seen says nothing of q
            add(f"{name}/{option}", partial(_nan, spoil, wanted))
    add("k/every-key-seen", partial(_nan, partial(_spoil_k, ahead=9), {}))
    add("k/fp8", _float8)
    mla = {
        "num_heads": 16, "num_kv_heads": 1, "head_dim": 192, "head_dim_v": 128, "shared_kv": True
    }  # fmt: skip
    add("k/mla", partial(_nan, _spoil_k, mla))
    for name, at in (("first", 0.0), ("middle", 0.5), ("last", 1.0)):
        add(f"split/{name}", partial(_split, at, {}), core=name == "middle")
    add("split/lse", partial(_split, 0.3, {"return_lse": True}))
    add("split/sinks", partial(_split, 0.6, {"sinks": True}))
    add("split/batch-invariant", partial(_split, 0.5, {"batch_invariant": True}))
    add("plus-inf", partial(_contained, float("inf")), core=True)
    add("minus-inf", partial(_contained, float("-inf")), core=True)
    return cases


CASES = _cases()
