"""Known failures: strict entries in a TOML file, so that a fault which is being worked on does not
hide the next one.

    [[known]]
    case = "softcap/2/decode"            # id of the case, exactly
    backend = "mine"
    device = "cpu"
    reason = "tanh approximation is too coarse"
    link = "https://example.org/issues/7"
    message = "out is wrong"             # text that the failure must contain

An entry whose case does not fail, or fails with another message, is an error.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path

from pagedattn.conformance.case import Outcome, Result

__all__ = ["Known", "apply_known", "read_known"]


@dataclass(frozen=True)
class Known:
    """One entry; every field is required."""

    case: str
    backend: str
    device: str
    reason: str
    link: str
    message: str


def read_known(path: Path) -> tuple[Known, ...]:
    """The entries of a file. Raises ValueError naming the entry and the key."""
    names = {f.name for f in fields(Known)}
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8")).get("known", [])
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from error
    found = []
    for i, entry in enumerate(entries):
        if wrong := names.symmetric_difference(entry):
            raise ValueError(
                f"{path}: entry {i}: missing or unknown keys: {', '.join(sorted(wrong))}"
            )
        if bad := [n for n in sorted(names) if not isinstance(entry[n], str) or not entry[n]]:
            raise ValueError(f"{path}: entry {i}: {bad[0]} must be a text that is not empty")
        found.append(Known(**entry))
    return tuple(found)


def apply_known(
    results: Iterable[Result], entries: Iterable[Known], *, name: str, device: str
) -> tuple[list[Result], list[str]]:
    """Results with known failures marked, and the entries that are stale, as sentences."""
    mine = {e.case: e for e in entries if (e.backend, e.device) == (name, device)}
    marked, stale = [], []
    for result in results:
        entry = mine.get(result.case)
        if entry is None:
            marked.append(result)
        elif result.outcome is Outcome.FAILED and entry.message in result.detail:
            detail = f"{entry.reason} ({entry.link})\n{result.detail}"
            marked.append(replace(result, outcome=Outcome.KNOWN_FAILURE, detail=detail))
        else:
            marked.append(result)
            why = (
                "fails with another message"
                if result.outcome is Outcome.FAILED
                else "does not fail"
            )
            stale.append(f"{entry.case} is listed as a known failure but {why}")
    return marked, stale
