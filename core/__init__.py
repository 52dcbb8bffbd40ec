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
        AllocatorCapabilities as AllocatorCapabilities,
        AllocatorStats as AllocatorStats,
        BlockAllocator as BlockAllocator,
        CopyOp as CopyOp,
        Event as Event,
        EventKind as EventKind,
        EvictionPolicy as EvictionPolicy,
        Grant as Grant,
        Prefix as Prefix,
        PrefixHit as PrefixHit,
        Violation as Violation,
    )
    from pagedattn.attention import (
        AttentionBackend as AttentionBackend,
        AttentionOp as AttentionOp,
        Plan as Plan,
    )
    from pagedattn.batch import AttentionBatch as AttentionBatch, KVCache as KVCache
    from pagedattn.capabilities import Capabilities as Capabilities, check as check
    from pagedattn.copies import copy_blocks as copy_blocks
    from pagedattn.device import DeviceInfo as DeviceInfo
    from pagedattn.engine import (
        Completion as Completion,
        Engine as Engine,
        FinishReason as FinishReason,
        ModelRunner as ModelRunner,
        SamplingParams as SamplingParams,
    )
    from pagedattn.errors import (
        AllocatorError as AllocatorError,
        EngineError as EngineError,
        InvalidBatch as InvalidBatch,
        InvalidRequest as InvalidRequest,
        InvalidTensor as InvalidTensor,
        NotReady as NotReady,
        OutOfBlocks as OutOfBlocks,
        PagedAttnError as PagedAttnError,
        PluginError as PluginError,
        Refusal as Refusal,
        UnknownName as UnknownName,
        Unsupported as Unsupported,
    )
    from pagedattn.hooks import API_VERSION as API_VERSION, Offer as Offer, hookimpl as hookimpl
    from pagedattn.registry import (
        Explanation as Explanation,
        Row as Row,
        State as State,
        allocator as allocator,
        allocators as allocators,
        backend as backend,
        backends as backends,
        explain as explain,
        policies as policies,
        select as select,
    )
    from pagedattn.spec import (
        AttentionSpec as AttentionSpec,
        Graph as Graph,
        KVQuant as KVQuant,
        Layout as Layout,
        Limits as Limits,
        Mask as Mask,
        kv_cache_bytes as kv_cache_bytes,
    )
    from pagedattn.states import merge_states as merge_states

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
    "attention": ["AttentionBackend", "AttentionOp", "Plan"],
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
    "hooks": ["API_VERSION", "Offer", "hookimpl"],
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
