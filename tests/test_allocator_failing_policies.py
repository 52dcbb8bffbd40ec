"""A policy that raises costs no block, undoes the call, and is named in the error."""

import random

import pytest
from paged_tools import blocks, make, prefill, toks

from pagedattn.backends.allocators import LRU
from pagedattn.errors import AllocatorError, OutOfBlocks

CALLS = ("add", "remove", "pop", "hit", "clear")


class Boom(Exception):
    pass


class Singly(LRU):
    """LRU by single calls, each of which raises when `countdown` of its name gets to 0."""

    name = "faulty"

    def __init__(self):
        super().__init__()
        self.countdown = {}

    def strike(self, call):
        if call in self.countdown:
            self.countdown[call] -= 1
            if self.countdown[call] < 0:
                del self.countdown[call]
                raise Boom(call)

    def add(self, block, *, key, depth, priority):
        self.strike("add")
        super().add(block, key=key, depth=depth, priority=priority)

    def remove(self, block):
        self.strike("remove")
        super().remove(block)

    def pop(self):
        self.strike("pop")
        return super().pop()

    def hit(self, key):
        self.strike("hit")

    def clear(self):
        self.strike("clear")
        super().clear()


class AtOnce(Singly):
    """The same with the calls for many blocks, which do all or nothing."""

    def add_all(self, blocks, *, priority, content):
        self.strike("add")
        LRU.add_all(self, blocks, priority=priority, content=content)

    def remove_all(self, blocks):
        self.strike("remove")
        LRU.remove_all(self, blocks)

    def pop_many(self, n):
        self.strike("pop")
        return LRU.pop_many(self, n)


def seen(a):
    return a.stats(), {seq: (a.table(seq), a.length(seq)) for seq in a._sequences}, dict(a._pins)


def fails(a, call, name):
    before = seen(a)
    with pytest.raises(AllocatorError, match=rf"eviction policy 'faulty' failed in {name}\(\): B"):
        call()
    assert seen(a) == before
    assert a.check() == []


@pytest.mark.parametrize("kind", [Singly, AtOnce])
@pytest.mark.parametrize("after", [0, 1])
def test_every_call_that_asks_the_policy(kind, after):
    policy = kind()
    a = make(num_blocks=8, policy=policy)
    after *= kind is Singly
    prefill(a, 1, toks(13))
    a.pin(1)
    prefill(a, 2, toks(9, 100))

    policy.countdown["add"] = after
    fails(a, lambda: a.close(2), "add")
    policy.countdown["add"] = after
    fails(a, lambda: a.truncate(2, 0), "add")
    policy.countdown["add"] = after
    fails(a, lambda: a.release_before(2, 8), "add")
    a.close(2)
    a.close(1)
    assert blocks(a) == (3, 2, 0, 3)
    policy.countdown["add"] = after
    fails(a, lambda: a.unpin(1), "add")
    a.unpin(1)
    assert blocks(a) == (3, 5, 0, 0)

    policy.countdown["hit"] = after
    fails(a, lambda: a.open(3, toks(13)), "hit")
    policy.countdown["remove"] = after
    fails(a, lambda: a.open(3, toks(13)), "remove")
    a.open(3, toks(13))
    assert a.length(3) == 12
    policy.countdown["pop"] = after
    fails(a, lambda: a.append(3, 4 * 5), "pop")
    policy.countdown["remove"] = 0
    fails(a, lambda: a.resize(4), "remove")
    a.append(3, 4 * 5)
    a.close(3)
    policy.countdown["clear"] = 0
    fails(a, a.reset, "clear")
    a.reset()
    assert blocks(a) == (8, 0, 0, 0)


@pytest.mark.parametrize("kind", [Singly, AtOnce])
@pytest.mark.parametrize("num_blocks", [12, 400])  # blocks are staged in the larger pool
def test_nothing_is_lost_however_often_it_raises(kind, num_blocks):
    rng, policy = random.Random(1), kind()
    a = make(num_blocks=num_blocks, policy=policy)
    raised = dict.fromkeys(CALLS[:4], 0)
    for step in range(2000):
        policy.countdown = {rng.choice(CALLS[:4]): rng.randrange(4)}
        seqs, before = list(a._sequences), seen(a)
        try:
            choice = rng.random()
            if not seqs or (choice < 0.4 and len(seqs) < 6):
                prompt = [rng.randrange(4)] * rng.randrange(num_blocks)
                a.open(step, prompt, priority=rng.choice((0, 0, 1)))
                before = seen(a)
                a.append(step, len(prompt) - a.length(step))
                before = seen(a)
                a.commit(step, prompt[a._sequences[step].committed :])
            elif choice < 0.7:
                a.close(rng.choice(seqs))
            elif choice < 0.8:
                seq = rng.choice(seqs)
                a.truncate(seq, rng.randint(a._sequences[seq].released * 4, a.length(seq)))
            elif choice < 0.85:
                a.pin(rng.choice(seqs))
            elif choice < 0.95 and a._pins:
                a.unpin(rng.choice(list(a._pins)))
            else:
                a.evict(2)
        except OutOfBlocks:
            policy.countdown = {}
            assert seen(a) == before
            a.close(step)
            after = before
        except AllocatorError as error:
            raised[str(error.__cause__)] += 1  # "pop" of Boom("pop"); KeyError for another cause
            after = seen(a)
        else:
            after = before
        assert after == before
        assert a.check() == []
    assert min(raised.values()) > 5, raised
    policy.countdown = {}
    for seq in list(a._sequences):
        a.close(seq)
    for seq in list(a._pins):
        a.unpin(seq)
    a.evict(num_blocks)
    assert blocks(a) == (num_blocks, 0, 0, 0)


def test_a_policy_that_never_stops_is_stopped():
    class Endless(LRU):
        name = "endless"

        def pop_many(self, n):
            while True:
                yield from LRU.pop_many(self, 1) or [0]

    a = make(num_blocks=4, policy=Endless)
    prefill(a, 1, toks(9))
    a.close(1)
    with pytest.raises(AllocatorError, match="eviction policy 'endless'"):
        a.evict(1)
    assert a.check() == []


@pytest.mark.parametrize("answer", [None, [1], "0", -1, 99, 0.5])
def test_a_policy_that_answers_nonsense(answer):
    class Nonsense(LRU):
        name = "nonsense"

        def pop(self):
            super().pop()
            return answer

    a = make(num_blocks=4, policy=Nonsense)
    prefill(a, 1, toks(9))
    a.close(1)
    with pytest.raises(AllocatorError, match="eviction policy 'nonsense'"):
        a.evict(1)
