"""A made-up trace: conversations of several turns that share a few system prompts."""

from __future__ import annotations

import random

from pagedattn.benchmarks.audit.trace import Request, Trace

__all__ = ["HASH_BLOCK", "generate"]

HASH_BLOCK = 16
_SYSTEM_PROMPTS = (96, 480, 1200)  # tokens; each conversation starts with one of them
_TURNS = 4.0  # mean turns of a conversation


def generate(requests: int = 2000, *, seed: int = 0, rate: float = 6.0) -> Trace:
    """`requests` requests at `rate` per second on average. Equal arguments give an equal trace.

    Every turn's prompt is all that was said before and a new message; lengths are log-normal
    (medians: 120 tokens a message, 160 an answer), thinking between turns takes 20 s on average.
    """
    if requests < 1 or not rate > 0:
        raise ValueError(f"requests={requests}, rate={rate}: both must be positive")
    rng = random.Random(seed)
    found: list[Request] = []
    ids: dict[tuple[int, int], int] = {}  # (owner, block) -> id; owners below 0: system prompts
    start, conversation = 0.0, 0
    # Later turns come late: enough conversations that the first `requests` arrivals are settled.
    while conversation < 2 * requests / _TURNS + 10 or len(found) < requests:
        system = rng.randrange(len(_SYSTEM_PROMPTS))
        said, now = _SYSTEM_PROMPTS[system], start
        while True:
            prompt = said + _length(rng, 120)
            output = _length(rng, 160)
            said = prompt + output
            blocks = range(-(-said // HASH_BLOCK))
            shared = _SYSTEM_PROMPTS[system] // HASH_BLOCK
            chain = tuple(
                ids.setdefault((-1 - system if b < shared else conversation, b), len(ids))
                for b in blocks
            )
            found.append(Request(now, prompt, output, chain, said))
            if rng.random() < 1 / _TURNS:
                break
            now += output * 0.03 + rng.expovariate(1 / 20)
        start += rng.expovariate(rate / _TURNS)
        conversation += 1
    found.sort(key=lambda request: request.arrival)
    name = f"generated (seed {seed}, {requests} requests)"
    return Trace(name, tuple(found[:requests]), HASH_BLOCK)


def _length(rng: random.Random, median: int) -> int:
    return max(1, min(4 * 1024, round(median * rng.lognormvariate(0, 0.9))))
