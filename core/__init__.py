"""pagedattn: one contract for paged-attention kernels and KV-cache allocators.

    import pagedattn as pa

    op = pa.backend("reference").open(spec, limits, device="cpu")
    plan = op.plan(batch)
    op.write(k, v, cache, batch.slot_mapping)
    op.run(q, cache, plan, out=out)

The public names are lazy: importing pagedattn imports neither torch nor numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pagedattn.allocator import (
        Addressing as Addressing,
    )
    from pagedattn.allocator import (
        AllocatorCapabilities as AllocatorCapabilities,
    )
    from pagedattn.allocator import (
        AllocatorStats as AllocatorStats,
    )
    from pagedattn.allocator import (
        BlockAllocator as BlockAllocator,
    )
    from pagedattn.allocator import (
        CopyOp as CopyOp,
    )
    from pagedattn.allocator import (
        Event as Event,
    )
    from pagedattn.allocator import (
        EventKind as EventKind,
    )
    from pagedattn.allocator import (
        EvictionPolicy as EvictionPolicy,
    )
    from pagedattn.allocator import (
        Grant as Grant,
    )
    from pagedattn.allocator import (
        Prefix as Prefix,
    )
    from pagedattn.allocator import (
        PrefixHit as PrefixHit,
    )
    from pagedattn.allocator import (
        Violation as Violation,
    )
    from pagedattn.attention import (
        API_VERSION as API_VERSION,
    )
    from pagedattn.attention import (
        AttentionBackend as AttentionBackend,
    )
    from pagedattn.attention import (
        AttentionOp as AttentionOp,
    )
    from pagedattn.attention import (
        Plan as Plan,
    )
    from pagedattn.batch import (
        AttentionBatch as AttentionBatch,
    )
    from pagedattn.batch import (
        KVCache as KVCache,
    )
    from pagedattn.capabilities import (
        Capabilities as Capabilities,
    )
    from pagedattn.capabilities import (
        check as check,
    )
    from pagedattn.copies import (
        copy_blocks as copy_blocks,
    )
    from pagedattn.device import (
        DeviceInfo as DeviceInfo,
    )
    from pagedattn.engine import (
        Completion as Completion,
    )
    from pagedattn.engine import (
        Engine as Engine,
    )
    from pagedattn.engine import (
        FinishReason as FinishReason,
    )
    from pagedattn.engine import (
        ModelRunner as ModelRunner,
    )
    from pagedattn.engine import (
        SamplingParams as SamplingParams,
    )
    from pagedattn.errors import (
        AllocatorError as AllocatorError,
    )
    from pagedattn.errors import (
        EngineError as EngineError,
    )
    from pagedattn.errors import (
        InvalidBatch as InvalidBatch,
    )
    from pagedattn.errors import (
        InvalidRequest as InvalidRequest,
    )
    from pagedattn.errors import (
        InvalidTensor as InvalidTensor,
    )
    from pagedattn.errors import (
        NotReady as NotReady,
    )
    from pagedattn.errors import (
        OutOfBlocks as OutOfBlocks,
    )
    from pagedattn.errors import (
        PagedAttnError as PagedAttnError,
    )
    from pagedattn.errors import (
        PluginError as PluginError,
    )
    from pagedattn.errors import (
        Refusal as Refusal,
    )
    from pagedattn.errors import (
        UnknownName as UnknownName,
    )
    from pagedattn.errors import (
        Unsupported as Unsupported,
    )
    from pagedattn.hooks import (
        Offer as Offer,
    )
    from pagedattn.hooks import (
        hookimpl as hookimpl,
    )
    from pagedattn.registry import (
        Explanation as Explanation,
    )
    from pagedattn.registry import (
        Row as Row,
    )
    from pagedattn.registry import (
        State as State,
    )
    from pagedattn.registry import (
        allocator as allocator,
    )
    from pagedattn.registry import (
        allocators as allocators,
    )
    from pagedattn.registry import (
        backend as backend,
    )
    from pagedattn.registry import (
        backends as backends,
    )
    from pagedattn.registry import (
        explain as explain,
    )
    from pagedattn.registry import (
        policies as policies,
    )
    from pagedattn.registry import (
        select as select,
    )
    from pagedattn.spec import (
        AttentionSpec as AttentionSpec,
    )
    from pagedattn.spec import (
        Graph as Graph,
    )
    from pagedattn.spec import (
        KVQuant as KVQuant,
    )
    from pagedattn.spec import (
        Layout as Layout,
    )
    from pagedattn.spec import (
        Limits as Limits,
    )
    from pagedattn.spec import (
        Mask as Mask,
    )
    from pagedattn.spec import (
        kv_cache_bytes as kv_cache_bytes,
    )
    from pagedattn.states import (
        merge_states as merge_states,
    )

_HOME = {
    "allocator": [
        "Addressing",
        "AllocatorCapabilities",
        "AllocatorStats",
        "BlockAllocator",
        "CopyOp",
        "Event",
        "EventKind",
        "EvictionPolicy",
        "Grant",
        "Prefix",
        "PrefixHit",
        "Violation",
    ],
    "attention": ["API_VERSION", "AttentionBackend", "AttentionOp", "Plan"],
    "batch": ["AttentionBatch", "KVCache"],
    "capabilities": ["Capabilities", "check"],
    "copies": ["copy_blocks"],
    "device": ["DeviceInfo"],
    "engine": ["Completion", "Engine", "FinishReason", "ModelRunner", "SamplingParams"],
    "errors": [
        "AllocatorError",
        "EngineError",
        "InvalidBatch",
        "InvalidRequest",
        "InvalidTensor",
        "NotReady",
        "OutOfBlocks",
        "PagedAttnError",
        "PluginError",
        "Refusal",
        "UnknownName",
        "Unsupported",
    ],
    "hooks": ["Offer", "hookimpl"],
    "registry": [
        "Explanation",
        "Row",
        "State",
        "allocator",
        "allocators",
        "backend",
        "backends",
        "explain",
        "policies",
        "select",
    ],
    "spec": ["AttentionSpec", "Graph", "KVQuant", "Layout", "Limits", "Mask", "kv_cache_bytes"],
    "states": ["merge_states"],
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted([*_MODULE_OF, "__version__"])  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'pagedattn' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"pagedattn.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
