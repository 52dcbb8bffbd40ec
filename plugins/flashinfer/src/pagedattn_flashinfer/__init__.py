"""The entry point names this module; it imports neither torch nor flashinfer."""

from pagedattn import Offer, hookimpl


@hookimpl
def pagedattn_backends() -> list[Offer]:
    return [
        Offer(
            "flashinfer",
            "pagedattn_flashinfer.backend:FlashInferBackend",
            summary="FlashInfer's paged prefill and decode wrappers",
            requires=("flashinfer",),
            install="pip install flashinfer-python, or see docs/offline-gpu.md",
            priority=40,
        )
    ]
