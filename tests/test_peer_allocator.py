"""The side-by-side benchmark: what its sides do, and what it says without a peer."""

import os
import shlex
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from pagedattn.benchmarks import peer_allocator, pool_sizes
from pagedattn.benchmarks.peer_allocator import OPERATIONS, Operation
from pagedattn.benchmarks.peer_sides import Paged, peers


def side(cache: bool = True) -> Paged:
    return Paged(num_blocks=4096, block_size=16, cache=cache)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_operations_are_what_they_say(operation: Operation) -> None:
    paged = side(operation.cache)
    rounds = operation.make(paged, count())
    for _ in range(2):
        rounds.before()
        rounds.timed()
    tables = {seq: len(paged.allocator.table(seq)) for seq in paged.allocator._sequences}
    lookups = paged.allocator.stats().lookups
    expected = {
        # a block and seq % 16 tokens, then 32 steps
        "decode": ({seq: 3 + (seq % 16 > 0) for seq in range(256)}, 256),
        "prefill": ({0: 1000}, 2),
        "prefill-events": ({0: 1000}, 2),
        "hit-100": ({0: 101, 1: 101}, 3),
        "hit-1000": ({0: 1001, 1: 1001}, 3),
        "hit-1000-hashed": ({0: 1001, 1: 1001}, 3),
        "close": ({}, 2),
        "branch": ({0: 101, 1: 101}, 1),
        "life": ({}, 2),
    }[operation.name.removesuffix("-nc")]
    assert (tables, lookups) == expected
    assert paged.allocator.check() == []


def test_a_side_counts_hits_and_branches_share_blocks() -> None:
    paged = side()
    tokens = list(range(40))
    assert paged.admit(1, paged.prepare(1, tokens)) == 0
    assert paged.admit(2, paged.prepare(2, tokens)) == 32
    paged.branch(1, 3)
    one, two, three = (paged.allocator.table(seq) for seq in (1, 2, 3))
    assert one[:2] == two[:2] == three[:2]
    assert len({one[2], two[2], three[2]}) == 3
    paged.decode((1, 2), 7)
    assert [paged.allocator.length(seq) for seq in (1, 2, 3)] == [41, 41, 41]
    paged.finish(2)
    assert (paged.allocator.stats().live, paged.allocator.check()) == (4, [])


def test_a_peer_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    (reason,) = peers().values()
    assert isinstance(reason, str)
    assert "vllm" in reason


def test_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setattr(peer_allocator, "ROUNDS", 1)
    monkeypatch.setattr(peer_allocator, "OPERATIONS", OPERATIONS[-2:])
    monkeypatch.setattr(sys, "argv", ["peer_allocator", write_trace(tmp_path)])
    monkeypatch.setattr(peer_allocator, "TRACE_BLOCKS", (2, 8))
    peer_allocator.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("without vllm: ModuleNotFoundError")
    assert lines[2] == "| operation | pool | what | paged |"
    assert [line.split(" | ")[:2] for line in lines[4:]] == [
        ["| branch", "fresh"],
        ["| branch", "full"],
        ["| life", "fresh"],
        ["| life", "full"],
        ["| replay", "2 blocks"],
        ["| replay", "8 blocks"],
    ]
    assert "3 prompts; hit rates 0.00%" in lines[-2]
    assert "3 prompts; hit rates 37.50%" in lines[-1]


def test_the_documented_table_has_the_rows_of_the_command() -> None:
    text = (Path(__file__).parents[1] / "docs" / "allocator-speed.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    measured = [row[:3] for row in rows if row[0] in {o.name for o in OPERATIONS}]
    assert measured == [
        [o.name, state, o.what] for o in OPERATIONS for state in ("fresh", "full")[: 1 + o.cache]
    ]
    replayed = [row[1] for row in rows if row[0] == "replay"]
    assert replayed == [f"{blocks:,} blocks" for blocks in peer_allocator.TRACE_BLOCKS]


def commands() -> list[list[str]]:
    """The pytest commands of the document."""
    text = (Path(__file__).parents[1] / "docs" / "allocator-speed.md").read_text()
    return [shlex.split(line) for line in text.splitlines() if line.startswith("    pytest ")]


@pytest.mark.parametrize("command", commands(), ids=lambda command: command[-1])
def test_documented_commands_group_their_results(command: list[str]) -> None:
    at = command.index("-k") + 1
    few = "(cached_prefix and 1k or hit-100-fresh-paged)"
    command = [*command[:at], f"({command[at]}) and {few}", *command[at + 1 :]]
    done = subprocess.run(
        [sys.executable, "-m", *command, "-q", "-p", "no:cacheprovider", "-p", "no:xdist"],
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "benchmark '" in done.stdout


def test_sizes_of_the_pool(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pool_sizes, "SIZES", (1_000, 2**31))
    monkeypatch.setattr(pool_sizes, "HALF_FREE", (64, 256))
    monkeypatch.setattr(pool_sizes, "CACHED", 100)
    pool_sizes.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" blocks")[0] for line in lines[:4]] == [
        "1,000",
        "2,147,483,648",
        "64",
        "256",
    ]
    small, large = (int(line.split(" kB")[0].split()[-1]) for line in lines[:2])
    assert large <= small + 1
    assert lines[4].startswith("a cached block of 16 tokens: ")


def write_trace(folder: object) -> str:
    """Three prompts of 3, 3 and 2 blocks; the second begins with the first, the third with two
    blocks of it, the last of which is computed again."""
    path = f"{folder}/trace.jsonl"
    ids = ([1, 2, 3], [1, 2, 4], [1, 2])
    with open(path, "w", encoding="utf-8") as file:
        for at, chain in enumerate(ids):
            file.write(
                f'{{"timestamp": {at}, "input_length": {512 * len(chain)}, "output_length": 1, '
                f'"hash_ids": {chain}}}\n'
            )
    return path
