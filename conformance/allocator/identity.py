"""What a prefix is found by: every token of every block before it, its namespace, nothing else."""

from __future__ import annotations

from pagedattn.conformance.allocator.expect import must
from pagedattn.conformance.allocator.prefix import expect_hit
from pagedattn.conformance.allocator.tools import Pool, case, need, need_prefix, tokens

__all__ = ["CASES"]


@case("prefix/every-token", rule="prefix-identity", faults=("AH-01",))
def every_token(pool: Pool) -> None:
    """Blocks of 64: a prompt that differs in one token of a block, whichever, is another one."""
    s = pool(8, 64)
    need_prefix(s)
    s.prefill(1, tokens(129))
    s.close(1)
    for position in (0, 1, 15, 16, 31, 47, 48, 62, 63, 64, 100, 127):
        other = tokens(129)
        other[position] += 1000
        expect_hit(s, 2, other, position if s.caps.hit_granularity < 64 else position // 64 * 64)
    for position in (1, 31, 63):  # the same tokens in another order
        other = tokens(129)
        other[position - 1 : position + 1] = other[position], other[position - 1]
        expect_hit(s, 2, other, position - 1 if s.caps.hit_granularity < 64 else 0)
    expect_hit(s, 2, tokens(129), 128)
    s.drain()


@case("prefix/deep-parent", rule="prefix-identity", faults=("AH-01",))
def deep_parent(pool: Pool) -> None:
    """40 equal blocks after different first ones are different content."""
    s = pool(128, 2)
    need_prefix(s)
    for seq in (1, 2):
        s.prefill(seq, [seq, seq, *tokens(81, 100)])
    must(
        not set(s.alloc.table(1)) & set(s.alloc.table(2)),
        "prefix-identity",
        "no block in both tables: their first blocks differ",
        (s.alloc.table(1), s.alloc.table(2)),
    )
    s.close(1)
    expect_hit(s, 3, [1, 1, *tokens(81, 100)], 82)
    expect_hit(s, 3, [3, 3, *tokens(81, 100)], 0)
    s.drain()


@case("prefix/many-namespaces", rule="namespace", faults=("AH-02",))
def many_namespaces(pool: Pool) -> None:
    """130 tenants with one prompt: 130 contents."""
    s = pool(140)
    need_prefix(s)
    names = [b"tenant %d" % i for i in range(130)]
    for seq, name in enumerate(names):
        expect_hit(s, 999, tokens(5), 0, name)
        s.prefill(seq % 3, tokens(5), namespace=name)
        s.close(seq % 3)
    for name in names:
        expect_hit(s, 999, tokens(5), 4, name)
    s.drain()


@case("prefix/exact-tokens", rule="prefix-identity", faults=("AH-01",))
def exact_tokens(pool: Pool) -> None:
    """Tokens are integers of 64 bits: 2**53 + 1 is no floating-point number, 0 and -1 are tokens
    like others."""
    s = pool(64)
    need_prefix(s)
    for base, other in ((2**53, 2**53 + 1), (2**62, 2**62 + 1), (0, -1), (-1, 2**32 - 1)):
        s.prefill(1, [base] * 5)
        s.close(1)
        expect_hit(s, 2, [other] * 5, 0)
        expect_hit(s, 2, [base] * 5, 4)
        s.reset()
    s.drain()


@case("prefix/block-1", rule="open-hit", faults=("AH-04", "AH-14"))
def block_of_one(pool: Pool) -> None:
    """Blocks of one token: every token but the last is found."""
    s = pool(16, 1)
    need_prefix(s)
    s.prefill(1, tokens(6))
    s.close(1)
    for n, most in ((0, 0), (1, 0), (2, 1), (6, 5), (7, 6), (9, 6)):
        expect_hit(s, 2, tokens(n), most)
    s.drain()


@case("prefix/after-truncate", rule="namespace", faults=("AH-02", "AH-30"))
def after_truncate(pool: Pool) -> None:
    """Cut down to 0, inside a block and at a border, and grown again with other tokens: found by
    what it holds now, in its own namespace."""
    for length in (0, 2, 4, 6, 9, 10):
        s = pool(32)
        need_prefix(s)
        need(s, "truncate")
        s.prefill(1, tokens(11), namespace=b"n")
        s.truncate(1, length)
        s.append({1: tokens(13 - length, 100)})
        s.commit(1)
        now = [*tokens(length), *tokens(13 - length, 100)]
        expect_hit(s, 2, now, 12, b"n")
        expect_hit(s, 2, now, 0)
        s.close(1)
        expect_hit(s, 2, now, 12, b"n")
        s.drain()


@case("prefix/after-fork", rule="fork", faults=("AH-06", "AH-27"))
def after_fork(pool: Pool) -> None:
    """Parent and children at every length grow apart over several blocks: each is found by its own
    tokens, and by no other's."""
    for length in (0, 3, 4, 6, 8):
        s = pool(64)
        need_prefix(s)
        need(s, "fork")
        s.prefill(1, tokens(8))
        s.fork(1, 2, length)
        s.fork(2, 3, length)
        for seq in (3, 1, 2):
            s.append({seq: tokens(9, 100 * seq)})
            s.commit(seq)
        for seq in (1, 2, 3):
            own = [*tokens(8 if seq == 1 else length), *tokens(9, 100 * seq)]
            expect_hit(s, 9, own, len(own) - 1)
            s.close(seq)
            expect_hit(s, 9, own, (len(own) - 1) // 4 * 4)
        s.drain()


@case("truncate/others-keep", rule="truncate", faults=("AH-30",))
def others_keep(pool: Pool) -> None:
    """One of two holders cuts a published block: the other one's content is found as before."""
    s = pool(32)
    need_prefix(s)
    need(s, "truncate")
    s.prefill(1, tokens(12))
    s.open(2, tokens(12))
    if s.caps.fork:
        s.fork(1, 3)
        s.truncate(3, 9)
    s.truncate(2, 6)
    expect_hit(s, 4, tokens(13), 12)
    s.append({2: tokens(3, 100)})
    s.commit(2)
    expect_hit(s, 4, tokens(13), 12)
    expect_hit(s, 4, [*tokens(6), *tokens(3, 100)], 8)
    s.drain()


CASES = (
    every_token,
    deep_parent,
    many_namespaces,
    exact_tokens,
    block_of_one,
    after_truncate,
    after_fork,
    others_keep,
)
