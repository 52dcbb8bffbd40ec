"""`pagedattn allocators`: every KV allocator and eviction policy."""

from __future__ import annotations

from pagedattn import registry
from pagedattn.cli.backends import JsonOption, print_rows


def allocators(as_json: JsonOption = False) -> None:
    """List the KV allocators and eviction policies with their states."""
    print_rows((*registry.allocators(), *registry.policies()), as_json)
