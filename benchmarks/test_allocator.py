"""What an allocator costs the host, as pytest-benchmark tests:

    pytest --pyargs pagedattn.benchmarks -k allocator --allocator paged
        --benchmark-group-by=func,param:pool

Every test runs with pools of several sizes: a cost that grows with them is not O(1). Sequences are
prepared outside the timed region. `full`: every block that is not live holds a cached prefix, as
after hours of serving, so that whoever wants a block must evict; `fresh`: nothing is cached.

The same operations as a scheduler does them, side by side with vLLM's where it is installed:

    pytest --pyargs pagedattn.benchmarks -k allocator_side
        --benchmark-group-by=param:operation,param:full
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest

from pagedattn.allocator import BlockAllocator, Prefix
from pagedattn.benchmarks.audit.contender import contenders
from pagedattn.benchmarks.peer_allocator import BLOCK_SIZE, OPERATIONS, Operation, fill
from pagedattn.benchmarks.peer_sides import Paged, peers

SIZES = {"1k": 1_024, "10k": 10_240, "100k": 102_400, "1m": 1_024_000}  # multiples of RUNNING
RUNNING = 256
STEPS = 32  # decode steps before the sequences are started again
ROUNDS = 50


@dataclass
class Pool:
    """An allocator, and token ids that nobody has used yet."""

    allocator: BlockAllocator
    fresh: int = 0

    def tokens(self, n: int) -> list[int]:
        self.fresh += n
        return list(range(self.fresh - n, self.fresh))

    def fill(self) -> None:
        """Leave a cached prefix in every free block, a hundred blocks a sequence."""
        while free := self.allocator.stats().free:
            tokens = self.tokens(min(free, 100) * BLOCK_SIZE)
            self.allocator.open(-1, tokens)
            self.allocator.append(-1, len(tokens))
            self.allocator.commit(-1, tokens)
            self.allocator.close(-1)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The allocator named by --allocator (default: paged), at every size."""
    if "allocator" not in metafunc.fixturenames:
        return
    chosen = metafunc.config.getoption("--allocator", default=None) or ["paged"]
    names = [chosen] if isinstance(chosen, str) else list(chosen)
    metafunc.parametrize("allocator", names)
    metafunc.parametrize("num_blocks", list(SIZES.values()), ids=list(SIZES))


@pytest.fixture(params=["fresh", "full"])
def pool(request: pytest.FixtureRequest, allocator: str, num_blocks: int) -> Iterator[Pool]:
    """A pool in that state; its invariants must hold afterwards."""
    share = num_blocks // RUNNING * BLOCK_SIZE
    (contender,) = contenders([allocator], [])
    made = contender.make(
        num_blocks=num_blocks, block_size=BLOCK_SIZE, max_seq_len=share, lengths=lambda seq: share
    )
    pool = Pool(made)
    if request.param == "full":
        if made.capabilities().prefix is Prefix.NONE:
            pytest.skip(f"{allocator} caches nothing")
        pool.fill()
    yield pool
    assert made.check() == []


def test_allocator_decode_step(benchmark: Any, pool: Pool) -> None:
    """One token for each of 256 running sequences: append_many and 256 commits."""
    a, wants, step = pool.allocator, dict.fromkeys(range(RUNNING), 1), 0

    def restart() -> None:
        nonlocal step
        if step % STEPS == 0:
            for seq in wants:
                if step:
                    a.close(seq)
                a.open(seq, [])
        step += 1

    def decode() -> None:
        a.append_many(wants)
        for seq in wants:
            a.commit(seq, (seq,))

    benchmark.extra_info.update(sequences=RUNNING)
    benchmark.pedantic(decode, setup=restart, rounds=ROUNDS, warmup_rounds=2)
    assert a.length(0) == (step - 1) % STEPS + 1


def test_allocator_append_1000_blocks(benchmark: Any, pool: Pool) -> None:
    """1,000 blocks in one call, for 256 sequences that grow by their share."""
    a, wants = pool.allocator, _shares(1000)

    def refill() -> None:
        """Cached again, so that the next round must evict again when the pool is full."""
        for seq, n in wants.items():
            if rounds:
                a.commit(seq, pool.tokens(n))
                a.close(seq)
            a.open(seq, [])
        rounds.append(len(rounds))

    rounds: list[int] = []
    benchmark.pedantic(a.append_many, args=(wants,), setup=refill, rounds=ROUNDS, warmup_rounds=2)
    assert a.length(0) == wants[0]


def _shares(blocks: int) -> dict[int, int]:
    """Tokens that make up `blocks` blocks for RUNNING sequences, as evenly as can be."""
    each, more = divmod(blocks, RUNNING)
    return {seq: (each + (seq < more)) * BLOCK_SIZE for seq in range(RUNNING)}


def test_allocator_open_cached_prefix(benchmark: Any, pool: Pool) -> None:
    """open() of a prompt of 100 cached blocks and one token more."""
    a = pool.allocator
    if a.capabilities().prefix is Prefix.NONE:
        pytest.skip(f"{a.name} keeps no prefixes")
    prompt = pool.tokens(100 * BLOCK_SIZE + 1)
    a.open(0, prompt)
    a.append(0, len(prompt))
    a.commit(0, prompt)
    hits = []

    benchmark.pedantic(
        lambda: hits.append(a.open(1, prompt).tokens),
        setup=lambda: a.close(1) if hits else None,
        rounds=ROUNDS,
        warmup_rounds=2,
    )
    assert set(hits) == {100 * BLOCK_SIZE}


@pytest.mark.parametrize("name", ["paged", "vllm"])
@pytest.mark.parametrize("full", [False, True], ids=["fresh", "full"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_allocator_side(benchmark: Any, name: str, operation: Operation, full: bool) -> None:
    """One operation as a scheduler does it."""
    kind = Paged if name == Paged.name else peers()[name]
    if isinstance(kind, str):
        pytest.skip(f"{name} is not to be had: {kind}")
    if full and not operation.cache:
        pytest.skip("without a prefix cache no pool is full of prefixes")
    side, ids = operation.side(kind), count()
    if full:
        fill(side, ids)
    rounds = operation.make(side, ids)
    benchmark.extra_info.update(what=operation.what, times=operation.times)
    benchmark.pedantic(rounds.timed, setup=rounds.before, rounds=ROUNDS, warmup_rounds=2)
