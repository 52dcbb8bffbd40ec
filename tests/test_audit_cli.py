"""`pagedattn audit`: what it reads, prints and writes, and its exit codes."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from pagedattn.allocator import BlockAllocator
from pagedattn.backends.allocators import PagedAllocator
from pagedattn.benchmarks.audit import contender
from pagedattn.benchmarks.audit.cli import audit
from pagedattn.benchmarks.audit.readers import read_trace
from pagedattn.benchmarks.audit.report import markdown
from pagedattn.benchmarks.audit.results import SCHEMA
from pagedattn.benchmarks.audit.run import audit as run_audit
from pagedattn.benchmarks.audit.server import Server

CSV = "TIMESTAMP,ContextTokens,GeneratedTokens\n0,6,3\n0,8,4\n0,8,4\n"
DOCS = Path(__file__).parents[1] / "docs" / "audit"
SHARED = Path(__file__).parents[2] / "shared" / "traces"


def run(*arguments: object, code: int = 0) -> str:
    app = typer.Typer()
    app.command()(audit)
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    return re.sub(r"\s+", " ", result.output)


def hashed(path: Path) -> Path:
    chains = ([0, 1, 2], [0, 1, 3], [0, 1, 2])
    lines = [
        {"timestamp": t, "input_length": 3 * 512, "output_length": 9, "hash_ids": ids}
        for t, ids in enumerate(chains)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(CSV)
    return path


def test_json_of_a_csv_trace(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    options = ("--num-blocks", 4, "--block-size", 4, "--watermark", 0, "--json", out)
    run(trace, "--allocator", "paged", *options)
    found = json.loads(out.read_text())
    assert found["schema"] == SCHEMA
    assert found["trace"]["requests"] == 3
    assert found["server"]["num_blocks"] == 4
    assert found["server"]["max_len"] == 16
    assert {row["size"] for row in found["fixed"] if row["kind"] == "page"} == {16, 32, 128}
    (row,) = found["replay"]
    assert row["label"] == "paged"
    assert row["requests"]["completed"] == 3
    # The second makes room for the first twice, and the third for the second once.
    assert row["requests"]["preemptions"] == 3
    assert row["operations"]["close"]["calls"] >= 4
    uses = ("tokens", "internal", "reserved", "cached", "external", "idle")
    assert sum(row["mean"][use] for use in uses) == pytest.approx(1)
    assert row["over_time"][-1]["time"] == pytest.approx(row["simulated_seconds"])
    assert found["prefix"] == []


def test_tables_on_the_terminal(trace: Path) -> None:
    text = run(trace, "--allocator", "paged", "--num-blocks", 8, "--block-size", 4, "--max-len", 9)
    assert "reserve 2,048 3 6,144 99.46 %" in text  # 33 tokens
    assert "2 / 0 / 0" in text  # refused: two of 12 tokens
    assert "Microseconds per call" in text
    assert "trace.csv: 3 requests, mean prompt 7 and output 4 tokens" in text


def test_names_may_follow_an_option(trace: Path) -> None:
    pools = ("--num-blocks", 8, "--only", "replay")
    for words in (
        (trace, "--allocator", "paged", "--policy", "lru"),
        ("--policy", "lru", "--allocator", "paged", trace),
        (trace, "--policy", "lru,lru", "--allocator", "paged", "paged", "lru"),
    ):
        text = run(*words, *pools)
        assert text.count("paged (lru)") == 4  # a row in each table
    message = "only one of them can be the trace"
    assert message in run(trace, "--allocator", "paged", "nobody", code=2)
    assert message in run(trace, "lru", code=2)  # no --policy before it


def test_prefix_table(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    options = ("--policy", "lru", "--allocator", "paged", "--only", "prefix")
    path = hashed(tmp_path / "t.jsonl")
    text = run(path, *options, "--cache-blocks", "2,3", "--json", out)
    assert "4 (all) 55.56 %" in text
    rows = json.loads(out.read_text())["prefix"]
    assert [(row["blocks"], row["hits"]["paged (lru)"]) for row in rows] == [(2, 0), (3, 4), (4, 5)]
    assert rows[-1]["hit_rates"]["paged (lru)"] == pytest.approx(5 / 9)
    assert all(row["hits"]["paged (lru)"] <= row["optimum"] <= 5 for row in rows)
    assert [row["unbounded"] for row in rows] == [False, False, True]


def test_hashed_traces_are_replayed_in_their_own_blocks(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    path = hashed(tmp_path / "t.jsonl")
    run(path, "--allocator", "paged", "--arrivals", "trace", "--only", "replay", "--json", out)
    found = json.loads(out.read_text())
    assert found["server"]["block_size"] == 512
    assert found["server"]["timed"]
    counts = found["replay"][0]["requests"]
    assert (counts["prompt_blocks"], counts["hit_blocks"]) == (9, 4)  # the last is always computed


def test_made_up_trace(tmp_path: Path) -> None:
    files = [tmp_path / f"{i}.json" for i in range(2)]
    for file in files:
        options = ("--requests", 30, "--seed", 5, "--only", "fixed")
        run("--allocator", "paged", *options, "--json", file)
    assert files[0].read_text() == files[1].read_text()
    assert json.loads(files[0].read_text())["trace"]["requests"] == 30


def test_markdown_is_reproducible_and_says_how_it_was_made(trace: Path, tmp_path: Path) -> None:
    texts = []
    for _ in range(2):
        out = tmp_path / "out.md"
        run(trace, "--allocator", "paged", "--num-blocks", 8, "--md", out)
        texts.append(out.read_text())
    assert texts[0] == texts[1]
    assert f"pagedattn audit {trace} --allocator paged --num-blocks 8 --md {out}" in texts[0]
    assert "| paged |" in texts[0]
    assert "Microseconds" not in texts[0]


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_plot(trace: Path, tmp_path: Path, suffix: str) -> None:
    files = [tmp_path / f"{i}.{suffix}" for i in range(2)]
    for file in files:
        run(trace, "--allocator", "paged", "--num-blocks", 8, "--only", "replay", "--plot", file)
    assert files[0].stat().st_size > 1000
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.csv"], "nowhere.csv is no trace file"),
        (["--allocator", "nobody"], "no allocator named 'nobody'"),
        (["--policy", "nobody"], "no policy named 'nobody'"),
        (["--only", "nothing"], "--only 'nothing' is not one of fixed, replay, prefix"),
        (["--memory", "much"], "--memory 'much': expected something like 16GiB"),
        (["--memory", "1KiB"], "--memory 1KiB does not hold one block of 2097152 bytes"),
        (["--memory", "9" * 5000], "expected something like 16GiB"),
        (["--memory", "9999TiB", "--token-bytes", "1"], "at most 2147483648 is possible"),
        (["--token-bytes", "0"], "--token-bytes is 0; at least 1 is required"),
        (["--token-bytes", "-3"], "--token-bytes is -3; at least 1 is required"),
        (["--max-len", ""], "'' is not a size"),
        (["--max-len", "0"], "max_len is 0"),
        (["--speed", "1e-320"], "it must lie in 1e-9 .. 1e18"),
        (["--step-ms", "0"], "step_seconds is 0.0; it must lie in 1e-9 .. 1e18"),
        (["--prefill-rate", "nan"], "prefill_rate is nan"),
        (["--watermark", "1"], "watermark is 1.0; at least 0 and below 1 is required"),
        (["--requests", "10000001"], "--requests is 10000001; at most 10000000 is possible"),
        (["--allocator", ","], "--allocator ',' names none"),
        (["--policy", ""], "--policy '' names none"),
        (["--json", "."], "it is a directory"),
        (["--json", "x.out", "--md", "x.out"], "--json, --md and --plot need a file each"),
        (["--num-blocks", "0"], "num_blocks is 0"),
        (["--arrivals", "random"], "--arrivals 'random' is not one of closed, trace"),
        (["--resolution", "bit"], "--resolution 'bit' is not one of block, token"),
        (["--limit", "0"], "--limit 0 leaves no request"),
        (["--plot", "x.doc"], "the suffix must be one of"),
        (["--json", "no/such/folder/x"], "is no directory"),
        (["--reserve", "0"], "--reserve '0': every size must be at least 1"),
    ],
)
def test_wrong_usage(arguments: list[str], message: str) -> None:
    assert message in run(*arguments, code=2)


def test_corrupt_lines(trace: Path) -> None:
    trace.write_text(CSV + "0,many,3\n")
    options = ("--allocator", "paged", "--num-blocks", 8)
    text = run(trace, *options, code=2)
    assert "trace.csv, line 5, field ContextTokens" in text
    assert "--skip-bad-lines" in text
    text = run(trace, *options, "--skip-bad-lines")
    assert "1 corrupt lines left out, the first: trace.csv, line 5" in text


def test_a_failing_allocator_is_a_row_and_exit_code_1(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(PagedAllocator):
        def table(self, seq: int) -> Any:
            raise KeyError("lost")

    def make(*, num_blocks: int, block_size: int, **ignored: Any) -> BlockAllocator:
        return Broken(num_blocks=num_blocks, block_size=block_size)

    monkeypatch.setattr(contender, "_maker", lambda name, policy: make)
    options = ("--allocator", "paged", "--num-blocks", 8, "--only", "replay")
    assert "failed paged: KeyError: 'lost'" in run(trace, *options, code=1)


def test_only_prefixes_of_a_trace_without_them(trace: Path) -> None:
    assert "has no hash ids" in run(trace, "--only", "prefix", code=2)


@pytest.mark.parametrize("document", sorted(DOCS.glob("*_*.md")), ids=lambda path: path.stem)
def test_generated_documents(document: Path) -> None:
    """The arithmetic part of each document is what the code says now, where its trace is here."""
    text = document.read_text()
    command = next(line for line in text.splitlines() if "pagedattn audit" in line)
    assert f"--md docs/audit/{document.name}" in command
    assert (DOCS / f"{document.stem}.svg").is_file()
    for path in SHARED.glob(f"{document.stem}.*"):
        read = read_trace(path)
        pool = [
            int(n.replace(",", ""))
            for n in re.findall(r"pool of ([\d,]+) blocks of (\d+)", text)[0]
        ]
        server = Server(num_blocks=pool[0], block_size=pool[1], max_len=1, unit=1)
        again = run_audit(read, server, reserve=(2048, 4096, 8192), page=(16, 32, 128))
        rows = [line for line in markdown(again, "").splitlines() if line.startswith("| ")]
        assert len(rows) == 8
        assert all(row in text for row in rows)


@pytest.mark.parametrize(
    ("options", "warning"),
    [
        (("--memory", "1GiB"), "--memory has no effect: --num-blocks is given"),
        (("--token-bytes", 7), "--token-bytes has no effect: --num-blocks is given"),
        (("--speed", 2), "--speed has no effect: it needs --arrivals trace"),
        (("--arrivals", "trace", "--clients", 2), "--clients has no effect: requests come when"),
        (("--seed", 0), "--seed has no effect: the trace is read from a file"),
        (("--requests", 9), "--requests has no effect: the trace is read from a file"),
    ],
)
def test_options_without_effect_are_named(
    trace: Path, options: tuple[object, ...], warning: str
) -> None:
    assert warning in run(trace, "--num-blocks", 8, "--only", "fixed", *options)
    assert "no effect" not in run(trace, "--num-blocks", 8, "--only", "fixed")
    made_up = run("--requests", 5, "--only", "fixed", "--hash-block", 16, "--skip-bad-lines")
    assert "--hash-block has no effect: the trace is made up" in made_up
    assert "--skip-bad-lines has no effect: the trace is made up" in made_up


def test_a_pipe_is_a_trace_too(trace: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cp", str(trace), str(pipe)]):
        assert "3 requests" in run(pipe, "--only", "fixed")
