"""What comes out of an engine."""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["Completion", "EngineStats", "FinishReason", "Progress", "StepOutput"]


class FinishReason(enum.StrEnum):
    """STOP: an end-of-text or stop token came. LENGTH: max_new_tokens. ABORTED: by abort()."""

    STOP = "stop"
    LENGTH = "length"
    ABORTED = "aborted"


@dataclass(frozen=True, kw_only=True)
class Completion:
    """A finished request.

    token_ids      generated tokens, the stop token included
    prompt_len     tokens of the prompt
    cached_tokens  prompt tokens that were found in the cache when the request was first admitted
                   (what a preempted request finds of its own is not counted)
    preemptions    times that its blocks were taken away and its tokens computed again
    text           the decoded tokens without special ones; None without a tokenizer
    """

    request_id: int
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    prompt_len: int
    cached_tokens: int = 0
    preemptions: int = 0
    text: str | None = None


@dataclass(frozen=True, slots=True)
class StepOutput:
    """One new token of one request; `completion` is set when it was the last."""

    request_id: int
    token_id: int
    completion: Completion | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a generate() call stands. max_tokens shrinks as requests end early."""

    requests_done: int
    requests: int
    tokens: int
    max_tokens: int


@dataclass(slots=True)
class EngineStats:
    """Counters since the engine was made.

    steps             forward passes
    computed_tokens   rows of all forward passes, recomputed ones included
    generated_tokens  tokens handed out
    preemptions       requests that lost their blocks to others
    peak_blocks       most blocks held at one time, in tables or reserved
    plan_s, write_s, run_s   seconds in the attention op's calls; on a device that runs
                      asynchronously, the time to launch them
    model_s           seconds in the rest of the model
    sample_s          seconds in sampling; waits for the device
    """

    steps: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    peak_blocks: int = 0
    plan_s: float = 0.0
    write_s: float = 0.0
    run_s: float = 0.0
    model_s: float = 0.0
    sample_s: float = 0.0
