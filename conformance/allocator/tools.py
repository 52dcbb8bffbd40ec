"""What the case files share: making cases, and declining what an allocator does not offer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pagedattn.allocator import Addressing, BlockAllocator, Prefix
from pagedattn.conformance.allocator.expect import fail
from pagedattn.conformance.allocator.shadow import Factory, Shadow
from pagedattn.conformance.case import Case, CaseFailure, Declined, Kind
from pagedattn.errors import OutOfBlocks, Refusal, Unsupported

__all__ = [
    "Pool",
    "case",
    "colliding",
    "need",
    "need_paged",
    "need_prefix",
    "refusals_of",
    "tokens",
]

Pool = Callable[..., Shadow]


def case(
    detail: str, *, rule: str, faults: tuple[str, ...] = (), core: bool = False
) -> Callable[[Callable[[Pool], None]], Case]:
    """Make a Case of a function that gets `pool(num_blocks, block_size, **options) -> Shadow`."""

    def wrap(body: Callable[[Pool], None]) -> Case:
        def run(make: Factory) -> dict[str, Any] | None:
            shadows: list[Shadow] = []

            def pool(num_blocks: int, block_size: int = 4, **options: Any) -> Shadow:
                shadow = Shadow(make, num_blocks=num_blocks, block_size=block_size, **options)
                shadows.append(shadow)
                return shadow

            try:
                body(pool)
            except OutOfBlocks as error:
                last = shadows[-1]
                if last.paged:
                    raise fail(rule, "room for what fits into the pool", repr(error)) from error
                raise Declined((_refusal(last, "num_blocks", last.total),)) from error
            except (CaseFailure, Declined):
                raise
            except Exception as error:
                raise fail(rule, "no error", f"raised {error!r}") from error
            return None

        return Case(f"allocator/{detail}", Kind.ALLOCATOR, rule, run, faults, core)

    return wrap


def need(s: Shadow, capability: str) -> None:
    """Go on only where `capability` is offered; where it is not, the call must refuse."""
    if not getattr(s.caps, capability):
        raise Declined(refusals_of(s.alloc, capability))


def need_prefix(s: Shadow) -> None:
    """Go on only with a prefix cache; Shadow.open() fails hits that were not declared."""
    if s.caps.prefix is Prefix.NONE:
        raise Declined((_refusal(s, "prefix", "hit"),))


def need_paged(s: Shadow) -> None:
    """Go on only where blocks are taken one by one, so that counts are exact."""
    if s.caps.addressing is not Addressing.PAGED:
        raise Declined((_refusal(s, "addressing", "exact block counts"),))


def colliding(pool: Pool, num_blocks: int, block_size: int, buckets: int) -> Shadow:
    """A pool whose hash function has `buckets` values; declined without such an option."""
    try:
        return pool(
            num_blocks,
            block_size,
            unique_keys=False,
            hash_fn=lambda data: bytes([sum(data) % buckets]),
        )
    except TypeError as error:
        refusal = Refusal("allocator", "hash_fn", f"{buckets} values", "not an option", str(error))
        raise Declined((refusal,)) from None


def refusals_of(alloc: BlockAllocator, capability: str) -> tuple[Refusal, ...]:
    """The refusals with which a call that is not offered raises Unsupported."""
    calls: dict[str, Callable[[], object]] = {
        "fork": lambda: alloc.fork(1, 2),
        "truncate": lambda: alloc.truncate(1, 0),
        "resize": lambda: alloc.resize(alloc.num_blocks + 1),
        "window": lambda: alloc.release_before(1, 0),
    }
    if capability != "resize":
        alloc.open(1, [1, 2, 3])
    try:
        calls[capability]()
    except Unsupported as error:
        if error.refusals:
            return error.refusals
        raise fail("declined", f"a reason why {capability} is refused", "none") from error
    except Exception as error:
        raise fail("declined", f"{capability} to raise Unsupported", repr(error)) from error
    raise fail("declined", f"{capability}, not offered, to raise Unsupported", "it was done")


def tokens(n: int, start: int = 0) -> list[int]:
    """n distinct token ids."""
    return list(range(start, start + n))


def _refusal(s: Shadow, code: str, requested: object) -> Refusal:
    return Refusal(s.alloc.name, code, requested, "not offered", "see capabilities()")
