"""What an allocator tells an eviction policy that somebody else wrote, and that it obeys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from pagedattn.allocator import EvictionPolicy
from pagedattn.conformance.allocator.expect import must
from pagedattn.conformance.allocator.shadow import Shadow
from pagedattn.conformance.allocator.tools import Pool, case, need_paged, need_prefix, tokens
from pagedattn.conformance.case import Declined
from pagedattn.errors import AllocatorError, Refusal

__all__ = ["CASES"]


class _Deepest(EvictionPolicy):
    """Lowest priority first, then the deepest, then what came first. It knows the single calls
    alone and writes them down."""

    name = "deepest"

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []
        self._held: dict[int, tuple[int, int]] = {}

    def add(self, block: int, *, key: bytes, depth: int, priority: int) -> None:
        self.told.append(("add", block, key, depth, priority))
        self._held[block] = (priority, -depth)

    def remove(self, block: int) -> None:
        self.told.append(("remove", block))
        del self._held[block]

    def pop(self) -> int:
        block = min(self._held, key=lambda held: self._held[held])
        del self._held[block]
        self.told.append(("pop", block))
        return block

    def hit(self, key: bytes) -> None:
        self.told.append(("hit", key))

    def __len__(self) -> int:
        return len(self._held)


def _pool(pool: Pool, policy: EvictionPolicy) -> Shadow:
    """16 blocks under `policy`; declined where such an object is not an option."""
    try:
        s = pool(16, policy=policy)
    except TypeError as error:
        refusal = Refusal("allocator", "policy", "an EvictionPolicy", "not an option", str(error))
        raise Declined((refusal,)) from None
    need_prefix(s)
    need_paged(s)
    if s.caps.hit_granularity != s.block_size:  # then a key need not be a block's
        raise Declined((Refusal(s.alloc.name, "hit_granularity", s.block_size, "finer"),))
    return s


def _told(policy: _Deepest, when: str, expected: Sequence[tuple[object, ...]]) -> None:
    must(
        policy.told == expected, "eviction", f"the policy to be told {expected} {when}", policy.told
    )
    policy.told.clear()


@case("eviction/policy-told", rule="eviction")
def policy_told(pool: Pool) -> None:
    """Every call with what the contract says, in its order: key, depth and priority of blocks that
    nobody owns any more, the deepest first; what was found, owned or not; what is owned again."""
    policy = _Deepest()
    s = _pool(pool, policy)
    s.prefill(1, tokens(8), priority=-1)
    s.prefill(2, tokens(13, 100), priority=3)
    (a0, a1), (b0, b1, b2, _) = s.alloc.table(1), s.alloc.table(2)
    key = dict(s.replay.index)
    _told(policy, "while the blocks are owned", [])
    s.close(2)
    s.close(1)
    b_released = [("add", block, key[block], i, 3) for i, block in ((2, b2), (1, b1), (0, b0))]
    a_released = [("add", block, key[block], i, -1) for i, block in ((1, a1), (0, a0))]
    _told(policy, "by two closes", [*b_released, *a_released])
    s.open(3, tokens(9), priority=-1)
    hits = [("hit", key[a0]), ("hit", key[a1])]
    removed = sorted(policy.told[2:], key=str)  # in any order
    policy.told[2:] = removed
    _told(policy, "by a hit", [*hits, *sorted([("remove", a0), ("remove", a1)], key=str)])
    s.open(4, tokens(9), priority=-1)
    _told(policy, "by a hit of blocks that are owned", hits)
    s.refused(AllocatorError, "open-hit", "an open id", s.alloc.open, 4, tokens(9))
    _told(policy, "by an open() that raises", [])
    s.close(3)
    s.close(4)
    _told(policy, "by the last close", a_released)
    s.drain()


class _Failing(_Deepest):
    """Raises once, in the call that `fails` names."""

    name = "failing"

    def __init__(self, fails: str) -> None:
        super().__init__()
        self.fails = fails

    def _strike(self, call: str) -> None:
        if self.fails == call:
            self.fails = ""
            raise LookupError(f"planted in {call}()")

    def add(self, block: int, *, key: bytes, depth: int, priority: int) -> None:
        self._strike("add")
        super().add(block, key=key, depth=depth, priority=priority)

    def remove(self, block: int) -> None:
        self._strike("remove")
        super().remove(block)

    def pop(self) -> int:
        self._strike("pop")
        return super().pop()

    def hit(self, key: bytes) -> None:
        self._strike("hit")


@case("eviction/policy-raises", rule="eviction", faults=("AH-12", "AH-19"))
def policy_raises(pool: Pool) -> None:
    """A policy that raises: the call is undone, says whose fault it was, and works again."""
    for fails in ("add", "remove", "pop", "hit"):
        policy = _Failing("")
        s = _pool(pool, policy)
        s.prefill(1, tokens(12))
        s.prefill(2, tokens(4, 100))
        if fails != "add":
            s.close(1)
        policy.fails = fails
        calls: dict[str, Callable[[], object]] = {
            "add": partial(s.alloc.close, 1),
            "pop": partial(s.alloc.append, 2, 4 * 13),
        }
        call = calls.get(fails, partial(s.alloc.open, 3, tokens(13)))
        said = s.refused(Exception, "eviction", f"a policy that raises in {fails}()", call)
        must("failing" in said, "eviction", "the policy 'failing' to be named", said)
        if fails == "add":
            s.close(1)
        s.open(3, tokens(13))
        s.close(3)
        s.append({2: tokens(4 * 13, 200)})
        s.drain()


@case("eviction/policy-obeyed", rule="eviction")
def policy_obeyed(pool: Pool) -> None:
    """The block that the policy names goes, and no other: a release that is older stays."""
    policy = _Deepest()
    s = _pool(pool, policy)
    s.prefill(1, tokens(8))
    s.prefill(2, tokens(12, 100))
    (a0, a1), (b0, b1, b2) = s.alloc.table(1), s.alloc.table(2)
    s.close(1)
    s.close(2)
    order = (b2, a1, b1, a0, b0)
    for gone, block in enumerate(order, start=1):
        s.evict(1)
        left = set(s.replay.index)
        must(left == {*order[gone:]}, "eviction", f"block {block} to go, {order[gone:]} left", left)
    s.drain()


CASES = (policy_told, policy_raises, policy_obeyed)
