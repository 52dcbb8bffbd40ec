"""The side-by-side benchmark: what its sides do, and what it says without a peer."""

import sys
from itertools import count

import pytest

from pagedattn.benchmarks import peer_allocator
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
