"""What may be found, by whom and from when."""

from __future__ import annotations

from pagedattn.conformance.allocator.expect import must
from pagedattn.conformance.allocator.shadow import Shadow
from pagedattn.conformance.allocator.tools import Pool, case, colliding, need, need_prefix, tokens

__all__ = ["CASES"]


def expect_hit(s: Shadow, seq: int, ids: list[int], most: int, namespace: bytes = b"") -> None:
    """Open and close: the hit is the largest multiple of the granularity up to `most`."""
    want = most - most % s.caps.hit_granularity
    hit = s.open(seq, ids, namespace=namespace)
    must(hit.tokens == want, "open-hit", f"a hit of {want} tokens", f"{hit.tokens}")
    s.close(seq)


@case("prefix/hit", rule="open-hit", faults=("AH-12", "AH-20"))
def hit(pool: Pool) -> None:
    s = pool(32)
    need_prefix(s)
    s.prefill(1, tokens(11))
    for n, most in ((0, 0), (1, 0), (4, 3), (5, 4), (9, 8), (11, 10), (12, 11), (40, 11)):
        expect_hit(s, 2, tokens(n), most)
    s.close(1)
    expect_hit(s, 2, tokens(40), 11 - 11 % s.caps.hit_granularity)
    expect_hit(s, 2, [0, 1, 2, 3, 99, 5, 6, 7, 8], 4)
    s.drain()


@case("prefix/fully-cached", rule="open-hit", faults=("AH-04", "AH-05"))
def fully_cached(pool: Pool) -> None:
    s = pool(32)
    need_prefix(s)
    for _ in range(3):
        got = s.prefill(1, tokens(8))
        must(got.tokens < 8, "open-hit", "at least one of 8 tokens left to compute", got)
        s.close(1)
    expect_hit(s, 1, tokens(12), 8)
    s.drain()


@case("prefix/commit-before-share", rule="commit-before-share", faults=("AH-06", "AH-17", "AH-18"))
def commit_before_share(pool: Pool) -> None:
    s = pool(32)
    need_prefix(s)
    s.open(1, tokens(8))
    s.append({1: tokens(8)})
    expect_hit(s, 2, tokens(9), 0)
    s.commit(1, 5)
    expect_hit(s, 2, tokens(9), 5)
    s.close(1)  # aborted: positions 5..7 were never written
    expect_hit(s, 2, tokens(9), 5 - 5 % s.caps.hit_granularity)
    s.open(3, tokens(8, 100))
    s.append({3: tokens(8, 100)})
    s.close(3)
    expect_hit(s, 2, tokens(9, 100), 0)
    s.drain()


@case("prefix/committed-not-prompt", rule="commit-before-share")
def committed_not_prompt(pool: Pool) -> None:
    """open() saw one prompt, commit() another: only what was committed can be found."""
    s = pool(32)
    need_prefix(s)
    s.open(1, tokens(9))
    s.append({1: tokens(8, 100)})
    s.commit(1)
    s.close(1)
    expect_hit(s, 2, tokens(9), 0)
    expect_hit(s, 2, tokens(9, 100), 8)
    s.drain()


@case("prefix/partial-block", rule="commit-before-share", faults=("AH-06", "AH-17"))
def partial_block(pool: Pool) -> None:
    """Two writers after the same 11 tokens, in lockstep, keep apart."""
    s = pool(32, 8)
    need_prefix(s)
    s.prefill(1, tokens(11))
    s.prefill(2, tokens(11))
    for step in range(12):
        s.append({1: [100 + step], 2: [200 + step]})
        s.commit(1)
        s.commit(2)
    s.close(1)
    s.close(2)
    expect_hit(s, 3, [*tokens(11), *tokens(12, 100), 0], 23 - 23 % s.caps.hit_granularity)
    expect_hit(s, 3, [*tokens(11), *tokens(12, 200), 0], 23 - 23 % s.caps.hit_granularity)
    s.drain()


@case("prefix/parent", rule="prefix-identity", faults=("AH-01",))
def parent(pool: Pool) -> None:
    """The same block of tokens after another prefix is other content."""
    s = pool(32)
    need_prefix(s)
    s.prefill(1, [1, 1, 1, 1, 5, 5, 5, 5])
    s.prefill(2, [2, 2, 2, 2, 6, 6, 6, 6])
    expect_hit(s, 3, [2, 2, 2, 2, 5, 5, 5, 5, 0], 4)
    expect_hit(s, 3, [5, 5, 5, 5, 0], 0)
    s.drain()


@case("prefix/planted-collisions", rule="prefix-identity", faults=("AH-01",))
def planted_collisions(pool: Pool) -> None:
    """Every hash is equal (or one of two), and still no wrong block is found."""
    for buckets in (1, 2):
        s = colliding(pool, 32, 4, buckets)
        need_prefix(s)
        s.prefill(1, [1, 2, 3, 4, 5, 6, 7, 8])
        expect_hit(s, 9, [5, 6, 7, 8, 1], 0)
        expect_hit(s, 9, [4, 3, 2, 1, 5, 6, 7, 8, 0], 0)
        s.prefill(2, [4, 3, 2, 1, 5, 6, 7, 8])
        expect_hit(s, 9, [1, 2, 3, 4, 5, 6, 7, 8, 0], 8)
        expect_hit(s, 9, [4, 3, 2, 1, 5, 6, 7, 8, 0], 8)
        expect_hit(s, 9, [1, 2, 3, 4, 5, 6, 7, 8, 0], 0, b"other")
        s.close(1)
        s.evict(32)
        expect_hit(s, 9, [1, 2, 3, 4, 5, 6, 7, 8, 0], 0)
        expect_hit(s, 9, [4, 3, 2, 1, 5, 6, 7, 8, 0], 8)
        s.drain()


@case("prefix/namespace", rule="namespace", faults=("AH-02", "AH-03"))
def namespace(pool: Pool) -> None:
    s = pool(32)
    need_prefix(s)
    s.prefill(1, tokens(9), namespace=b"adapter-a/1")
    for other in (b"", b"adapter-b/1", b"adapter-a/2", b"adapter-a"):
        expect_hit(s, 2, tokens(9), 0, other)
    expect_hit(s, 2, tokens(9), 8, b"adapter-a/1")
    s.prefill(3, tokens(9))
    s.close(1)
    s.close(3)
    s.evict(32)
    for gone in (b"", b"adapter-a/1"):
        expect_hit(s, 2, tokens(9), 0, gone)
    s.drain()


@case("prefix/namespace-bytes", rule="namespace", faults=("AH-02", "AH-03"))
def namespace_bytes(pool: Pool) -> None:
    """Every byte of a namespace counts, and none of them can imitate the key of a block."""
    names = [b"", b"\0", b"n", b"n\0", b"N", b"\xff", b"r" * 200, b"r" * 199 + b"s"]
    s = pool(64)
    need_prefix(s)
    for seq, name in enumerate(names):
        expect_hit(s, 99, tokens(9), 0, name)
        s.prefill(seq, tokens(9), namespace=name)
    for name in names:
        expect_hit(s, 99, tokens(9), 8, name)
    for key in list(s.replay.index.values()):
        expect_hit(s, 99, tokens(5, 4), 0, key)
    if s.replay.index:
        head = s.replay.index[s.alloc.table(0)[0]]
        s.prefill(98, tokens(5, 4), namespace=head)  # keys that are equal by chance are seen
    s.drain()


@case("prefix/wide-tokens", rule="prefix-identity", faults=("AH-01",))
def wide_tokens(pool: Pool) -> None:
    """Token ids are 64-bit integers of either sign: ids that agree in their low bits, or but for
    the sign, are others."""
    s = pool(64)
    need_prefix(s)
    plain = tokens(9, 1)
    others = [[t + far for t in plain] for far in (2**16, 2**31, 2**32, 2**62)]
    others += [[-t for t in plain], [2**32 - t for t in plain]]
    for seq, ids in enumerate((plain, *others)):
        expect_hit(s, 99, ids, 0)
        s.prefill(seq, ids)
        expect_hit(s, 99, ids, 8)
    s.drain()


@case("prefix/long", rule="open-hit", faults=("AH-20",))
def long(pool: Pool) -> None:
    """A prefix of 600 blocks is found whole, however it was committed."""
    s = pool(1300, 2)
    need_prefix(s)
    s.prefill(1, tokens(1200))
    s.open(2, tokens(1200, 5000))
    for start in range(0, 1200, 171):
        part = tokens(min(171, 1200 - start), 5000 + start)
        s.append({2: part})
        s.commit(2)
    for start in (0, 5000):
        expect_hit(s, 3, tokens(1201, start), 1200)
        expect_hit(s, 3, [*tokens(900, start), 1, 2, 3], 900)
    s.drain()


@case("prefix/long-commit", rule="commit-before-share", faults=("AH-20",))
def long_commit(pool: Pool) -> None:
    """More than 2**16 tokens are appended and committed in one call, and found."""
    s = pool(40, 4096)
    need_prefix(s)
    s.prefill(1, tokens(70_000))
    expect_hit(s, 2, tokens(69_633), 69_632)
    s.drain()


@case("prefix/after-preemption", rule="commit-before-share", faults=("AH-36",))
def after_preemption(pool: Pool) -> None:
    """A request is closed in mid-text and comes back with its prompt and what it had generated:
    all that was committed is found, generated tokens too."""
    for generated in (1, 3, 4, 5, 9):
        s = pool(32)
        need_prefix(s)
        text = [*tokens(6), *tokens(generated, 100)]
        s.prefill(1, text[:6])
        for token in text[6:]:
            s.append({1: [token]})
            s.commit(1)
        s.close(1)
        before = s.stats().lookups
        got = s.prefill(2, [*text, 7])
        most = len(text) - len(text) % s.caps.hit_granularity
        must(got.tokens == most, "open-hit", f"a hit of the {most} tokens committed before", got)
        must(s.stats().lookups == before + 1, "stats-identity", "one lookup", s.stats())
        s.drain()


@case("prefix/two-copies", rule="prefix-identity", faults=("AH-12", "AH-18"))
def two_copies(pool: Pool) -> None:
    """Two sequences compute one prefix at once; it is found while either copy lives."""
    for first, second in ((1, 2), (2, 1)):
        s = pool(32)
        need_prefix(s)
        for seq in (1, 2):
            s.open(seq, tokens(8))
        s.append({1: tokens(8), 2: tokens(8)})
        s.commit(1)
        s.commit(2)
        s.close(first)
        s.evict(32)
        expect_hit(s, 3, tokens(9), 8)
        s.close(second)
        s.evict(32)
        expect_hit(s, 3, tokens(9), 0)
        s.drain()


@case("prefix/stale-entry", rule="prefix-identity", faults=("AH-16",))
def stale_entry(pool: Pool) -> None:
    """A block that was taken for new content is not found by its old content."""
    s = pool(2)
    need_prefix(s)
    s.prefill(1, tokens(4))
    s.close(1)
    s.prefill(2, tokens(8, 100))
    expect_hit(s, 3, tokens(5), 0)
    s.close(2)
    expect_hit(s, 3, tokens(9, 100), 8)
    s.drain()


@case("prefix/head-evicted", rule="prefix-identity", faults=("AH-14",))
def head_evicted(pool: Pool) -> None:
    """A chain whose head is gone is not found, whatever is left of its tail."""
    s = pool(32)
    need_prefix(s)
    need(s, "window")
    s.prefill(1, tokens(8))
    s.release_before(1, 4)
    s.evict(32)
    expect_hit(s, 2, tokens(9), 0)
    s.append({1: tokens(4, 8)})
    s.commit(1)
    s.close(1)
    expect_hit(s, 2, tokens(13), 0)
    s.prefill(3, tokens(4))
    s.open(4, tokens(13))
    s.drain()


CASES = (
    hit,
    fully_cached,
    commit_before_share,
    committed_not_prompt,
    partial_block,
    parent,
    planted_collisions,
    namespace,
    namespace_bytes,
    wide_tokens,
    long,
    long_commit,
    after_preemption,
    two_copies,
    stale_entry,
    head_evicted,
)
