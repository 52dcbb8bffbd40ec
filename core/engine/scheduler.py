"""Who runs in the next step: continuous batching over an allocator.

A step takes one token of every decoding request, then chunks of prompts, up to max_batch_tokens.
When blocks run out the youngest running request is preempted: it gives all its blocks back and
waits; later its tokens, generated ones included, are computed again. The oldest request therefore
always goes on, and submit() has made sure that it fits the pool alone, so everything ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from pagedattn.allocator import Addressing, BlockAllocator, CopyOp
from pagedattn.engine.output import FinishReason
from pagedattn.engine.request import Request, RequestState
from pagedattn.errors import EngineError, OutOfBlocks

__all__ = ["Schedule", "Scheduler", "Work"]


@dataclass(frozen=True, slots=True)
class Work:
    """`count` tokens of a request, to be stored at `slots`."""

    request: Request
    count: int
    slots: Sequence[int]

    @property
    def samples(self) -> bool:
        """Whether the last of these tokens is the last known one: its logits are wanted."""
        return self.count == self.request.remaining


@dataclass(frozen=True, slots=True)
class Schedule:
    """One step: `copies` are run in order before anything is written; decodes come first."""

    work: tuple[Work, ...]
    copies: tuple[CopyOp, ...]


class Scheduler:
    """Owns the requests and the allocator's sequences."""

    def __init__(
        self,
        allocator: BlockAllocator,
        *,
        max_batch_tokens: int,
        max_requests: int,
        watermark: float = 0.0,
    ) -> None:
        self.allocator = allocator
        self.max_batch_tokens, self.max_requests = max_batch_tokens, max_requests
        # An allocator that reserves for a sequence's growth needs no further reserve.
        paged = allocator.capabilities().addressing is Addressing.PAGED
        self.reserve = int(watermark * allocator.num_blocks) if paged else 0
        self.waiting: deque[Request] = deque()  # by age, as running
        self.running: list[Request] = []
        self.preemptions = 0
        # Blocks that were there when the oldest waiting request did not fit: as long as there are
        # no more, trying again is in vain.
        self._too_few: int | None = None

    @property
    def pending(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    # -- one step ------------------------------------------------------------------------------

    def schedule(self) -> Schedule:
        """Choose the step's work and append its slots. Raises EngineError when nothing can run
        although requests are pending."""
        copies: list[CopyOp] = []
        wants = self._continue_running()
        self._admit_waiting(wants, copies)
        if not wants:
            if self.pending:
                raise self._stalled()
            return Schedule((), ())
        grants = self.allocator.append_many({r.id: n for r, n in wants.items()})
        work = []
        for request, count in wants.items():
            grant = grants[request.id]
            request.table[grant.column :] = grant.blocks
            copies += grant.copies
            work.append(Work(request, count, grant.slots))
        return Schedule(tuple(work), tuple(copies))

    def commit(self, work: Sequence[Work]) -> None:
        """The step has really run: its tokens may be found by others from now on."""
        for item in work:
            request = item.request
            end = request.computed + item.count
            self.allocator.commit(request.id, request.tokens[request.computed : end])
            request.computed = end
            if item.count > 1:  # a prompt that waits may share what is found from now on
                self._too_few = None

    def _continue_running(self) -> dict[Request, int]:
        """Tokens for the running requests. Decodes come first: no prompt, not even that of an older
        request that is computed again, keeps them waiting."""
        wants: dict[Request, int] = {}
        budget = self.max_batch_tokens
        for request in sorted(self.running, key=lambda r: (r.remaining > 1, r.id)):
            if request.state is not RequestState.RUNNING:
                continue  # preempted for an older one just now
            count = min(request.remaining, budget)
            if count == 0:
                break
            while not self._fits(wants, request, count):
                victim = max(self.running, key=lambda r: r.id)
                budget += wants.pop(victim, 0)
                self.preempt(victim)
                if victim is request:
                    break
            else:
                wants[request] = count
                budget -= count
        return wants

    def _fits(self, wants: dict[Request, int], request: Request, count: int) -> bool:
        asked = {r.id: n for r, n in wants.items()}
        return self.allocator.can_append(asked | {request.id: count})

    def _admit_waiting(self, wants: dict[Request, int], copies: list[CopyOp]) -> None:
        budget = self.max_batch_tokens - sum(wants.values())
        while self.waiting and budget > 0 and len(self.running) < self.max_requests:
            request = self.waiting[0]
            if not self._open(request, copies):
                return
            self.waiting.popleft()
            self.running.append(request)
            wants[request] = min(request.remaining, budget)
            budget -= wants[request]

    def _open(self, request: Request, copies: list[CopyOp]) -> bool:
        """Open a waiting request if all its known tokens fit beside what the running ones are
        about to need; otherwise it would be preempted as soon as it had started."""
        stats = self.allocator.stats()
        available = stats.free + stats.reclaimable
        if self.running and self._too_few is not None and available <= self._too_few:
            return False
        try:
            hit = self.allocator.open(request.id, request.tokens)
        except OutOfBlocks:  # an allocator that reserves when it opens
            self._too_few = available
            return False
        request.computed = hit.tokens
        needs = {r.id: self._demand(r) for r in (*self.running, request)}
        if not self.allocator.can_append(needs) or not self._leaves_reserve(request, hit.blocks):
            self.allocator.close(request.id)
            request.computed = 0
            self._too_few = available
            return False
        self._too_few = None
        request.state = RequestState.RUNNING
        request.table = list(hit.blocks)
        copies += hit.copies
        if request.cached_tokens is None:
            request.cached_tokens = hit.tokens
        return True

    def _leaves_reserve(self, request: Request, found: Sequence[int]) -> bool:
        """Whether the watermark's blocks are left when all known tokens are stored. A request that
        would run alone is never asked: the reserve cannot make a pool unusable."""
        if not self.running or not self.reserve:
            return True
        held = [(r, len(r.table)) for r in self.running] + [(request, len(found))]
        size, stats = self.allocator.block_size, self.allocator.stats()
        new = sum(max(0, -(-len(r.tokens) // size) - blocks) for r, blocks in held)
        return stats.free + stats.reclaimable >= new + self.reserve

    def _demand(self, request: Request) -> int:
        """Tokens that a request stores before it can be left alone: the known ones and a block."""
        left = request.max_stored - len(request.tokens)
        return request.remaining + max(0, min(self.allocator.block_size, left))

    # -- leaving -------------------------------------------------------------------------------

    def preempt(self, request: Request) -> None:
        """Give a running request's blocks back and let it wait in its place by age."""
        self._release(request)
        request.state = RequestState.WAITING
        request.preemptions += 1
        self.preemptions += 1
        older = sum(1 for r in self.waiting if r.id < request.id)
        self.waiting.insert(older, request)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End a request in any state; its blocks go back. A second end is ignored."""
        if request.state is RequestState.FINISHED:
            return
        if request.state is RequestState.RUNNING:
            self._release(request)
        else:
            self.waiting.remove(request)
        request.state = RequestState.FINISHED
        request.finish_reason = reason

    def _release(self, request: Request) -> None:
        self.allocator.close(request.id)
        self.running.remove(request)
        request.computed, request.table = 0, []
        self._too_few = None

    def _stalled(self) -> EngineError:
        stats = self.allocator.stats()
        head = self.waiting[0]
        return EngineError(
            f"no progress is possible: request {head.id} has {len(head.tokens)} tokens, "
            f"{stats.free + stats.reclaimable} of {stats.total} blocks can be had and no request "
            "of this engine holds any; another user of the allocator holds the rest "
            f"(live {stats.live}, reserved {stats.reserved}), or this allocator cannot place it"
        )
