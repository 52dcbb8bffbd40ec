"""One step's work (AttentionBatch) and the tensors it works on (KVCache).

Shape letters used everywhere: T tokens of the step, B requests, Hq and Hkv heads, D and Dv head
widths, N blocks of the pool, M columns of the block table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pagedattn.compile import new_handle
from pagedattn.errors import InvalidBatch
from pagedattn.spec import AttentionSpec, KVQuant, Layout

__all__ = ["AttentionBatch", "KVCache"]


@dataclass(frozen=True, eq=False)
class AttentionBatch:
    """Decode, prefill, chunked prefill and mixed steps in one ragged form. One per KV group.

    query_start_loc       i32 [B+1]   rows of q of request r: query_start_loc[r]:[r+1]
    seq_lens              i32 [B]     keys in the cache after this step's write; 0 allowed
    block_table           i32 [B, M]  position j of r lies in block block_table[r, j//block_size];
                                      entries that no row can see are garbage, never read
    slot_mapping          i64 [T]     slot of each new token; negative = skip. Only write() uses it
    query_start_loc_host  i32 [B+1]   on the CPU, exact
    seq_lens_host         i32 [B]     on the CPU, exact (an upper bound with spec.async_lengths)
    tree_mask             u8          packed bits, and
    tree_indptr           i64 [B+1]   byte offsets, for Mask.TREE

    Tensors are held by reference; host copies default to the tensors themselves when those are on
    the CPU. The constructor only fills the defaults in: plan() validates, and build() makes a
    validated batch from plain lists.
    """

    query_start_loc: Tensor
    seq_lens: Tensor
    block_table: Tensor
    slot_mapping: Tensor | None = None
    query_start_loc_host: Tensor | None = None
    seq_lens_host: Tensor | None = None
    tree_mask: Tensor | None = None
    tree_indptr: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("query_start_loc", "seq_lens"):
            tensor, host = getattr(self, name), getattr(self, f"{name}_host")
            if host is None:
                if tensor.device.type != "cpu":
                    raise InvalidBatch(
                        f"{name}_host", None, f"needed because {name} is on {tensor.device}"
                    )
                object.__setattr__(self, f"{name}_host", tensor)
            elif host.device.type != "cpu":
                raise InvalidBatch(f"{name}_host", host.device, "must be on the CPU")

    @property
    def device(self) -> torch.device:
        return self.seq_lens.device

    @property
    def num_requests(self) -> int:
        """B"""
        return self.seq_lens.shape[0]

    @property
    def num_tokens(self) -> int:
        """Query rows that belong to a request, query_start_loc[B]."""
        return self._lengths()[0]

    @property
    def max_query_len(self) -> int:
        """Longest query of a request; 0 for an empty batch."""
        return self._lengths()[1]

    @property
    def max_seq_len(self) -> int:
        """Largest seq_lens_host; 0 for an empty batch."""
        return self._lengths()[2]

    def _lengths(self) -> tuple[int, int, int]:
        """Computed once per content: a version bump of the host tensors makes it anew."""
        assert self.query_start_loc_host is not None
        assert self.seq_lens_host is not None
        version = host_version(self)
        known: tuple[object, tuple[int, int, int]] | None = self.__dict__.get("_known_lengths")
        if known is not None and version is not None and known[0] == version:
            return known[1]
        starts = self.query_start_loc_host
        lengths = (
            int(starts[-1]) if len(starts) else 0,
            int(starts.diff().max()) if len(starts) > 1 else 0,
            int(self.seq_lens_host.max()) if len(self.seq_lens_host) else 0,
        )
        object.__setattr__(self, "_known_lengths", (version, lengths))
        return lengths

    @classmethod
    def build(
        cls,
        *,
        query_lens: Sequence[int],
        seq_lens: Sequence[int],
        block_tables: Sequence[Sequence[int]],
        block_size: int,
        num_blocks: int | None = None,
        slot_mapping: Sequence[int] | None = None,
        tree_masks: Sequence[Sequence[Sequence[bool]] | None] | None = None,
        allow_short: bool = False,
        width: int | None = None,
        window_left: int | None = None,
        device: torch.device | str = "cpu",
    ) -> AttentionBatch:
        """A validated batch from plain lists, one entry per request.

        block_tables   block ids of each request, at least ceil(seq_len / block_size) of them
        num_blocks     pool size; when given, ids at or above it are refused
        slot_mapping   default: the slots of each request's last query_len positions
        tree_masks     for Mask.TREE: per request a query_len x query_len matrix (row sees the
                       step's own key col), or None for plain causal
        allow_short    accept query_len > seq_len (padding rows of a captured graph)
        width          columns M of the table; default: the longest row
        window_left    left window of every op that will run the batch: blocks wholly before it
                       may hold any id (allocators free them)

        Raises InvalidBatch naming the request and the field.
        """
        from pagedattn.validate.build import build_batch

        return build_batch(
            cls,
            query_lens=query_lens,
            seq_lens=seq_lens,
            block_tables=block_tables,
            block_size=block_size,
            num_blocks=num_blocks,
            slot_mapping=slot_mapping,
            tree_masks=tree_masks,
            allow_short=allow_short,
            width=width,
            window_left=window_left,
            device=device,
        )


def host_version(batch: AttentionBatch) -> tuple[int, ...] | None:
    """Changes whenever torch writes to the batch's tensors in place; None when that cannot be
    known (inference tensors), and then nothing may be remembered."""
    tensors = (
        batch.query_start_loc,
        batch.seq_lens,
        batch.block_table,
        batch.query_start_loc_host,
        batch.seq_lens_host,
        batch.slot_mapping,
        batch.tree_mask,
        batch.tree_indptr,
    )
    present = [t for t in tensors if t is not None]
    if any(t.is_inference() for t in present):
        return None
    return tuple(t._version for t in present)


@dataclass(frozen=True, eq=False)
class KVCache:
    """The keys and values of one layer. Made once, never rebound: backends may remember pointers,
    strides and (except PER_TOKEN_HEAD) scale values by identity.

    k        [N, block_size, Hkv, D]   kv_dtype     v  [N, block_size, Hkv, Dv]
    k_scale  f32 [] | [Hkv] | [N, block_size, Hkv] by kv_quant, may be strided; real = stored*scale

    With shared_kv, v is k[..., :Dv], the same memory (and v_scale is k_scale).
    """

    k: Tensor
    v: Tensor
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None
    handle: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "handle", new_handle(self))

    @classmethod
    def allocate(cls, spec: AttentionSpec, num_blocks: int, device: torch.device | str) -> KVCache:
        """A zeroed cache for `spec` (scales are 1)."""
        if isinstance(num_blocks, bool) or not isinstance(num_blocks, int) or num_blocks < 1:
            raise ValueError(f"num_blocks={num_blocks!r} is not an int of at least 1")

        def pool(width: int) -> Tensor:
            inner = (spec.block_size, spec.num_kv_heads)
            if spec.layout is Layout.HND:
                stored = torch.zeros(
                    num_blocks, *inner[::-1], width, dtype=spec.kv_dtype, device=device
                )
                return stored.transpose(1, 2)
            return torch.zeros(num_blocks, *inner, width, dtype=spec.kv_dtype, device=device)

        def scales() -> Tensor | None:
            if spec.kv_quant is KVQuant.NONE:
                return None
            return torch.ones(scale_shape(spec, num_blocks), device=device)

        k, k_scale = pool(spec.head_dim), scales()
        if spec.shared_kv:
            return cls(k=k, v=k[..., : spec.head_dim_v], k_scale=k_scale, v_scale=k_scale)
        return cls(k=k, v=pool(spec.head_dim_v), k_scale=k_scale, v_scale=scales())

    @property
    def num_blocks(self) -> int:
        """N"""
        return self.k.shape[0]


def scale_shape(spec: AttentionSpec, num_blocks: int) -> tuple[int, ...]:
    """Shape of k_scale and v_scale for spec.kv_quant (which is not NONE)."""
    return {
        KVQuant.PER_TENSOR: (),
        KVQuant.PER_HEAD: (spec.num_kv_heads,),
        KVQuant.PER_TOKEN_HEAD: (num_blocks, spec.block_size, spec.num_kv_heads),
    }[spec.kv_quant]
