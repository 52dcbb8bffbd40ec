"""`pagedattn matrix`, emulated backends in it, and the generated documents."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from pagedattn.backends.reference import ReferenceBackend
from pagedattn.conformance.allocator import ALLOCATOR_CASES
from pagedattn.conformance.attention import ATTENTION_CASES
from pagedattn.conformance.badge import to_badge
from pagedattn.conformance.case import Kind, Outcome, Result
from pagedattn.conformance.coverage import ENGINE_TESTS, to_markdown as coverage
from pagedattn.conformance.faults import FAULTS
from pagedattn.conformance.hooks import pagedattn_commands
from pagedattn.conformance.html import to_html
from pagedattn.conformance.junit import to_junit
from pagedattn.conformance.mutants import ALLOCATOR_MUTANTS, ATTENTION_MUTANTS
from pagedattn.conformance.report import Run, to_json
from pagedattn.conformance.runner import run_cases
from pagedattn.conformance.subjects import Subject, of_backend
from pagedattn.device import DeviceInfo
from pagedattn.emulation import Emulation, Judged

ROOT = Path(__file__).parents[1]


@pytest.fixture
def run():
    app = typer.Typer()
    app.command("matrix")(pagedattn_commands()[1].load())
    return lambda *arguments: CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture
def stored(tmp_path):
    def store(name, outcomes, *, kind=Kind.ATTENTION):
        results = [Result(id, "gqa", outcome, 0.0) for id, outcome in outcomes.items()]
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(to_json([Run(Subject(name, kind, "1", "cpu", dict), results)])))
        return path

    return store


def test_states_of_two_backends_and_an_allocator(run, stored, tmp_path):
    passed, failed, declined = Outcome.PASSED, Outcome.FAILED, Outcome.DECLINED
    one = stored("one", {"gqa/1": passed, "gqa/2": declined, "lse/1": declined, "a/1": passed})
    two = stored("two", {"gqa/1": passed, "gqa/2": failed, "lse/1": Outcome.NOT_RUN})
    pool = stored("pool", {"allocator/open/1": passed}, kind=Kind.ALLOCATOR)
    path = tmp_path / "matrix.md"
    assert run(one, two, pool, "--md", path).exit_code == 0
    lines = path.read_text().splitlines()
    assert "|  | one 1 (cpu) | two 1 (cpu) |" in lines
    assert "| **verdict** | CONFORMS | DOES NOT CONFORM |" in lines
    assert "| gqa | ✅ conforms (1 of 2) | ❌ fails (1) |" in lines
    assert "| lse | 🔹 declined | ⬜ not run |" in lines
    assert "| a | ✅ conforms | ⬜ not run |" in lines  # left out is not run
    assert "| allocator/open | ✅ conforms |" in lines
    shown = run(one, two, pool)
    assert shown.exit_code == 0
    assert "Attention backends" in shown.output
    assert "Allocators" in shown.output
    assert "fails (1)" in shown.output


@pytest.mark.parametrize("judged", list(Judged))
def test_an_emulated_backend_never_earns_the_plain_word(run, tmp_path, judged):
    backend = ReferenceBackend()
    device = DeviceInfo("cpu", name="a stand-in", real=True)
    backend.emulated = Emulation(device, judged=judged)
    subject = of_backend(backend)
    cases = [case for case in ATTENTION_CASES if case.id == "gqa/mapping"]
    ran = Run(subject, run_cases(subject.make(), cases))
    word = str(judged).upper()
    assert ran.line.startswith(f"{word}: reference (cpu): 1 passed")
    limit = {Judged.KERNELS: "nothing ran on a GPU", Judged.ADAPTER: "CUDA kernel not run"}[judged]
    assert ran.line.endswith(f"; {limit}")
    document = to_json([ran])
    assert document["runs"][0]["verdict"]["word"] == word
    assert not document["runs"][0]["verdict"]["conforms"]
    assert to_badge(document["runs"][0])["message"] == f"{judged}: 1 passed"
    for text in (to_html(document), to_junit(document)):
        assert word in text
        assert limit in text
        assert "CONFORMS" not in text
    path = tmp_path / "report.json"
    path.write_text(json.dumps(document))
    out = tmp_path / "matrix.md"
    run(path, "--md", out)
    assert f"| **verdict** | {word} |" in out.read_text()
    assert f"| gqa | ☑️ {judged} |" in out.read_text()
    assert "layout" in out.read_text()


def test_bad_files_are_named(run, stored, tmp_path):
    one = stored("one", {"gqa/1": Outcome.PASSED})
    other = tmp_path / "other.json"
    for text, words in (
        ("{", "other.json: "),
        ("[]", "is no report"),
        ('{"runs": [], "schema": 99}', "has schema 99, this is 1"),
        (one.read_text(), "one 1 (cpu) is in"),
    ):
        other.write_text(text)
        result = run(one, other)
        assert result.exit_code == 2
        assert words in result.output
    assert run(tmp_path / "absent.json").exit_code == 2


# -- generated documents -------------------------------------------------------------------------


def test_every_fault_has_a_case_and_a_planted_bug():
    text = coverage()
    assert len(FAULTS) == 98
    cases = {fault for case in (*ATTENTION_CASES, *ALLOCATOR_CASES) for fault in case.faults}
    mutants = (*ATTENTION_MUTANTS.values(), *ALLOCATOR_MUTANTS.values())
    assert set(FAULTS) == cases
    assert set(FAULTS) == {fault for mutant in mutants for fault in mutant.faults}
    for fault in FAULTS.values():
        assert f"| {fault.id} | {fault.text} |" in text


def test_the_engines_tests_that_are_named_exist():
    assert set(ENGINE_TESTS) <= set(FAULTS)
    for named in ENGINE_TESTS.values():
        path, _, test = named.partition("::")
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, named


def test_the_checked_in_coverage_is_what_is_generated():
    path = ROOT / "docs" / "COVERAGE.md"
    command = "python -m pagedattn.conformance.coverage > docs/COVERAGE.md"
    assert path.read_text(encoding="utf-8") == coverage(), f"generate it again: {command}"


def test_the_generator_is_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "pagedattn.conformance.coverage"],
        capture_output=True,
        text=True,
        check=True,
        encoding="utf-8",
    )
    assert done.stdout == coverage()
