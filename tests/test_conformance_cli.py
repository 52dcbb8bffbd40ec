"""`pagedattn check` as a user types it."""

import json
import re

import pytest
import typer
from typer.testing import CliRunner

from pagedattn.conformance import cli
from pagedattn.conformance.case import Case, CaseFailure, Kind
from pagedattn.conformance.hooks import pagedattn_commands
from pagedattn.conformance.mutants import ATTENTION_MUTANTS
from pagedattn.conformance.subjects import of_backend


@pytest.fixture
def run():
    app = typer.Typer()
    app.command("check")(pagedattn_commands()[0].load())
    return lambda *arguments: CliRunner().invoke(app, arguments)


@pytest.fixture
def mutant(monkeypatch):
    """Make `pagedattn check NAME` judge a planted bug."""

    def plant(name):
        backend = ATTENTION_MUTANTS[name].make()
        monkeypatch.setattr(cli, "resolve", lambda asked, device: [of_backend(backend, device)])

    return plant


def test_the_command_is_offered_by_hook():
    offers = {offer.name: offer for offer in pagedattn_commands()}
    assert set(offers) == {"check", "matrix"}
    assert offers["check"].load() is cli.check


def test_a_part_of_the_suite(run):
    result = run("reference", "-k", "gqa/mapping or causal/alignment")
    assert result.exit_code == 0
    last = result.output.strip().splitlines()[-1]
    assert last.startswith("CONFORMS IN PART: reference")
    assert "2 passed, 0 declined, 0 failed; head-room float32" in last
    assert "all passed: causal 1, gqa 1" in result.output


def test_a_backend_and_an_allocator_together(run):
    result = run("reference", "paged", "-k", "gqa/mapping or allocator/close")
    assert result.exit_code == 0
    assert len(re.findall("^CONFORMS IN PART", result.output, re.MULTILINE)) == 2


def test_a_wrong_backend(run, mutant):
    mutant("window-one-wide")
    result = run("mine", "-k", "window/left-3/decode")
    assert result.exit_code == 1
    assert "FAILED window/left-3/decode" in result.output
    assert "rule: docs/SPEC.md#window" in result.output
    assert "expected" in result.output
    assert "looks like this: the left window is one key too wide" in result.output
    assert "reproduce: pagedattn check window-one-wide -k window/left-3/decode" in result.output
    assert result.output.strip().splitlines()[-1].startswith("DOES NOT CONFORM: window-one-wide")


def test_unknown_name(run):
    result = run("referense")
    assert result.exit_code == 2
    assert "did you mean 'reference'?" in result.output
    assert "paged" in result.output


@pytest.mark.parametrize("expression", ["gqa and", "(gqa"])
def test_bad_expression(run, expression):
    result = run("reference", "-k", expression)
    assert result.exit_code == 2
    assert "missing" in result.output


def test_nothing_selected_is_not_conforming(run):
    result = run("reference", "-k", "no-such-case")
    assert result.exit_code == 2
    assert "NOT JUDGED" in result.output


def test_no_device(run, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = run("reference", "--device", "cuda", "-k", "core/")
    assert result.exit_code == 2
    assert "not run (12): no cuda device on this machine" in result.output
    assert "NOT JUDGED: reference" in result.output


def test_time_limit(run):
    result = run("reference", "-k", "gqa/mapping", "--max-time", "0")
    assert result.exit_code == 2
    assert "not run" in result.output


def test_json_file(run, tmp_path):
    path = tmp_path / "report.json"
    assert run("reference", "-k", "gqa/mapping", "--json", str(path)).exit_code == 0
    document = json.loads(path.read_text())
    only = document["runs"][0]
    assert only["verdict"]["conforms"] is True
    assert only["verdict"]["complete"] is False
    assert [c["id"] for c in only["cases"]] == ["gqa/mapping"]
    assert only["capabilities"]["layout"] == "HND, NHD"


def test_list(run):
    result = run("reference", "--list", "-k", "gqa/mapping or softcap/2/decode")
    assert result.exit_code == 0
    lines = result.output.strip().splitlines()
    assert [line.split() for line in lines] == [
        ["gqa/mapping", "docs/SPEC.md#gqa", "core"],
        ["softcap/2/decode", "docs/SPEC.md#softcap"],
    ]


def test_known_failures(run, mutant, tmp_path):
    mutant("window-one-wide")
    path = tmp_path / "known.toml"
    path.write_text(
        '[[known]]\ncase = "window/left-3/decode"\nbackend = "window-one-wide"\ndevice = "cpu"\n'
        'reason = "off by one"\nlink = "https://example.org/1"\nmessage = "out is wrong"\n'
    )
    known = run("mine", "-k", "window/left-3/decode or gqa/mapping", "--known-failures", str(path))
    assert known.exit_code == 0
    assert "CONFORMS BUT FOR KNOWN FAILURES" in known.output
    path.write_text(path.read_text().replace("window/left-3/decode", "gqa/mapping"))
    stale = run("mine", "-k", "gqa/mapping", "--known-failures", str(path))
    assert stale.exit_code == 1
    assert "stale: gqa/mapping is listed as a known failure but does not fail" in stale.output


def test_quick_is_a_part_that_can_be_narrowed(run):
    result = run("reference", "--quick", "-k", "gqa")
    assert result.exit_code == 0
    last = result.output.strip().splitlines()[-1]
    assert last.startswith("CONFORMS IN PART: reference")
    assert re.search(r"only the \d+ of \d+ cases of --quick that match 'gqa'$", last)


def test_another_seed_is_reported_and_reproduced(run, mutant, tmp_path):
    mutant("window-one-wide")
    path = tmp_path / "report.json"
    result = run("mine", "--seed", "7", "-k", "window/left-3/decode", "--json", str(path))
    assert result.exit_code == 1
    assert "contents of seed 7" in result.output
    command = "pagedattn check window-one-wide --seed 7 -k window/left-3/decode"
    assert f"reproduce: {command}" in result.output
    only = json.loads(path.read_text())["runs"][0]
    assert only["seed"] == 7
    assert only["cases"][0]["command"] == command
    usual = run("mine", "-k", "window/left-3/decode")
    assert "--seed" not in usual.output
    assert expected_value(usual.output) != expected_value(result.output)


def expected_value(output):
    return re.search(r"expected (\S+),", output)[1]


def test_a_failure_is_shown_with_its_smallest_input(run, mutant):
    mutant("window-one-wide")
    result = run("mine", "-k", "window/left-0/decode")
    assert "batch: query_lens [1], seq_lens [2]" in result.output
    assert "shrunk from: query_lens [1, 1, 1, 0], seq_lens [34, 3, 1, 4]" in result.output


def test_a_failure_that_varies_is_said(run, monkeypatch):
    calls = []

    def sometimes(subject):
        calls.append(subject)
        if len(calls) == 1:
            raise CaseFailure("wrong this time")

    case = Case("a/1", Kind.ATTENTION, "causal", sometimes)
    monkeypatch.setattr(cli, "cases_of", lambda kind: (case,))
    result = run("reference")
    assert result.exit_code == 1
    assert "wrong this time" in result.output
    assert "the outcome varies: run once more, the case passed" in result.output


@pytest.mark.parametrize(
    ("option", "begin"),
    [
        ("--html", "<!doctype html>"),
        ("--junit", "<?xml"),
        ("--md", "### reference"),
        ("--json", "{"),
    ],
)
def test_report_files(run, tmp_path, option, begin):
    path = tmp_path / "report"
    assert run("reference", "-k", "gqa/mapping", option, str(path)).exit_code == 0
    assert path.read_text().startswith(begin)


def test_a_report_that_could_not_be_written_is_refused_first(run, tmp_path):
    result = run("reference", "--html", str(tmp_path / "nowhere" / "report.html"))
    assert result.exit_code == 2
    assert "there is no folder" in result.output
    assert "CONFORMS" not in result.output


def test_badge_is_the_only_thing_on_stdout(run):
    result = run("reference", "paged", "-k", "gqa/mapping or allocator/close", "--badge")
    badges = [json.loads(line) for line in result.stdout.splitlines()]
    assert [badge["label"] for badge in badges] == ["pagedattn reference", "pagedattn paged"]
    assert badges[0]["message"] == "conforms in part: 1 passed"
    assert badges[0]["color"] == "green"
    assert "CONFORMS IN PART: reference" in result.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--json", "-", "--badge"), "give --json a file"),
        (("--html", "-"), "is for --json alone"),
        (("--html", "a", "--md", "a"), "two reports would be written to one file"),
    ],
)
def test_reports_cannot_get_into_each_others_way(run, options, words):
    result = run("reference", *options)
    assert result.exit_code == 2
    assert words in result.output
