"""The documents: generated ones are written by `make docs`, others name what exists."""

from __future__ import annotations

import ast
import importlib.util
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagedattn.cli import build_app
from pagedattn.hooks import HOOK_OF

ROOT = Path(__file__).parents[1]
NAMED = re.compile(r"^(?:Generated|Written) by(?: `([^`]+)`|\n\n    (.+)$)", re.MULTILINE)


def commands_of_make_docs() -> dict[str, str]:
    """document -> the command that writes it."""
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", "")
    recipe = makefile.partition("\ndocs: matrix\n")[2].partition("\n\n")[0]
    lines = [" ".join(line.replace("$(BIN)/", "").split()) for line in recipe.splitlines()]
    return {path: line for line in lines for path in re.findall(r"docs/\S+\.(?:md|svg)", line)}


def generated() -> dict[str, str]:
    """document -> the command that it names."""
    texts = {path: path.read_text() for path in (ROOT / "docs").rglob("*.md")}
    return {
        str(path.relative_to(ROOT)): found[1] or found[2]
        for path, text in texts.items()
        if (found := NAMED.search(text))
    }


def test_make_docs_writes_every_generated_document() -> None:
    plots = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.svg")}
    assert set(commands_of_make_docs()) == set(generated()) | plots
    assert len(generated()) >= 7


@pytest.mark.parametrize(("document", "command"), sorted(generated().items()))
def test_a_generated_document_names_the_command_of_make_docs(document: str, command: str) -> None:
    assert commands_of_make_docs()[document].startswith(command)
    if command.startswith("python -m "):
        assert importlib.util.find_spec(command.split()[2])
    else:
        program, name, *_ = command.split()
        assert program == "pagedattn"
        assert name in {command.name for command in build_app().registered_commands}


# -- docs/ARCHITECTURE.md --------------------------------------------------------------------------

SECTIONS = (ROOT / "docs" / "ARCHITECTURE.md").read_text().split("\n## ")


def defined_in(path: Path) -> set[str]:
    """Functions, classes, constants, and Class.member, of a source file."""
    if path.suffix in (".cu", ".cuh"):
        return set(re.findall(r"\b(\w+)\s*\(", path.read_text()))
    if path.suffix != ".py":
        return set()
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        names |= {prefix + name for prefix, name in members(node)}
    return names


def members(node: ast.stmt, prefix: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield prefix, node.name
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield prefix, node.target.id
    if isinstance(node, ast.ClassDef):
        for inner in node.body:
            yield from members(inner, f"{prefix}{node.name}.")


@pytest.mark.parametrize("section", SECTIONS, ids=lambda text: text.partition("\n")[0])
def test_what_the_architecture_names_exists(section: str) -> None:
    spans = re.findall(r"`([^`]+)`", section)
    paths = {span for span in spans if "/" in span}
    assert [path for path in paths if not (ROOT / path).exists()] == []
    known = set[str]().union(*(defined_in(ROOT / path) for path in paths))
    commands = {command.name for command in build_app().registered_commands}
    for span in set(spans) - paths:
        program, _, command = span.partition(" ")
        if program.partition(".")[0] == "pagedattn":
            assert command in commands if command else importlib.util.find_spec(span), span
        else:
            assert span in known, f"{span} is in none of {sorted(paths)}"


def test_the_architecture_is_short_and_has_every_hook_and_folder() -> None:
    text = "\n## ".join(SECTIONS)
    assert len(text.splitlines()) <= 120
    assert {f"Hooks.{hook}" for hook in HOOK_OF.values()} <= set(re.findall(r"`([^`]+)`", text))
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    for folder in packages["package-dir"].values():
        assert f"`{folder}/`" in text
