"""Replays in simulated time: small traces whose every figure can be worked out by hand.

Steps take one second, prompts (almost) none, unless a test says otherwise.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pagedattn.allocator import BlockAllocator, Grant
from pagedattn.backends.allocators import PagedAllocator
from pagedattn.backends.allocators.contiguous import (
    ContiguousExact,
    ContiguousMax,
    ContiguousPow2,
)
from pagedattn.benchmarks.audit.contender import Contender, contenders
from pagedattn.benchmarks.audit.generator import generate
from pagedattn.benchmarks.audit.prefix import prefix_hits
from pagedattn.benchmarks.audit.readers import read_trace
from pagedattn.benchmarks.audit.results import Replay
from pagedattn.benchmarks.audit.run import replay
from pagedattn.benchmarks.audit.server import Server
from pagedattn.benchmarks.audit.timeline import Timeline, Use
from pagedattn.benchmarks.audit.trace import Request, Trace
from pagedattn.errors import UnknownName

SHARED = Path(__file__).parents[2] / "shared" / "traces"
FAST = 1e12  # prompt tokens per second


def server(**changes: Any) -> Server:
    options: dict[str, Any] = {
        "num_blocks": 4,
        "block_size": 4,
        "max_len": 16,
        "unit": 4,
        "step_seconds": 1.0,
        "prefill_rate": FAST,
        "watermark": 0.0,
    }
    return Server(**{**options, **changes})


def trace(*sizes: tuple[int, int], arrivals: tuple[float, ...] = ()) -> Trace:
    times = arrivals or (0.0,) * len(sizes)
    requests = (Request(t, *size) for t, size in zip(times, sizes, strict=True))
    return Trace("hand-made", tuple(requests))


def paged(*, num_blocks: int, block_size: int, **ignored: Any) -> BlockAllocator:
    return PagedAllocator(num_blocks=num_blocks, block_size=block_size)


def reserving(
    *, num_blocks: int, block_size: int, max_seq_len: int, **ignored: Any
) -> BlockAllocator:
    return ContiguousMax(num_blocks=num_blocks, block_size=block_size, max_seq_len=max_seq_len)


def exact(
    *, num_blocks: int, block_size: int, lengths: Callable[[int], int], **ignored: Any
) -> BlockAllocator:
    return ContiguousExact(num_blocks=num_blocks, block_size=block_size, lengths=lengths)


def doubling(*, num_blocks: int, block_size: int, **ignored: Any) -> BlockAllocator:
    return ContiguousPow2(num_blocks=num_blocks, block_size=block_size)


MAKERS = {"paged": paged, "max": reserving, "exact": exact, "pow2": doubling}


def run(make: Any, requests: Trace, **changes: Any) -> Replay:
    found = replay(requests, Contender("it", None, make), server(**changes))
    assert found.failure == ""
    counts = found.counts
    assert counts.completed + counts.refused == len(requests.requests)
    assert sum(found.mean.uses) == pytest.approx(1)
    return found


def uses(found: Replay) -> dict[Use, float]:
    return dict(zip(Use, found.mean.uses, strict=True))


# -- memory over time ------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", [1, 4])
@pytest.mark.parametrize("name", MAKERS)
def test_one_request(name: str, unit: int) -> None:
    """6 prompt tokens take one second more; then 7, 8 and 9 tokens, of a pool of 16."""
    found = run(MAKERS[name], trace((6, 3)), unit=unit, prefill_rate=6.0)
    assert found.mean.duration == pytest.approx(5)
    tokens, internal = 2 * 6 + 7 + 8 + 9, 2 * 2 + 1 + 0 + 3
    held = {"paged": 0, "max": 2 * 8 + 8 + 8 + 4, "exact": 2 * 4 + 4 + 4 + 0, "pow2": 4}[name]
    assert uses(found) == {
        Use.TOKENS: pytest.approx(tokens / 80),
        Use.INTERNAL: pytest.approx(internal / 80),
        Use.RESERVED: pytest.approx(held / 80),
        Use.CACHED: 0,
        Use.EXTERNAL: 0,
        Use.IDLE: pytest.approx((80 - tokens - internal - held) / 80),
    }
    assert (found.peak_tokens, found.peak_running) == (9, 1)
    assert (found.counts.admitted, found.counts.completed) == (1, 1)
    assert (found.counts.prompt_blocks, found.counts.table_blocks) == (2, 3)
    assert found.run_length == 3
    assert found.blocks_copied == 0


def test_external_fragmentation_is_what_a_waiting_request_cannot_use() -> None:
    """Two short requests end on both sides of a long one: 4 blocks are free, and 4 are wanted."""
    requests = trace((5, 0), (5, 3), (5, 0), (16, 0))
    found = run(exact, requests, num_blocks=6)
    assert found.mean.duration == pytest.approx(5)
    assert uses(found)[Use.EXTERNAL] == pytest.approx(3 * 4 / (5 * 6))
    assert uses(found)[Use.IDLE] == pytest.approx(2 / (5 * 6))  # beside the last request
    assert uses(run(paged, requests, num_blocks=6))[Use.EXTERNAL] == 0


def test_concurrency_at_equal_memory() -> None:
    requests = trace(*[(5, 2)] * 8)  # two blocks from the first token to the last
    assert run(reserving, requests).peak_running == 1
    assert run(paged, requests).peak_running == 2
    assert run(paged, requests, num_blocks=16).peak_running == 8


# -- preemption ------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", [1, 4])
def test_the_newest_is_preempted_and_computed_again(unit: int) -> None:
    """Both hold 2 of 4 blocks and want a third. The second gives way: of its 8 tokens the first
    block survives (the first request takes the deeper one) and is found again after 4 steps."""
    found = run(paged, trace((8, 4), (8, 4)), unit=unit)
    counts = found.counts
    assert (counts.preemptions, counts.preempted, counts.recomputed) == (1, 1, 4)
    assert (counts.completed, counts.admitted, found.peak_running) == (2, 2, 2)
    assert found.mean.duration == pytest.approx(10)
    assert found.mean.running == pytest.approx((2 + 4 + 5) / 10)


def test_waiting_requests_do_not_pass_those_before_them() -> None:
    """The second (3 blocks) waits for the first, and the third (1 block) behind it."""
    found = run(paged, trace((8, 3), (12, 0), (4, 0)))
    assert found.mean.duration == pytest.approx(5)
    assert found.mean.running == pytest.approx((1 + 1 + 1 + 1 + 2) / 5)


def test_watermark_keeps_blocks_for_growth() -> None:
    """With a block left free, the second request waits instead of being preempted."""
    found = run(paged, trace((8, 4), (8, 4)), watermark=0.25)
    assert (found.counts.preemptions, found.peak_running) == (0, 1)


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAKERS)
def test_impossible_requests_are_refused_and_the_others_served(name: str) -> None:
    requests = trace((17, 0), (4, 4), (2**31, 5), (8, 5), (1, 16))
    counts = run(MAKERS[name], requests, max_len=12).counts
    assert (counts.too_large, counts.too_long, counts.no_room) == (3, 1, 0)
    assert counts.completed == 1


class _NoGrowth(ContiguousMax):
    """Holds the prompt and nothing more."""

    def blocks_at_open(self, seq: int, prompt: int) -> int:
        return self._columns(prompt)


def test_a_request_that_cannot_grow_alone_is_refused_not_retried_for_ever() -> None:
    def make(*, num_blocks: int, block_size: int, **ignored: Any) -> BlockAllocator:
        return _NoGrowth(num_blocks=num_blocks, block_size=block_size, max_seq_len=99)

    counts = run(make, trace((4, 1), (4, 0))).counts
    # Preempted alone, it gets one more try in the empty pool; its 4 tokens fit, the fifth does not.
    assert (counts.no_room, counts.completed, counts.admitted) == (1, 1, 2)
    assert counts.preempted == 1


def test_an_allocator_that_places_nothing_refuses_everything() -> None:
    def make(*, num_blocks: int, block_size: int, **ignored: Any) -> BlockAllocator:
        return ContiguousMax(num_blocks=num_blocks, block_size=block_size, max_seq_len=99)

    found = replay(trace((4, 1), (4, 0)), Contender("it", None, make), server())
    assert (found.counts.no_room, found.counts.admitted, found.failure) == (2, 0, "")
    assert found.mean.duration == 0


class _Leaks(PagedAllocator):
    def close(self, seq: int) -> None:
        super().fork(seq, seq + 1000)
        super().close(seq)


class _Breaks(PagedAllocator):
    def append_many(self, wants: Mapping[int, int]) -> dict[int, Grant]:
        raise ZeroDivisionError("oops")


@pytest.mark.parametrize(
    ("broken", "says"), [(_Leaks, "2 live and 0 reserved blocks"), (_Breaks, "ZeroDivision.*oops")]
)
def test_a_broken_allocator_is_a_failed_row(broken: type[BlockAllocator], says: str) -> None:
    def make(*, num_blocks: int, block_size: int, **ignored: Any) -> Any:
        return broken(num_blocks=num_blocks, block_size=block_size)  # type: ignore[call-arg]

    found = replay(trace((8, 0)), Contender("it", None, make), server())
    assert re.search(says, found.failure)
    assert found.points == ()


# -- arrivals --------------------------------------------------------------------------------------


def test_arrivals_of_the_trace() -> None:
    requests = trace((4, 1), (4, 1), (4, 1), arrivals=(0.0, 1.0, 10.0))
    found = run(paged, requests, timed=True)
    assert found.mean.duration == pytest.approx(12)  # 0..3, nothing, 10..12
    assert found.mean.running == pytest.approx(6 / 12)
    assert found.peak_running == 2
    faster = run(paged, requests, timed=True, speed=10.0)
    assert faster.mean.duration == pytest.approx(3)  # the last two wait for the step to end


def test_a_closed_loop_of_clients() -> None:
    requests = trace(*[(1, 2)] * 6)
    found = run(paged, requests, clients=2)
    assert found.peak_running == 2
    assert found.mean.duration == pytest.approx(9)
    limited = run(paged, requests, max_running=3)
    assert limited.peak_running == 3
    assert limited.mean.duration == pytest.approx(6)


# -- prefixes, copies, locality --------------------------------------------------------------------


@pytest.mark.parametrize("unit", [1, 4])
def test_prefix_hits(unit: int) -> None:
    """Blocks (0, 1), then the same and two tokens, then other content: 2 of 2 + 3 + 2 found."""
    requests = Trace(
        "hashed",
        (
            Request(0, 8, 0, (0, 1), 8),
            Request(5, 10, 0, (0, 1, 2), 10),
            Request(9, 8, 0, (3, 4), 8),
        ),
        hash_block=4,
    )
    found = run(paged, requests, unit=unit, timed=True, num_blocks=8)
    assert (found.counts.prompt_blocks, found.counts.hit_blocks) == (7, 2)
    assert found.hit_rate == pytest.approx(2 / 7)
    assert run(exact, requests, unit=unit, timed=True, num_blocks=8).hit_rate == 0


def test_sequential_prefix_hits() -> None:
    chains = [(0, 1, 2), (0, 1, 3), (0, 1, 2), ()]
    hits = [prefix_hits(PagedAllocator(num_blocks=n, block_size=1), chains) for n in (2, 3, 4)]
    assert hits == [0, 4, 5]  # nothing fits into 2 blocks; 3 lose the last block of each


HITS = [
    pytest.param(None, {2: 0.0, 3: 44.4, 4: 55.6}, id="small"),
    *(
        pytest.param(path, {1000: 4.45, 10_000: 21.2}, id="mooncake", marks=pytest.mark.slow)
        for path in SHARED.glob("mooncake_conversation.jsonl")
    ),
]


@pytest.mark.parametrize(("path", "rates"), HITS)
def test_published_hit_rates_of_lru(path: Path | None, rates: dict[int, float]) -> None:
    chains: list[tuple[int, ...]] = [(0, 1, 2), (0, 1, 3), (0, 1, 2)]
    if path:
        chains = [request.ids for request in read_trace(path).requests]
    blocks = sum(map(len, chains))
    for capacity, rate in rates.items():
        hits = prefix_hits(PagedAllocator(num_blocks=capacity, block_size=1), chains)
        assert 100 * hits / blocks == pytest.approx(rate, abs=0.05)


def test_copies_are_counted() -> None:
    """The first doubles from 1 to 2 blocks and must move when the second lies behind it; then
    the first lies behind the second, which moves too."""
    assert run(doubling, trace((4, 1), (4, 0))).blocks_copied == 0
    assert run(doubling, trace((4, 1), (4, 3)), num_blocks=8).blocks_copied == 2


def test_run_length() -> None:
    """Tables 0 2 and 1 3 of two requests that grow in turn, each two runs."""
    found = run(paged, trace((4, 1), (4, 1)))
    assert (found.counts.table_blocks, found.counts.table_runs) == (4, 4)
    assert found.run_length == 1


# -- the whole -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAKERS)
def test_whole_blocks_and_single_tokens_give_the_same_replay(name: str) -> None:
    requests = replace(generate(60, seed=1), name="small")
    options = {"num_blocks": 260, "block_size": 16, "max_len": 4096, "watermark": 0.01}
    coarse, fine = (run(MAKERS[name], requests, unit=unit, **options) for unit in (16, 1))
    assert coarse.counts == fine.counts
    assert coarse.mean.uses == pytest.approx(fine.mean.uses)
    assert (coarse.peak_running, coarse.peak_tokens) == (fine.peak_running, fine.peak_tokens)
    assert coarse.blocks_copied == fine.blocks_copied
    assert coarse.counts.completed == 60


def test_block_sizes_that_do_not_divide_the_hash_block() -> None:
    found = run(paged, generate(40), num_blocks=500, block_size=24, unit=24, max_len=4096)
    assert found.hit_rate > 0.3


def test_timeline_means_are_exact_whatever_is_merged() -> None:
    timeline = Timeline(points=2)
    for i in range(1, 101):
        timeline.add(i, [i / 100, 1 - i / 100], running=i, waiting=0)
    mean = timeline.mean()
    assert len(timeline.points()) <= 4
    assert mean.duration == 5050
    assert mean.uses[0] == pytest.approx(sum(i * i for i in range(1, 101)) / 100 / 5050)
    assert sum(p.duration for p in timeline.points()) == pytest.approx(5050)
    assert Timeline().mean().uses == (0.0,) * len(Use)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_blocks": 0}, "num_blocks is 0"),
        ({"speed": 0.0}, "speed is 0.0"),
        ({"step_seconds": float("nan")}, "step_seconds is nan"),
        ({"watermark": 1.0}, "watermark is 1.0"),
        ({"unit": 2}, "unit is 2"),
    ],
)
def test_servers_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        server(**changes)


def test_contenders_by_name() -> None:
    both = contenders(["paged"], ["lru"])
    assert [c.label for c in both] == ["paged (lru)"]
    assert [c.label for c in contenders(["paged"], [])] == ["paged"]
    made = both[0].make(num_blocks=8, block_size=2, max_seq_len=4, lengths=lambda seq: 4)
    assert made.capabilities().policies == {"lru"}
    with pytest.raises(UnknownName, match="no allocator named 'nobody'"):
        contenders(["nobody"], [])
    with pytest.raises(UnknownName, match="no policy named 'nobody'"):
        contenders(["paged"], ["nobody"])
