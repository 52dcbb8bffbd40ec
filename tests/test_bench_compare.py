"""Comparing two reports: what is joined, what counts as a regression, the exit code."""

import io

import pytest
from bench_support import make_report
from rich.console import Console

from pagedattn.benchmarks.compare import (
    Basis,
    changes,
    differing_environment,
    exit_code,
    print_changes,
)
from pagedattn.benchmarks.results import BenchState
from pagedattn.benchmarks.stats import Estimate, Verdict

ONE, TWO = [1e-3] * 9, [2e-3] * 9
NOISY = [1e-3, 2e-3, 3e-3, 4e-3, 5e-3, 6e-3, 7e-3]


@pytest.mark.parametrize(
    ("old", "new", "verdict", "code"),
    [
        (ONE, TWO, Verdict.SLOWER, 1),
        (TWO, ONE, Verdict.FASTER, 0),
        (ONE, ONE, Verdict.SAME, 0),
        (ONE, [t * 1.01 for t in ONE], Verdict.SAME, 0),
        (ONE, [t * 1.03 for t in ONE], Verdict.SLOWER, 1),
        (NOISY, NOISY, Verdict.UNCLEAR, 0),
    ],
)
def test_verdict_and_exit_code(
    old: list[float], new: list[float], verdict: Verdict, code: int
) -> None:
    found = changes(make_report({"a": old}), make_report({"a": new}))
    assert [change.verdict for change in found] == [verdict]
    assert exit_code(found) == code


def test_speedup_is_old_over_new() -> None:
    (change,) = changes(make_report({"a": TWO}), make_report({"a": ONE}))
    assert change.speedup == Estimate(2, 2, 2)
    assert (change.backend, change.workload, change.note) == ("a", "decode b1 ctx1k", "")


def test_tolerance() -> None:
    reports = make_report({"a": ONE}), make_report({"a": [t * 1.08 for t in ONE]})
    assert exit_code(changes(*reports)) == 1
    assert exit_code(changes(*reports, tolerance=0.1)) == 0


def test_fractions_forgive_a_slower_machine() -> None:
    old, new = make_report({"a": ONE}, read=ONE), make_report({"a": TWO}, read=TWO)
    assert changes(old, new)[0].verdict is Verdict.SLOWER
    assert changes(old, new, basis=Basis.FRACTION)[0].verdict is Verdict.SAME


def test_a_row_that_lost_its_time_is_a_regression() -> None:
    for state in (BenchState.WRONG, BenchState.FAILED, BenchState.REFUSED):
        found = changes(make_report({"a": ONE, "b": ONE}), make_report({"a": ONE, "b": state}))
        assert found[1].note == f"timed -> {state}: because b is {state}"
        assert exit_code(found) == 1


def test_a_row_that_gained_a_time_is_none() -> None:
    found = changes(
        make_report({"a": ONE, "b": BenchState.WRONG}), make_report({"a": ONE, "b": ONE})
    )
    assert found[1].note == "wrong -> timed"
    assert exit_code(found) == 0


def test_rows_of_one_report_only_are_told_and_not_compared() -> None:
    found = changes(make_report({"a": ONE, "gone": ONE}), make_report({"a": ONE, "fresh": ONE}))
    assert {change.backend: change.note for change in found} == {
        "a": "",
        "gone": "only in the old report",
        "fresh": "only in the new report",
    }
    assert exit_code(found) == 0


@pytest.mark.parametrize(
    "other",
    [
        make_report({"a": ONE}, device="another machine"),
        make_report({"a": ONE}, workload="decode b8 ctx1k"),
        make_report({"b": ONE}),
    ],
)
def test_nothing_comparable(other: object) -> None:
    found = changes(make_report({"a": ONE}), other)  # type: ignore[arg-type]
    assert all(change.speedup is None for change in found)
    assert exit_code(found) == 2


def test_untimed_on_both_sides_is_nothing_comparable() -> None:
    found = changes(make_report({"a": BenchState.WRONG}), make_report({"a": BenchState.WRONG}))
    assert exit_code(found) == 2
    assert found[0].note == ""


def test_differing_environment() -> None:
    old, new = make_report({"a": ONE}), make_report({"a": ONE}, torch="2.14.0")
    assert differing_environment(old, new) == ["torch: 2.13.0 -> 2.14.0"]
    assert differing_environment(old, old) == []


def test_print_shows_what_changed() -> None:
    console = Console(file=io.StringIO(), width=140)
    old = make_report({"a": ONE, "b": ONE, "c": ONE})
    new = make_report({"a": TWO, "b": ONE, "c": BenchState.WRONG})
    print_changes(changes(old, new), console)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert " ".join(lines[1].split()) == ("a decode b1 ctx1k 0.500x 0.500 .. 0.500 SLOWER")
    assert lines[2:] == [
        "c, decode b1 ctx1k: timed -> wrong: because c is wrong",
        "2 rows timed in both reports: 1 SLOWER, 1 SAME",
    ]
