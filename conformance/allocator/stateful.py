"""Every call in every order, as a Hypothesis state machine over the shadow model. A failure shows
the shortest sequence of calls that was found."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

from pagedattn.allocator import Prefix
from pagedattn.conformance.allocator.shadow import Factory, Shadow
from pagedattn.conformance.allocator.tools import Pool, colliding
from pagedattn.conformance.case import Case, CaseFailure, Declined, Kind
from pagedattn.conformance.searching import search_settings
from pagedattn.conformance.settings import current as current_settings
from pagedattn.errors import AllocatorError, OutOfBlocks

__all__ = ["CASES"]

EXAMPLES = 150
STEPS = 30
IDS = range(6)


class Calls:
    """What the machine does, on one shadow, and how it is written down."""

    def __init__(self, shadow: Shadow) -> None:
        self.s = shadow
        self.log: list[str] = []

    def say(self, call: str) -> None:
        self.log.append(call)

    def open(self, seq: int, prompt: list[int], namespace: bytes, priority: int) -> bool:
        self.say(f"open({seq}, {prompt}, namespace={namespace!r}, priority={priority})")
        try:
            self.s.open(seq, prompt, namespace=namespace, priority=priority)
        except OutOfBlocks:
            self._may_be_full()
        return seq in self.s.sequences

    def append(self, wants: dict[int, list[int]]) -> None:
        self.say(f"append_many({ {seq: len(new) for seq, new in wants.items()} }), write {wants}")
        try:
            self.s.append(wants)
        except OutOfBlocks:
            self.say("  raised OutOfBlocks")

    def commit(self, seq: int, n: int) -> None:
        tracked = self.s.sequences[seq]
        new = tracked.tokens[tracked.committed : tracked.committed + n]
        self.say(f"commit({seq}, {new})")
        self.s.commit(seq, len(new))

    def truncate(self, seq: int, length: int) -> None:
        self.say(f"truncate({seq}, {length})")
        self.s.truncate(seq, length)

    def fork(self, parent: int, child: int, length: int) -> None:
        self.say(f"fork({parent}, {child}, {length})")
        try:
            self.s.fork(parent, child, length)
        except OutOfBlocks:
            self._may_be_full()

    def release(self, seq: int, position: int) -> None:
        self.say(f"release_before({seq}, {position})")
        self.s.release_before(seq, position)

    def close(self, seq: int) -> None:
        self.say(f"close({seq})")
        self.s.close(seq)
        self.s.refused(AllocatorError, "close", "a second close", self.s.alloc.close, seq)

    def evict(self, n: int) -> None:
        self.say(f"evict({n})")
        self.s.evict(n)

    def pin(self, seq: int) -> None:
        self.say(f"unpin({seq})" if seq in self.s.pinned else f"pin({seq})")
        if seq in self.s.pinned:
            self.s.unpin(seq)
        else:
            self.s.pin(seq)

    def resize(self, num_blocks: int) -> None:
        self.say(f"resize({num_blocks})")
        self.s.resize(num_blocks)

    def drain(self) -> None:
        self.say("close, unpin and evict everything")
        self.s.drain()

    def _may_be_full(self) -> None:
        if self.s.paged:
            raise CaseFailure("out-of-blocks: expected no block to be needed, but: OutOfBlocks")
        self.say("  raised OutOfBlocks")


def _machine(start: Callable[[], Calls]) -> Any:
    """The state machine; `start` makes the calls of one example."""
    from hypothesis import strategies as st
    from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

    ids, words = st.sampled_from(IDS), st.integers(1, 2)
    short, long = st.lists(words, max_size=3), st.lists(words, max_size=11)
    # Prompts that meet: most are the beginning of one long run of equal tokens, and a little more.
    prompts = st.builds(
        lambda n, end: [1] * n + end, st.integers(0, 13), st.lists(words, max_size=2)
    )
    namespaces, priorities = st.sampled_from((b"", b"", b"n")), st.integers(0, 1)

    def offers(capability: str) -> Callable[[Any], Any]:
        return precondition(
            lambda self: bool(getattr(self.calls.s.caps, capability) and self.calls.s.sequences)
        )

    some = precondition(lambda self: bool(self.calls.s.sequences))

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.calls = start()

        def _open_one(self, number: int) -> int:
            seqs = sorted(self.calls.s.sequences)
            return seqs[number % len(seqs)]

        def _new(self) -> int | None:
            return min(set(IDS) - set(self.calls.s.sequences), default=None)

        def _committing(self, seq: int, keep: int) -> None:
            tracked = self.calls.s.sequences[seq]
            self.calls.commit(seq, max(0, len(tracked.tokens) - tracked.committed - keep))

        @rule(prompt=prompts, namespace=namespaces, priority=priorities, whole=st.booleans())
        def open(self, prompt: list[int], namespace: bytes, priority: int, whole: bool) -> None:
            seq = self._new()
            if seq is not None and self.calls.open(seq, prompt, namespace, priority) and whole:
                self.calls.append({seq: prompt[len(self.calls.s.sequences[seq].tokens) :]})
                self._committing(seq, 0)

        @some
        @rule(which=ids, new=long)
        def grow(self, which: int, new: list[int]) -> None:
            seq = self._open_one(which)
            self.calls.append({seq: new})
            self._committing(seq, 0)

        @some
        @rule(which=ids, new=long)
        def append(self, which: int, new: list[int]) -> None:
            self.calls.append({self._open_one(which): new})

        @some
        @rule(which=st.lists(st.tuples(ids, short), min_size=2, max_size=4))
        def append_many(self, which: list[tuple[int, list[int]]]) -> None:
            self.calls.append({self._open_one(number): new for number, new in which})

        @some
        @rule(which=ids, keep=st.integers(0, 2))
        def commit(self, which: int, keep: int) -> None:
            self._committing(self._open_one(which), keep)

        @offers("truncate")
        @rule(which=ids, cut=st.integers(0, 6))
        def truncate(self, which: int, cut: int) -> None:
            seq = self._open_one(which)
            tracked, size = self.calls.s.sequences[seq], self.calls.s.block_size
            length = max(len(tracked.tokens) - cut, tracked.released * size)
            self.calls.truncate(seq, length)

        @offers("fork")
        @rule(which=ids, cut=st.integers(0, 5), then=st.permutations((0, 1)), new=short)
        def fork(self, which: int, cut: int, then: list[int], new: list[int]) -> None:
            seq, child = self._open_one(which), self._new()
            tracked, size = self.calls.s.sequences[seq], self.calls.s.block_size
            length, kept = tracked.committed - cut, tracked.released * size
            if child is not None and kept <= tracked.committed:
                self.calls.fork(seq, child, max(length, kept))
                for i in then if child in self.calls.s.sequences else ():
                    self.calls.append({(seq, child)[i]: new})

        @offers("window")
        @rule(which=ids, back=st.integers(0, 6))
        def release_before(self, which: int, back: int) -> None:
            seq = self._open_one(which)
            self.calls.release(seq, max(0, self.calls.s.sequences[seq].committed - back))

        @some
        @rule(which=ids)
        def close(self, which: int) -> None:
            self.calls.close(self._open_one(which))

        @precondition(lambda self: self.calls.s.cached)
        @rule(n=st.integers(1, 3))
        def evict(self, n: int) -> None:
            self.calls.evict(n)

        @precondition(lambda self: self.calls.s.caps.prefix is Prefix.HASH)
        @some
        @rule(which=ids)
        def pin(self, which: int) -> None:
            self.calls.pin(self._open_one(which))

        @precondition(lambda self: self.calls.s.caps.resize)
        @rule(num_blocks=st.integers(3, 14))
        def resize(self, num_blocks: int) -> None:
            self.calls.resize(num_blocks)

        def teardown(self) -> None:
            self.calls.drain()

    return Machine


def _search(seed: int, start: Callable[[], Calls]) -> None:
    """Raises CaseFailure with the shortest failing calls."""
    from hypothesis import seed as seeded
    from hypothesis.errors import Flaky
    from hypothesis.stateful import run_state_machine_as_test

    current: list[Calls] = []

    def begin() -> Calls:
        current[:] = [start()]
        return current[0]

    machine = seeded(seed + current_settings().seed)(_machine(begin))
    try:
        run_state_machine_as_test(machine, settings=search_settings(EXAMPLES, steps=STEPS))
    except Declined:
        raise
    except Flaky as error:
        raise CaseFailure(
            f"fails once and passes when repeated: {error}{_shown(current)}"
        ) from error
    except Exception as error:
        said = str(error) if isinstance(error, CaseFailure) else f"raised {error!r}"
        raise CaseFailure(f"{said}{_shown(current)}") from error


def _shown(current: list[Calls]) -> str:
    calls = "".join(f"\n    {call}" for call in current[0].log) if current else ""
    return f"\n  smallest sequence of calls:{calls}"


def _run(
    blocks: int, size: int, buckets: int | None, seed: int, make: Factory
) -> dict[str, Any] | None:
    def pool(num_blocks: int, block_size: int, **options: Any) -> Shadow:
        return Shadow(make, num_blocks=num_blocks, block_size=block_size, **options)

    typed: Pool = pool

    def start() -> Calls:
        own = pool(blocks, size) if buckets is None else colliding(typed, blocks, size, buckets)
        calls = Calls(own)
        calls.say(f"make(num_blocks={blocks}, block_size={size})")
        return calls

    start()  # what cannot be made is declined, not searched
    _search(seed, start)
    return None


def _case(blocks: int, size: int, buckets: int | None = None) -> Case:
    id = f"allocator/stateful/blocks-{blocks}x{size}" + ("-collisions" if buckets else "")
    faults = ("AH-08", "AH-09", "AH-12", "AH-16", "AH-20", "AH-25", "AH-27", "AH-30")
    run = partial(_run, blocks, size, buckets, zlib.crc32(id.encode()))
    rule = "prefix-identity" if buckets else "stats-identity"
    return Case(id, Kind.ALLOCATOR, rule, run, ("AH-01",) if buckets else faults, not buckets)


CASES = (_case(6, 2), _case(8, 4), _case(12, 1), _case(10, 2, buckets=2))
