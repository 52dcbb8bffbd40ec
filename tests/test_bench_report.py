"""Reports: JSON round trip, derived figures against hand-computed ones, tables, CSV, plot."""

import csv
import io
import json
from xml.etree import ElementTree

import pytest
from bench_support import FAST, GatherBackend, TickClock, make_report, make_spec
from rich.console import Console

from pagedattn.benchmarks import Report, bench
from pagedattn.benchmarks.plot import to_svg
from pagedattn.benchmarks.report import markdown, print_report, summary, to_csv
from pagedattn.benchmarks.results import SCHEMA, BenchState
from pagedattn.benchmarks.stats import Estimate, Verdict
from pagedattn.benchmarks.workload import decode, prefill

MIXED_BAG = {
    "slow": [2e-3] * 9,
    "fast": [1e-3] * 9,
    "liar": BenchState.WRONG,
    "picky": BenchState.REFUSED,
}


def printed(report: Report, *, width: int = 140) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_report(report, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_json_round_trip_of_a_real_run() -> None:
    report = bench(
        [
            decode(make_spec(softcap=3.0), batch=1, context=9),
            prefill(make_spec(), batch=1, context=9, query_len=3),
        ],
        ["reference", GatherBackend()],
        settings=FAST,
        pool_bytes=1,
        probe_bytes=2**16,
        clock=TickClock(idle=True),
    )
    states = [row.state for _, row in report.rows()]
    assert states == [BenchState.TIMED, BenchState.REFUSED, BenchState.TIMED, BenchState.TIMED]
    assert Report.from_json(report.to_json()) == report


def test_json_says_what_a_reader_needs() -> None:
    data = json.loads(make_report(MIXED_BAG).to_json())
    assert data["schema"] == SCHEMA == "pagedattn.bench/1"
    assert data["environment"]["device"] == "test machine"
    group = data["groups"][0]
    assert group["spec"]["dtype"] == "float32"
    slow, fast, liar, _ = group["rows"]
    assert fast["run"] == [1e-3] * 9
    assert fast["summary"]["verdict"] == "FASTER"
    assert fast["summary"]["speedup"] == {"value": 2.0, "low": 2.0, "high": 2.0}
    assert slow["summary"]["verdict"] is None
    assert (liar["state"], liar["summary"], liar["run"]) == ("wrong", {}, [])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not json", "old.json is not JSON"),
        ("[]", "old.json has schema None"),
        ('{"schema": "pagedattn.bench/99"}', "reads 'pagedattn.bench/1'"),
        (f'{{"schema": "{SCHEMA}"}}', "not a whole report"),
    ],
)
def test_what_is_no_report_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Report.from_json(text, source="old.json")


def test_figures_of_a_row() -> None:
    # 1000 bytes and 2000 FLOPs in 1 ms; the probe reads 1000 bytes in 0.5 ms.
    group = make_report({"slow": [2e-3] * 9, "fast": [1e-3] * 9}, read=[5e-4] * 9).groups[0]
    slow, fast = group.rows
    assert group.read is not None
    assert group.read.rate.value == pytest.approx(2e6)
    assert group.read_rate(fast).value == pytest.approx(1e6)
    assert group.flop_rate(fast).value == pytest.approx(2e6)
    fraction = group.read_fraction(fast)
    assert fraction is not None
    assert fraction.value == pytest.approx(0.5)
    assert group.peak_fraction(fast) is None
    assert group.speedup(fast) == Estimate(2, 2, 2)
    assert group.verdict(fast) is Verdict.FASTER
    assert group.speedup(slow) == Estimate(1, 1, 1)
    assert group.verdict(slow) is None


def test_fractions_are_taken_sample_by_sample() -> None:
    drift = [1.0, 2, 3, 4, 5, 6, 7]
    group = make_report({"a": [2e-3 * d for d in drift]}, read=[1e-3 * d for d in drift]).groups[0]
    fraction = group.read_fraction(group.rows[0])
    assert fraction is not None
    assert [fraction.low, fraction.value, fraction.high] == pytest.approx([0.5, 0.5, 0.5])


def test_no_speedup_over_a_baseline_that_was_not_timed() -> None:
    group = make_report({"liar": BenchState.WRONG, "a": [1e-3] * 7}).groups[0]
    assert group.speedup(group.rows[1]) is None
    assert group.verdict(group.rows[1]) is None


def test_table_has_times_for_right_rows_only() -> None:
    text = printed(make_report(MIXED_BAG))
    lines = text.splitlines()
    fast = next(line for line in lines if line.startswith("fast"))
    assert " ".join(fast.split()) == (
        "fast 10% 1 ms ±0.0% 1 MB/s 100% 10 µs 10 µs 2.00x ±0.0% FASTER"
    )
    assert any(line.split()[-1] == "baseline" for line in lines if line.startswith("slow"))
    assert "  liar: WRONG because liar is wrong" in lines
    assert "  picky: REFUSED because picky is refused" in lines
    assert "test machine · torch 2.13.0 · pagedattn 0.1.0" in lines
    assert "This machine reads 1 MB/s (torch.sum)" in lines


def test_a_narrow_terminal_drops_columns_instead_of_cutting_numbers() -> None:
    text = printed(make_report(MIXED_BAG), width=70)
    fast = next(line for line in text.splitlines() if line.startswith("fast"))
    assert " ".join(fast.split()) == ("fast 10% 1 ms ±0.0% 1 MB/s 100% 2.00x ±0.0% FASTER")
    assert "…" not in text


def test_names_are_no_markup() -> None:
    assert "[bold]x[/]" in printed(make_report({"[bold]x[/]": [1e-3] * 7, "y": BenchState.FAILED}))


def test_a_busy_machine_is_told() -> None:
    busy = make_report(MIXED_BAG, load_average=3.0, cpus=2)
    assert "The machine was busy before (load 3.0 on 2 CPUs)" in printed(busy)
    assert "busy" not in printed(make_report(MIXED_BAG, load_average=0.5, cpus=2))


def test_summary() -> None:
    assert summary(make_report(MIXED_BAG)) == (
        "2 rows timed, each checked before and after; 1 wrong, not timed; 1 refused, not timed. "
        "Against slow: 1 FASTER."
    )


def test_markdown_has_a_line_per_row() -> None:
    lines = markdown(make_report(MIXED_BAG)).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + 4
    assert len({line.replace(r"\|", "").count("|") for line in table}) == 1
    assert table[3].endswith("| 2.00x | ±0.0% | FASTER |")
    assert table[4].endswith("| WRONG: because liar is wrong |")


def test_csv_has_base_units_and_blanks() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(make_report(MIXED_BAG)))))
    assert [row["backend"] for row in rows] == ["slow", "fast", "liar", "picky"]
    assert float(rows[1]["run_seconds"]) == 1e-3
    assert float(rows[1]["speedup_low"]) == 2.0
    assert float(rows[1]["read_fraction"]) == 1.0
    assert rows[1]["verdict"] == "FASTER"
    assert rows[2]["run_seconds"] == rows[2]["speedup"] == rows[2]["plan_seconds"] == ""
    assert (rows[2]["state"], rows[2]["detail"]) == ("wrong", "because liar is wrong")


def test_svg_has_a_bar_for_right_rows_only() -> None:
    report = make_report({**MIXED_BAG, "<odd>": [4e-3] * 9}, read=[1e-3] * 9)
    root = ElementTree.fromstring(to_svg(report))
    tag = "{http://www.w3.org/2000/svg}"
    texts = [element.text for element in root.iter(f"{tag}text")]
    widths = [float(bar.attrib["width"]) for bar in root.iter(f"{tag}rect")][1:]
    assert widths == [230.0, 460.0, 115.0]  # 50%, 100% and 25% of the read bandwidth
    assert {"50%, baseline", "100%, 2.00x FASTER", "25%, 0.50x SLOWER", "<odd>"} <= set(texts)
    assert "WRONG because liar is wrong" in texts
    assert "decode b1 ctx1k: % of this machine's read bandwidth" in texts
