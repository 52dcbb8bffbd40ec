"""Random walks: every call in every order, audited after each."""

from __future__ import annotations

import random

from pagedattn.conformance.allocator.shadow import Shadow
from pagedattn.conformance.allocator.tools import Pool, case, colliding
from pagedattn.conformance.case import Case, Declined
from pagedattn.conformance.settings import current
from pagedattn.errors import AllocatorError, OutOfBlocks

__all__ = ["CASES"]

_FAULTS = ("AH-08", "AH-09", "AH-11", "AH-12", "AH-16", "AH-18", "AH-20", "AH-25", "AH-27")


class Walker:
    """One walk over a small pool and a small alphabet, so that prefixes meet and blocks run out."""

    def __init__(self, shadow: Shadow, seed: int, sizes: range = range(4, 21)) -> None:
        """sizes  that the pool is given; it is emptied now and then where it may get small"""
        self.s, self.rng, self.sizes = shadow, random.Random(seed), sizes
        self.prompts: dict[int, list[int]] = {}
        self.stems = [self.rng.choices((1, 2), k=5 * shadow.block_size) for _ in range(2)]
        self.pins = shadow.cached

    def step(self) -> None:
        """One call."""
        s, rng = self.s, self.rng
        seqs = list(s.sequences)
        if not seqs or (len(seqs) < 6 and rng.random() < 0.25):
            return self.open()
        seq = rng.choice(seqs)
        length, committed = s.alloc.length(seq), s.sequences[seq].committed
        kept = s.sequences[seq].released * s.block_size
        choice = rng.random()
        if choice < 0.40:
            self.append(rng.sample(seqs, rng.randint(1, len(seqs))))
        elif choice < 0.65:
            s.commit(seq, rng.choice((length - committed, rng.randint(0, length - committed))))
        elif choice < 0.75:
            s.close(seq)
        elif (
            choice < 0.82 and s.caps.fork and len(seqs) < 8 and committed > 0 and kept <= committed
        ):
            child = min(set(range(20)) - set(seqs))
            whole = rng.random() < 0.5
            s.fork(seq, child, None if whole else rng.randint(kept, committed))
            self.prompts[child] = []
            self.append(rng.choice(([seq], [child], [seq, child], [child, seq])))
        elif choice < 0.89 and s.caps.truncate:
            s.truncate(seq, rng.randint(kept, length))
            self.prompts[seq] = []
        elif choice < 0.91 and s.caps.window:
            s.release_before(seq, rng.randint(0, committed))
        elif choice < 0.94:
            self.pin(seq)
        elif choice < 0.96:
            s.evict(rng.randint(0, 3))
        elif choice < 0.97 and s.caps.resize:
            s.resize(rng.choice(self.sizes))
        elif choice < 0.98 and self.sizes.start < 10:
            s.drain()
            s.reset()
        else:
            self.misuse(seq)
        return None

    def open(self) -> None:
        """A piece of a stem and a little more, in one of two namespaces."""
        s, rng = self.s, self.rng
        seq = min(set(range(20)) - set(s.sequences))
        stem = rng.choice(self.stems)
        prompt = stem[: rng.randint(0, len(stem))] + rng.choices((1, 2), k=rng.randint(0, 2))
        try:
            hit = s.open(
                seq, prompt, namespace=rng.choice((b"", b"", b"n")), priority=rng.randint(0, 2)
            )
        except OutOfBlocks:  # an allocator that reserves at open
            return
        self.prompts[seq] = prompt[hit.tokens :]

    def append(self, seqs: list[int]) -> None:
        """A chunk of the prompt where some is left, else random tokens."""
        rng, wants = self.rng, dict[int, list[int]]()
        for seq in seqs:
            left = self.prompts[seq]
            n = rng.choice((0, 1, 1, 1, rng.randint(0, 2 * self.s.block_size)))
            wants[seq] = left[: n or len(left)] or rng.choices((1, 2), k=n)
        try:
            self.s.append(wants)
        except OutOfBlocks:
            self.s.close(rng.choice(seqs))
            return
        for seq, given in wants.items():
            del self.prompts[seq][: len(given)]

    def pin(self, seq: int) -> None:
        """Pin, or undo an earlier pin."""
        if self.s.pinned and self.rng.random() < 0.6:
            self.s.unpin(self.rng.choice(list(self.s.pinned)))
        elif self.pins and seq not in self.s.pinned:
            try:
                self.s.pin(seq)
            except Declined:
                self.pins = False

    def misuse(self, seq: int) -> None:
        """Calls that must be refused."""
        s, a = self.s, self.s.alloc
        over = a.length(seq) - s.sequences[seq].committed + 1
        s.refused(AllocatorError, "close", "close of an unknown id", a.close, 99)
        s.refused(
            AllocatorError, "commit-before-share", "too large a commit", a.commit, seq, [1] * over
        )
        s.refused(OutOfBlocks, "out-of-blocks", "a huge append", a.append, seq, 10**6)


def _walk(seed: int, num_blocks: int, block_size: int) -> Case:
    name = f"walk/blocks-{num_blocks}x{block_size}-seed-{seed}"

    @case(name, rule="stats-identity", faults=_FAULTS, core=True)
    def walk(pool: Pool) -> None:
        _run(pool(num_blocks, block_size), seed)

    return walk


@case("walk/planted-collisions", rule="prefix-identity", faults=("AH-01",))
def _collisions(pool: Pool) -> None:
    for seed in (1, 2, 3):
        _run(colliding(pool, 16, 2, buckets=3), seed)


def _run(shadow: Shadow, seed: int, steps: int = 300) -> None:
    walker = Walker(shadow, seed + 1000 * current().seed)
    for _ in range(steps):
        walker.step()
    shadow.drain()


CASES = (
    *(
        _walk(seed, num_blocks, block_size)
        for num_blocks, block_size in ((6, 4), (12, 4), (16, 1), (10, 2), (24, 4))
        for seed in (1, 2, 3)
    ),
    _collisions,
)
