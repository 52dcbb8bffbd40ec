"""The report as JUnit XML, for continuous integration that shows test results."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

__all__ = ["to_junit"]

TAG = {"failed": "failure", "not run": "error", "declined": "skipped", "known failure": "skipped"}
FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_junit(document: dict[str, Any]) -> str:
    """One <testsuite> per run, one <testcase> per case.

    A declined case and a known failure are skipped, with the reason; a case that was not run is
    an error, as it is for the verdict."""
    root = ElementTree.Element("testsuites", name="pagedattn conformance")
    for run in document["runs"]:
        root.append(_suite(run, document["environment"]))
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _suite(run: dict[str, Any], environment: dict[str, Any]) -> ElementTree.Element:
    counts, cases = run["verdict"]["counts"], run["cases"]
    suite = ElementTree.Element(
        "testsuite",
        name=_clean(run["subject"]["label"]),
        tests=str(len(cases)),
        failures=str(counts["failed"]),
        errors=str(counts["not run"]),
        skipped=str(counts["declined"] + counts["known failure"]),
        time=f"{sum(case['seconds'] for case in cases):.3f}",
    )
    facts = {"verdict": run["verdict"]["line"], "seed": run["seed"], **environment}
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in facts.items():
        ElementTree.SubElement(properties, "property", name=name, value=_clean(str(value)))
    for case in cases:
        suite.append(_case(run["subject"]["name"], case))
    return suite


def _case(subject: str, case: dict[str, Any]) -> ElementTree.Element:
    area, _, rest = case["id"].rpartition("/")
    found = ElementTree.Element(
        "testcase",
        classname=f"{subject}.{area.replace('/', '.')}",
        name=rest,
        time=f"{case['seconds']:.4f}",
    )
    outcome = case["outcome"]
    if outcome in TAG:
        first = case["detail"].partition("\n")[0]
        inner = ElementTree.SubElement(found, TAG[outcome], message=_clean(f"{outcome}: {first}"))
        command = f"\nreproduce: {case['command']}" if case["command"] else ""
        inner.text = _clean(f"{case['detail']}\nrule: {case['rule']}{command}")
    return found


def _clean(text: str) -> str:
    """Without the control characters that XML cannot hold."""
    return FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
