"""Cases in processes of their own: several at a time, and a kernel that crashes or hangs takes no
other case with it.

A worker is given one case at a time. It is replaced when it dies, when a case takes too long, and
when the GPU's context is lost: after an illegal access every later call in that process fails.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from pickle import PicklingError

from pagedattn.conformance.case import Case, Kind, Outcome, Result
from pagedattn.conformance.runner import judge_case, out_of_time, shrunk
from pagedattn.conformance.settings import using
from pagedattn.conformance.subjects import Subject, cases_of, resolve
from pagedattn.errors import NotReady, Refusal

__all__ = ["Workers"]

START_TIME = 300.0
"""Seconds that a process may take, under --case-time, until it is ready for its first case."""


class Workers:
    """Up to `jobs` processes that judge one subject, which must be registered under its name.

    case_time  seconds that one case may take before it counts as failed; None: any

    Leaving the context ends them."""

    def __init__(
        self, subject: Subject, *, jobs: int, seed: int = 0, case_time: float | None = None
    ) -> None:
        self._subject, self._jobs, self._seed, self._case_time = subject, jobs, seed, case_time
        self._idle: list[_Worker] = []
        self._fatal: set[str] = set()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *raised: object) -> None:
        for worker in self._idle:
            worker.end()

    def run(
        self,
        cases: Iterable[Case],
        *,
        max_time: float | None = None,
        progress: Callable[[Result], None] | None = None,
    ) -> list[Result]:
        """As runner.run_cases()."""
        return self._judge([(case, None) for case in cases], max_time, progress)

    def shrink(self, failures: Iterable[tuple[Case, Result]]) -> list[Result]:
        """The same failures, each with the smallest input found (runner.shrunk()); those that
        ended their process as they are."""
        tasks = [(case, failed) for case, failed in failures if case.id not in self._fatal]
        return self._judge([*tasks], None, None)

    def _judge(
        self,
        tasks: list[tuple[Case, Result | None]],
        max_time: float | None,
        progress: Callable[[Result], None] | None,
    ) -> list[Result]:
        deadline = None if max_time is None else time.monotonic() + max_time
        results: dict[int, Result] = {}
        busy: dict[_Worker, int] = {}
        following = iter(range(len(tasks)))
        try:
            while True:
                while len(busy) < self._jobs and (number := next(following, None)) is not None:
                    if deadline is not None and time.monotonic() >= deadline:
                        assert max_time is not None
                        results[number] = out_of_time(tasks[number][0], max_time)
                        if progress:
                            progress(results[number])
                        continue
                    worker = self._idle.pop() if self._idle else _Worker(self._subject, self._seed)
                    worker.begin(*tasks[number])
                    busy[worker] = number
                if not busy:
                    return [results[number] for number in range(len(tasks))]
                for worker, overdue in self._answers(busy):
                    case, failed = tasks[busy[worker]]
                    result = worker.result(case, self._case_time if overdue else None)
                    if result is None:
                        continue
                    number = busy.pop(worker)
                    if worker.alive:
                        self._idle.append(worker)
                    else:
                        self._fatal.add(case.id)
                    # What did not survive being shrunk keeps what it said at first.
                    results[number] = failed if failed and not worker.alive else result
                    if progress:
                        progress(results[number])
        finally:
            for worker in busy:
                worker.end()

    def _answers(self, busy: dict[_Worker, int]) -> list[tuple[_Worker, bool]]:
        """The workers that have answered, died, or spent their time, and whether it is that."""
        left = None
        if self._case_time is not None:
            left = max(0.0, min(w.end_of(self._case_time) for w in busy) - time.monotonic())
        # The process too: one that it left behind may hold its end of the connection open.
        ready = wait([thing for w in busy for thing in (w.connection, w.sentinel)], left)
        found = [(w, False) for w in busy if w.connection in ready or w.sentinel in ready]
        if not found and self._case_time is not None:
            now = time.monotonic()
            found = [(w, True) for w in busy if now >= w.end_of(self._case_time)]
        return found


class _Worker:
    """One process, as its parent sees it."""

    def __init__(self, subject: Subject, seed: int) -> None:
        context = get_context("spawn")  # a forked process could not use the GPU
        self.connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve,
            args=(theirs, subject.name, subject.kind.value, subject.device, seed),
            daemon=True,
        )
        self._process.start()
        theirs.close()
        self.alive = True
        self.begun = time.monotonic()
        """When its case began, or the process, while it starts."""
        self._ready = False

    @property
    def sentinel(self) -> int:
        """Ready once the process has ended."""
        return self._process.sentinel

    def end_of(self, case_time: float) -> float:
        """When it has spent its time."""
        return self.begun + (case_time if self._ready else START_TIME + case_time)

    def begin(self, case: Case, failed: Result | None) -> None:
        if self._ready:
            self.begun = time.monotonic()
        with suppress(OSError):  # it died on its way: result() says so
            self.connection.send((case.id, failed))

    def result(self, case: Case, case_time: float | None) -> Result | None:
        """What became of `case`; None when the process has only just started. alive is False
        afterwards when the worker cannot go on. case_time: what it has spent, when it is overdue.

        Raises NotReady when it died while it started: so would the next one."""
        try:
            if self.connection.poll():
                answer = self.connection.recv()
                if isinstance(answer, str):
                    self.end()
                    raise NotReady("worker", "--jobs", "broken", f"it did not start: {answer}")
                if answer is None:
                    self._ready, self.begun = True, time.monotonic()
                    return None
                result, self.alive = answer
                if not self.alive:
                    self.end()
                assert isinstance(result, Result)
                return result
            if case_time is None:
                raise EOFError
            if not self._ready:
                self.end()
                raise NotReady("worker", "--jobs", "stuck", "it takes too long to start")
            detail = f"no answer after {case_time:g} s (--case-time); its process was ended"
        except (EOFError, OSError):
            self._process.join(1)  # its end of the pipe may be closed while it lives on
            cause = _cause(self._process.exitcode)
            if not self._ready:
                self.end()
                raise NotReady("worker", "--jobs", "dead", f"it did not start: {cause}") from None
            detail = f"its process died: {cause}"
        seconds = time.monotonic() - self.begun
        self.end()
        return Result(case.id, case.rule, Outcome.FAILED, seconds, detail)

    def end(self) -> None:
        self.alive = False
        self.connection.close()
        self._process.kill()
        self._process.join()


def _cause(code: int | None) -> str:
    if code is None:
        return "it closed its connection"
    if code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"


def _serve(connection: Connection, name: str, kind: str, device: str, seed: int) -> None:
    """The worker. Says None once it is ready; then (case id, the failure to shrink or None) ->
    (result, whether it can go on)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    os.dup2(2, 1)  # what a backend prints is no part of a report on stdout
    threading.Thread(target=_follow_parent, daemon=True).start()
    try:
        (subject,) = resolve(name, device, kind=Kind(kind))
        made, by_id = subject.make(), {case.id: case for case in cases_of(subject.kind)}
    except Exception as error:  # the plugin border
        connection.send(f"{type(error).__name__}: {error}")
        return
    connection.send(None)
    while True:
        try:
            id, failed = connection.recv()
        except EOFError:
            return
        case = by_id[id]
        if failed is None:
            with using(seed=seed):
                result = judge_case(made, case)
        else:
            result = shrunk(made, case, failed, seed=seed)
        answer = result, result.outcome is not Outcome.FAILED or _usable(device)
        try:
            connection.send(answer)
        except (PicklingError, TypeError, AttributeError):
            connection.send((_told(result), answer[1]))


def _told(result: Result) -> Result:
    """With text in place of a plugin's own objects, which cannot be sent."""
    refusals = tuple(
        Refusal(r.backend, r.code, str(r.requested), r.supported, r.hint) for r in result.refusals
    )
    return replace(result, refusals=refusals, measures={})


def _follow_parent() -> None:
    """A parent that was killed leaves no worker behind."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _usable(device: str) -> bool:
    """Whether the device still answers in this process."""
    import torch

    if torch.device(device).type != "cuda":
        return True
    try:
        torch.cuda.synchronize(device)
    except Exception:
        return False
    return True
