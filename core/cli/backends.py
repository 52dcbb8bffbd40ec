"""`pagedattn backends`: every attention backend and whether it can be used here."""

from __future__ import annotations

from typing import Annotated

import typer

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
                    "state": str(row.state),
                    "detail": row.detail,
                    "source": row.source,
                    "priority": row.priority,
                }
                for row in rows
            ]
        )
        return
    print_table(
        ["name", "state", "from", "what it is, or what to do"],
        [
            [row.name, f"[{STATE_STYLE[row.state]}]{row.state}[/]", row.source, row.detail]
            for row in rows
        ],
    )
