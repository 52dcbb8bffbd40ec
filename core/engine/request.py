"""One request on its way through the engine."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import torch

from pagedattn.engine.output import FinishReason
from pagedattn.engine.sampling import SamplingParams

__all__ = ["Request", "RequestState"]


class RequestState(enum.Enum):
    """WAITING holds nothing. RUNNING is open in the allocator. FINISHED holds nothing again."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False, slots=True)
class Request:
    """Mutable; owned by the scheduler.

    id          arrival order, and its sequence id in the allocator
    tokens      the prompt and what was generated: all of it is computed again after a preemption
    stop_ids    tokens that end it
    generator   survives preemption, so that a drawn token is never drawn again
    computed    leading tokens whose keys and values lie in the cache
    table       its blocks, a copy of the allocator's table kept up to date by the grants
    """

    id: int
    tokens: list[int]
    prompt_len: int
    params: SamplingParams
    stop_ids: frozenset[int]
    generator: torch.Generator | None
    state: RequestState = RequestState.WAITING
    computed: int = 0
    table: list[int] = field(default_factory=list)
    cached_tokens: int | None = None
    preemptions: int = 0
    finish_reason: FinishReason | None = None

    @property
    def remaining(self) -> int:
        """Tokens to compute before the next one can be sampled; 1 while decoding."""
        return len(self.tokens) - self.computed

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_len

    @property
    def max_stored(self) -> int:
        """Tokens that can ever lie in the cache: the last generated one is never fed."""
        return self.prompt_len + self.params.max_new_tokens - 1

    def append(self, token: int) -> FinishReason | None:
        """Take a sampled token; says why it was the last, or None."""
        self.tokens.append(token)
        if token in self.stop_ids:
            return FinishReason.STOP
        if self.generated >= self.params.max_new_tokens:
            return FinishReason.LENGTH
        return None
