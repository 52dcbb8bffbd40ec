"""Softcap, sinks, ALiBi, scale and LSE. Each case asserts that its inputs show an ignored option,
so that the option changes the output or is refused."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any

import torch

from pagedattn.conformance.attention.basics import PHASES, lengths, rows_of
from pagedattn.conformance.attention.build import attention_case
from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.judge import Measures, compare, judge, needs, produce
from pagedattn.conformance.attention.oracle import RULES, Rules
from pagedattn.conformance.attention.placing import Placing
from pagedattn.conformance.attention.subject import AttentionSubject
from pagedattn.conformance.case import Case, CaseFailure
from pagedattn.spec import Mask

__all__ = ["CASES"]


def _option(
    wanted: dict[str, Any],
    ignored: Rules,
    phase: str,
    spread: float,
    subject: AttentionSubject,
    seed: int,
) -> Measures:
    """`ignored`: the rules of a backend that drops the option."""
    spec = subject.spec(wanted, rows=rows_of(phase))
    content = Content.random(spec, *lengths(phase, spec.block_size), seed, spread=spread)
    needs(content, ignored)
    return judge(subject, content, Placing(seed=seed))


def _cap_before_mask(subject: AttentionSubject, seed: int) -> Measures:
    """A small cap and huge values at hidden keys: a cap after the mask would let them in."""
    spec = subject.spec({"softcap": 1.0}, rows=8)
    content = Content.random(spec, [8, 1], [8, 9], seed)
    v = [x.float().clone() for x in content.v]
    v[0][1:] *= 100.0
    content = content.storing([x.float() for x in content.k], v)
    needs(content, dataclasses.replace(RULES, cap_masked=True))
    return judge(subject, content, Placing(seed=seed))


def _sink_form(subject: AttentionSubject, seed: int) -> Measures:
    """Queries 0, values 1: out = n / (n + e^sink)."""
    spec = subject.spec({"sinks": True})
    n = 40
    content = Content.random(spec, [1, 1, 1], [n, 1, 0], seed)
    q = tuple(torch.zeros_like(x) for x in content.q)
    v = [torch.ones(x.shape) for x in content.v]
    sinks = torch.linspace(-2, 6, spec.num_heads)
    content = dataclasses.replace(content, q=q, sinks=sinks)
    content = content.storing([x.float() for x in content.k], v)
    produced = produce(subject, content, Placing(seed=seed))
    expected = n / (n + sinks.double().exp())
    got = produced.out[0][0, :, 0].double()
    if not torch.allclose(got, expected, rtol=0.02):
        raise CaseFailure(
            f"with equal scores out = n / (n + e^sink) = {_few(expected)} for n = {n}, "
            f"got {_few(got)}"
        )
    return compare(content, produced)


def _sink_split(keys: int, subject: AttentionSubject, seed: int) -> Measures:
    """Long enough to be split; a window leaves the first splits empty where it is served."""
    wanted: dict[str, Any] = {"sinks": True}
    windowed = subject.spec({**wanted, "window": (31, None)})
    if not subject.refusals(windowed):
        wanted["window"] = (31, None)
    spec = subject.spec(wanted)
    content = Content.random(spec, [1, 1], [keys, 3], seed)
    sinks = torch.tensor([0.0, 4.0, -3.0, 8.0])
    sinks = sinks.repeat(-(-spec.num_heads // 4))[: spec.num_heads].contiguous()
    content = dataclasses.replace(content, sinks=sinks)
    needs(content, dataclasses.replace(RULES, sinks=2))
    return judge(subject, content, Placing(seed=seed))


def _no_sink(subject: AttentionSubject, seed: int) -> Measures:
    """A sink of -inf is no sink."""
    spec = subject.spec({"sinks": True})
    content = Content.random(spec, [1, 1], [20, 0], seed)
    sinks = torch.full((spec.num_heads,), float("-inf"))
    return judge(subject, dataclasses.replace(content, sinks=sinks), Placing(seed=seed))


def _lse(phase: str, wanted: dict[str, Any], subject: AttentionSubject, seed: int) -> Measures:
    rows = rows_of(phase)
    spec = subject.spec({"return_lse": True, **wanted}, rows=rows)
    query_lens, seq_lens = lengths(phase, spec.block_size)
    # A row without keys: lse is -inf, or the sink.
    content = Content.random(spec, [*query_lens, 1], [*seq_lens, 0], seed)
    needs(content, dataclasses.replace(RULES, lse_base=2.0))
    return judge(subject, content, Placing(seed=seed))


def _lse_base(subject: AttentionSubject, seed: int) -> Measures:
    """Queries 0 over 64 keys: ln 64 = 4.1589 (6 in base 2)."""
    spec = subject.spec({"return_lse": True})
    content = Content.random(spec, [1, 1], [64, 1], seed)
    content = dataclasses.replace(content, q=tuple(torch.zeros_like(x) for x in content.q))
    produced = produce(subject, content, Placing(seed=seed))
    assert produced.lse is not None
    got = float(produced.lse[0][0, 0])
    if not abs(got - math.log(64)) < 1e-4:
        hint = "; that is base 2" if abs(got - 6) < 1e-4 else ""
        raise CaseFailure(f"64 equal scores of 0 have lse ln 64 = 4.158883, got {got:.6f}{hint}")
    return compare(content, produced)


def _scale(scale: float, subject: AttentionSubject, seed: int) -> Measures:
    spec = subject.spec({"scale": scale})
    content = Content.random(spec, *lengths("decode", spec.block_size), seed)
    if scale != 1.0:
        needs(content, dataclasses.replace(RULES, use_scale=False))
    return judge(subject, content, Placing(seed=seed))


def _everything(phase: str, subject: AttentionSubject, seed: int) -> Measures:
    """All options that go together, at once."""
    spec = subject.spec(
        {"softcap": 3.0, "sinks": True, "window": (9, None), "return_lse": True},
        rows=rows_of(phase),
    )
    content = Content.random(spec, *lengths(phase, spec.block_size), seed, spread=3.0)
    return judge(subject, content, Placing(seed=seed))


def _alibi_full(subject: AttentionSubject, seed: int) -> Measures:
    """Not causal: the bias is -slope * |j - p|."""
    spec = subject.spec({"alibi": True, "mask": Mask.FULL}, rows=4)
    content = Content.random(spec, [4, 1], [30, 5], seed)
    needs(content, dataclasses.replace(RULES, use_alibi=False))
    return judge(subject, content, Placing(seed=seed))


def _alibi_origin(subject: AttentionSubject, seed: int) -> Measures:
    """The LSE shows the origin of the bias, which the output alone does not."""
    spec = subject.spec({"alibi": True, "return_lse": True}, rows=5)
    content = Content.random(spec, [1, 5], [40, 23], seed)
    needs(content, dataclasses.replace(RULES, alibi_from_row=False))
    return judge(subject, content, Placing(seed=seed))


def _few(x: torch.Tensor) -> str:
    return "[" + ", ".join(f"{v:.3g}" for v in x[:6].tolist()) + ("]" if len(x) <= 6 else ", ...]")


def _cases() -> list[Case]:
    cases = []
    rules: tuple[tuple[str, str, dict[str, Any], Rules, float, tuple[str, ...]], ...] = (
        (
            "softcap/2",
            "softcap",
            {"softcap": 2.0},
            dataclasses.replace(RULES, use_softcap=False),
            6.0,
            ("KH-38",),
        ),
        (
            "softcap/30",
            "softcap",
            {"softcap": 30.0},
            dataclasses.replace(RULES, use_softcap=False),
            30.0,
            ("KH-38",),
        ),
        (
            "sinks/normal",
            "sinks",
            {"sinks": True},
            dataclasses.replace(RULES, sinks=0),
            1.0,
            ("KH-38",),
        ),
        (
            "alibi/slopes",
            "alibi",
            {"alibi": True},
            dataclasses.replace(RULES, use_alibi=False),
            1.0,
            ("KH-38", "KH-41"),
        ),
        (
            "alibi/sign",
            "alibi",
            {"alibi": True},
            dataclasses.replace(RULES, alibi_sign=-1),
            1.0,
            ("KH-41",),
        ),
    )
    for id, rule, wanted, ignored, spread, faults in rules:
        for phase in PHASES:
            judge_it = partial(_option, wanted, ignored, phase, spread)
            cases.append(attention_case(f"{id}/{phase}", rule, judge_it, faults=faults))
    cases.append(
        attention_case("softcap/before-mask", "score-order", _cap_before_mask, faults=("KH-37",))
    )
    cases.append(attention_case("sinks/closed-form", "sinks", _sink_form, faults=("KH-40",)))
    for keys in (100, 700):
        judge_it = partial(_sink_split, keys)
        cases.append(attention_case(f"sinks/split-{keys}", "sinks", judge_it, faults=("KH-39",)))
    cases.append(attention_case("sinks/minus-inf", "sinks", _no_sink))
    cases.append(attention_case("alibi/full", "alibi", _alibi_full))
    cases.append(attention_case("alibi/origin", "alibi", _alibi_origin, faults=("KH-41",)))
    for phase in PHASES:
        cases.append(
            attention_case(f"lse/{phase}", "lse", partial(_lse, phase, {}), faults=("KH-43",))
        )
    for name, wanted in (
        ("sinks", {"sinks": True}),
        ("softcap", {"softcap": 2.0}),
        ("window", {"window": (5, None)}),
        ("alibi", {"alibi": True}),
    ):
        judge_it = partial(_lse, "mixed", wanted)
        cases.append(attention_case(f"lse/{name}", "lse", judge_it, faults=("KH-43",)))
    cases.append(attention_case("lse/natural", "lse", _lse_base, faults=("KH-43",)))
    for scale in (1.0, 0.5, 0.01):
        judge_it = partial(_scale, scale)
        cases.append(
            attention_case(
                f"scale/{scale:g}", "score-order", judge_it, faults=("KH-38",), core=True
            )
        )
    for phase in PHASES:
        cases.append(
            attention_case(f"combined/{phase}", "score-order", partial(_everything, phase))
        )
    return cases


CASES = _cases()
