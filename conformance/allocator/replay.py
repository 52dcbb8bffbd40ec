"""The event log, replayed: what can be found, and whether it is still there."""

from __future__ import annotations

from collections.abc import Iterable

from pagedattn.allocator import Event, EventKind
from pagedattn.conformance.allocator.contents import Contents
from pagedattn.conformance.allocator.expect import must

__all__ = ["Replay"]


class Replay:
    """The index that the events describe.

    whole_blocks  stored blocks are full ones, so that their content can be compared
    unique_keys   False under planted collisions: a key then says nothing about content
    """

    def __init__(self, contents: Contents, *, whole_blocks: bool, unique_keys: bool) -> None:
        self.index: dict[int, bytes] = {}  # block -> key
        self._contents = contents
        self._whole_blocks, self._unique_keys = whole_blocks, unique_keys
        self._stored: dict[int, list[int | None]] = {}  # block -> its content when it was stored
        self._ends: dict[bytes, int | None] = {}  # key -> content of its last token
        self._meaning: dict[bytes, list[int | None]] = {}  # key -> content

    def follow(self, events: Iterable[Event], after: str, *, contents: bool = True) -> None:
        """Apply `events`, then compare every stored block with what it held when stored; `contents`
        says whether what was written is known."""
        for event in events:
            if event.kind is EventKind.CLEARED:
                self.index.clear()
                self._stored.clear()
            elif event.kind is EventKind.STORED:
                self._store(event, after, contents)
            else:
                self._remove(event, after)
        for block, content in self._stored.items() if contents else ():
            must(
                content == self._contents.block(block),
                "events",
                "a block that can be found to keep its content",
                f"block {block} was overwritten, after {after}",
            )

    def _store(self, event: Event, after: str, contents: bool) -> None:
        block, key = event.block, event.key
        must(
            block not in self.index,
            "events",
            "one key for each block",
            f"block {block} was stored under a second one, after {after}",
        )
        self.index[block] = key
        if not (self._whole_blocks and contents):
            return
        content = self._contents.block(block)
        must(
            all(number in self._contents.committed for number in content),
            "commit-before-share",
            "only full, committed blocks to be stored",
            f"block {block} was stored without being so, after {after}",
        )
        self._stored[block] = content
        if self._unique_keys:
            must(
                self._meaning.setdefault(key, content) == content,
                "prefix-identity",
                "one content for each key",
                f"key {key.hex()} now names another content, after {after}",
            )
            before = self._contents.before(content[0]) if content[0] is not None else 0
            self._ends[key] = content[-1]
            # A parent that was never stored itself gets its meaning from its first child.
            known = self._ends.setdefault(event.parent, before) if event.parent else 0
            must(
                known == before and bool(event.parent) == bool(before),
                "events",
                "the parent to be the key of the block before, b'' at the start",
                f"{event}, after {after}",
            )

    def _remove(self, event: Event, after: str) -> None:
        must(
            self.index.pop(event.block, None) == event.key,
            "events",
            "REMOVED for a block that is stored under this key",
            f"{event}, after {after}",
        )
        self._stored.pop(event.block, None)
