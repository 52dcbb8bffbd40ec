"""What the reports say about many cases together. Works on the JSON document's cases, so that a
report can be made of a run that was stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pagedattn.conformance.areas import area_of

__all__ = [
    "Area",
    "Reason",
    "Room",
    "areas",
    "capability_words",
    "declined_reasons",
    "headroom",
    "sample",
]

WORDS = {
    "": "none",
    "None": "any",
    "True": "yes",
    "False": "no",
    "(True, True)": "left and right",
    "(True, False)": "left",
    "(False, True)": "right",
    "(False, False)": "no",
}

JsonCase = dict[str, Any]


@dataclass(frozen=True)
class Area:
    """The cases of one area.

    state     conforms, declined, fails, not run or known failure; the worst decides
    emulated  what an emulation judged: said in place of "conforms"; "" without one
    """

    name: str
    cases: Sequence[JsonCase]
    emulated: str = ""

    @property
    def counts(self) -> Counter[str]:
        return Counter(case["outcome"] for case in self.cases)

    @property
    def state(self) -> str:
        counts = self.counts
        for outcome, state in (("failed", "fails"), ("not run", "not run")):
            if counts[outcome]:
                return state
        if counts["known failure"]:
            return "known failure"
        return "conforms" if counts["passed"] else "declined"

    @property
    def text(self) -> str:
        """The state, and of how many cases where it is not that of all."""
        outcome = {"conforms": "passed", "fails": "failed"}.get(self.state, self.state)
        count = self.counts[outcome]
        if self.state != "conforms":
            return self.state if count == len(self.cases) else f"{self.state} ({count})"
        word = self.emulated or self.state
        return word if count == len(self.cases) else f"{word} ({count} of {len(self.cases)})"


@dataclass(frozen=True)
class Reason:
    """A refusal's code, how many cases it declined, and one of the refusals as a sentence."""

    code: str
    cases: int
    text: str


@dataclass(frozen=True)
class Room:
    """Head-room of a dtype: of every case that measured it, and the case with the smallest."""

    dtype: str
    values: Sequence[tuple[str, float]]

    @property
    def case(self) -> str:
        return min(self.values, key=lambda value: value[1])[0]

    @property
    def smallest(self) -> float:
        return min(value for _, value in self.values)


def areas(cases: Sequence[JsonCase], *, emulated: str = "") -> list[Area]:
    """In the order of the suite."""
    found: dict[str, list[JsonCase]] = {}
    for case in cases:
        found.setdefault(area_of(case["id"]), []).append(case)
    return [Area(name, own, emulated) for name, own in found.items()]


def declined_reasons(cases: Sequence[JsonCase]) -> list[Reason]:
    """Per code, most cases first."""
    counts: Counter[str] = Counter()
    example: dict[str, str] = {}
    for case in cases:
        if case["outcome"] != "declined":
            continue
        for refusal in {r["code"]: r for r in case["refusals"]}.values():
            counts[refusal["code"]] += 1
            asked = refusal["requested"].removeprefix("torch.")
            text = f"asked for {asked}, supported: {refusal['supported']}"
            hint = f" ({refusal['hint']})" if refusal["hint"] else ""
            example.setdefault(refusal["code"], text + hint)
    return [Reason(code, count, example[code]) for code, count in counts.most_common()]


def headroom(cases: Sequence[JsonCase]) -> list[Room]:
    """Per dtype, in alphabetical order."""
    found: dict[str, list[tuple[str, float]]] = {}
    for case in cases:
        room, dtype = case["measures"].get("headroom"), case["measures"].get("dtype")
        if room is not None and dtype is not None:
            found.setdefault(dtype, []).append((case["id"], float(room)))
    return [Room(dtype, values) for dtype, values in sorted(found.items())]


def sample(cases: Sequence[JsonCase]) -> list[JsonCase]:
    """The same cases, one of each area first: a broken basic fails hundreds of cases alike."""
    first = {area.name: area.cases[0]["id"] for area in areas(cases)}
    telling = [case for case in cases if first[area_of(case["id"])] == case["id"]]
    return telling + [case for case in cases if first[area_of(case["id"])] != case["id"]]


def capability_words(text: str) -> str:
    """A declared value as the document has it, for people: yes, no, any."""
    return WORDS.get(text, text)
