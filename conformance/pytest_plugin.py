"""The pytest plugin. It is loaded in every pytest run of the environment, so it imports neither
torch nor numpy, and nothing of the suite, before a test asks for `pagedattn_case`.

Results travel as text in user_properties, which pytest-xdist carries from its workers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pagedattn.conformance.case import Case, Result
    from pagedattn.conformance.report import Run
    from pagedattn.conformance.subjects import Subject

PROPERTY = "pagedattn"
TO_SHRINK: pytest.StashKey[list[int]] = pytest.StashKey()
MOST_SHRUNK = 20
"""Failures that are shrunk by each process: a backend that fails everywhere is not searched for
minutes."""
COLLECTED: pytest.StashKey[dict[str, Subject]] = pytest.StashKey()
WHAT_TO_PASS = (
    "pagedattn.conformance judges what it is given: pass --backend NAME or --allocator NAME "
    "(`pagedattn backends` and `pagedattn allocators` list the names)"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("pagedattn", "pagedattn conformance suite")
    for kind in ("backend", "allocator"):
        group.addoption(
            f"--{kind}",
            action="append",
            default=[],
            metavar="NAME",
            help=f"{kind} that the conformance suite judges (repeatable)",
        )
    group.addoption(
        "--pagedattn-device", default="cpu", metavar="DEVICE", help="where backends are judged"
    )
    group.addoption(
        "--pagedattn-seed",
        default=0,
        type=_seed,
        metavar="N",
        help="other contents under the same case ids; 0: the usual ones",
    )
    group.addoption(
        "--pagedattn-json", metavar="FILE", help="write every outcome of the conformance suite"
    )


def _seed(text: str) -> int:
    """Raises ValueError, which argparse reports."""
    seed = int(text)
    if seed < 0:
        raise ValueError(text)
    return seed


@dataclass(frozen=True)
class BoundCase:
    """A case and the subject that it judges.

    named  the subject is registered, so that the command line knows it too
    """

    subject: Subject
    case: Case
    named: bool

    @property
    def id(self) -> str:
        return f"{self.subject.name}-{self.case.id}"

    def judge(self, node: pytest.Item) -> None:
        """Run the case: failed and not run fail the test, declined skips it with the reasons. A
        failure is shown with the smallest input that was found to fail."""
        __tracebackhide__ = True
        from pagedattn.conformance.case import NotRun, Outcome, Result
        from pagedattn.conformance.runner import judge_case, shrunk
        from pagedattn.conformance.settings import using
        from pagedattn.errors import NotReady

        seed: int = node.config.getoption("--pagedattn-seed")
        left = node.config.stash.setdefault(TO_SHRINK, [MOST_SHRUNK])
        try:
            made = self.subject.make()
            with using(seed=seed):
                result = judge_case(made, self.case)
            if result.outcome is Outcome.FAILED and left[0]:
                left[0] -= 1
                result = shrunk(made, self.case, result, seed=seed)
        except (NotRun, NotReady) as error:
            result = Result(self.case.id, self.case.rule, Outcome.NOT_RUN, 0.0, str(error))
        node.user_properties.append((PROPERTY, _packed(self.subject, result)))
        if result.outcome is Outcome.DECLINED:
            pytest.skip(f"declined: {result.detail}")
        if result.outcome is not Outcome.PASSED:
            command = f"pytest '{node.nodeid}'" + (f" --pagedattn-seed {seed}" if seed else "")
            if self.named:
                command = self.subject.command(self.case.id, seed=seed)
            pytest.fail(
                f"{result.outcome.value}: {result.detail}\n"
                f"rule: docs/SPEC.md#{result.rule}\nreproduce: {command}",
                pytrace=False,
            )


# -- collection ----------------------------------------------------------------------------------


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "pagedattn_case" not in metafunc.fixturenames:
        return
    from pagedattn.conformance.subjects import cases_of
    from pagedattn.errors import PagedAttnError

    try:
        subjects = _subjects(metafunc)
        own = getattr(metafunc.cls, "backend", "")
        named = isinstance(own, str)
        bound = [BoundCase(s, case, named) for s in subjects for case in cases_of(s.kind)]
    except PagedAttnError as error:
        raise pytest.Collector.CollectError(str(error)) from None
    collected = metafunc.config.stash.setdefault(COLLECTED, {})
    collected.update((subject.label, subject) for subject in subjects)
    metafunc.parametrize("pagedattn_case", bound, ids=[b.id for b in bound])


def _subjects(metafunc: pytest.Metafunc) -> list[Subject]:
    """Of a subclass its own, of the suite's module those of the command line."""
    from pagedattn.conformance.case import Kind
    from pagedattn.conformance.subjects import of_backend, resolve

    owner: Any = metafunc.cls
    if owner is not None:
        allocator, backend = getattr(owner, "allocator", None), getattr(owner, "backend", None)
        if isinstance(allocator, str):
            return resolve(allocator, kind=Kind.ALLOCATOR)
        if isinstance(backend, str):
            return resolve(backend, owner.device, kind=Kind.ATTENTION)
        if backend is None:
            raise pytest.Collector.CollectError(
                f"{owner.__name__} must set `backend` or `allocator`"
            )
        return [of_backend(backend, owner.device)]
    config = metafunc.config
    backends, allocators = config.getoption("--backend"), config.getoption("--allocator")
    if not backends and not allocators:
        raise pytest.Collector.CollectError(WHAT_TO_PASS)
    device = config.getoption("--pagedattn-device")
    found = [s for name in backends for s in resolve(name, device, kind=Kind.ATTENTION)]
    return found + [s for name in allocators for s in resolve(name, kind=Kind.ALLOCATOR)]


# -- results -------------------------------------------------------------------------------------


def _packed(subject: Subject, result: Result) -> str:
    return json.dumps(
        {
            "name": subject.name,
            "kind": subject.kind.value,
            "version": subject.version,
            "device": subject.device,
            "case": result.case,
            "rule": result.rule,
            "outcome": result.outcome.value,
            "seconds": result.seconds,
            "detail": result.detail,
            "refusals": [
                [r.backend, r.code, str(r.requested), r.supported, r.hint] for r in result.refusals
            ],
            "measures": result.measures,
        },
        default=str,
    )


def _runs(reporter: pytest.TerminalReporter) -> list[Run]:
    """What the reports of this session add up to, per subject."""
    from pagedattn.conformance.case import Kind, Outcome, Result
    from pagedattn.conformance.report import Run
    from pagedattn.conformance.subjects import Subject, cases_of
    from pagedattn.errors import Refusal

    found: dict[tuple[str, str, str, str], list[Result]] = {}
    for reports in reporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) != "call":
                continue
            for name, text in getattr(report, "user_properties", ()):
                if name != PROPERTY:
                    continue
                data = json.loads(text)
                key = (data["name"], data["kind"], data["version"], data["device"])
                found.setdefault(key, []).append(
                    Result(
                        data["case"],
                        data["rule"],
                        Outcome(data["outcome"]),
                        data["seconds"],
                        data["detail"],
                        tuple(Refusal(*r) for r in data["refusals"]),
                        data["measures"],
                    )
                )
    runs = []
    seed: int = reporter.config.getoption("--pagedattn-seed")
    for (name, kind_value, version, device), results in found.items():
        kind = Kind(kind_value)
        subject = Subject(name, kind, version, device, dict)
        # Known here unless another process collected it; its capabilities are then left out.
        subject = (reporter.config.stash.get(COLLECTED, None) or {}).get(subject.label, subject)
        total = len(cases_of(kind))
        part = f"{len(results)} of {total} cases" if len(results) != total else ""
        runs.append(Run(subject, results, part, seed=seed))
    return runs


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if COLLECTED not in config.stash and not _has_results(terminalreporter):
        return
    terminalreporter.section("pagedattn conformance")
    runs = _runs(terminalreporter)
    for run in runs:
        terminalreporter.line(run.line, green=run.verdict.conforms, red=not run.verdict.conforms)
    if not runs:
        labels = ", ".join(sorted(config.stash.get(COLLECTED, None) or ()))
        terminalreporter.line(f"NOT JUDGED: {labels}: no case was executed", red=True)
    path = config.getoption("--pagedattn-json")
    if path:
        from pagedattn.conformance.report import to_json

        text = json.dumps(to_json(runs), indent=1)
        Path(path).write_text(text + "\n", encoding="utf-8")


def _has_results(reporter: pytest.TerminalReporter) -> bool:
    """Under pytest-xdist the controller collects nothing, the workers do."""
    return any(
        name == PROPERTY
        for reports in reporter.stats.values()
        for report in reports
        for name, _ in getattr(report, "user_properties", ())
    )


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A session that was asked to judge and executed no case has not succeeded."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if exitstatus != pytest.ExitCode.OK or reporter is None or session.config.option.collectonly:
        return
    if COLLECTED in session.config.stash or _has_results(reporter):
        runs = _runs(reporter)
        if not runs or any(not run.verdict.executed for run in runs):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
