"""What a run of the suite may set for the cases that it executes: another seed, and shrinking.

The values travel in a context variable, because a case is called with its subject alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

__all__ = ["Settings", "current", "seed_of", "using"]


@dataclass(frozen=True)
class Settings:
    """seed    0 gives the usual contents, any other number other ones under the same ids
    shrink  whether a case that fails may look for a smaller input that fails too
    """

    seed: int = 0
    shrink: bool = False


_USUAL = Settings()
_CURRENT: ContextVar[Settings] = ContextVar("pagedattn_conformance", default=_USUAL)


def current() -> Settings:
    """The settings of the run that is executing this case."""
    return _CURRENT.get()


@contextmanager
def using(*, seed: int = 0, shrink: bool = False) -> Iterator[None]:
    """Cases executed inside have these settings."""
    token = _CURRENT.set(Settings(seed, shrink))
    try:
        yield
    finally:
        _CURRENT.reset(token)


def seed_of(id: str) -> int:
    """The seed of a case's contents: the same on every machine and in every process, unlike
    hash(), and another one under `using(seed=...)`."""
    seed = current().seed
    return zlib.crc32((f"{id}#{seed}" if seed else id).encode())
