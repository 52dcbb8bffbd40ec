"""The matrix: what each of several backends (or allocators) serves, from stored reports."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagedattn.conformance.markdown import MARK, table
from pagedattn.conformance.report import SCHEMA
from pagedattn.conformance.summary import areas, capability_words

__all__ = ["TITLES", "Matrix", "matrices", "read_runs", "to_markdown"]

TITLES = {"attention": "Attention backends", "allocator": "Allocators"}
LEGEND = (
    "conforms: every case passed, or N of M passed and the rest were declined with reasons. "
    "declined: refused with reasons, as declared. fails: some cases failed. not run: no answer, "
    "which never counts as conforming. kernels emulated: the kernels' own source passed on a CPU; "
    "nothing ran on a GPU. adapter verified: passed over a stand-in of the kernel library, so the "
    "adapter is right and the kernels were not judged."
)


@dataclass(frozen=True)
class Matrix:
    """Subjects of one kind, one column each; a row is (name, a cell per subject)."""

    kind: str
    columns: tuple[str, ...]
    verdicts: tuple[str, ...]
    areas: tuple[tuple[str, tuple[str, ...]], ...]
    capabilities: tuple[tuple[str, tuple[str, ...]], ...]


def read_runs(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """The runs of stored reports.

    Raises ValueError naming the file that is no report, or the subject that is in it twice."""
    runs: list[dict[str, Any]] = []
    where: dict[str, Path] = {}
    for path in paths:
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, OSError) as error:
            raise ValueError(f"{path}: {error}") from error
        if not isinstance(document, dict) or "runs" not in document:
            raise ValueError(f"{path} is no report of `pagedattn check NAME --json FILE`")
        if document.get("schema") != SCHEMA:
            raise ValueError(f"{path} has schema {document.get('schema')}, this is {SCHEMA}")
        for run in document["runs"]:
            label = run["subject"]["label"]
            if label in where:
                raise ValueError(f"{label} is in {where[label]} and in {path}; leave one out")
            where[label] = path
            runs.append(run)
    return runs


def matrices(runs: Iterable[dict[str, Any]]) -> list[Matrix]:
    """One per kind of subject."""
    runs = list(runs)
    by_kind = {kind: [r for r in runs if r["subject"]["kind"] == kind] for kind in TITLES}
    return [_matrix(kind, own) for kind, own in by_kind.items() if own]


def to_markdown(runs: Iterable[dict[str, Any]]) -> str:
    """Deterministic for the same outcomes: neither times nor head-room are in it."""
    parts = ["# Who serves what", LEGEND]
    for matrix in matrices(runs):
        header = ["", *matrix.columns]
        parts += [
            f"## {TITLES[matrix.kind]}",
            table(header, [["**verdict**", *matrix.verdicts], *_flat(matrix.areas, mark=True)]),
            "Declared:",
            table(header, _flat(matrix.capabilities)),
        ]
    return "\n\n".join(parts) + "\n"


def _flat(rows: Sequence[tuple[str, tuple[str, ...]]], *, mark: bool = False) -> list[list[str]]:
    def cell(text: str) -> str:
        if not mark:
            return text
        return f"{MARK[text.partition(' (')[0]]} {text}"

    return [[name, *map(cell, cells)] for name, cells in rows]


def _matrix(kind: str, runs: Sequence[dict[str, Any]]) -> Matrix:
    found = [
        {area.name: area for area in areas(run["cases"], emulated=run["subject"]["emulated"])}
        for run in runs
    ]
    names = _union(own for own in found)
    return Matrix(
        kind,
        tuple(run["subject"]["label"] for run in runs),
        tuple(run["verdict"]["word"] for run in runs),
        tuple(
            # What was left out of a run has not been run.
            (name, tuple(own[name].text if name in own else "not run" for own in found))
            for name in names
        ),
        tuple(
            (
                name,
                tuple(capability_words(run["capabilities"].get(name, "unknown")) for run in runs),
            )
            for name in _union(run["capabilities"] for run in runs)
        ),
    )


def _union(rows: Iterable[Iterable[str]]) -> list[str]:
    """Names in the order in which they are first met."""
    return list(dict.fromkeys(name for row in rows for name in row))
