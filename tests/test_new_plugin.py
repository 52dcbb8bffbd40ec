"""`pagedattn new-plugin`: what it writes works, and is what is checked in as plugins/template."""

import ast
import importlib
import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pagedattn.cli import build_app
from pagedattn.cli.plugin_template import render
from pagedattn.conformance.attention import ATTENTION_CASES
from pagedattn.conformance.case import Outcome
from pagedattn.conformance.quick import quick
from pagedattn.conformance.runner import run_cases, verdict
from pagedattn.conformance.subjects import of_backend

ROOT = Path(__file__).parents[1]
TEMPLATE = ROOT / "plugins" / "template"


def new_plugin(*arguments):
    return CliRunner().invoke(build_app(), ["new-plugin", *map(str, arguments)])


def test_plugins_template_is_the_rendering_for_that_name():
    files = render("template")
    for path, text in files.items():
        assert (TEMPLATE / path).read_text(encoding="utf-8") == text, path
    own = {
        str(path.relative_to(TEMPLATE))
        for path in TEMPLATE.rglob("*")
        if path.is_file() and not re.search(r"__pycache__|\.egg-info|/\.", str(path))
    }
    assert own == set(files)


@pytest.mark.parametrize("name", ["mine", "my-kernel", "a_b2"])
def test_what_is_written_parses_and_names_itself(name, tmp_path):
    result = new_plugin(name, "--dir", tmp_path)
    assert result.exit_code == 0, result.output
    folder = tmp_path / f"pagedattn-{name}"
    package = f"pagedattn_{name.replace('-', '_')}"
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["name"] == f"pagedattn-{name}"
    assert project["entry-points"]["pagedattn"] == {name: package}
    for path in folder.rglob("*.py"):
        ast.parse(path.read_text())
    assert not [p for p in folder.rglob("*") if p.is_file() and "$" in p.read_text()]
    assert f"pagedattn check {name} --quick" in result.output
    assert len(result.output.partition("next:")[2].strip().splitlines()) == 3


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Mine", "lower-case letters"),
        ("2fast", "a letter first"),
        ("a:b", "cannot be a backend's name"),
        ("../up", "cannot be a backend's name"),
        ("reference", "there is a backend 'reference' already"),
    ],
)
def test_bad_names_are_refused(name, words, tmp_path):
    result = new_plugin(name, "--dir", tmp_path)
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())
    assert list(tmp_path.iterdir()) == []


def test_existing_folders_are_left_alone(tmp_path):
    (tmp_path / "pagedattn-mine").mkdir()
    result = new_plugin("mine", "--dir", tmp_path)
    assert result.exit_code == 2
    assert "exists already" in result.output
    assert list((tmp_path / "pagedattn-mine").iterdir()) == []
    missing = new_plugin("mine", "--dir", tmp_path / "nowhere")
    assert missing.exit_code == 2
    assert "there is no folder" in missing.output


def test_what_is_written_conforms(tmp_path, monkeypatch):
    assert new_plugin("fresh-one", "--dir", tmp_path).exit_code == 0
    monkeypatch.syspath_prepend(tmp_path / "pagedattn-fresh-one" / "src")
    (offer,) = importlib.import_module("pagedattn_fresh_one").pagedattn_backends()
    assert offer.name == "fresh-one"
    backend = offer.load()()
    assert backend.name == "fresh-one"
    results = run_cases(of_backend(backend).make(), quick(ATTENTION_CASES))
    assert [(r.case, r.detail) for r in results if r.outcome is Outcome.FAILED] == []
    assert verdict(results).conforms


@pytest.mark.slow
def test_installed_into_a_fresh_environment_it_is_found_and_conforms(tmp_path):
    """The three commands that are printed, without the network: this environment lends its
    packages, and the plugin is installed from its folder."""
    assert new_plugin("stranger", "--dir", tmp_path).exit_code == 0
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    lent = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": lent}

    def run(*command):
        done = subprocess.run(
            [str(python), "-m", *command], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    folder = str(tmp_path / "pagedattn-stranger")
    run("pip", "install", "--no-deps", "--no-build-isolation", "--no-index", "-q", folder)
    assert "CONFORMS IN PART: stranger 0.1.0 (cpu)" in run(
        "pagedattn", "check", "stranger", "--quick"
    )
    assert "DOES NOT" not in run("pytest", "-q", "-k", "core or causal", folder)
