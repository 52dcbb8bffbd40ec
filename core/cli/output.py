"""What the commands share: tables for people, JSON for programs, errors on stderr."""

from __future__ import annotations

import enum
import json
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from rich.console import Console
from rich.markup import escape
from rich.table import Table

__all__ = ["STATE_STYLE", "emit_json", "fail", "print_table", "warn"]

STATE_STYLE = {
    "ready": "green",
    "no device": "yellow",
    "emulated": "cyan",
    "unavailable": "yellow",
    "broken": "red",
    "blocked": "magenta",
    "duplicate": "yellow",
}


def emit_json(value: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, indent=1, default=_plain))


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, frozenset | set):
        return sorted(map(str, value))
    return str(value).removeprefix("torch.")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "") -> None:
    """A table that wraps its last column and keeps the others whole. Cells are rich markup."""
    table = Table(title=title or None, title_justify="left", header_style="bold", box=None)
    for i, column in enumerate(columns):
        last = i == len(columns) - 1
        table.add_column(column, no_wrap=not last, overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def warn(message: str) -> None:
    """Say it on stderr and go on."""
    Console(stderr=True).print(f"[yellow]warning[/] {escape(message)}", highlight=False)


def fail(message: str) -> NoReturn:
    """Say what is wrong and leave with code 2."""
    Console(stderr=True).print(f"[bold red]error[/] {escape(message)}", highlight=False)
    sys.exit(2)
