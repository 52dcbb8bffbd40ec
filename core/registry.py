"""What is usable here, by name, and the choice between backends.

What plugins offer (discovery.py) is examined: its module imports, its type is right, its library is
there. PAGEDATTN_EMULATE=1 runs GPU backends on the CPU where an emulator is offered (emulation.py).
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from pagedattn import emulation
from pagedattn.discovery import Row, State, blocked_names, broken, describe, discover, is_strict
from pagedattn.errors import NotReady, PluginError, Refusal, UnknownName, Unsupported
from pagedattn.hooks import API_VERSION, Offer, OfferKind

if TYPE_CHECKING:
    from pagedattn.allocator import BlockAllocator, EvictionPolicy
    from pagedattn.attention import AttentionBackend
    from pagedattn.spec import AttentionSpec

__all__ = [
    "Explanation",
    "Row",
    "State",
    "allocator",
    "allocators",
    "backend",
    "backends",
    "explain",
    "load",
    "policies",
    "reload",
    "rows",
    "select",
]


@dataclass(frozen=True)
class Explanation:
    """Whether one backend serves a spec; it does when `refusals` is empty."""

    row: Row
    refusals: tuple[Refusal, ...]


def reload() -> None:
    """Forget what was discovered (a plugin was installed, the environment changed)."""
    discover.cache_clear()
    _loaded.cache_clear()
    _instance.cache_clear()
    _installed.cache_clear()


def rows(kind: OfferKind) -> tuple[Row, ...]:
    """Every offer of a kind and every plugin that failed, best priority first."""
    blocked = blocked_names()
    found: list[Row] = []
    first: dict[str, Row] = {}
    for row in discover(blocked, is_strict()):
        if row.kind is None:
            found.append(row)
        if row.kind is not kind:
            continue
        if row.name in blocked:
            row = replace(row, state=State.BLOCKED, detail="named in PAGEDATTN_BLOCK")
        elif row.offer is not None and row.name in first:
            other = first[row.name].source
            row = replace(
                row,
                state=State.DUPLICATE,
                detail=f"{other} already offers this name; block or uninstall one of them",
            )
        elif row.offer is not None:
            first[row.name] = row
            row = _examine(row)
        found.append(row)
    return tuple(sorted(found, key=lambda r: (-r.priority, r.name, r.source)))


def load(kind: OfferKind, name: str) -> Any:
    """The object offered under `name`. Raises UnknownName or NotReady."""
    return _loaded(_ready(kind, name))


def _ready(kind: OfferKind, name: str) -> Offer:
    if not isinstance(name, str):
        raise TypeError(f"{name!r} is not the name of a {kind}")
    listed = rows(kind)
    for row in listed:
        if row.name == name and row.usable:
            assert row.offer is not None
            return row.offer
    for row in listed:
        if row.name == name:
            raise NotReady(str(kind), name, row.state, row.detail)
    raise UnknownName(str(kind), name, [row.name for row in listed if row.offer is not None])


@cache
def _loaded(offer: Offer) -> Any:
    return offer.load()


@cache
def _instance(offer: Offer, emulated: emulation.Emulation | None) -> AttentionBackend:
    target = _loaded(offer)
    made: AttentionBackend = target() if isinstance(target, type) else target
    made.emulated = emulated
    return made


def _emulation(name: str) -> emulation.Emulation | None:
    """The installed emulation of a backend, None when it is not asked for or not offered. Raises
    NotReady when it cannot work here."""
    row = _emulator(name) if emulation.wanted() else None
    if row is None or row.offer is None:
        return None
    if row.state is not State.READY:
        raise NotReady("emulator", name, row.state, row.detail)
    return _installed(row.offer)


def _emulator(name: str) -> Row | None:
    """The row of a backend's emulator. A family's serves its variants (family:variant)."""
    names = (name, name.partition(":")[0])
    found = [row for row in rows(OfferKind.EMULATOR) if row.name in names]
    return next((row for row in found if row.offer is not None), None)


@cache
def _installed(offer: Offer) -> emulation.Emulation:
    made = offer.load()()
    if not isinstance(made, emulation.Emulation):
        raise TypeError(f"the emulator returned {made!r}, not a pagedattn.emulation.Emulation")
    return made


def _examine(row: Row) -> Row:
    """Is the offer usable here? Its module is imported for that, its kernel library is not."""
    offer = row.offer
    assert offer is not None
    try:
        if row.kind in (OfferKind.BACKEND, OfferKind.ALLOCATOR, OfferKind.POLICY):
            # The emulator first: it may bring what the backend's offer and module look for.
            emulated = _emulation(row.name) if row.kind is OfferKind.BACKEND else None
            replaced = emulated.replaces if emulated else frozenset()
            if reason := offer.unavailable(replaced=replaced):
                return replace(row, state=State.UNAVAILABLE, detail=reason)
            target = _loaded(offer)
            _check_type(row, target)
            if row.kind is OfferKind.BACKEND:
                _instance(offer, emulated)
            if emulated:
                detail = f"runs as {emulated.device.name}; correctness only"
                row = replace(row, state=State.EMULATED, detail=detail)
            version = getattr(target, "api_version", offer.api_version)
        else:
            reason, version = offer.unavailable(), offer.api_version
            if reason:
                return replace(row, state=State.UNAVAILABLE, detail=reason)
        if version[0] != API_VERSION[0]:
            detail = (
                f"written for contract {_dotted(version)}, this is {_dotted(API_VERSION)}; "
                "install matching versions"
            )
            return replace(row, state=State.BROKEN, detail=detail)
        if version > API_VERSION:
            detail = f"needs contract {_dotted(version)}, this is {_dotted(API_VERSION)}; "
            return replace(row, state=State.UNAVAILABLE, detail=detail + "upgrade pagedattn")
    except NotReady as error:
        return replace(row, state=State.UNAVAILABLE, detail=str(error))
    except (Exception, SystemExit) as error:  # the plugin border
        return replace(broken(row.name, row.kind, row.source, error, is_strict()), offer=offer)
    return row


def _check_type(row: Row, target: Any) -> None:
    from pagedattn.allocator import BlockAllocator, EvictionPolicy

    expected: type
    if row.kind is OfferKind.BACKEND:
        from pagedattn.attention import AttentionBackend

        expected = AttentionBackend
    else:
        expected = BlockAllocator if row.kind is OfferKind.ALLOCATOR else EvictionPolicy
    if not (
        isinstance(target, expected) or (isinstance(target, type) and issubclass(target, expected))
    ):
        raise TypeError(f"{target!r} is not a subclass of pagedattn.{expected.__name__}")
    if inspect.isabstract(target):
        missing = ", ".join(sorted(getattr(target, "__abstractmethods__", ())))
        raise TypeError(f"{target!r} does not implement {missing}")
    if target.name != row.name:
        raise TypeError(f"offered as {row.name!r} but its name is {target.name!r}")


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


# -- attention backends --------------------------------------------------------------------------


def backends() -> tuple[Row, ...]:
    """Every attention backend with its state, best priority first."""
    return tuple(map(_placed, rows(OfferKind.BACKEND)))


def _placed(row: Row) -> Row:
    """NO_DEVICE in place of READY when a backend serves none of this machine's devices."""
    from pagedattn.capabilities import describe_values
    from pagedattn.device import DeviceInfo, is_present

    if row.state is not State.READY or row.offer is None:
        return row
    try:
        served = _instance(row.offer, None).capabilities(DeviceInfo.of("cpu")).device
        if any(map(is_present, served)):
            return row
    except Exception:  # the plugin border: check() says what is wrong with it
        return row
    detail = f"needs a {describe_values(served)} device, and none is here"
    if _emulator(row.name) is not None:
        detail += "; PAGEDATTN_EMULATE=1 judges it on the CPU"
    return replace(row, state=State.NO_DEVICE, detail=detail)


def backend(name: str) -> AttentionBackend:
    """The attention backend of that name. Raises UnknownName or NotReady, never substitutes."""
    return _instance(_ready(OfferKind.BACKEND, name), _emulation(name))


def check_by_name(name: str, spec: AttentionSpec, device: Any) -> tuple[Refusal, ...]:
    """capabilities.check() for a name; a backend that is not ready refuses as "unavailable"."""
    from pagedattn.capabilities import check
    from pagedattn.device import DeviceInfo

    device = DeviceInfo.of(device)
    try:
        return check(backend(name), spec, device)
    except NotReady as error:
        return (Refusal(name, "unavailable", error.state, "ready", error.detail),)
    except Exception as error:  # the plugin border: its capabilities() or refuse() failed
        if is_strict():
            raise PluginError(f"backend {name!r} is broken: {describe(error)}") from error
        return (Refusal(name, "broken", describe(error), "a backend that can say", "fix it"),)


def explain(spec: AttentionSpec, device: Any = "cpu") -> tuple[Explanation, ...]:
    """Every backend with the reasons why it will not serve `spec`, best priority first."""
    return tuple(
        Explanation(row, check_by_name(row.name, spec, device))
        if row.usable
        else Explanation(
            row, (Refusal(row.name, "unavailable", str(row.state), "ready", row.detail),)
        )
        for row in backends()
    )


def select(spec: AttentionSpec, device: Any = "cpu", *, by: str = "priority") -> AttentionBackend:
    """The backend to use for `spec` on `device`.

    by   "priority": the highest declared priority that serves the spec
         "measured": the fastest in the table that `pagedattn bench --save` wrote for this spec

    Raises Unsupported with everybody's reasons when none serves it, LookupError when nothing was
    measured."""
    if by not in ("priority", "measured"):
        raise ValueError(f"by={by!r} is neither 'priority' nor 'measured'")
    explanations = explain(spec, device)
    serving = [e.row for e in explanations if not e.refusals]
    able = [row.name for row in serving if row.state is not State.EMULATED]
    if not able:
        raise Unsupported(refusal for e in explanations for refusal in e.refusals or _only(e.row))
    if by == "measured":
        from pagedattn.measured import fastest

        return backend(fastest(spec, device, able))
    return backend(able[0])


def _only(row: Row) -> tuple[Refusal, ...]:
    hint = "name it to run it on the CPU"
    return (Refusal(row.name, "unavailable", str(row.state), str(State.READY), hint),)


# -- allocators ----------------------------------------------------------------------------------


def allocators() -> tuple[Row, ...]:
    """Every allocator with its state."""
    return rows(OfferKind.ALLOCATOR)


def policies() -> tuple[Row, ...]:
    """Every eviction policy with its state."""
    return rows(OfferKind.POLICY)


def allocator(
    name: str = "paged",
    *,
    num_blocks: int,
    block_size: int = 16,
    policy: str | EvictionPolicy | None = None,
    **options: Any,
) -> BlockAllocator:
    """A new allocator of that name.

    policy   name or instance of an eviction policy; Unsupported when the allocator takes none
    options  passed on to the allocator; its own docstring lists them

    Raises UnknownName, NotReady, Unsupported, ValueError."""
    factory = load(OfferKind.ALLOCATOR, name)
    if isinstance(policy, str):
        policy = load(OfferKind.POLICY, policy)()
    if policy is not None:
        options["policy"] = policy
    try:
        made: BlockAllocator = factory(num_blocks=num_blocks, block_size=block_size, **options)
    except TypeError as error:
        unknown = [option for option in options if f"'{option}'" in str(error)]
        if not unknown:
            raise
        raise Unsupported(
            Refusal(
                name,
                option,
                getattr(options[option], "name", options[option]),
                "not an option of this allocator",
            )
            for option in unknown
        ) from error
    return made
