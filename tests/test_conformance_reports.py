"""The reports that are made of the JSON document: HTML, JUnit, Markdown, badge."""

from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from pagedattn.conformance.badge import to_badge
from pagedattn.conformance.case import Kind, NotRun, Outcome, Result
from pagedattn.conformance.html import OPEN_FAILURES, to_html
from pagedattn.conformance.junit import to_junit
from pagedattn.conformance.markdown import to_markdown
from pagedattn.conformance.plot import headroom_plot
from pagedattn.conformance.report import Run, to_json
from pagedattn.conformance.subjects import Subject
from pagedattn.conformance.summary import Room, areas, declined_reasons, headroom, sample
from pagedattn.errors import Refusal

REFUSAL = Refusal("mine", "softcap", 2.0, "off", "use another")


def absent():
    raise NotRun("no device")


SUBJECT = Subject("mine", Kind.ATTENTION, "1.2", "cpu", absent)
RESULTS = [
    Result("gqa/1", "gqa", Outcome.PASSED, 0.5, measures={"dtype": "float32", "headroom": 2.5}),
    Result("gqa/2", "gqa", Outcome.FAILED, 0.25, "out <is> & wrong\n  first: row 0\x00"),
    Result("softcap/1", "softcap", Outcome.DECLINED, 0.0, "why", (REFUSAL,)),
    Result("lse/1", "lse", Outcome.KNOWN_FAILURE, 0.0, "known (link)"),
    Result("long/1", "position", Outcome.NOT_RUN, 0.0, "no time"),
    Result("core/1", "gqa", Outcome.PASSED, 0.0, measures={"dtype": "float16", "headroom": 9.0}),
]


def document(results=RESULTS, selection="", **more):
    return to_json([Run(SUBJECT, results, selection, **more)])


PASSING = [result for result in RESULTS if result.outcome is Outcome.PASSED]


# -- summary -------------------------------------------------------------------------------------


def test_areas_take_the_worst_state_and_count_it():
    cases = document()["runs"][0]["cases"]
    assert {area.name: area.text for area in areas(cases)} == {
        "gqa": "fails (1)",
        "softcap": "declined",
        "lse": "known failure",
        "long": "not run",
        "core": "conforms",
    }


def test_declined_reasons_and_headroom():
    cases = document()["runs"][0]["cases"]
    (reason,) = declined_reasons(cases)
    assert (reason.code, reason.cases) == ("softcap", 1)
    assert reason.text == "asked for 2.0, supported: off (use another)"
    assert [(room.dtype, room.case, room.smallest) for room in headroom(cases)] == [
        ("float16", "core/1", 9.0),
        ("float32", "gqa/1", 2.5),
    ]


def test_a_sample_has_one_of_each_area_first():
    cases = [{"id": id} for id in ("a/1", "a/2", "b/1")]
    assert [case["id"] for case in sample(cases)] == ["a/1", "b/1", "a/2"]


# -- HTML ----------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Every opened tag is closed, and what a browser would load from elsewhere."""

    VOID = frozenset({"meta"})

    def __init__(self, text):
        super().__init__()
        self.open, self.outside, self.tags, self.text = [], [], [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.outside += [value for name, value in attrs if name in ("src", "href", "srcset")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_page_is_whole_and_needs_nothing_else():
    text = to_html(document(selection="only a part", seed=5, stale=["a/9 is listed"]))
    page = Page(text)
    assert page.open == []
    assert page.outside == []
    assert "@import" not in text
    assert "url(" not in text
    assert "<script" not in text
    assert "<is>" not in text  # escaped
    for words in (
        "mine 1.2 (cpu)",
        "DOES NOT CONFORM",
        "only a part",
        "contents of seed 5",
        "a/9 is listed",
        "out <is> & wrong",
        "docs/SPEC.md#gqa",
        "pagedattn check mine --seed 5 -k gqa/2",
        "asked for 2.0, supported: off (use another)",
        "no time",
    ):
        assert words in page.text


def test_only_the_first_failures_are_unfolded():
    many = [Result(f"gqa/{n}", "gqa", Outcome.FAILED, 0.0, "bad") for n in range(70)]
    page = Page(to_html(document(many)))
    failures = [a for tag, a in page.tags if tag == "details" and "failure" in a.get("class", "")]
    assert sum("open" in attributes for attributes in failures) == OPEN_FAILURES
    assert len(failures) == 60
    assert "and 10 more" in page.text


def test_every_case_is_a_dot():
    page = Page(to_html(document()))
    titles = [attributes["title"] for tag, attributes in page.tags if "title" in attributes]
    assert titles[:2] == ["gqa/1: passed", "gqa/2: failed"]
    assert len(titles) == len(RESULTS)


def test_a_page_without_numbers_has_no_plot():
    assert "Head-room" not in to_html(document([RESULTS[1]]))


@pytest.mark.parametrize("largest", [1.0, 1.5, 9.0, 3000.0, 1e15])
def test_plot_keeps_its_dots_inside(largest):
    page = Page(headroom_plot([Room("float32", [("a/1", 1.0), ("a/2", largest)])]))
    dots = [attributes for tag, attributes in page.tags if tag == "circle"]
    places = [float(dot["cx"].rstrip("%")) for dot in dots]
    assert min(places) == 0
    assert max(places) <= 100
    assert places == sorted(places, reverse=True)  # the smallest is drawn last, on top
    assert dots[-1]["class"] == "least"
    assert "1x" in page.text


# -- JUnit ---------------------------------------------------------------------------------------


def test_junit_counts_and_tells():
    root = ElementTree.fromstring(to_junit(document()))
    suite = root.find("testsuite")
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "6", "failures": "1", "errors": "1", "skipped": "2"}
    cases = {f"{c.get('classname')}/{c.get('name')}": c for c in suite.iter("testcase")}
    assert cases["mine.gqa/1"].find("*") is None
    failure = cases["mine.gqa/2"].find("failure")
    assert failure.get("message") == "failed: out <is> & wrong"
    assert "rule: docs/SPEC.md#gqa" in failure.text
    assert "reproduce: pagedattn check mine -k gqa/2" in failure.text
    assert "\x00" not in failure.text
    assert cases["mine.softcap/1"].find("skipped").get("message") == "declined: why"
    assert cases["mine.lse/1"].find("skipped").get("message") == "known failure: known (link)"
    assert cases["mine.long/1"].find("error").get("message") == "not run: no time"
    properties = {p.get("name"): p.get("value") for p in suite.iter("property")}
    assert properties["verdict"].startswith("DOES NOT CONFORM: mine 1.2 (cpu)")


# -- Markdown and badge --------------------------------------------------------------------------


def test_markdown_tells_the_same():
    text = to_markdown(document())
    assert text.startswith("### mine 1.2 (cpu): DOES NOT CONFORM\n")
    assert "| gqa | ❌ fails (1) | 2 |" in text
    assert "**`gqa/2`** breaks docs/SPEC.md#gqa" in text
    assert "reproduce: pagedattn check mine -k gqa/2" in text
    assert "| `softcap` | 1 | asked for 2.0, supported: off (use another) |" in text
    assert "| float32 | 2.5x | `gqa/1` |" in text


@pytest.mark.parametrize(
    ("results", "selection", "message", "color"),
    [
        (PASSING, "", "conforms: 2 passed", "brightgreen"),
        ([*PASSING, RESULTS[2]], "", "conforms: 2 passed, 1 declined", "brightgreen"),
        (PASSING, "part", "conforms in part: 2 passed", "green"),
        (RESULTS, "", "does not conform: 1 failed", "red"),
        ([*PASSING, RESULTS[4]], "", "does not conform: 1 not run", "red"),
        ([*PASSING, RESULTS[3]], "", "conforms but for known failures: 2 passed", "yellow"),
        ([RESULTS[4]], "", "not judged: 1 not run", "lightgrey"),
    ],
)
def test_badge(results, selection, message, color):
    badge = to_badge(document(results, selection)["runs"][0])
    assert badge == {
        "schemaVersion": 1,
        "label": "pagedattn mine",
        "message": message,
        "color": color,
    }
