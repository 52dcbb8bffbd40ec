"""How run() is launched: from another thread or stream, captured in a graph, and what memory it
takes meanwhile."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from pagedattn.conformance.attention.build import attention_case
from pagedattn.conformance.attention.content import Content
from pagedattn.conformance.attention.execute import Produced, execute
from pagedattn.conformance.attention.judge import Measures, compare, joined
from pagedattn.conformance.attention.place import Step, place
from pagedattn.conformance.attention.placing import Placing
from pagedattn.conformance.attention.planning import opened
from pagedattn.conformance.attention.subject import AttentionSubject
from pagedattn.conformance.attention.waiting import blamed, tensors_in
from pagedattn.conformance.case import Case, CaseFailure, NotRun
from pagedattn.spec import Graph

__all__ = ["CASES", "Storages"]

Launch = Callable[[], None]

WITHOUT_TEMPORARIES = frozenset({"triton", "cupy", "cpu"})
"""Families whose run() takes no memory beyond the workspace."""


def _elsewhere(subject: AttentionSubject, seed: int) -> Measures:
    """An op is used by one thread and stream at a time, not by one for ever: here by a thread that
    did not open it and, on a GPU, on a stream that is not the default one."""
    op, step = opened(subject, seed)
    found: list[Measures | Exception] = []

    def use() -> None:
        try:
            if subject.device.type == "cuda":
                stream = torch.cuda.Stream(subject.device)  # type: ignore[no-untyped-call]
                stream.wait_stream(torch.cuda.current_stream(subject.device))
                with torch.cuda.stream(stream):
                    found.append(compare(step.content, _delayed(op, step)))
            else:
                found.append(compare(step.content, execute(op, step)))
        except Exception as error:  # raised again below, in the thread that judges
            found.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    if isinstance(found[0], CaseFailure):
        raise CaseFailure(f"in another thread and stream: {found[0]}") from found[0]
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def _delayed(op: Any, step: Step) -> Any:
    """The query arrives late on the current stream: a launch on another one reads NaN."""
    q = step.q.clone()
    step.q.fill_(float("nan"))
    work = torch.randn(4096, 4096, device=q.device)
    for _ in range(20):
        work = work @ work / 64
    step.q.copy_(q)
    return execute(op, step)


class Storages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of the tensors that are made while the mode is on; which of them are alive later.

    counts  asked for each of them; default: all count
    """

    def __init__(self, counts: Callable[[], object] = lambda: True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts = counts
        self.made: list[tuple[Any, int]] = []
        self.total = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {t.untyped_storage().data_ptr() for t in tensors_in((args, kwargs))}
        for tensor in tensors_in(result):
            storage = tensor.untyped_storage()
            if storage.nbytes() and storage.data_ptr() not in given and self.counts():
                self.total += storage.nbytes()
                reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                self.made.append((reference, storage.nbytes()))
        return result

    def kept(self) -> int:
        """Bytes that are still held by somebody."""
        return sum(size for reference, size in self.made if not reference.expired())


def _temporaries(subject: AttentionSubject, seed: int) -> Measures:
    """What run() allocates through torch is reported, and is nothing where a backend of ours says
    so. What the third equal call still holds after it has returned would grow with every layer and
    step. On a GPU the allocator is asked; where one is emulated the backend's own code counts, not
    the emulator's."""
    op, step = opened(subject, seed)
    plan = op.plan(step.batch)
    measures: Measures = {}
    for _ in range(2):
        measures = compare(step.content, execute(op, step, plan))
    emulated = subject.backend.emulated is not None
    before = _allocated(subject.device)
    with Storages((lambda: blamed(op)) if emulated else (lambda: True)) as storages:
        op.run(step.q, step.cache, plan, out=step.out)
    taken = max(storages.total, _allocated(subject.device) - before)
    if taken and subject.backend.name.partition(":")[0] in WITHOUT_TEMPORARIES:
        raise CaseFailure(
            f"run() allocates {taken} bytes, but {subject.backend.name} promises to take none "
            "beyond its workspace"
        )
    if storages.kept():
        raise CaseFailure(
            f"run() keeps {storages.kept()} bytes that it allocated, at every call: "
            "scratch belongs in the workspace, derived state into the plan"
        )
    return {**measures, "temporaries": taken}


def _allocated(device: torch.device) -> int:
    """Bytes that torch's allocator has given out so far; 0 on a CPU, which keeps no count."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.memory_stats(device).get("allocated_bytes.all.allocated", 0))


def _graph(subject: AttentionSubject, seed: int) -> Measures:
    """graph=DECODE: no synchronisation; captured once, replayed over other lengths and blocks."""
    spec = subject.spec({"graph": Graph.DECODE})
    size = spec.block_size
    contents = [
        Content.random(spec, [1, 1, 1, 0], [size + 1, 3, 2 * size, 5], seed),
        Content.random(spec, [1, 1, 1, 0], [2 * size, size, 2 * size + 1, 0], seed + 1),
    ]
    # The first pool is the larger one, so that the second step's blocks fit into it.
    placings = (Placing(seed=seed, spare_blocks=8, extra_columns=4), Placing(seed=seed))
    steps = [place(c, subject.device, p) for c, p in zip(contents, placings, strict=True)]
    blocks = max(s.limits.num_blocks for s in steps)
    limits = dataclasses.replace(steps[1].limits, max_seq_len=3 * size, num_blocks=blocks)
    op = subject.open(spec, limits)
    emulated = subject.backend.emulated
    if subject.device.type == "cuda":
        return _replayed(op, steps, _capture)
    if emulated is None:
        raise CaseFailure(f"graph=DECODE is claimed on {subject.device}, where nothing is captured")
    if emulated.capture is None:
        raise NotRun(f"{emulated.device.name}: the emulator cannot capture launches")
    return _replayed(op, steps, emulated.capture)


def _capture(launch: Launch) -> Launch:
    """A CUDA graph of `launch`, which must not synchronise."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        launch()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        launch()
    except RuntimeError as error:
        raise CaseFailure(f"run() synchronises although graph is claimed: {error}") from error
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()

    def replay() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return replay


def _replayed(op: Any, steps: list[Step], capture: Callable[[Launch], Launch]) -> Measures:
    first, second = steps
    plan = op.plan(first.batch)
    replay = capture(lambda: op.run(first.q, first.cache, plan, out=first.out))

    def replayed(content: Content) -> Measures:
        first.out.fill_(float("nan"))
        replay()
        rows = first.out[: sum(content.query_lens)].cpu()
        return compare(content, Produced(list(torch.split(rows, content.query_lens)), None))

    measures = replayed(first.content)
    first.q.copy_(second.q)
    for mine, other in ((first.cache.k, second.cache.k), (first.cache.v, second.cache.v)):
        mine[: other.shape[0]] = other
    for name in ("query_start_loc", "seq_lens", "query_start_loc_host", "seq_lens_host"):
        getattr(first.batch, name).copy_(getattr(second.batch, name))
    width = min(first.batch.block_table.shape[1], second.batch.block_table.shape[1])
    first.batch.block_table[:, :width].copy_(second.batch.block_table[:, :width])
    op.plan(first.batch, into=plan)
    return joined(replayed(second.content), measures)


def _cases() -> list[Case]:
    return [
        attention_case("launch/elsewhere", "plan", _elsewhere, faults=("KH-57",), core=True),
        attention_case("launch/temporaries", "plan", _temporaries, core=True),
        attention_case("launch/graph", "plan", _graph, faults=("KH-53",)),
    ]


CASES = _cases()
