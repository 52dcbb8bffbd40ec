"""Arguments of run() that do not fit the spec: refused by name, before anything is launched."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from pagedattn.conformance.attention.build import attention_case
from pagedattn.conformance.attention.execute import execute
from pagedattn.conformance.attention.judge import Measures, compare
from pagedattn.conformance.attention.planning import opened
from pagedattn.conformance.attention.subject import AttentionSubject
from pagedattn.conformance.case import Case, CaseFailure
from pagedattn.errors import InvalidTensor

__all__ = ["CASES"]


def _argument(name: str, subject: AttentionSubject, seed: int) -> Measures:
    """A wrong argument of run() raises InvalidTensor naming it, before anything is launched."""
    op, step = opened(subject, seed)
    plan = op.plan(step.batch)
    tokens = step.batch.num_tokens
    arguments: dict[str, Any] = {
        "q": step.q, "out": step.out, "lse": None, "sinks": None, "alibi_slopes": None,
    }  # fmt: skip
    heads, other = step.spec.num_heads, torch.float64
    wrong: dict[str, dict[str, Any]] = {
        "q-dtype": {"q": step.q.to(other)},
        "q-shape": {"q": step.q.flatten(1)},
        "q-rows": {"q": step.q[: tokens - 1]},
        "q-stride": {"q": step.q.transpose(1, 2).contiguous().transpose(1, 2)},
        "out-dtype": {"out": step.out.to(other)},
        "out-rows": {"out": step.out[: tokens - 1]},
        "out-is-q": {"out": step.q},
        "out-expanded": {"out": step.out[:1].expand(tokens, -1, -1)},
        "lse-unasked": {"lse": torch.empty(tokens, heads, device=subject.device)},
        "sinks-unasked": {"sinks": torch.zeros(heads, device=subject.device)},
        "alibi_slopes-unasked": {"alibi_slopes": torch.zeros(heads, device=subject.device)},
    }
    at_fault = name.split("-")[0]
    arguments.update(wrong[name])
    try:
        op.run(arguments.pop("q"), step.cache, plan, **arguments)
    except InvalidTensor as error:
        if error.name != at_fault:
            raise CaseFailure(
                f"the fault is in {at_fault}, the error names {error.name}"
            ) from error
    else:
        raise CaseFailure(f"run() accepts a wrong {at_fault} ({name})")
    if not bool(step.out[:tokens].isnan().all()):
        raise CaseFailure("out was written although run() refused its arguments")
    return compare(step.content, execute(op, step, plan))


def _cases() -> list[Case]:
    cases = []
    for name in (
        "q-dtype", "q-shape", "q-rows", "q-stride", "out-dtype", "out-rows", "out-is-q",
        "out-expanded", "lse-unasked", "sinks-unasked", "alibi_slopes-unasked",
    ):  # fmt: skip
        judge_it = partial(_argument, name)
        cases.append(attention_case(f"arguments/{name}", "arguments", judge_it, core=True))
    return cases


CASES = _cases()
