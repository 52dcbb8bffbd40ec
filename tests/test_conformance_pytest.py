"""The pytest plugin, in pytest runs of their own."""

import json
import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]

CASES = "gqa/mapping or causal/alignment"


@pytest.fixture
def run(pytester):
    """pytest in a process of its own, as a stranger calls it."""
    pytester.makeini("[pytest]\nfilterwarnings = error\n")
    return lambda *arguments: pytester.runpytest_subprocess("-p", "no:cacheprovider", *arguments)


def test_importing_the_plugin_imports_nothing_heavy():
    code = (
        "import sys, pagedattn.conformance.pytest_plugin, pagedattn.conformance\n"
        "print(sorted({'torch', 'numpy', 'rich', 'typer'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_run_that_does_not_use_the_plugin_imports_nothing_heavy(pytester, run):
    pytester.makepyfile(
        "import sys\ndef test_a():\n    assert not {'torch', 'numpy'} & set(sys.modules)\n"
    )
    # Other plugins of the environment may import numpy themselves.
    result = run("-p", "no:benchmark", "-p", "no:hypothesispytest", "-q")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*pagedattn conformance*")


def test_the_suite_by_package_name(run, tmp_path):
    path = tmp_path / "report.json"
    result = run(
        "--pyargs", "pagedattn.conformance", "--backend", "reference", "-k",
        "gqa/mapping or allocator/close", "--allocator", "paged", "--pagedattn-json", str(path),
    )  # fmt: skip
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "*pagedattn conformance*",
            "CONFORMS IN PART: reference * (cpu): 1 passed, 0 declined, 0 failed; head-room*",
            "CONFORMS IN PART: paged *",
        ]
    )
    document = json.loads(path.read_text())
    assert [run["subject"]["name"] for run in document["runs"]] == ["reference", "paged"]
    assert document["runs"][0]["capabilities"]["layout"] == "HND, NHD"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "pass --backend NAME or --allocator NAME"),
        (("--backend", "referense"), "did you mean 'reference'"),
        (("--allocator", "pagde"), "did you mean 'paged'"),
    ],
)
def test_nothing_to_judge_is_an_error(run, arguments, words):
    result = run("--pyargs", "pagedattn.conformance", *arguments)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([f"*{words}*"])
    result.stdout.no_fnmatch_line("*passed*")


SUBCLASS = """
    import dataclasses
    from pagedattn.backends.reference import ReferenceBackend
    from pagedattn.conformance import BackendConformance
    from pagedattn.conformance.mutants import ATTENTION_MUTANTS

    class Narrow(ReferenceBackend):
        def capabilities(self, device):
            return dataclasses.replace(super().capabilities(device), softcap=False)

    class TestNarrow(BackendConformance):
        backend = Narrow()

    class TestMutant(BackendConformance):
        backend = ATTENTION_MUTANTS["heads-interleaved"].make()
"""


def test_subclasses_in_a_strangers_repository(pytester, run):
    pytester.makepyfile(SUBCLASS)
    result = run("-k", "gqa/mapping or (Narrow and softcap/2/decode)", "-rs")
    assert result.ret == 1
    result.assert_outcomes(passed=1, skipped=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*failed: *read kv heads*",
            "*rule: docs/SPEC.md#gqa*",
            "*reproduce: pytest '*::TestMutant::test_case[[]heads-interleaved-gqa/mapping[]]'",
        ]
    )
    result.stdout.fnmatch_lines(["*declined: *softcap=2.0 is not supported*"])
    result.stdout.fnmatch_lines(["*CONFORMS IN PART: reference (cpu): 1 passed, 1 declined*"])
    result.stdout.fnmatch_lines(["DOES NOT CONFORM: heads-interleaved (cpu): 0 passed*"])


def test_a_seed_and_the_smallest_input(pytester, run):
    """Under pytest as on the command line: the seed reaches the cases and the reproducing command,
    a failure shows the smallest step, a searched one the smallest example."""
    pytester.makepyfile(SUBCLASS.replace("heads-interleaved", "own-key-missing"))
    chosen = "Mutant and (core/mixed/dim-64/group-1 or random/plain/decode)"
    result = run("-k", chosen, "--pagedattn-seed", "5", "--pagedattn-json", "a.json")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "*batch: query_lens [[]1[]], seq_lens [[]1[]]",
            "*shrunk from: query_lens [[]1, 6, 0, 1, 16[]], seq_lens [[]32, 19, 0, 1, 33[]]",
            "*reproduce: pytest '*group-1[]]' --pagedattn-seed 5",
            "*smallest example: Ragged(requests=((1, 1),), values=0, spread=1.0, placing=*",
        ]
    )
    assert json.loads((pytester.path / "a.json").read_text())["runs"][0]["seed"] == 5


def test_a_seed_is_a_number(run):
    result = run("--pyargs", "pagedattn.conformance", "--pagedattn-seed", "-1")
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_all_declined_is_a_failure(pytester, run):
    pytester.makepyfile(SUBCLASS)
    result = run("-k", "Narrow and softcap/2/decode")
    result.assert_outcomes(skipped=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["NOT JUDGED: reference (cpu): 0 passed, 1 declined*"])


def test_a_class_without_a_subject(pytester, run):
    pytester.makepyfile(
        """
        from pagedattn.conformance import BackendConformance

        class TestNothing(BackendConformance):
            pass
        """
    )
    result = run()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*TestNothing must set `backend` or `allocator`*"])


def test_with_xdist_the_verdict_is_still_printed(pytester, run):
    result = run(
        "-n", "1", "--pyargs", "pagedattn.conformance", "--backend", "reference", "-k", CASES,
        "--pagedattn-seed", "3", "--pagedattn-json", "a.json",
    )  # fmt: skip
    assert result.ret == 0
    assert json.loads((pytester.path / "a.json").read_text())["runs"][0]["seed"] == 3
    result.stdout.fnmatch_lines(["CONFORMS IN PART: reference * (cpu): 2 passed*"])
