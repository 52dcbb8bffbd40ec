"""From a step on which a backend fails to a smaller one on which it still fails."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from pagedattn.conformance.attention.content import Content
from pagedattn.spec import Mask

__all__ = ["smallest"]

MOST_ATTEMPTS = 24
MOST_KEYS = 4096
"""A step with more keys stays as it is: on a slow backend every attempt would take seconds."""


def smallest(content: Content, fails: Callable[[Content], bool]) -> Content:
    """The smallest step found, `content` itself when nothing smaller fails.

    First one request alone, then fewer rows, then fewer keys; each piece that still fails is where
    the search goes on. The last rows and the last keys are kept, so that positions stay legal."""
    if sum(content.seq_lens) > MOST_KEYS:
        return content
    attempts = 0
    found = content
    while True:
        for candidate in _smaller(found):
            if attempts == MOST_ATTEMPTS:
                return found
            attempts += 1
            if fails(candidate):
                found = candidate
                break
        else:
            return found


def _smaller(content: Content) -> Iterator[Content]:
    requests = range(len(content.q))
    if len(requests) > 1:
        yield from (content.pick([r]) for r in sorted(requests, key=lambda r: _size(content, r)))
        return
    if content.spec.mask is Mask.TREE or not requests:
        return  # a tree belongs to all of its rows
    rows, keys = content.query_lens[0], content.seq_lens[0]
    for kept in _shorter(rows, 1):
        yield _last(content, kept, keys)
    for kept in _shorter(keys, rows):
        yield _last(content, rows, kept)


def _size(content: Content, request: int) -> tuple[int, int]:
    return content.seq_lens[request], content.query_lens[request]


def _shorter(now: int, least: int) -> list[int]:
    """`least`, the half, one less; each below `now` and not below `least`, smallest first."""
    return sorted({n for n in (least, now // 2, now - 1) if least <= n < now})


def _last(content: Content, rows: int, keys: int) -> Content:
    """The last rows and keys of the only request."""
    r, k = content.query_lens[0], content.seq_lens[0]
    cut = content.cut(0, slice(r - rows, r), slice(k - keys, k))
    return dataclasses.replace(cut, trees=content.trees)
