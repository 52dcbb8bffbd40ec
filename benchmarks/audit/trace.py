"""A trace: what was asked of a server, in order of arrival."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Request", "Trace", "TraceError"]


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    arrival  seconds after the first request of the trace
    prompt   tokens given, at least 1        output  tokens generated
    ids      content of the sequence's blocks of Trace.hash_block tokens, as dense ints: equal ids
             mean equal content after equal prefixes, so that an id stands behind one other alone.
             () when the trace does not tell.
    known    tokens that `ids` describe: the prompt, or prompt and output
    """

    arrival: float
    prompt: int
    output: int
    ids: tuple[int, ...] = ()
    known: int = 0

    @property
    def total(self) -> int:
        """Tokens of the sequence when it ends."""
        return self.prompt + self.output


class TraceError(ValueError):
    """A line of a trace file that cannot be read: which line, which field, why."""

    def __init__(self, source: str, line: int, field: str, problem: str) -> None:
        self.line, self.field, self.problem = line, field, problem
        super().__init__(f"{source}, line {line}, field {field}: {problem}")


@dataclass(frozen=True)
class Trace:
    """Requests sorted by arrival; equal arrivals keep their order.

    name        file name, or what made it
    hash_block  tokens per id of Request.ids; 0 when no request has ids
    skipped     lines that were left out
    """

    name: str
    requests: tuple[Request, ...]
    hash_block: int = 0
    skipped: tuple[TraceError, ...] = ()
