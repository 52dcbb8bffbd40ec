"""From a name, or an instance, to something that cases can be run on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pagedattn import registry
from pagedattn.conformance.case import Case, Kind, NotRun
from pagedattn.errors import UnknownName
from pagedattn.hooks import OfferKind

if TYPE_CHECKING:
    from pagedattn.attention import AttentionBackend

__all__ = ["Subject", "cases_of", "of_backend", "resolve"]


@dataclass(frozen=True)
class Subject:
    """A backend on a device, or an allocator, to be judged.

    version  of the distribution it came from, "" when unknown
    make     what the cases are called with; raises NotRun when it cannot be had here
    """

    name: str
    kind: Kind
    version: str
    device: str
    make: Callable[[], Any]

    @property
    def label(self) -> str:
        """ "template 0.1.0 (cpu)" """
        text = f"{self.name} {self.version}" if self.version else self.name
        return f"{text} ({self.device})" if self.kind is Kind.ATTENTION else text

    def command(self, case_id: str, *, seed: int = 0) -> str:
        """One line that reproduces a case."""
        device = "" if self.device == "cpu" else f" --device {self.device}"
        other = f" --seed {seed}" if seed else ""
        return f"pagedattn check {self.name}{device}{other} -k {case_id}"

    def emulated(self) -> str:
        """What an emulation judges ("kernels emulated", "adapter verified"); "" without one, and
        when the backend cannot be made."""
        if self.kind is Kind.ALLOCATOR:
            return ""
        try:
            emulation = self.make().backend.emulated
            return str(emulation.judged) if emulation else ""
        except Exception:  # the plugin border: what is broken is judged by the cases
            return ""

    def capabilities(self) -> Mapping[str, str]:
        """What it declares, as text, for the report; empty when it cannot be asked."""
        from pagedattn.capabilities import describe_values

        if self.kind is Kind.ALLOCATOR:
            made = self.make()(num_blocks=8, block_size=4)
            declared = made.capabilities()
        else:
            declared = self.make().capabilities

        def text(value: Any) -> str:
            if isinstance(value, set | frozenset | range):
                return describe_values(value)
            return str(getattr(value, "name", value))

        return {name: text(getattr(declared, name)) for name in declared.__dataclass_fields__}


def resolve(name: str, device: str = "cpu", *, kind: Kind | None = None) -> list[Subject]:
    """The backend, the allocator, or both, of that name.

    Raises UnknownName listing both kinds, NotReady from Subject.make()."""
    found = []
    for row in (*registry.backends(), *registry.allocators()):
        if row.name != name or row.offer is None or row.state is registry.State.DUPLICATE:
            continue
        own = Kind.ATTENTION if row.kind is OfferKind.BACKEND else Kind.ALLOCATOR
        if kind in (None, own):
            version = row.source.rpartition(" ")[2]
            make = _backend(name, device) if own is Kind.ATTENTION else _allocator(name)
            found.append(Subject(name, own, version, device, make))
    if not found:
        rows = [*registry.backends()] if kind is not Kind.ALLOCATOR else []
        rows += registry.allocators() if kind is not Kind.ATTENTION else []
        what = {
            None: "backend or allocator",
            Kind.ATTENTION: "backend",
            Kind.ALLOCATOR: "allocator",
        }
        raise UnknownName(what[kind], name, [r.name for r in rows if r.offer is not None])
    return found


def of_backend(backend: AttentionBackend, device: str = "cpu") -> Subject:
    """A backend that is not registered: an author's own instance."""

    def make() -> Any:
        return _on_device(backend, device)

    return Subject(backend.name, Kind.ATTENTION, "", device, make)


def cases_of(kind: Kind) -> tuple[Case, ...]:
    """The suite's cases of a kind, and those that plugins add."""
    if kind is Kind.ATTENTION:
        from pagedattn.conformance.attention import ATTENTION_CASES

        own: tuple[Case, ...] = ATTENTION_CASES
    else:
        from pagedattn.conformance.allocator import ALLOCATOR_CASES

        own = ALLOCATOR_CASES
    extra: list[Case] = []
    for row in registry.rows(OfferKind.CASES):
        if row.offer is not None and row.state is registry.State.READY:
            loaded = registry.load(OfferKind.CASES, row.name)
            extra += [case for case in loaded if case.kind is kind]
    cases = (*own, *extra)
    seen: set[str] = set()
    for case in cases:
        if case.id in seen:
            raise ValueError(f"two conformance cases are called {case.id!r}; ids must be unique")
        seen.add(case.id)
    return cases


def _backend(name: str, device: str) -> Callable[[], Any]:
    return lambda: _on_device(registry.backend(name), device)


def _on_device(backend: AttentionBackend, device: str) -> Any:
    import torch

    from pagedattn.conformance.attention.subject import AttentionSubject

    where = torch.device(device)
    if where.type == "cuda" and not torch.cuda.is_available():
        raise NotRun(f"no {device} device on this machine")
    return AttentionSubject(backend, where)


def _allocator(name: str) -> Callable[[], Any]:
    def make() -> Any:
        registry.load(OfferKind.ALLOCATOR, name)  # NotReady here, not in every case
        return lambda **options: registry.allocator(name, **options)

    return make
