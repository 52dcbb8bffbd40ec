"""`pagedattn matrix`: stored reports side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pagedattn.conformance.matrix import TITLES, Matrix, matrices, read_runs, to_markdown

__all__ = ["matrix"]

STYLE = {
    "conforms": "green",
    "kernels emulated": "green",
    "adapter verified": "green",
    "fails": "bold red",
    "declined": "cyan",
    "known failure": "yellow",
    "not run": "magenta",
}


def matrix(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Reports of `pagedattn check NAME --json FILE`."),
    ],
    md_file: Annotated[
        Path | None, typer.Option("--md", metavar="FILE", help="Write the matrix as Markdown.")
    ] = None,
) -> None:
    """Show which backend serves what, from stored reports."""
    try:
        runs = read_runs(files)
    except ValueError as error:
        Console(stderr=True).print(
            f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True
        )
        raise typer.Exit(2) from error
    if md_file is not None:
        md_file.write_text(to_markdown(runs), encoding="utf-8")
        return
    console = Console()
    for one in matrices(runs):
        console.print(_table(one))


def _table(matrix: Matrix) -> Table:
    table = Table(title=TITLES[matrix.kind], title_justify="left", box=None, header_style="bold")
    table.add_column("area")
    for column in matrix.columns:
        table.add_column(column)
    table.add_row("verdict", *(Text(word, style="bold") for word in matrix.verdicts))
    for name, cells in matrix.areas:
        table.add_row(name, *(Text(cell, style=STYLE[cell.partition(" (")[0]]) for cell in cells))
    table.add_section()
    for name, cells in matrix.capabilities:
        table.add_row(Text(name, style="dim"), *(Text(cell) for cell in cells))
    return table
