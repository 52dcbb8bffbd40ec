"""The pluggy hooks by which plugins, ours and a stranger's, come in.

A distribution names a module in its entry-point group `pagedattn`; the module implements any of
these hooks and imports no kernel library:

    from pagedattn import Offer, hookimpl

    @hookimpl
    def pagedattn_backends():
        return [Offer("mine", "my_package.backend:Backend", summary="my kernels")]
"""

from __future__ import annotations

import enum
import importlib
import importlib.util
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import pluggy

__all__ = ["API_VERSION", "Offer", "OfferKind", "hookimpl", "hookspec"]

API_VERSION = (1, 0)
"""Of the contract. Major: breaking. Minor: only options whose default is off, so that a 1.0 plugin
runs under 1.7."""

hookspec = pluggy.HookspecMarker("pagedattn")
hookimpl = pluggy.HookimplMarker("pagedattn")


class OfferKind(enum.StrEnum):
    """What a plugin can offer; pagedattn_<plural> is the hook."""

    BACKEND = "backend"
    ALLOCATOR = "allocator"
    POLICY = "policy"
    MODEL_RUNNER = "model runner"
    CASES = "conformance cases"
    WORKLOAD = "workload"
    COMMAND = "command"
    EMULATOR = "emulator"


@dataclass(frozen=True)
class Offer:
    """One thing that a plugin offers.

    target    "module:attribute", or a callable that returns the object; resolved on first use
    requires  modules that must be installed for it to work; looked for, not imported
    install   what to do when one is missing, e.g. "pip install 'pagedattn[triton]'"
    missing   a further reason why it cannot work here, or None; must be cheap
    priority  select() prefers the highest; 0 for a plain plugin
    """

    name: str
    target: str | Callable[[], Any]
    summary: str = ""
    requires: Sequence[str] = ()
    install: str = ""
    missing: Callable[[], str | None] = lambda: None
    priority: int = 0
    api_version: tuple[int, int] = (1, 0)

    def __post_init__(self) -> None:
        requires = self.requires
        if isinstance(requires, str):
            raise TypeError(f"Offer: requires={requires!r} must be a sequence of module names")
        object.__setattr__(self, "requires", tuple(requires))
        for name, kind in (("name", str), ("summary", str), ("install", str), ("priority", int)):
            if not isinstance(getattr(self, name), kind):
                raise TypeError(f"Offer: {name}={getattr(self, name)!r} is not {kind.__name__}")
        if not (callable(self.target) or isinstance(self.target, str)):
            raise TypeError(f"Offer: target={self.target!r} is neither text nor callable")
        version = self.api_version
        if not (isinstance(version, tuple) and [type(n) for n in version] == [int, int]):
            raise TypeError(f"Offer: api_version={version!r} is not (major, minor)")

    def load(self) -> Any:
        """The offered object (a class, usually)."""
        if callable(self.target):
            return self.target()
        module, _, attribute = self.target.partition(":")
        return getattr(importlib.import_module(module), attribute)

    def unavailable(self, *, replaced: Collection[str] = ()) -> str | None:
        """A sentence that says what is missing and what to do, or None. `replaced` modules are not
        looked for."""
        absent = [name for name in self.requires if name not in replaced and not _installed(name)]
        if absent:
            return f"{', '.join(absent)} is not installed; {self.install or 'install it'}"
        reason = self.missing()
        if reason is not None and not isinstance(reason, str):
            raise TypeError(f"missing() returned {reason!r}, neither a sentence nor None")
        return reason


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


class Hooks:
    """The hook specifications. Each returns a list of Offer."""

    @hookspec
    def pagedattn_backends(self) -> list[Offer]:  # type: ignore[empty-body]
        """Targets: subclasses of AttentionBackend."""

    @hookspec
    def pagedattn_allocators(self) -> list[Offer]:  # type: ignore[empty-body]
        """Targets: subclasses of BlockAllocator, called with num_blocks=, block_size=, ..."""

    @hookspec
    def pagedattn_policies(self) -> list[Offer]:  # type: ignore[empty-body]
        """Targets: subclasses of EvictionPolicy, called without arguments."""

    @hookspec
    def pagedattn_model_runners(self) -> list[Offer]:  # type: ignore[empty-body]
        """Targets: functions (model, *, dtype, device) -> pagedattn.engine.ModelRunner.

        model may be a name, a directory or any object; dtype and device may be None. A runner that
        does not know the model raises UnknownName, and the next one is asked."""

    @hookspec
    def pagedattn_cases(self) -> list[Offer]:  # type: ignore[empty-body]
        """Targets: sequences of pagedattn.conformance.Case, run beside the suite's own."""

    @hookspec
    def pagedattn_workloads(self) -> list[Offer]:  # type: ignore[empty-body]
        """Targets: sequences of pagedattn.benchmarks.Workload."""

    @hookspec
    def pagedattn_commands(self) -> list[Offer]:  # type: ignore[empty-body]
        """Targets: functions that typer turns into `pagedattn NAME`."""

    @hookspec
    def pagedattn_emulators(self) -> list[Offer]:  # type: ignore[empty-body]
        """Targets: functions () -> pagedattn.emulation.Emulation that make the backend of the
        offer's name run on a CPU. Called with PAGEDATTN_EMULATE=1 only, once, before that
        backend's module is imported."""


HOOK_OF = {
    OfferKind.BACKEND: "pagedattn_backends",
    OfferKind.ALLOCATOR: "pagedattn_allocators",
    OfferKind.POLICY: "pagedattn_policies",
    OfferKind.MODEL_RUNNER: "pagedattn_model_runners",
    OfferKind.CASES: "pagedattn_cases",
    OfferKind.WORKLOAD: "pagedattn_workloads",
    OfferKind.COMMAND: "pagedattn_commands",
    OfferKind.EMULATOR: "pagedattn_emulators",
}
