"""Token ids that stand for the content of a sequence, so that equal prefixes are found again.

The replay hands an allocator *units*: single tokens, or whole blocks (one token id for each block
of the real server and block_size=1, which gives the same tables at a fraction of the cost).
"""

from __future__ import annotations

from pagedattn.benchmarks.audit.trace import Request, Trace

__all__ = ["Contents"]

_OWN = 1 << 32  # ids below 0 are one request's own: this many for each


class Contents:
    """Ids of the units of every request of a trace; `unit` tokens each."""

    def __init__(self, trace: Trace, unit: int) -> None:
        self._trace, self._unit = trace, unit
        self._pieces: dict[tuple[int, ...], int] = {}  # where units and hash blocks do not nest

    def units(self, index: int, start: int, stop: int) -> list[int]:
        """Ids of units start .. stop - 1 of request `index`. Units of which the trace does not
        tell all tokens are like no other."""
        request = self._trace.requests[index]
        known = max(start, min(request.known // self._unit, stop))
        own = -(index + 1) * _OWN
        return [*self._shared(request, start, known), *range(own + known, own + stop)]

    def _shared(self, request: Request, start: int, stop: int) -> list[int]:
        unit, block = self._unit, self._trace.hash_block
        if start == stop:
            return []
        if block % unit == 0:
            per = block // unit
            first, last = start // per, -(-stop // per)
            ids = [i * per + k for i in request.ids[first:last] for k in range(per)]
            return ids[start - first * per : stop - first * per]
        found = []
        for j in range(start, stop):
            first, last = j * unit // block, -(-(j + 1) * unit // block)
            # The content of a unit is that of its hash blocks and where it starts in the first.
            key = (j * unit % block, *request.ids[first:last])
            found.append(self._pieces.setdefault(key, len(self._pieces)))
        return found
