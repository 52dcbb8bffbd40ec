"""Outcomes, verdicts, expressions and known failures. Nothing here needs a kernel."""

import json

import pytest
from rich.console import Console

from pagedattn.conformance.areas import area_of
from pagedattn.conformance.case import Case, CaseFailure, Declined, Kind, NotRun, Outcome, Result
from pagedattn.conformance.expression import compile_expression
from pagedattn.conformance.known import Known, apply_known, read_known
from pagedattn.conformance.report import Run, print_run, to_json
from pagedattn.conformance.runner import judge_case, run_cases, verdict
from pagedattn.conformance.subjects import Subject
from pagedattn.errors import Refusal

REFUSAL = Refusal("mine", "softcap", 2.0, "off", "choose another")
DECODE_ALONE = Refusal("mine", "max_query_len", None, "at most 1")


def case(id="area/one", run=lambda subject: None, core=False):
    return Case(id, Kind.ATTENTION, "causal", run, core=core)


def raising(error):
    def run(subject):
        raise error

    return run


SUBJECT = Subject("mine", Kind.ATTENTION, "1.2", "cpu", dict)


@pytest.mark.parametrize(
    ("run", "core", "outcome", "words"),
    [
        (lambda s: None, False, Outcome.PASSED, ""),
        (lambda s: {"dtype": "float32", "headroom": 3.0}, True, Outcome.PASSED, ""),
        (raising(CaseFailure("wrong")), False, Outcome.FAILED, "wrong"),
        (raising(ZeroDivisionError("crash")), False, Outcome.FAILED, "ZeroDivisionError: crash"),
        (raising(Declined((REFUSAL,))), False, Outcome.DECLINED, "softcap"),
        (raising(Declined((REFUSAL,))), True, Outcome.FAILED, "required core"),
        (raising(Declined((DECODE_ALONE,))), True, Outcome.DECLINED, "max_query_len"),
        (raising(Declined((DECODE_ALONE, REFUSAL))), True, Outcome.FAILED, "required core"),
        (raising(NotRun("no device")), False, Outcome.NOT_RUN, "no device"),
    ],
)
def test_outcomes(run, core, outcome, words):
    result = judge_case(None, case(run=run, core=core))
    assert result.outcome is outcome
    assert words in result.detail
    assert result.rule == "causal"


def test_keyboard_interrupt_is_let_through():
    with pytest.raises(KeyboardInterrupt):
        judge_case(None, case(run=raising(KeyboardInterrupt())))


def test_a_crash_names_its_place():
    detail = judge_case(None, case(run=raising(ValueError("x")))).detail
    assert "test_conformance_runner.py" in detail


def test_the_subject_is_passed_and_progress_reported():
    seen = []
    cases = [case(f"area/{i}", run=seen.append) for i in range(3)]
    told = []
    results = run_cases("subject", cases, select=lambda id: id != "area/1", progress=told.append)
    assert seen == ["subject", "subject"]
    assert [r.case for r in results] == ["area/0", "area/2"]
    assert told == results


def test_time_that_is_spent_makes_cases_not_run():
    results = run_cases(None, [case("a/1"), case("a/2")], max_time=0.0)
    assert [r.outcome for r in results] == [Outcome.NOT_RUN] * 2
    assert not verdict(results).conforms


def results(*outcomes, **measures):
    return [Result(f"a/{i}", "causal", o, 0.0, measures=measures) for i, o in enumerate(outcomes)]


@pytest.mark.parametrize(
    ("outcomes", "word", "code"),
    [
        ((Outcome.PASSED, Outcome.DECLINED), "CONFORMS:", 0),
        ((Outcome.PASSED, Outcome.FAILED), "DOES NOT CONFORM:", 1),
        ((Outcome.PASSED, Outcome.NOT_RUN), "DOES NOT CONFORM:", 1),
        ((Outcome.PASSED, Outcome.KNOWN_FAILURE), "CONFORMS BUT FOR KNOWN FAILURES:", 0),
        ((Outcome.DECLINED, Outcome.DECLINED), "NOT JUDGED:", 2),
        ((Outcome.NOT_RUN,), "NOT JUDGED:", 2),
        ((), "NOT JUDGED:", 2),
    ],
)
def test_verdicts(outcomes, word, code):
    judged = verdict(results(*outcomes))
    assert judged.line("mine 1.2 (cpu)").startswith(f"{word} mine 1.2 (cpu): ")
    assert judged.exit_code == code
    assert judged.conforms == (code == 0)


def test_whatever_a_backend_raises_is_a_failure_that_can_be_printed():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no")

    for error, told in (
        (Mute(), "Mute: (its message cannot be had: __str__ raises)"),
        (SystemExit(7), "SystemExit: 7"),
        (ValueError("bad \ud800"), "ValueError: bad \\ud800"),
    ):

        def fails(_, error=error):
            raise error

        judged = judge_case(None, Case("a/b", Kind.ATTENTION, "causal", fails))
        assert judged.outcome is Outcome.FAILED
        assert judged.detail.startswith(told)


def test_the_verdict_line():
    judged = verdict(
        [
            *results(Outcome.PASSED, dtype="float32", headroom=3.14),
            *results(Outcome.PASSED, dtype="float32", headroom=9.0),
            *results(Outcome.DECLINED, Outcome.DECLINED),
        ]
    )
    expected = "mine: 2 passed, 2 declined, 0 failed; head-room float32 3.1x"
    assert judged.line("mine") == f"CONFORMS: {expected}"
    assert judged.line("mine", "only 4") == f"CONFORMS IN PART: {expected}; only 4"
    emulated = judged.line("mine", "only 4", emulated="kernels emulated")
    assert emulated == f"KERNELS EMULATED IN PART: {expected}; nothing ran on a GPU; only 4"


def test_a_stale_known_failure_does_not_conform():
    judged = verdict(results(Outcome.PASSED), stale=["a/0"])
    assert judged.exit_code == 1
    assert "1 stale" in judged.line("mine")


# -- the -k expression ---------------------------------------------------------------------------

IDS = ["gqa/4-1/decode", "gqa/4-1/mixed", "gqa/4-10/mixed", "window/left-3/decode", "gqa/4"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gqa", [0, 1, 2, 4]),
        ("GQA and decode", [0]),
        ("gqa and not decode", [1, 2, 4]),
        ("window or mixed", [1, 2, 3]),
        ("not (gqa or window)", []),
        ("(gqa)and(mixed)", [1, 2]),
        ("gqa/4", [4]),  # a whole id selects itself alone
        ("gqa/4 or window", [3, 4]),
        ("not not decode", [0, 3]),
        ("window and decode or mixed and 4-10", [2, 3]),
    ],
)
def test_expressions(text, expected):
    matches = compile_expression(text, IDS)
    assert [i for i, id in enumerate(IDS) if matches(id)] == expected


@pytest.mark.parametrize("text", ["", "and", "gqa and", "(gqa", "gqa)", "or gqa", "not", "a b"])
def test_bad_expressions(text):
    with pytest.raises(ValueError, match=r"missing|not expected|empty"):
        compile_expression(text, IDS)


# -- known failures ------------------------------------------------------------------------------

KNOWN = Known("a/1", "mine", "cpu", "tanh is coarse", "https://example.org/7", "out is wrong")
ENTRY = """
[[known]]
case = "a/1"
backend = "mine"
device = "cpu"
reason = "tanh is coarse"
link = "https://example.org/7"
message = "out is wrong"
"""


def test_known_failures_are_read(tmp_path):
    path = tmp_path / "known.toml"
    path.write_text(ENTRY)
    assert read_known(path) == (KNOWN,)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ENTRY.replace("reason", "raeson"), "raeson, reason"),
        (ENTRY.replace('"out is wrong"', '""'), "message must be a text"),
        (ENTRY.replace('"out is wrong"', "3"), "message must be a text"),
        ("[[known]", "known.toml"),
    ],
)
def test_bad_known_failures(tmp_path, text, words):
    path = tmp_path / "known.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        read_known(path)


@pytest.mark.parametrize(
    ("outcome", "detail", "expected", "stale"),
    [
        (Outcome.FAILED, "out is wrong here", Outcome.KNOWN_FAILURE, 0),
        (Outcome.FAILED, "lse is wrong", Outcome.FAILED, 1),
        (Outcome.PASSED, "", Outcome.PASSED, 1),
    ],
)
def test_known_failures_are_strict(outcome, detail, expected, stale):
    marked, left = apply_known(
        [Result("a/1", "causal", outcome, 0.0, detail)], [KNOWN], name="mine", device="cpu"
    )
    assert marked[0].outcome is expected
    assert len(left) == stale


def test_known_failures_of_others_do_not_count():
    marked, stale = apply_known(
        [Result("a/1", "causal", Outcome.FAILED, 0.0, "out is wrong")],
        [KNOWN],
        name="mine",
        device="cuda",
    )
    assert (marked[0].outcome, stale) == (Outcome.FAILED, [])


# -- the report ----------------------------------------------------------------------------------


def printed(run):
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        print_run(console, run)
    return console.export_text()


def test_report_of_failures():
    many = [Result(f"gqa/{i}", "gqa", Outcome.FAILED, 0.0, f"bad {i}") for i in range(9)]
    many.append(Result("lse/1", "lse", Outcome.FAILED, 0.0, "bad lse"))
    more = [Result("window/1", "window", Outcome.PASSED, 0.0)]
    declined = [Result("softcap/1", "softcap", Outcome.DECLINED, 0.0, "no", (REFUSAL,))]
    text = printed(Run(SUBJECT, [*many, *more, *declined]))
    assert "all passed: window 1" in text
    assert "FAILED gqa/0" in text
    assert "FAILED lse/1" in text  # one of each area comes first
    assert "FAILED gqa/4" not in text
    assert "rule: docs/SPEC.md#gqa" in text
    assert "reproduce: pagedattn check mine -k gqa/0" in text
    assert "and 5 more failures: gqa/4, gqa/5, gqa/6, gqa/7, gqa/8" in text
    assert "declined, with reasons: softcap 1" in text
    assert text.strip().splitlines()[-1].startswith("DOES NOT CONFORM: mine 1.2 (cpu): 1 passed")


def test_areas():
    assert area_of("gqa/4-1/decode") == "gqa"
    assert area_of("allocator/fork/child") == "allocator/fork"
    assert area_of("allocator/close") == "allocator"


def test_json_can_be_read_back():
    measured = {"dtype": "float32", "headroom": 2.5}
    run = Run(
        SUBJECT,
        [
            Result("a/1", "causal", Outcome.PASSED, 0.1, measures=measured),
            Result("a/2", "causal", Outcome.DECLINED, 0.1, "why", (REFUSAL,)),
        ],
        "part",
    )
    document = json.loads(json.dumps(to_json([run]), allow_nan=False))
    assert document["schema"] == 1
    assert document["environment"]["device"] == "cpu"
    only = document["runs"][0]
    assert only["subject"] == {
        "name": "mine",
        "kind": "attention",
        "version": "1.2",
        "device": "cpu",
        "label": "mine 1.2 (cpu)",
        "emulated": "",
    }
    assert only["seed"] == 0
    assert only["verdict"]["word"] == "CONFORMS IN PART"
    assert only["verdict"]["complete"] is False
    assert only["verdict"]["headroom"] == {"float32": 2.5}
    assert only["cases"][0]["measures"] == measured
    assert only["cases"][1]["refusals"][0]["supported"] == "off"
    assert only["cases"][1]["rule"] == "docs/SPEC.md#causal"
    assert "AttributeError" in only["capabilities"]["error"]  # this subject has none to ask
