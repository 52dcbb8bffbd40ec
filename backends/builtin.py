"""What pagedattn itself offers, through the same hooks as any plugin. Imports no kernel library."""

from __future__ import annotations

from pagedattn.backends.flash_attn.offers import flash_attn_offers
from pagedattn.backends.triton.version import too_old as triton_too_old
from pagedattn.hooks import Offer, hookimpl


@hookimpl
def pagedattn_backends() -> list[Offer]:
    return [
        Offer(
            "reference",
            "pagedattn.backends.reference:ReferenceBackend",
            summary="plain PyTorch, readable as the specification, every option; slow",
            priority=-100,
        ),
        Offer(
            "triton",
            "pagedattn.backends.triton.backend:TritonBackend",
            summary="Triton kernels: split decode and unified prefill, every option",
            requires=("triton",),
            install="pip install 'pagedattn[triton]'",
            missing=triton_too_old,
            priority=20,
        ),
        Offer(
            "cupy",
            "pagedattn.backends.cupy.backend:CupyBackend",
            summary="CUDA C++ kernels compiled by NVRTC: split decode, tensor-core prefill",
            requires=("cupy",),
            install="pip install 'pagedattn[cupy]'",
            priority=10,
        ),
        Offer(
            "cupy:wgmma",
            "pagedattn.backends.cupy.backend:CupyWgmmaBackend",
            summary="cupy with its prefill on wgmma, for Hopper (sm_90) and 16-bit caches",
            requires=("cupy",),
            install="pip install 'pagedattn[cupy]'",
            priority=9,
        ),
        *flash_attn_offers(),
    ]


@hookimpl
def pagedattn_allocators() -> list[Offer]:
    return [
        Offer(
            "paged",
            "pagedattn.backends.allocators.paged:PagedAllocator",
            summary="fixed-size blocks, copy-on-write, prefix cache",
            priority=100,
        ),
        Offer(
            "contiguous_max",
            "pagedattn.backends.allocators.contiguous:ContiguousMax",
            summary="baseline: reserves the longest sequence for everyone",
        ),
        Offer(
            "contiguous_pow2",
            "pagedattn.backends.allocators.contiguous:ContiguousPow2",
            summary="baseline: doubles what a sequence holds, moving it when it must",
        ),
        Offer(
            "contiguous_exact",
            "pagedattn.backends.allocators.contiguous:ContiguousExact",
            summary="baseline: an oracle that knows final lengths, first fit",
        ),
    ]


@hookimpl
def pagedattn_policies() -> list[Offer]:
    return [
        Offer(
            "lru",
            "pagedattn.backends.allocators.lru:LRU",
            summary="least recently used first, deepest block of a sequence first",
            priority=100,
        ),
        Offer(
            "return-rate",
            "pagedattn.backends.allocators.policies.return_rate:ReturnRate",
            summary="fewest expected returns first, learned online; watched by LRU",
        ),
        Offer(
            "s3-fifo",
            "pagedattn.backends.allocators.policies.s3fifo:S3FIFO",
            summary="three queues: new content must be used again to stay",
        ),
        Offer(
            "cost",
            "pagedattn.backends.allocators.policies.cost:Cost",
            summary="cheapest to recompute first, uses and depth counted",
        ),
        Offer(
            "lfu",
            "pagedattn.backends.allocators.policies.lfu:LFU",
            summary="least frequently used first",
        ),
        Offer(
            "fifo",
            "pagedattn.backends.allocators.policies.fifo:FIFO",
            summary="first stored first, hits or not",
        ),
    ]
