"""benchmarks/gpu_check.sh: its exit codes and its words, with a made-up GPU and commands."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pagedattn.conformance.case import Outcome, Result
from pagedattn.conformance.report import Run, to_json
from pagedattn.conformance.runner import out_of_time
from pagedattn.conformance.subjects import resolve

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu_check.sh"

TORCH = """
class cuda:
    is_available = staticmethod(lambda: True)
    get_device_name = staticmethod(lambda: "Made up GPU")
    get_device_capability = staticmethod(lambda: (9, 0))
"""
COMMANDS = """
import json, os, pathlib, shutil, sys
command, *rest = sys.argv[1:]
plan = json.loads(pathlib.Path(os.environ["PLAN"]).read_text())
with open(os.environ["PLAN"] + ".log", "a") as log:
    print(*sys.argv[1:], file=log)
if command == "env":
    print("{}")
elif command == "backends":
    print(json.dumps([{"name": name, "state": "ready"} for name in plan["check"]]))
elif command == "bench":
    print("timed")
    sys.exit(plan["bench"])
else:
    report, code = plan["check"][rest[0]]
    if report:
        shutil.copy(report, rest[rest.index("--json") + 1])
    print("the last line")
    sys.exit(code)
"""


class Machine:
    """Where the script finds a GPU, and commands that answer as they are told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "stub" / "pagedattn").mkdir(parents=True)
        (folder / "stub" / "torch.py").write_text(TORCH)
        (folder / "stub" / "pagedattn" / "__init__.py").touch()
        (folder / "stub" / "pagedattn" / "__main__.py").write_text(COMMANDS)
        (folder / "bin").mkdir()
        self.sanitizer(0)

    def sanitizer(self, code: int) -> None:
        """compute-sanitizer that finds errors (any code but 0) or runs its command."""
        path = self.folder / "bin" / "compute-sanitizer"
        path.write_text(f'#!/bin/sh\nshift 2\n"$@"; c=$?\n[ {code} = 0 ] && exit $c\nexit {code}\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def report(self, name: str, *outcomes: Result) -> str:
        """What `pagedattn check` really writes of these outcomes."""
        (subject,) = resolve("reference", "cpu")
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(to_json([Run(subject, list(outcomes))])))
        return str(path)

    def run(
        self, checks: dict[str, tuple[str, int]], *, bench: int = 0
    ) -> subprocess.CompletedProcess[str]:
        plan: dict[str, Any] = {"check": checks, "bench": bench}
        (self.folder / "plan").write_text(json.dumps(plan))
        environment = {
            **os.environ,
            "PYTHON": sys.executable,
            "PYTHONPATH": str(self.folder / "stub"),
            "PLAN": str(self.folder / "plan"),
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
        }
        return subprocess.run(
            ["bash", str(SCRIPT), str(self.folder / "out"), *checks],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def case(number: int) -> Any:
    return type("Case", (), {"id": f"case/{number}", "rule": "rule"})()


def result(outcome: Outcome, detail: str = "") -> Result:
    return Result("case/0", "rule", outcome, 1.0, detail)


PASSED, FAILED, DECLINED = map(result, (Outcome.PASSED, Outcome.FAILED, Outcome.DECLINED))
LATE = [out_of_time(case(i), 100.0) for i in range(3)]
NO_LIBRARY = result(Outcome.NOT_RUN, "the library cannot be imported")


def test_cases_without_their_turn_are_counted_and_fail_nothing(machine: Machine) -> None:
    report = machine.report("late", PASSED, PASSED, DECLINED, *LATE)
    done = machine.run({"cupy": (report, 1)})
    line = "check-cupy: NO FAILURE, NOT ALL JUDGED: 2 passed, 1 declined, 3 NOT RUN in the time ("
    assert line in done.stdout
    assert "CONFORM:" not in done.stdout
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("late", [[], LATE], ids=["all-run", "some-late"])
def test_a_failed_case_fails_whatever_else_there_is(machine: Machine, late: list[Result]) -> None:
    good = machine.report("good", PASSED)
    bad = machine.report("bad", PASSED, FAILED, *late)
    done = machine.run({"triton": (bad, 1), "cupy": (good, 0)})
    assert "check-triton: DOES NOT CONFORM: 1 passed, 1 failed" in done.stdout
    assert ("3 NOT RUN in the time" in done.stdout) is bool(late)
    assert "check-cupy: CONFORMS: 1 passed (" in done.stdout
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("outcomes", "code", "said"),
    [
        ([PASSED, NO_LIBRARY], 1, "1 not run for another reason"),
        ([NO_LIBRARY], 2, "NOT JUDGED: 1 not run for another reason"),
        ([PASSED, NO_LIBRARY, *LATE], 1, "3 NOT RUN in the time, 1 not run for another reason"),
        (None, 139, "exit code 139, the last line"),
    ],
    ids=["library", "nothing", "both", "crash"],
)
def test_what_is_missing_for_another_reason_is_code_2(
    machine: Machine, outcomes: list[Result] | None, code: int, said: str
) -> None:
    report = machine.report("odd", *outcomes) if outcomes else ""
    done = machine.run({"cupy": (report, code)})
    assert said in done.stdout
    assert done.returncode == 2


def test_a_report_of_an_earlier_run_is_not_read(machine: Machine) -> None:
    report = machine.report("bad", FAILED)
    assert machine.run({"cupy": (report, 1)}).returncode == 1
    assert machine.run({"cupy": ("", 2)}).returncode == 2


@pytest.mark.parametrize(("bench", "code"), [(0, 0), (1, 1), (2, 2)])
def test_a_wrong_timed_backend_fails_too(machine: Machine, bench: int, code: int) -> None:
    done = machine.run({"cupy": (machine.report("good", PASSED), 0)}, bench=bench)
    assert f"decode-fp8: exit code {bench} after" in done.stdout
    assert done.returncode == code


@pytest.mark.parametrize(("found", "code"), [(0, 0), (99, 1)])
def test_errors_of_compute_sanitizer_fail(machine: Machine, found: int, code: int) -> None:
    machine.sanitizer(found)
    done = machine.run({"cupy": (machine.report("late", PASSED, *LATE), 1)})
    assert ("compute-sanitizer found errors" in done.stdout) is bool(found)
    assert done.stdout.count("3 NOT RUN in the time") == (1 if found else 2)
    assert done.returncode == code


def test_the_suite_gets_eight_processes_and_a_clock(machine: Machine) -> None:
    machine.run({"cupy": (machine.report("good", PASSED), 0)})
    (check,) = [
        line
        for line in (machine.folder / "plan.log").read_text().splitlines()
        if line.startswith("check cupy --jobs 8 ")
    ]
    assert "--case-time" in check
    assert "--max-time" in check
    assert "--device cuda" in check
