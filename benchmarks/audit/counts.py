"""What happened in a replay, in numbers."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Counts"]


@dataclass(slots=True)
class Counts:
    """What happened. Requests: completed + refused == all of them.

    too_long      refused: above the server's max_len
    too_large     refused: larger than the whole pool
    no_room       refused: alone in the pool, and the allocator could not place it
    admitted      requests that ran, each counted once
    preemptions   times that a running request lost its memory   preempted   requests that did
    recomputed    tokens computed again after preemptions
    prompt_blocks, hit_blocks   blocks of the prompts of admitted requests, and how many of them
                                were found, at the first admission
    table_blocks, table_runs    blocks of the tables at the end, and runs of adjacent ids in them
    """

    completed: int = 0
    admitted: int = 0
    too_long: int = 0
    too_large: int = 0
    no_room: int = 0
    preemptions: int = 0
    preempted: int = 0
    recomputed: int = 0
    prompt_blocks: int = 0
    hit_blocks: int = 0
    table_blocks: int = 0
    table_runs: int = 0

    @property
    def refused(self) -> int:
        return self.too_long + self.too_large + self.no_room
