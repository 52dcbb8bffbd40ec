"""The clairvoyant optimum: what no eviction policy can exceed on a trace that it does not know."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

__all__ = ["optimal_hits"]


def optimal_hits(requests: Sequence[Sequence[int]], capacity: int) -> int:
    """Leading blocks found, all requests together, by the policy that knows the future.

    requests  block ids of each prompt, in order of arrival; an id stands for the whole prefix up
              to it, so that it always has the same predecessor
    capacity  blocks kept from one request to the next

    Evicts what is used again last (Belady), never keeping what is not used again. A use of a
    block is a use of its ancestors too: with equal times the deepest goes first, no block outlives
    an ancestor, and Belady's argument holds for leading blocks. Blocks of the request being served
    count against nothing, so that the figure bounds real pools, which must hold them as well. A
    request larger than the capacity is not served and finds nothing.

    O(n log n) for n blocks.
    """
    if capacity < 1:
        raise ValueError(f"capacity is {capacity}; at least one block is required")
    served = [request for request in requests if len(request) <= capacity]
    uses = _next_uses(served)
    cached: dict[int, int] = {}  # id -> next use
    # Used last first, of equal ones the deepest. An entry is stale when `cached` says otherwise.
    queue: list[tuple[int, int, int]] = []
    hits = 0
    for request, nexts in zip(served, uses, strict=True):
        for block in request:
            if block not in cached:
                break
            hits += 1
        for depth, (block, when) in enumerate(zip(request, nexts, strict=True)):
            if when is None:
                cached.pop(block, None)
            else:
                cached[block] = when
                heapq.heappush(queue, (-when, -depth, block))
        while len(cached) > capacity:
            when, _, block = heapq.heappop(queue)
            if cached.get(block) == -when:
                del cached[block]
    return hits


def _next_uses(requests: Sequence[Sequence[int]]) -> list[list[int | None]]:
    """For each block of each request, the index of the next request that has it."""
    last: dict[int, int] = {}
    uses: list[list[int | None]] = []
    for index in range(len(requests) - 1, -1, -1):
        uses.append([last.get(block) for block in requests[index]])
        last.update(dict.fromkeys(requests[index], index))
    return uses[::-1]
