"""`pagedattn check --jobs`: what a case does to its process is that case's failure alone."""

import json
import os
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from pagedattn.conformance import workers
from pagedattn.conformance.cli import check
from pagedattn.errors import NotReady

DEADLY = """
import os, signal, time
import pagedattn as pa
from pagedattn.backends.reference.backend import ReferenceBackend, ReferenceOp

class Op(ReferenceOp):
    def kernel(self, *args, **options):
        if self.spec.alibi:
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.spec.softcap == 2:
            time.sleep(600)
        if self.spec.sinks:
            os._exit(3)
        print("told by the kernel", flush=True)
        return super().kernel(*args, **options)

class Backend(ReferenceBackend):
    name = "deadly"
    op = Op

@pa.hookimpl
def pagedattn_backends():
    return [Backend]
"""


@pytest.fixture
def run(plugins):
    plugins.install("deadly", DEADLY)
    app = typer.Typer()
    app.command("check")(check)
    return lambda *arguments: CliRunner().invoke(app, arguments)


def test_a_crash_or_a_hang_fails_its_own_case(run, tmp_path):
    path = tmp_path / "report.json"
    expression = (
        "alibi/origin or softcap/2/decode or sinks/normal/decode or gqa/mapping or causal/alignment"
    )
    result = run("deadly", "-j", "2", "--case-time", "20", "-k", expression, "--json", str(path))
    assert result.exit_code == 1
    (judged,) = json.loads(path.read_text())["runs"]
    cases = {case["id"]: case for case in judged["cases"]}
    assert {id: case["outcome"] for id, case in cases.items()} == {
        "alibi/origin": "failed",
        "softcap/2/decode": "failed",
        "sinks/normal/decode": "failed",
        "gqa/mapping": "passed",
        "causal/alignment": "passed",
    }
    assert cases["alibi/origin"]["detail"] == "its process died: signal SIGSEGV"
    assert cases["sinks/normal/decode"]["detail"] == "its process died: exit code 3"
    assert cases["softcap/2/decode"]["detail"].startswith("no answer after 20 s (--case-time)")
    assert judged["verdict"]["word"] == "DOES NOT CONFORM"


def test_what_a_backend_prints_is_no_part_of_a_report(plugins, tmp_path):
    plugins.install("deadly", DEADLY)
    command = [sys.executable, "-m", "pagedattn", "check", "deadly", "-j", "1", "-k", "gqa/mapping"]
    path = os.pathsep.join([str(plugins.root), *filter(None, sys.path)])
    ran = subprocess.run(
        [*command, "--json", "-"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert "told by the kernel" in ran.stderr
    assert json.loads(ran.stdout)["runs"][0]["verdict"]["counts"]["passed"] == 1


def test_the_same_outcomes_as_in_one_process(run):
    expression = "window/left-3 or alibi/full or allocator/close"
    alone, apart = (
        run("reference", "paged", "-k", expression, *more, "--json", "-")
        for more in ([], ["-j", "2"])
    )

    def outcomes(result):
        runs = json.loads(result.stdout)["runs"]
        return [[(case["id"], case["outcome"]) for case in one["cases"]] for one in runs]

    assert outcomes(alone) == outcomes(apart)
    assert alone.exit_code == apart.exit_code == 0


def test_no_turn_is_not_run(run):
    result = run("reference", "-j", "1", "--max-time", "0", "-k", "gqa/mapping")
    assert result.exit_code == 2
    assert "NOT JUDGED" in result.output


def test_a_time_for_each_case_needs_processes(run):
    result = run("reference", "--case-time", "5")
    assert result.exit_code == 2
    assert "--case-time needs --jobs" in result.output


def test_a_worker_that_cannot_start_ends_the_run(run, plugins):
    code = "import os, multiprocessing\n"
    code += "if multiprocessing.parent_process():\n    os._exit(7)\n"
    plugins.install("unborn", code + DEADLY.replace("deadly", "unborn"))
    result = run("unborn", "-j", "2", "-k", "gqa")
    assert isinstance(result.exception, NotReady)
    assert "it did not start: exit code 7" in str(result.exception)


def test_a_worker_that_hangs_while_it_starts_ends_the_run(run, plugins, monkeypatch):
    monkeypatch.setattr(workers, "START_TIME", 10.0)
    code = "import time, multiprocessing\n"
    code += "if multiprocessing.parent_process():\n    time.sleep(600)\n"
    plugins.install("sleepy", code + DEADLY.replace("deadly", "sleepy"))
    result = run("sleepy", "-j", "1", "--case-time", "1", "-k", "gqa/mapping")
    assert isinstance(result.exception, NotReady)
    assert "it takes too long to start" in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--case-time", "-5", "-j", "1"], "--case-time -5 is no number of seconds"),
        (["--max-time", "nan"], "--max-time nan is no number of seconds"),
        (["--device", "foo"], "no device named 'foo'"),
        (["--json", "."], "cannot write .: it is a folder"),
    ],
)
def test_bad_settings_are_refused_before_the_run(run, arguments, words):
    result = run("reference", *arguments)
    assert result.exit_code == 2
    assert words in result.output
