"""How attention mutants are planted: a small change of the honest op, or of its backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pagedattn.attention import AttentionBackend, AttentionOp
from pagedattn.conformance.mutants.honest import HonestBackend

__all__ = ["AttentionMutant", "Garden"]

Op = TypeVar("Op", bound=AttentionOp)
Backend = TypeVar("Backend", bound=AttentionBackend)


@dataclass(frozen=True)
class AttentionMutant:
    """One planted bug.

    summary  what it does wrong
    faults   entries of the public fault collection that are this bug
    make     a fresh backend that has it
    """

    name: str
    summary: str
    faults: tuple[str, ...]
    make: Callable[[], AttentionBackend]


class Garden:
    """The mutants of one file."""

    def __init__(self) -> None:
        self.mutants: list[AttentionMutant] = []

    def op(self, name: str, summary: str, *faults: str) -> Callable[[type[Op]], type[Op]]:
        """A bug in the op."""

        def plant(cls: type[Op]) -> type[Op]:
            backend = type("Mutant", (HonestBackend,), {"name": name, "op": cls})
            self.mutants.append(AttentionMutant(name, summary, faults, backend))
            return cls

        return plant

    def backend(
        self, name: str, summary: str, *faults: str
    ) -> Callable[[type[Backend]], type[Backend]]:
        """A bug in what the backend says about itself."""

        def plant(cls: type[Backend]) -> type[Backend]:
            cls.name = name
            self.mutants.append(AttentionMutant(name, summary, faults, cls))
            return cls

        return plant
