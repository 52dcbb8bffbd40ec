"""What builtin.py offers of this family. Imports neither torch nor a kernel library."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pagedattn.backends.flash_attn.limits import FAMILY, VARIANTS
from pagedattn.backends.flash_attn.presence import absent
from pagedattn.hooks import Offer

__all__ = ["flash_attn_offers"]

PRIORITY = 50
"""select() takes the family before a single variant, and variants in the family's order."""

CLASSES = {"fa2": "FA2", "fa3": "FA3", "fa4": "FA4", "torch_varlen": "TorchVarlen"}


def flash_attn_offers() -> list[Offer]:
    """The family and its variants, each with what is missing for it."""
    offers = [_offer("", "FlashAttnBackend", "the best FlashAttention that serves the spec", _none)]
    for place, variant in enumerate(VARIANTS, start=1):
        missing = partial(absent, variant)
        offers.append(
            _offer(variant.name, CLASSES[variant.name], variant.title, missing, PRIORITY - place)
        )
    return offers


def _offer(
    variant: str,
    target: str,
    summary: str,
    missing: Callable[[], str | None],
    priority: int = PRIORITY,
) -> Offer:
    return Offer(
        f"{FAMILY}:{variant}" if variant else FAMILY,
        f"pagedattn.backends.flash_attn.backend:{target}",
        summary=summary,
        missing=missing,
        priority=priority,
    )


def _none() -> str | None:
    """Why no variant at all can be here; the variants' own rows say more."""
    reasons = [absent(variant) for variant in VARIANTS]
    return None if None in reasons else "; ".join(r.partition(";")[0] for r in reasons if r)
