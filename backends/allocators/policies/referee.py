"""The safety net: two policies on paper, in a pool as large as the real one, and who leads."""

from __future__ import annotations

import math
from collections import OrderedDict

from pagedattn.allocator import EvictionPolicy
from pagedattn.backends.allocators.policies.history import Release

__all__ = ["Referee"]

_PROOF = 1.5  # standard deviations
_FEW = 128  # hits that are within chance whatever was seen so far
_MEMORY = 65_536  # released blocks over which a lead fades to 1 / e, and 8 pools more


class Referee:
    """Says whether to follow a model or LRU, by what both would have found so far.

    model_leads  evict as the model would; False at first

    Both are replayed, keys only, with the blocks of each release. The model is followed once its
    lead over LRU on paper, which fades with time, is beyond chance: more than 1.5 times the root
    of the summed squares of the differences and of 128. It is left when it lags by one such root.
    From then on the hits of the real pool count as well: it is also left when half of what was won
    is lost again, or an 8th of the pool if that is more, and in any case a whole pool. Left so
    with a net loss it must lead by one root more next time, with a gain by one less; with any loss
    it starts from nothing. To have followed it where LRU is better costs about that 8th of a pool.

    O(1) a released block, plus one pop() of the model.
    """

    def __init__(self, model: EvictionPolicy) -> None:
        self.model_leads = False
        self._model, self._lru = _Paper(model), _Recent()
        self._room = 0.0
        self._lead = self._squares = 0.0  # of the model on paper over LRU, fading
        self._proof = _PROOF  # roots that it must lead by to be followed
        self._won = self._best = 0  # hits of the real pool beyond LRU's since the model is followed

    def judge(self, release: Release, *, blocks: int) -> None:
        """Serve a release that has ended to both; `blocks` are held in the real pool now."""
        # The pool may have shrunk: forget slowly what it once held.
        self._room = max(blocks, self._room * (1 - len(release.keys) / 65_536))
        run, room = list(release.keys), int(self._room)
        if len(run) > room:
            return
        model, lru = self._model.serve(run, release.depth, room), self._lru.serve(run, room)
        fade = math.exp(-len(run) / (_MEMORY + 8 * room))
        self._lead = fade * self._lead + model - lru
        self._squares = fade * self._squares + (model - lru) ** 2
        chance = math.sqrt(self._squares + _FEW**2)
        if not self.model_leads:
            if self._lead > self._proof * chance:
                self.model_leads, self._won, self._best = True, 0, 0
            return
        self._won += release.found - lru
        self._best = max(self._best, self._won)
        lost = self._best - self._won > min(max(room / 8, self._best / 2), room)
        if not lost and self._lead >= -chance:
            return
        self.model_leads = False
        if self._won >= 0:
            self._proof = max(_PROOF, self._proof - 1)
        else:
            self._proof += lost
            self._lead = min(self._lead, 0.0)


class _Recent:
    """LRU on paper."""

    def __init__(self) -> None:
        self._keys: OrderedDict[bytes, None] = OrderedDict()

    def serve(self, run: list[bytes], room: int) -> int:
        """Leading blocks found of a release, given deepest first."""
        found = 0
        while found < len(run) and run[-1 - found] in self._keys:
            found += 1
        for key in run:
            self._keys[key] = None
            self._keys.move_to_end(key)
        while len(self._keys) > room:
            self._keys.popitem(last=False)
        return found


class _Paper:
    """Any policy on paper: its blocks are numbers that stand for keys."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self._block: dict[bytes, int] = {}
        self._key: dict[int, bytes] = {}
        self._made = 0

    def serve(self, run: list[bytes], depth: int, room: int) -> int:
        """The same; `depth` is that of the last block of `run`."""
        found = 0
        while found < len(run) and run[-1 - found] in self._block:
            found += 1
        for key in run:
            if key in self._block:
                self._policy.remove(self._block[key])
            else:
                self._made += 1
                self._block[key], self._key[self._made] = self._made, key
        while len(self._policy) + len(run) > room:
            del self._block[self._key.pop(self._policy.pop())]
        for above, key in zip(range(len(run) - 1, -1, -1), run, strict=True):
            self._policy.add(self._block[key], key=key, depth=depth + above, priority=0)
        return found
