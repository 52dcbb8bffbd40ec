"""torch.set_default_device changes where tensors are made that do not say so: none of an op's."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from pagedattn.conformance.attention.basics import lengths, rows_of
from pagedattn.conformance.attention.build import attention_case
from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.execute import execute
from pagedattn.conformance.attention.judge import Measures, compare, joined
from pagedattn.conformance.attention.place import place
from pagedattn.conformance.attention.placing import Placing
from pagedattn.conformance.attention.subject import AttentionSubject
from pagedattn.conformance.case import Case

__all__ = ["CASES"]


def _elsewhere(
    phase: str, wanted: dict[str, Any], subject: AttentionSubject, seed: int
) -> Measures:
    """Open, plan, write and run while the default device is one without memory. The step's last
    keys are written again by the op itself, to their own slots."""
    spec = subject.spec(wanted, rows=rows_of(phase))
    content = Content.random(spec, *lengths(phase, spec.block_size), seed)
    step = place(content, subject.device, Placing(seed=seed))
    starts = [max(0, n - m) for n, m in zip(content.seq_lens, content.query_lens, strict=True)]
    k, v = (
        torch.cat([x[s:] for x, s in zip(stored, starts, strict=True)]).to(subject.device)
        for stored in (content.k, content.v)
    )
    slots = step.batch.slot_mapping
    assert slots is not None
    slots = slots[slots >= 0]
    with torch.device("meta"):
        op = subject.open(spec, step.limits)
        op.write(k[: len(slots)], None if spec.shared_kv else v[: len(slots)], step.cache, slots)
        plan = op.plan(step.batch)
        first = execute(op, step, plan)
        op.plan(step.batch, into=plan)
        second = execute(op, step, plan)
    return joined(compare(content, first), compare(content, second))


def _cases() -> list[Case]:
    cases = []
    for phase in ("decode", "mixed"):
        for name, wanted in (
            ("plain", {}),
            ("lse", {"return_lse": True}),
            ("batch-invariant", {"batch_invariant": True}),
        ):
            judge_it = partial(_elsewhere, phase, wanted)
            id, core = f"launch/default-device/{name}/{phase}", name == "plain"
            cases.append(attention_case(id, "plan", judge_it, core=core))
    return cases


CASES = _cases()
