"""Built-in KV-cache allocators and eviction policies. Nothing here imports torch or numpy."""

from pagedattn.backends.allocators.lru import LRU
from pagedattn.backends.allocators.paged import PagedAllocator

__all__ = ["LRU", "PagedAllocator"]
