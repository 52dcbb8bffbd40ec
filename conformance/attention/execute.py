"""Running a placed step on the backend and checking what it touched."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pagedattn.attention import AttentionOp, Plan
from pagedattn.conformance.attention.place import Step
from pagedattn.conformance.attention.placing import Guard
from pagedattn.conformance.case import CaseFailure

__all__ = ["Produced", "check_guards", "equal_bytes", "execute", "same_bits", "snapshot"]


@dataclass(frozen=True, eq=False)
class Produced:
    """What run() wrote, on the CPU, per request: out [Tq, Hq, Dv], lse [Tq, Hq]."""

    out: list[Tensor]
    lse: list[Tensor] | None


def execute(op: AttentionOp, step: Step, plan: Plan | None = None) -> Produced:
    """plan() and run() once. Raises CaseFailure when anything but the live rows was changed."""
    before = snapshot(step.guards)
    if plan is None:
        plan = op.plan(step.batch)
    op.run(
        step.q,
        step.cache,
        plan,
        out=step.out,
        lse=step.lse,
        sinks=step.sinks,
        alibi_slopes=step.slopes,
    )
    if step.out.device.type == "cuda":
        torch.cuda.synchronize(step.out.device)
    check_guards(step.guards, before)
    lse = None if step.lse is None else _per_request(step.lse, step.content.query_lens)
    return Produced(_per_request(step.out, step.content.query_lens), lse)


def _per_request(x: Tensor, sizes: list[int]) -> list[Tensor]:
    """The live rows on the CPU, cut by request."""
    return list(torch.split(x[: sum(sizes)].cpu(), sizes)) if sizes else []


def snapshot(guards: list[Guard]) -> list[Tensor]:
    return [guard.base.clone() for guard in guards]


def check_guards(guards: list[Guard], before: list[Tensor]) -> None:
    """Every guarded byte is as it was, outside of the part that may be written."""
    for guard, old in zip(guards, before, strict=True):
        if guard.view is not None:
            guard.view(old).copy_(guard.view(guard.base))
        changed = _bytes(guard.base) != _bytes(old)
        if bool(changed.any()):
            where = changed.flatten().nonzero()[0].item() // guard.base.element_size()
            index = _unravel(int(where), guard.base.shape)
            raise CaseFailure(
                f"{guard.name} was changed where nothing may be written: element {list(index)} of "
                f"its memory was {old[index].item()} and is {guard.base[index].item()} "
                f"({int(changed.sum())} bytes differ) [docs/SPEC.md#{guard.rule}]"
            )


def same_bits(one: Produced, two: Produced, what: str) -> None:
    """Raises CaseFailure unless two results are equal bit for bit."""
    for name, first, second in (("out", one.out, two.out), ("lse", one.lse, two.lse)):
        if first is None or second is None:
            continue
        for r, (a, b) in enumerate(zip(first, second, strict=True)):
            differ = _bytes(a) != _bytes(b)
            if bool(differ.any()):
                position = int(differ.flatten().nonzero()[0].item()) // a.element_size()
                index = _unravel(position, a.shape)
                raise CaseFailure(
                    f"{what} must not change a bit, but {name} of request {r} differs at "
                    f"[row, head, dim] {list(index)}: {a[index].item()} and {b[index].item()} "
                    f"({int(differ.sum())} bytes differ)"
                )


def equal_bytes(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one shape hold the same bits (NaN equals itself)."""
    return torch.equal(_bytes(a), _bytes(b))


def _bytes(x: Tensor) -> Tensor:
    return x.contiguous().reshape(-1).view(torch.uint8)


def _unravel(position: int, shape: torch.Size) -> tuple[int, ...]:
    index = []
    for size in reversed(shape):
        index.append(position % size)
        position //= size
    return tuple(reversed(index))
