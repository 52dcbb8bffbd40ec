"""What the installed plugins offer: one row for each offer, and one for each plugin that failed.

Entry points are loaded one at a time: whatever a plugin does wrong becomes one row that says so,
and the others still work. Environment:

    PAGEDATTN_BLOCK=a,b   plugins (entry points) or offers that must not be used
    PAGEDATTN_STRICT=1    raise PluginError instead of making a row
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import pluggy

from pagedattn.errors import PluginError
from pagedattn.hooks import HOOK_OF, Hooks, Offer, OfferKind

__all__ = ["Row", "State", "blocked_names", "broken", "describe", "discover", "is_strict"]

GROUP = "pagedattn"


class State(enum.StrEnum):
    """READY can be used. NO_DEVICE is installed and serves no device of this machine: it answers
    check() for others. EMULATED can be judged, on a CPU. UNAVAILABLE needs something installed.
    BROKEN failed. BLOCKED by the user. DUPLICATE of a name that came first."""

    READY = "ready"
    NO_DEVICE = "no device"
    EMULATED = "emulated"
    UNAVAILABLE = "unavailable"
    BROKEN = "broken"
    BLOCKED = "blocked"
    DUPLICATE = "duplicate"


@dataclass(frozen=True)
class Row:
    """One offer, or one plugin that failed before it could offer anything (kind is None).

    detail  the offer's summary when ready, else a sentence that says what to do
    source  distribution and version it came from
    """

    name: str
    kind: OfferKind | None
    state: State
    detail: str
    source: str
    offer: Offer | None = None

    @property
    def usable(self) -> bool:
        """Whether it can be loaded: its own refusals say what it serves, and where."""
        return self.state in (State.READY, State.NO_DEVICE, State.EMULATED)

    @property
    def priority(self) -> int:
        return self.offer.priority if self.offer else 0


def blocked_names() -> frozenset[str]:
    """Of PAGEDATTN_BLOCK."""
    names = os.environ.get("PAGEDATTN_BLOCK", "").split(",")
    return frozenset(name.strip() for name in names if name.strip())


def is_strict() -> bool:
    """Whether PAGEDATTN_STRICT is set."""
    return os.environ.get("PAGEDATTN_STRICT", "") not in ("", "0")


@cache
def discover(blocked: frozenset[str], strict: bool) -> tuple[Row, ...]:
    """What every entry point that is not blocked offers; not yet examined: READY means offered."""
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(Hooks)
    found: list[Row] = []
    for entry in sorted(entry_points(group=GROUP), key=_order):
        source = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "unknown"
        if entry.name in blocked:
            detail = "named in PAGEDATTN_BLOCK"
            found.append(Row(entry.name, None, State.BLOCKED, detail, source))
            continue
        try:
            plugin = entry.load()
            manager.register(plugin, name=f"{source}/{entry.name}")
            manager.check_pending()
        except (Exception, SystemExit) as error:  # the plugin border: anything becomes a row
            if manager.has_plugin(f"{source}/{entry.name}"):
                manager.unregister(name=f"{source}/{entry.name}")
            found.append(broken(entry.name, None, source, error, strict))
            continue
        for kind, hook in HOOK_OF.items():
            found += _offers(manager, plugin, kind, hook, entry.name, source, strict)
    return tuple(found)


def _order(entry: EntryPoint) -> tuple[bool, str, str]:
    """pagedattn's own first, so that nobody takes over a built-in name; then by name."""
    dist = entry.dist.name if entry.dist else ""
    return dist != "pagedattn", dist, entry.name


def _offers(
    manager: pluggy.PluginManager,
    plugin: object,
    kind: OfferKind,
    hook: str,
    entry: str,
    source: str,
    strict: bool,
) -> Iterator[Row]:
    for impl in getattr(manager.hook, hook).get_hookimpls():
        if impl.plugin is not plugin:
            continue
        try:
            offered = [_as_offer(item) for item in impl.function()]
        except (Exception, SystemExit) as error:  # the plugin border
            yield broken(entry, kind, source, error, strict)
            continue
        for offer in offered:
            yield Row(offer.name, kind, State.READY, offer.summary, source, offer)


def _as_offer(item: Any) -> Offer:
    """An Offer, or, for short, the backend or allocator class (or instance) itself."""
    if isinstance(item, Offer):
        return item
    name = getattr(item, "name", None)
    if isinstance(name, str):
        text = (type(item) if not isinstance(item, type) else item).__doc__ or ""
        return Offer(name, lambda: item, summary=text.strip().partition("\n")[0])
    raise TypeError(f"{item!r} is neither an Offer nor a class with a name")


def broken(
    name: str, kind: OfferKind | None, source: str, error: BaseException, strict: bool
) -> Row:
    """The row of a plugin or offer that failed with `error`; strict: raise PluginError instead."""
    detail = describe(error)
    if strict:
        raise PluginError(f"plugin {name!r} of {source} is broken: {detail}") from error
    return Row(name, kind, State.BROKEN, f"{detail}; report it to {source}", source)


def describe(error: BaseException) -> str:
    """Type and message."""
    return f"{type(error).__name__}: {error}"
