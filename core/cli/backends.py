"""`pagedattn backends`: every attention backend and whether it can be used here."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from pagedattn import registry
from pagedattn.cli.output import STATE_STYLE, emit_json, print_table

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def backends(as_json: JsonOption = False) -> None:
    """List the attention backends with their states, the best priority first."""
    print_rows(registry.backends(), as_json)


def print_rows(rows: tuple[registry.Row, ...], as_json: bool) -> None:
    """One line a row: what it is called, its state, where it is from, what to do about it."""
    if as_json:
        emit_json(
            [
                {
                    "name": row.name,
                    "kind": row.kind,
                    "state": str(row.state),
                    "detail": row.detail,
                    "source": row.source,
                    "priority": row.priority,
                }
                for row in rows
            ]
        )
        return
    several = len({row.kind for row in rows if row.kind is not None}) > 1
    print_table(
        ["name", "state", "what it is, or what to do"],
        [
            [
                escape(f"{row.name} ({row.kind})" if several and row.kind else row.name),
                f"[{STATE_STYLE[row.state]}]{row.state}[/]",
                escape(row.detail) + f" [dim]({escape(row.source)})[/]",
            ]
            for row in rows
        ],
    )
