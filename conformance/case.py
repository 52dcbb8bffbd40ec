"""A conformance case and its outcome. The runner, pytest and the report all speak these values."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pagedattn.errors import Refusal

__all__ = ["Case", "CaseFailure", "Declined", "Kind", "NotRun", "Outcome", "Result"]


class Kind(enum.Enum):
    """What a case judges."""

    ATTENTION = "attention"
    ALLOCATOR = "allocator"


class Outcome(enum.Enum):
    """PASSED and DECLINED are fine; NOT_RUN never counts as conforming."""

    PASSED = "passed"
    FAILED = "failed"
    DECLINED = "declined"
    KNOWN_FAILURE = "known failure"
    NOT_RUN = "not run"


class CaseFailure(AssertionError):
    """The subject breaks the rule that the case tests."""


class Declined(Exception):
    """check() gave reasons and open() raised Unsupported with the same ones."""

    def __init__(self, refusals: tuple[Refusal, ...]) -> None:
        self.refusals = refusals
        super().__init__("; ".join(map(str, refusals)))


class NotRun(Exception):
    """The case could not be executed here (no device, no library)."""


@dataclass(frozen=True)
class Case:
    """One judgement.

    id      stable and unique, "area/detail", e.g. "decode/float16/gqa-3"
    rule    anchor of the sentence in docs/SPEC.md that is tested
    run     called with the subject (an attention backend on a device, or an allocator factory);
            returns measurements for the report, raises CaseFailure, Declined or NotRun
    faults  entries of the public fault collection that this case would have caught ("KH-03")
    core    part of the required core, which cannot be declined
    """

    id: str
    kind: Kind
    rule: str
    run: Callable[[Any], dict[str, Any] | None]
    faults: tuple[str, ...] = ()
    core: bool = False


@dataclass(frozen=True)
class Result:
    """What happened to one case."""

    case: str
    rule: str
    outcome: Outcome
    seconds: float
    detail: str = ""
    refusals: tuple[Refusal, ...] = ()
    measures: dict[str, Any] = field(default_factory=dict)
