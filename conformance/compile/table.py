"""The table of a compile gate, as Markdown that is checked in.

Each row ends with a digest of what the compiler was given. A row whose digest is still right need
not be compiled again to be checked, but for a sample: compilers are deterministic."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pagedattn.conformance.compile.usage import Usage

__all__ = [
    "Row",
    "cell",
    "launched_by",
    "line_of",
    "lines_by_digest",
    "markdown",
    "spread",
    "with_models",
]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One compiled kernel variant on one chip.

    variant  what tells it from other variants of the kernel: its tile, types, options
    models   names of the models whose op launches it
    width    bits of the loads of K and V, or of most bytes in other kernels; 0 without loads
    faults   what is wrong with it
    digest   of everything that the compiler was given: equal digests give equal rows
    """

    chip: str
    kernel: str
    variant: str
    models: tuple[str, ...]
    usage: Usage
    width: int
    faults: tuple[str, ...]
    digest: str

    @property
    def line(self) -> str:
        """The row of the table."""
        usage = self.usage
        return line_of(
            [
                cell(self.kernel.removesuffix("_kernel").replace("_", " ")),
                cell(self.variant),
                str(usage.registers),
                f"{usage.shared:,}",
                str(usage.spills),
                cell(usage.mma_kinds),
                f"{self.width}-bit" if self.width else "-",
                launched_by(self.models),
                "fault" if self.faults else self.digest,
            ]
        )


_HEAD = (
    "kernel", "variant", "registers", "shared memory", "spills", "MMA", "loads", "launched by",
    "digest",
)  # fmt: skip
_DIGEST = re.compile(r"\| ([0-9a-f]{12}) \|$")


def cell(value: object) -> str:
    """Text for a table cell."""
    return str(value).replace("|", "\\|").replace("\n", " ")


def launched_by(models: Sequence[str]) -> str:
    """The first of the models and how many more."""
    more = f" and {len(models) - 1} more" if len(models) > 1 else ""
    return cell(models[0] + more)


def with_models(line: str, models: Sequence[str]) -> str:
    """A known row, launched by the models of now: they are no part of what was compiled."""
    row, _, digest = line.rsplit(" | ", 2)
    return f"{row} | {launched_by(models)} | {digest}"


def lines_by_digest(document: str) -> dict[str, str]:
    """The rows of a written table, those of kernels without a fault."""
    found = ((_DIGEST.search(line), line) for line in document.splitlines())
    return {match[1]: line for match, line in found if match}


def spread(known: Sequence[T], count: int) -> Sequence[T]:
    """`count` of them, at even distances: the sample that is compiled all the same."""
    step = max(1, len(known) // count) if count else len(known) + 1
    return known[step - 1 :: step][:count]


def markdown(
    lines: Mapping[str, Sequence[str]],
    refused: Mapping[str, Mapping[str, str]],
    *,
    title: str,
    about: str,
    head: Sequence[str] = _HEAD,
) -> str:
    """The whole document.

    lines    by chip: the rows of its table
    refused  by chip: the models that the backend declines there, with its reasons
    head     the names of the columns
    """
    text = [f"# {title}", "", about.strip(), ""]
    for chip, rows in lines.items():
        text += [f"## {chip}", "", f"{len(rows)} kernels.", ""]
        text += [line_of(head), line_of(["---"] * len(head)), *rows, ""]
        declined = refused.get(chip, {}).items()
        text += [f"- Declined: {cell(model)} ({cell(reasons)})" for model, reasons in declined]
        text += [""] if declined else []
    return "\n".join(text).rstrip() + "\n"


def line_of(cells: Iterable[str]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(cells)} |"
