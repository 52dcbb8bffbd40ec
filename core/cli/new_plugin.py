"""`pagedattn new-plugin`: a working plugin distribution to start from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from pagedattn import registry
from pagedattn.cli.output import fail
from pagedattn.cli.plugin_template import render

__all__ = ["new_plugin"]

NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")


def new_plugin(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the backend is called.")],
    folder: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Where the plugin's folder is made.")
    ] = Path("."),
) -> None:
    """Write a working plugin with a complete attention backend and its tests.

    The distribution pagedattn-NAME comes in by the same entry point as everyone's; put your kernel
    in place of the one that is there."""
    if problem := _problem(name):
        fail(problem)
    target = folder / f"pagedattn-{name}"
    if not folder.is_dir():
        fail(f"there is no folder {folder}; make it, or give another --dir")
    if target.exists():
        fail(f"{target} exists already; choose another name or --dir, nothing was written")
    files = render(name)
    for path, text in files.items():
        file = target / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    kernel = next(path for path in files if path.endswith("backend.py"))
    print(f"wrote {target}: {len(files)} files, the kernel is in {kernel}")
    print("next:")
    print(f"  pip install -e '{target}[test]'")
    print(f"  pagedattn check {name} --quick")
    print(f"  pytest {target}")


def _problem(name: str) -> str:
    """Why this cannot be a backend's name, "" when it can."""
    if not NAME.fullmatch(name):
        return (
            f"{name!r} cannot be a backend's name: lower-case letters and digits, "
            "words joined by - or _, a letter first"
        )
    for row in registry.backends():
        if row.name == name:
            return f"there is a backend {name!r} already, from {row.source}; choose another name"
    return ""
