"""Every exception that pagedattn raises on purpose, in one tree.

    PagedAttnError
    ├── Unsupported      a plugin does not offer what was asked for           (NotImplementedError)
    ├── InvalidBatch     a batch breaks the contract                          (ValueError)
    ├── InvalidTensor    a tensor does not fit run(), write(), copy_blocks()  (ValueError)
    ├── UnknownName      no plugin of that name                               (LookupError)
    ├── NotReady         the named plugin exists but cannot be used here      (RuntimeError)
    ├── PluginError      a plugin broke its hook's contract                   (RuntimeError)
    ├── InvalidRequest   the engine can never serve this request as asked     (ValueError)
    ├── EngineError      the engine cannot go on                              (RuntimeError)
    └── AllocatorError   an allocator was called against its rules            (RuntimeError)
        └── OutOfBlocks  not enough blocks; the state is as it was

Each also derives from the built-in class on the right, so callers that know nothing of pagedattn
can still catch the usual thing.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

__all__ = [
    "AllocatorError",
    "EngineError",
    "InvalidBatch",
    "InvalidRequest",
    "InvalidTensor",
    "NotReady",
    "OutOfBlocks",
    "PagedAttnError",
    "PluginError",
    "Refusal",
    "UnknownName",
    "Unsupported",
]


class PagedAttnError(Exception):
    """Base of every error raised on purpose by pagedattn."""


@dataclass(frozen=True)
class Refusal:
    """One reason why a plugin will not serve a request.

    backend    name of the backend or allocator that refuses
    code       stable identifier: the spec field or row ("softcap", "head_dim", "device"), or
               "unavailable", or the two fields of a refused combination ("softcap+alibi")
    requested  the value that was asked for
    supported  what would be accepted, as text
    hint       what the caller can do about it
    """

    backend: str
    code: str
    requested: Any
    supported: str
    hint: str = ""

    def __str__(self) -> str:
        text = f"{self.backend}: {self.code}={self.requested} is not supported"
        text += f" (supported: {self.supported})" if self.supported else ""
        return f"{text}; {self.hint}" if self.hint else text


class Unsupported(PagedAttnError, NotImplementedError):
    """A plugin declines; `refusals` says why, one entry per reason."""

    def __init__(self, refusals: Refusal | Iterable[Refusal]) -> None:
        self.refusals = (refusals,) if isinstance(refusals, Refusal) else tuple(refusals)
        super().__init__("\n".join(map(str, self.refusals)))


class InvalidBatch(PagedAttnError, ValueError):
    """A batch breaks the contract.

    request  index of the offending request, or None when the fault concerns the whole batch
    field    name of the AttentionBatch field (or builder argument)
    value    the offending value
    bound    the rule it breaks, as text
    """

    def __init__(self, field: str, value: Any, bound: str, *, request: int | None = None) -> None:
        self.request, self.field, self.value, self.bound = request, field, value, bound
        where = "batch" if request is None else f"request {request}"
        super().__init__(f"{where}: {field} is {value}; {bound}")


class InvalidTensor(PagedAttnError, ValueError):
    """A tensor does not fit the op it was given to; nothing was launched."""

    def __init__(self, name: str, value: Any, expected: str) -> None:
        self.name, self.value, self.expected = name, value, expected
        super().__init__(f"{name}: {value}; expected {expected}")


class UnknownName(PagedAttnError, LookupError):
    """No plugin of that name; the message lists the known ones and the closest."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind, self.name, self.known = kind, name, tuple(known)
        close = difflib.get_close_matches(name, self.known, n=1, cutoff=0.5)
        self.closest = close[0] if close else None
        text = f"no {kind} named {name!r}"
        text += f"; did you mean {self.closest!r}?" if self.closest else ";"
        super().__init__(f"{text} known: {', '.join(self.known) or 'none'}")


class NotReady(PagedAttnError, RuntimeError):
    """The named plugin exists but cannot be used: `state` and a sentence that says what to do."""

    def __init__(self, kind: str, name: str, state: str, detail: str) -> None:
        self.kind, self.name, self.state, self.detail = kind, name, state, detail
        super().__init__(f"{kind} {name!r} is {state}: {detail}")


class PluginError(PagedAttnError, RuntimeError):
    """A plugin broke its hook's contract. While listing, only with PAGEDATTN_STRICT=1: it is a row
    otherwise."""


class InvalidRequest(PagedAttnError, ValueError):
    """A request that this engine can never serve as asked; refused before anything runs."""


class EngineError(PagedAttnError, RuntimeError):
    """The engine cannot go on: no progress is possible, or the model returned nonsense."""


class AllocatorError(PagedAttnError, RuntimeError):
    """An allocator was called against its rules: unknown sequence, second close, ..."""


class OutOfBlocks(AllocatorError):
    """Not enough blocks for the whole call; the allocator's state is as it was.

    needed     new blocks that the call requires, copies included
    available  free + reclaimable blocks at the time of the call
    """

    def __init__(self, needed: int, available: int) -> None:
        self.needed, self.available = needed, available
        super().__init__(f"{needed} blocks needed, {available} available")
