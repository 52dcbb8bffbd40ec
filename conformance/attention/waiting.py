"""What plan(), run() and write() do beside their work: wait for the device, look at its memory.

On a GPU torch says when a call synchronises. Where a GPU is emulated on the CPU nothing waits, but
host code that looks at device memory can be seen: it is what would have waited. On a plain CPU
there is no device to wait for, and the cases say so among their measures.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from pagedattn.attention import AttentionOp
from pagedattn.conformance.attention.basics import lengths, rows_of
from pagedattn.conformance.attention.build import attention_case
from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.execute import execute
from pagedattn.conformance.attention.judge import Measures, compare, judge
from pagedattn.conformance.attention.place import Step, place
from pagedattn.conformance.attention.placing import Placing
from pagedattn.conformance.attention.planning import opened
from pagedattn.conformance.attention.subject import AttentionSubject
from pagedattn.conformance.case import Case, CaseFailure
from pagedattn.spec import Graph, KVQuant

__all__ = ["CASES", "blamed", "on_the_device", "tensors_in", "waiting"]

_ON_THE_DEVICE: ContextVar[bool] = ContextVar("pagedattn_on_the_device", default=False)

READS = frozenset({"cpu", "item", "numpy", "tolist", "__array__", "__bool__", "__contains__"}) | {
    "__float__",
    "__index__",
    "__int__",
}
"""Methods of a tensor by which the host gets at its contents."""

TAGS = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})
"""Operators whose result, or its shape, the host must wait for."""


@contextlib.contextmanager
def on_the_device() -> Iterator[None]:
    """What runs inside stands for work of the device, so it may look at all of its memory."""
    token = _ON_THE_DEVICE.set(True)
    try:
        yield
    finally:
        _ON_THE_DEVICE.reset(token)


def tensors_in(tree: Any) -> list[Tensor]:
    return [x for x in tree_flatten(tree)[0] if isinstance(x, Tensor)]


def blamed(op: AttentionOp) -> str:
    """Where in the backend the present call of torch was made; "" when it was not the backend's
    own code (nor core's default write()) but a library, an emulator or the suite."""
    if _ON_THE_DEVICE.get():
        return ""
    own = {_package(cls.__module__) for cls in type(op).__mro__}
    own = (own - {"pagedattn.attention", "builtins"}) | {"pagedattn.write"}
    frame = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        suite = module.startswith("pagedattn.conformance.attention.")
        if not suite and module.partition(".")[0] != "torch":
            if any(module == name or module.startswith(f"{name}.") for name in own):
                return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
            if module != "contextlib":
                return ""
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def _package(module: str) -> str:
    """What belongs together: a plugin's own package, one backend of ours."""
    parts = module.split(".")
    return ".".join(parts[:3] if parts[0] == "pagedattn" else parts[:1])


class _Memory:
    """Storages that lie on the emulated device: those given, and what is computed from them."""

    def __init__(self, op: AttentionOp, given: list[Tensor]) -> None:
        self.op, self.reads = op, list[str]()
        self.kept: list[Tensor] = []  # so that no address is used twice
        self.addresses: set[int] = set()
        for tensor in given:
            self.add(tensor)

    def add(self, tensor: Tensor) -> None:
        if address := tensor.untyped_storage().data_ptr():
            self.kept.append(tensor)
            self.addresses.add(address)

    def holds(self, tensors: list[Tensor]) -> bool:
        return any(x.untyped_storage().data_ptr() in self.addresses for x in tensors)

    def read(self, what: str) -> None:
        place = blamed(self.op)
        if place and not any(place in known for known in self.reads):
            self.reads.append(f"{what} at {place}")


class _Methods(TorchFunctionMode):
    def __init__(self, memory: _Memory) -> None:
        super().__init__()
        self.memory = memory

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in READS and args and isinstance(args[0], Tensor) and self.memory.holds([args[0]]):
            self.memory.read(f"Tensor.{name}()")
        return func(*args, **(kwargs or {}))


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, memory: _Memory) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.memory = memory

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = tensors_in((args, kwargs))
        if self.memory.holds(given):
            if TAGS & set(func.tags) and not _plain_index(func, args):
                self.memory.read(str(func))
            result = func(*args, **(kwargs or {}))
            for tensor in tensors_in(result):
                self.memory.add(tensor)
            return result
        return func(*args, **(kwargs or {}))


def _plain_index(func: Any, args: tuple[Any, ...]) -> bool:
    """x[i] has a shape of chance for boolean i alone."""
    indices = args[1] if len(args) > 1 and "index" in str(func) else None
    if not isinstance(indices, list | tuple):
        return False
    return all(i is None or i.dtype not in (torch.bool, torch.uint8) for i in indices)


@contextlib.contextmanager
def waiting(
    subject: AttentionSubject, op: AttentionOp, given: list[Tensor], what: str, promise: str
) -> Iterator[dict[str, str]]:
    """Raises CaseFailure when a call inside waits for the device; yields a measure that says how
    that was looked for.

    given    what lies on the device
    what     the call, for people
    promise  because of which it may not wait
    """
    debug = os.environ.pop("PAGEDATTN_DEBUG", None)  # core itself waits in debug mode
    try:
        if subject.device.type == "cuda":
            torch.cuda.synchronize(subject.device)
            torch.cuda.set_sync_debug_mode("error")
            try:
                yield {"waits": "torch's sync debug mode"}
            except RuntimeError as error:
                if "synchroniz" not in str(error):
                    raise
                raise CaseFailure(f"{what} waits for the device, but {promise}: {error}") from error
            finally:
                torch.cuda.set_sync_debug_mode("default")
        elif subject.info.type == "cuda":
            memory = _Memory(op, given)
            with _Methods(memory), _Operators(memory):
                yield {"waits": "looked for among the host's reads of device memory"}
            if memory.reads:
                raise CaseFailure(
                    f"{what} looks at device memory from the host, which waits for the device, "
                    f"but {promise}:\n    " + "\n    ".join(memory.reads)
                )
        else:
            yield {"waits": "nothing to wait for on a CPU"}
    finally:
        if debug is not None:
            os.environ["PAGEDATTN_DEBUG"] = debug


def _given(step: Step) -> list[Tensor]:
    batch, cache = step.batch, step.cache
    found = [
        step.q, step.out, step.lse, step.sinks, step.slopes, cache.k, cache.v, cache.k_scale,
        cache.v_scale, batch.query_start_loc, batch.seq_lens, batch.block_table,
        batch.slot_mapping, batch.tree_mask, batch.tree_indptr,
    ]  # fmt: skip
    return [x for x in found if x is not None]


def _plan(subject: AttentionSubject, seed: int) -> Measures:
    """plan() and plan(into=) do host work: lengths come from the host copies."""
    op, step = opened(subject, seed)
    given = [*_given(step), op.workspace]
    with waiting(subject, op, given, "plan()", "plan() never does") as how:
        plan = op.plan(step.batch)
        op.plan(step.batch, into=plan)
    return {**compare(step.content, execute(op, step, plan)), **how}


def _run(graph: Graph, subject: AttentionSubject, seed: int) -> Measures:
    """run() only launches, from the first call on: open() has compiled everything."""
    phase = "decode" if graph is Graph.DECODE else "mixed"
    spec = subject.spec({"graph": graph}, rows=rows_of(phase))
    content = Content.random(spec, *lengths(phase, spec.block_size), seed)
    step = place(content, subject.device, Placing(seed=seed))
    op = subject.open(spec, step.limits)
    plan = op.plan(step.batch)
    given = [*_given(step), op.workspace]
    with waiting(subject, op, given, "run()", f"graph={graph.name} is claimed") as how:
        op.run(step.q, step.cache, plan, out=step.out)
    return {**compare(content, execute(op, step, plan)), **how}


def _write(wanted: dict[str, Any], subject: AttentionSubject, seed: int) -> Measures:
    """write() neither, whatever the slots are: negative ones are skipped on the device."""
    spec = subject.spec({"graph": Graph.DECODE, **wanted})
    content = Content.random(spec, [1, 1, 1, 0], [spec.block_size + 1, 3, 1, 2], seed)
    step = place(content, subject.device, Placing(seed=seed))
    op = subject.open(spec, step.limits)
    slots = step.batch.slot_mapping
    assert slots is not None
    slots[1] = -1
    k, v = (
        torch.randn(len(slots), spec.num_kv_heads, dim, device=subject.device).to(spec.dtype)
        for dim in (spec.head_dim, spec.head_dim_v)
    )
    given = [*_given(step), op.workspace, k, v]
    with waiting(subject, op, given, "write()", "graph=DECODE is claimed") as how:
        op.write(k, v, step.cache, slots)
    return {**judge(subject, content, Placing(seed=seed)), **how}


CASES: list[Case] = [
    attention_case("launch/plan-does-not-wait", "plan", _plan, core=True),
    attention_case("launch/run-does-not-wait", "plan", partial(_run, Graph.DECODE)),
    attention_case("launch/mixed-does-not-wait", "plan", partial(_run, Graph.ANY)),
    attention_case("launch/write-does-not-wait", "plan", partial(_write, {})),
    attention_case(
        "launch/write-8-bit-does-not-wait",
        "plan",
        partial(_write, {"kv_dtype": torch.int8, "kv_quant": KVQuant.PER_TOKEN_HEAD}),
    ),
]
