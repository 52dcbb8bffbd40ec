"""Judging one step: open, place, run, compare with the truth."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pagedattn.conformance.attention.budget import budget, dtype_label
from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.diagnose import guess
from pagedattn.conformance.attention.execute import Produced, equal_bytes, execute, snapshot
from pagedattn.conformance.attention.oracle import Rules, truth, visible
from pagedattn.conformance.attention.place import place
from pagedattn.conformance.attention.placing import Placing
from pagedattn.conformance.attention.remedies import remedy
from pagedattn.conformance.attention.shrink import smallest
from pagedattn.conformance.attention.subject import AttentionSubject
from pagedattn.conformance.case import CaseFailure
from pagedattn.conformance.settings import current
from pagedattn.errors import InvalidTensor

__all__ = [
    "Measures",
    "compare",
    "joined",
    "judge",
    "judge_memory",
    "needs",
    "produce",
    "shrinking",
]

Measures = dict[str, Any]
LOOKS_LIKE = "looks like this: "


def produce(
    subject: AttentionSubject, content: Content, placing: Placing | None = None
) -> Produced:
    """Place a step, open the backend for it and run it, guards checked."""
    step = place(content, subject.device, placing)
    return execute(subject.open(step.spec, step.limits), step)


def judge(subject: AttentionSubject, content: Content, placing: Placing | None = None) -> Measures:
    """produce() and compare() with the truth. When the run asks for it, a failure is that of the
    smallest step found that fails too."""
    with shrinking(subject, content, placing):
        return compare(content, produce(subject, content, placing))


@contextlib.contextmanager
def shrinking(
    subject: AttentionSubject, content: Content, placing: Placing | None
) -> Iterator[None]:
    """A failure inside becomes that of the smallest step found that fails too, in memory of the
    same kind; when the run asks for it."""
    try:
        yield
    except CaseFailure as failure:
        if not current().shrink:
            raise
        raise _of_smallest(subject, content, placing, failure) from failure


def _of_smallest(
    subject: AttentionSubject, content: Content, placing: Placing | None, failure: CaseFailure
) -> CaseFailure:
    last = failure

    def fails(smaller: Content) -> bool:
        nonlocal last
        try:
            compare(smaller, produce(subject, smaller, placing))
        except CaseFailure as error:
            last = error
            return True
        except Exception:  # refused, or broken in another way: not what is being looked for
            return False
        return False

    def passes(tamer: Placing) -> bool:
        try:
            compare(found, produce(subject, found, tamer))
        except Exception:  # it helps or it does not
            return False
        return True

    found = smallest(content, fails)
    lines = str(last).splitlines()
    # The larger step tells misreadings apart that the smallest cannot.
    hint = [line for line in str(failure).splitlines() if LOOKS_LIKE in line]
    if hint and found is not content:
        lines = [line for line in lines if LOOKS_LIKE not in line]
        lines[2:2] = hint
    if helps := remedy(placing or Placing(), passes):
        lines[2:2] = [f"  {helps}"]
    if not any(line.startswith("  batch:") for line in lines):
        lines.append(f"  batch: query_lens {found.query_lens}, seq_lens {found.seq_lens}")
    if found is not content:
        lines.append(f"  shrunk from: query_lens {content.query_lens}, seq_lens {content.seq_lens}")
    return CaseFailure("\n".join(lines))


def judge_memory(
    subject: AttentionSubject, content: Content, placing: Placing
) -> tuple[Measures, Produced | None]:
    """judge() of unusual strides: right, or refused loudly (InvalidTensor naming the tensor, and
    nothing written; the result is then None and the reason is among the measures)."""
    step = place(content, subject.device, placing)
    op = subject.open(step.spec, step.limits)
    before = [*snapshot(step.guards), step.out.clone()]
    try:
        with shrinking(subject, content, placing):
            produced = execute(op, step)
            measures = compare(content, produced)
    except InvalidTensor as error:
        for guard, old in zip([*(g.base for g in step.guards), step.out], before, strict=True):
            if not equal_bytes(guard, old):
                raise CaseFailure(f"refused after something was written: {error}") from error
        return {"dtype": dtype_label(step.spec), "refused": str(error)}, None
    return measures, produced


def needs(content: Content, rules: Rules) -> None:
    """Asserts that the inputs would show a backend which follows `rules`: a case without power is
    a fault of the suite, not of the backend."""
    right, wrong = truth(content), truth(content, rules)
    allowed = budget(content, right)
    shown = any(
        bool(((a - b).abs() > 3 * limit).any())
        for a, b, limit in zip(right.out, wrong.out, allowed.out, strict=True)
    )
    if not shown and content.spec.return_lse:
        shown = any(
            bool(((a - b).abs() > 3 * allowed.lse).any())
            for a, b in zip(right.lse, wrong.lse, strict=True)
        )
    assert shown, f"these inputs cannot tell {rules} from the contract"


def compare(content: Content, produced: Produced) -> Measures:
    """Errors and head-room of a result. Raises CaseFailure when the allowed error is exceeded."""
    true = truth(content)
    allowed = budget(content, true)
    room = math.inf
    for r, (got, want) in enumerate(zip(produced.out, true.out, strict=True)):
        error = _error(got, want)
        if not bool((error <= allowed.out[r]).all()):
            raise CaseFailure(_explain(content, produced, "out", r, got, want, allowed.out[r]))
        empty = ~visible(content, r).any(-1)
        if bool((got[empty] != 0).any()):
            raise CaseFailure(_explain(content, produced, "out", r, got, want, 0.0, empty))
        if got.numel() and float(error.max()) > 0:
            room = min(room, allowed.out[r] / float(error.max()))
    for r, (got, want) in enumerate(zip(produced.lse or [], true.lse, strict=False)):
        error = _error(got, want)
        if not bool((error <= allowed.lse).all()):
            raise CaseFailure(_explain(content, produced, "lse", r, got, want, allowed.lse))
    measures: Measures = {"dtype": dtype_label(content.spec)}
    if room != math.inf:
        measures["headroom"] = room
    return measures


def joined(first: Measures, *others: Measures) -> Measures:
    """The measures of a case that judged several steps: the smallest head-room."""
    rooms = [m["headroom"] for m in (first, *others) if "headroom" in m]
    return {**first, **({"headroom": min(rooms)} if rooms else {})}


def _error(got: Tensor, want: Tensor) -> Tensor:
    """|got - want|, 0 where both are the same infinity, NaN where either is NaN."""
    got = got.double()
    return torch.where(got == want, 0.0, (got - want).abs())


def _explain(
    content: Content,
    produced: Produced,
    name: str,
    request: int,
    got: Tensor,
    want: Tensor,
    limit: float,
    only: Tensor | None = None,
) -> str:
    """only: bool [Tq], the rows that the limit concerns (rows without a key are exactly 0)."""
    bad = ~(_error(got, want) <= limit)
    if only is not None:
        bad[~only] = False
    index = tuple(bad.nonzero()[0].tolist())
    rows, keys = content.query_lens[request], content.seq_lens[request]
    axes = ("row", "head", "dim")[: len(index)]
    where = ", ".join(f"{axis} {i}" for axis, i in zip(axes, index, strict=True))
    lines = [
        f"{name} is wrong in request {request} (query_len {rows}, seq_len {keys}): "
        f"{int(bad.sum())} of {bad.numel()} elements",
        f"  first: {where} (position {keys - rows + index[0]}): "
        f"expected {want[index].item():.7g}, got {got[index].item():.7g}, "
        f"allowed error {limit:.2g}",
    ]
    hint = guess(content, produced.out, produced.lse, _rough(content, limit))
    if hint:
        lines.append(f"  {hint}")
    lines.append(f"  batch: query_lens {content.query_lens}, seq_lens {content.seq_lens}")
    lines.append(f"  spec:  {content.spec}")
    return "\n".join(lines)


def _rough(content: Content, limit: float) -> float:
    allowed = budget(content, truth(content))
    return max(limit, *allowed.out, allowed.lse) if allowed.out else limit
