"""What a backend says about itself: capabilities, refusals, tuning, workspace."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import torch

from pagedattn.capabilities import Capabilities, check
from pagedattn.conformance.attention.basics import lengths
from pagedattn.conformance.attention.build import attention_case
from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.execute import execute
from pagedattn.conformance.attention.judge import Measures, compare, joined, judge
from pagedattn.conformance.attention.place import place
from pagedattn.conformance.attention.placing import Placing
from pagedattn.conformance.attention.subject import AttentionSubject
from pagedattn.conformance.case import Case, CaseFailure, Declined
from pagedattn.device import DeviceInfo
from pagedattn.errors import Refusal, Unsupported
from pagedattn.spec import KVQuant, Layout, Limits, Mask

__all__ = ["CASES"]

LIMITS = Limits(4, 16, 256, 64)

PROBES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("dtype", {"dtype": torch.float64}),
    ("head_dim", {"head_dim": 24}),
    ("block_size", {"block_size": 11}),
    ("group_size", {"group_size": 13}),
    ("layout", {"layout": Layout.HND}),
    ("mask", {"mask": Mask.FULL}),
    ("window", {"window": (4, None)}),
    ("softcap", {"softcap": 2.0}),
    ("sinks", {"sinks": True}),
    ("alibi", {"alibi": True}),
    ("return_lse", {"return_lse": True}),
    ("kv_quant", {"kv_dtype": torch.int8, "kv_quant": KVQuant.PER_HEAD}),
    ("out_dtype", {"out_dtype": torch.float64}),
    ("head_dim_v", {"head_dim_v": 40}),
    ("batch_invariant", {"batch_invariant": True}),
    ("async_lengths", {"async_lengths": True}),
)

ALSO = {"kv_quant": ("kv_dtype",), "group_size": ("num_heads", "num_kv_heads")}
"""Other rows that may stand for the same refusal."""


def _probe(code: str, wanted: dict[str, Any], subject: AttentionSubject, seed: int) -> Measures:
    """check() and open() say the same, twice, and a refusal names what was asked; what is claimed
    is computed right."""
    spec = subject.spec(wanted)
    for _ in range(2):
        try:
            subject.open(spec, LIMITS)
        except Declined as declined:
            _well_formed(subject, declined.refusals)
            if not {code, *ALSO.get(code, ())} & {r.code for r in declined.refusals}:
                raise CaseFailure(
                    f"asked for {code}={wanted.get(code, wanted)}, refused for "
                    f"other reasons only: {declined}"
                ) from declined
            again = subject.refusals(spec)
            if again != declined.refusals:
                raise CaseFailure(
                    f"check() changed its mind: {declined.refusals}, then {again}"
                ) from None
            raise
    content = Content.random(spec, *lengths("decode", spec.block_size), seed)
    return judge(subject, content, Placing(seed=seed))


def _well_formed(subject: AttentionSubject, refusals: tuple[Refusal, ...]) -> None:
    for refusal in refusals:
        family = refusal.backend.partition(":")[0]  # a family refuses with its variants' reasons
        if subject.backend.name not in (refusal.backend, family) or not refusal.code:
            raise CaseFailure(f"a refusal must name its backend and a code: {refusal!r}")
        if not (refusal.supported or refusal.hint):
            raise CaseFailure(f"a refusal must say what is supported or what to do: {refusal!r}")


def _combination(wanted: dict[str, Any], code: str, subject: AttentionSubject, seed: int) -> None:
    """Combinations that the contract refuses for everybody."""
    spec = subject.spec(wanted)
    try:
        subject.open(spec, LIMITS)
    except Declined as declined:
        if code not in {r.code for r in declined.refusals}:
            raise CaseFailure(f"{code} must be refused with that code: {declined}") from declined
    else:
        raise CaseFailure(f"{code} has no agreed meaning and must be refused")


def _stable(subject: AttentionSubject, seed: int) -> None:
    """capabilities() is a value: equal when asked twice, of the declared types."""
    first, second = (subject.backend.capabilities(subject.info) for _ in range(2))
    if not isinstance(first, Capabilities):
        raise CaseFailure(f"capabilities() returned {type(first).__name__}")
    for field in dataclasses.fields(Capabilities):
        if getattr(first, field.name) != getattr(second, field.name):
            raise CaseFailure(f"capabilities().{field.name} differs between two calls")


def _made_up(subject: AttentionSubject, seed: int) -> None:
    """`explain --device sm90` needs no GPU: a made-up device is answered, not probed."""
    spec = subject.spec()
    for device in (DeviceInfo.of("sm90"), DeviceInfo.of("sm80"), DeviceInfo("cpu")):
        _well_formed(subject, check(subject.backend, spec, device))


def _other_device(subject: AttentionSubject, seed: int) -> None:
    """A device type that the backend does not list is refused by open(), not tried."""
    if "meta" in subject.capabilities.device:
        raise CaseFailure("capabilities() lists the meta device, which computes nothing")
    try:
        subject.backend.open(subject.spec(), LIMITS, device="meta")
    except Unsupported as error:
        if "device" not in {r.code for r in error.refusals}:
            raise CaseFailure(
                f"open() on an unlisted device must refuse with code device: {error}"
            ) from error
    else:
        raise CaseFailure("open() accepts a device that capabilities() does not list")


def _decode_alone(subject: AttentionSubject, seed: int) -> Measures:
    """max_query_len=1 asks for less and is always served."""
    spec = subject.spec({"max_query_len": 1})
    content = Content.random(spec, *lengths("decode", spec.block_size), seed)
    return judge(subject, content, Placing(seed=seed))


def _tuning(subject: AttentionSubject, seed: int) -> Measures:
    """Every value that tunables() offers gives a right answer; an unknown knob is a ValueError."""
    spec = subject.spec()
    content = Content.random(spec, *lengths("decode", spec.block_size), seed)
    step = place(content, subject.device, Placing(seed=seed))
    measures = compare(content, execute(subject.open(spec, step.limits), step))
    backend = subject.backend
    try:
        backend.open(spec, step.limits, device=subject.device, tuning={"no such knob": 1})
    except ValueError:
        pass
    else:
        raise CaseFailure("open() accepts an unknown tuning knob in silence")
    for knob, values in backend.tunables(spec, subject.info).items():
        for value in values:
            op = backend.open(spec, step.limits, device=subject.device, tuning={knob: value})
            fresh = place(content, subject.device, Placing(seed=seed))
            try:
                measures = joined(measures, compare(content, execute(op, fresh)))
            except CaseFailure as failure:
                raise CaseFailure(f"with tuning {knob}={value}: {failure}") from failure
    return measures


def _workspace(subject: AttentionSubject, seed: int) -> Measures:
    """The scratch may hold anything (here NaN), is not overrun, and does not grow with requests
    times length."""
    spec = subject.spec()
    content = Content.random(spec, *lengths("decode", spec.block_size), seed)
    step = place(content, subject.device, Placing(seed=seed))
    subject.open(spec, step.limits)
    backend = subject.backend
    needed = backend.workspace_bytes(spec, step.limits, subject.info)
    guard = 256
    memory = torch.full((needed + 2 * guard,), 255, dtype=torch.uint8, device=subject.device)
    op = backend.open(
        spec, step.limits, device=subject.device, workspace=memory[guard : guard + needed]
    )
    measures = compare(content, execute(op, step))
    around = torch.cat((memory[:guard], memory[guard + needed :]))
    if bool((around != 255).any()):
        raise CaseFailure(f"memory around the workspace of {needed} bytes was written")

    def size(requests: int, keys: int) -> int:
        blocks = requests * (keys // spec.block_size + 1)
        return backend.workspace_bytes(spec, Limits(requests, requests, keys, blocks), subject.info)

    both, apart = size(64, 2**16), size(64, 2**10) + size(1, 2**16)
    if both > 4 * apart:
        raise CaseFailure(
            f"the workspace grows with max_requests*max_seq_len: {both} bytes for 64 requests of "
            f"65536 keys, {apart} for 64 short ones and a long one"
        )
    return measures


def _cases() -> list[Case]:
    cases = [
        attention_case(
            f"honesty/{code.replace('_', '-')}", "refusals", partial(_probe, code, wanted)
        )
        for code, wanted in PROBES
    ]
    combinations: tuple[tuple[str, dict[str, Any]], ...] = (
        ("softcap+alibi", {"softcap": 2.0, "alibi": True}),
        ("tree+window", {"mask": Mask.TREE, "window": (4, None)}),
        ("tree+alibi", {"mask": Mask.TREE, "alibi": True}),
    )
    for code, wanted in combinations:
        judge_it = partial(_combination, wanted, code)
        cases.append(attention_case(f"honesty/{code}", "refusals", judge_it, core=True))
    for id, rule, judge_core in (
        ("honesty/stable", "refusals", _stable),
        ("honesty/made-up-device", "refusals", _made_up),
        ("honesty/other-device", "refusals", _other_device),
        ("honesty/decode-alone", "required-core", _decode_alone),
        ("honesty/tuning", "arguments", _tuning),
        ("honesty/workspace", "arguments", _workspace),
    ):
        cases.append(attention_case(id, rule, judge_core, core=True))
    return cases


CASES = _cases()
