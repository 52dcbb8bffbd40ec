"""run() and write() as graph nodes of torch.compile; in eager they are plain method calls.

An op, a plan and a cache are Python objects, which a compiled graph cannot hold. Each carries a
handle, an i64 [] tensor on the CPU whose value finds the object again when the graph runs. A tensor
is an input of the graph and no guard looks at its value: another step's plan or another layer's
cache runs in the same compiled code.

What a node does to the cache is hidden behind the cache's handle, which both nodes declare as
mutated. So the compiler keeps the order of writes and runs on one cache, and were it to copy what a
node mutates, it would copy eight bytes and not the pool.

Plans are made outside of the compiled region: plan() is host work.
"""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from pagedattn.attention import AttentionOp, Plan
    from pagedattn.batch import KVCache

__all__ = ["new_handle", "run_node", "write_node"]

_objects: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_numbers = itertools.count()

_LIBRARY = torch.library.Library("pagedattn", "DEF")  # type: ignore[no-untyped-call]
for _schema in (
    "run(Tensor op, Tensor plan, Tensor(a!) cache, Tensor q, Tensor(b!) out, Tensor(c!)? lse, "
    "Tensor? sinks, Tensor? alibi_slopes) -> ()",
    "write(Tensor op, Tensor(a!) cache, Tensor k, Tensor? v, Tensor slots) -> ()",
):
    _LIBRARY.define(_schema)  # type: ignore[no-untyped-call]


def new_handle(of: object) -> Tensor:
    """A handle of an object that lives at least as long as the graphs that use it."""
    number = next(_numbers)
    _objects[number] = of
    return torch.tensor(number, device="cpu")


def run_node(
    op: AttentionOp,
    q: Tensor,
    cache: KVCache,
    plan: Plan,
    out: Tensor,
    lse: Tensor | None,
    sinks: Tensor | None,
    alibi_slopes: Tensor | None,
) -> None:
    """op.run(), while torch.compile traces."""
    torch.ops.pagedattn.run(op.handle, plan.handle, cache.handle, q, out, lse, sinks, alibi_slopes)


def write_node(
    op: AttentionOp, k: Tensor, v: Tensor | None, cache: KVCache, slot_mapping: Tensor
) -> None:
    """op.write(), while torch.compile traces."""
    torch.ops.pagedattn.write(op.handle, cache.handle, k, v, slot_mapping)


def _object(handle: Tensor, name: str) -> Any:
    found = _objects.get(int(handle))
    if found is None:
        raise RuntimeError(
            f"a compiled graph runs with the {name} of handle {int(handle)}, which no longer "
            "exists; keep ops, plans and caches alive while compiled code uses them"
        )
    return found


def _run(
    op: Tensor,
    plan: Tensor,
    cache: Tensor,
    q: Tensor,
    out: Tensor,
    lse: Tensor | None,
    sinks: Tensor | None,
    alibi_slopes: Tensor | None,
) -> None:
    _object(op, "op").run(
        q,
        _object(cache, "cache"),
        _object(plan, "plan"),
        out=out,
        lse=lse,
        sinks=sinks,
        alibi_slopes=alibi_slopes,
    )


def _write(op: Tensor, cache: Tensor, k: Tensor, v: Tensor | None, slots: Tensor) -> None:
    _object(op, "op").write(k, v, _object(cache, "cache"), slots)


def _nothing(*args: Tensor | None) -> None:
    """Fake of both: their arguments are changed in place, nothing is returned."""


for _name, _real in (("run", _run), ("write", _write)):
    _LIBRARY.impl(_name, _real, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"pagedattn::{_name}", _nothing, lib=_LIBRARY)
