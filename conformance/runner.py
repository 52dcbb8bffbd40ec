"""Running cases on a subject, and the verdict. Imports neither torch nor pytest."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pagedattn.conformance.case import Case, CaseFailure, Declined, NotRun, Outcome, Result
from pagedattn.conformance.settings import using
from pagedattn.emulation import Judged

__all__ = ["Verdict", "judge_case", "out_of_time", "run_cases", "shrunk", "verdict"]

CORE_MAY_DECLINE = frozenset({"max_query_len"})
"""The required core holds for decode alone when a backend declares a max_query_len."""


def judge_case(subject: Any, case: Case) -> Result:
    """Run one case; whatever it raises becomes its outcome. Ctrl-C is let through."""
    begin = time.perf_counter()

    def result(outcome: Outcome, detail: str = "", **more: Any) -> Result:
        return Result(case.id, case.rule, outcome, time.perf_counter() - begin, detail, **more)

    try:
        measures = case.run(subject)
    except Declined as reason:
        required = case.core and any(r.code not in CORE_MAY_DECLINE for r in reason.refusals)
        if required:
            return result(
                Outcome.FAILED,
                f"part of the required core, which cannot be declined: {reason}",
                refusals=reason.refusals,
            )
        return result(Outcome.DECLINED, str(reason), refusals=reason.refusals)
    except NotRun as reason:
        return result(Outcome.NOT_RUN, str(reason))
    except CaseFailure as failure:
        return result(Outcome.FAILED, str(failure))
    except (Exception, SystemExit) as error:  # the plugin border: a crash is a failure
        return result(Outcome.FAILED, _crash(error))
    return result(Outcome.PASSED, measures=dict(measures or {}))


def shrunk(subject: Any, case: Case, failed: Result, *, seed: int) -> Result:
    """`failed` with the detail of the smallest input found that fails too: the case is run once
    more, which says so when it does not fail again."""
    with using(seed=seed, shrink=True):
        again = judge_case(subject, case)
    if again.outcome is Outcome.FAILED:
        return replace(failed, detail=again.detail)
    note = f"\n  the outcome varies: run once more, the case {again.outcome.value}"
    return replace(failed, detail=failed.detail + note)


def run_cases(
    subject: Any,
    cases: Iterable[Case],
    *,
    select: Callable[[str], bool] | None = None,
    max_time: float | None = None,
    progress: Callable[[Result], None] | None = None,
) -> list[Result]:
    """The results of every case whose id `select` accepts, in order.

    max_time  seconds; cases that do not get their turn count as not run
    progress  called after each case
    """
    deadline = None if max_time is None else time.monotonic() + max_time
    results = []
    for case in cases:
        if select is not None and not select(case.id):
            continue
        if deadline is not None and time.monotonic() >= deadline:
            assert max_time is not None
            outcome = out_of_time(case, max_time)
        else:
            outcome = judge_case(subject, case)
        results.append(outcome)
        if progress is not None:
            progress(outcome)
    return results


def out_of_time(case: Case, max_time: float) -> Result:
    """Of a case that did not get its turn."""
    detail = f"the {max_time:g} s of --max-time were spent"
    return Result(case.id, case.rule, Outcome.NOT_RUN, 0.0, detail)


@dataclass(frozen=True)
class Verdict:
    """What the results add up to.

    headroom  allowed / measured error, the smallest per dtype
    stale     known-failure entries that did not fail: an error, remove them
    """

    counts: dict[str, int]
    headroom: dict[str, float] = field(default_factory=dict)
    stale: tuple[str, ...] = ()

    @property
    def executed(self) -> int:
        """Cases that reached an answer; with none there is no verdict."""
        ran = (Outcome.PASSED, Outcome.FAILED, Outcome.KNOWN_FAILURE)
        return sum(self.counts[outcome.value] for outcome in ran)

    @property
    def conforms(self) -> bool:
        bad = self.counts[Outcome.FAILED.value] + self.counts[Outcome.NOT_RUN.value]
        return self.executed > 0 and not bad and not self.stale

    @property
    def exit_code(self) -> int:
        """0 conforms, 1 does not, 2 nothing was executed."""
        if not self.executed:
            return 2
        return 0 if self.conforms else 1

    def word(self, selection: str = "", *, emulated: str = "") -> str:
        """The verdict itself; a part of the suite never earns the plain word.

        emulated  what was judged in place of the backend on its device: never "conforms" then"""
        if not self.executed:
            return "NOT JUDGED"
        if not self.conforms:
            return "DOES NOT CONFORM"
        good = emulated.upper() or "CONFORMS"
        if self.counts[Outcome.KNOWN_FAILURE.value]:
            return f"{good} BUT FOR KNOWN FAILURES"
        return f"{good} IN PART" if selection else good

    def line(self, subject: str, selection: str = "", *, emulated: str = "") -> str:
        """The verdict in one line, with the counts and what it is limited to."""
        counts = self.counts
        parts = [
            f"{counts[o.value]} {o.value}"
            for o in (Outcome.PASSED, Outcome.DECLINED, Outcome.FAILED)
        ]
        parts += [
            f"{counts[o.value]} {o.value}"
            for o in (Outcome.KNOWN_FAILURE, Outcome.NOT_RUN)
            if counts[o.value]
        ]
        text = f"{self.word(selection, emulated=emulated)}: {subject}: {', '.join(parts)}"
        if self.headroom:
            rooms = (f"{dtype} {room:.1f}x" for dtype, room in sorted(self.headroom.items()))
            text += f"; head-room {', '.join(rooms)}"
        if self.stale:
            text += f"; {len(self.stale)} stale known failures"
        limits = [Judged(emulated).limit] if emulated else []
        return "; ".join([text, *limits, *([selection] if selection else [])])


def verdict(results: Sequence[Result], *, stale: Sequence[str] = ()) -> Verdict:
    """Count, and take the smallest head-room of each dtype."""
    counted = Counter(result.outcome.value for result in results)
    headroom: dict[str, float] = {}
    for result in results:
        room, dtype = result.measures.get("headroom"), result.measures.get("dtype")
        if room is not None and dtype is not None:
            headroom[dtype] = min(room, headroom.get(dtype, room))
    return Verdict({o.value: counted[o.value] for o in Outcome}, headroom, tuple(stale))


def _crash(error: BaseException) -> str:
    """The exception and the last frames outside of this suite's machinery."""
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    places = "".join(f"\n  at {f.filename}:{f.lineno} in {f.name}: {f.line}" for f in frames)
    try:
        told = str(error)
    except Exception:
        told = "(its message cannot be had: __str__ raises)"
    printable = told.encode("utf-8", "backslashreplace").decode("utf-8")
    return f"{type(error).__name__}: {printable}{places}"
