"""Workload: one attention step to be timed, and exactly what it must read and compute."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from pagedattn.spec import AttentionSpec, KVQuant, Mask

__all__ = [
    "Phase",
    "Placement",
    "Workload",
    "decode",
    "mixed",
    "offered",
    "prefill",
    "short",
    "short_twin",
]


class Phase(enum.StrEnum):
    """DECODE: one row a request. PREFILL: many rows a request. MIXED: both in one step."""

    DECODE = "decode"
    PREFILL = "prefill"
    MIXED = "mixed"


class Placement(enum.StrEnum):
    """Where a request's blocks lie in the pool: RANDOM as after hours of serving, or SEQUENTIAL."""

    RANDOM = "random"
    SEQUENTIAL = "sequential"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One step: request r has query_lens[r] rows and seq_lens[r] keys, its own rows included.

    name       unique within a run; results of two runs are joined by it
    spec       causal or full attention of float32, float16 or bfloat16
    placement  of blocks in the pool
    seed       of values and block ids

    Raises ValueError for what the harness cannot judge.
    """

    name: str
    spec: AttentionSpec
    query_lens: tuple[int, ...]
    seq_lens: tuple[int, ...]
    placement: Placement = Placement.RANDOM
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.query_lens) != len(self.seq_lens) or not self.query_lens:
            raise ValueError(
                f"workload {self.name!r}: query_lens has {len(self.query_lens)} requests, "
                f"seq_lens {len(self.seq_lens)}; both need the same number, at least one"
            )
        for r, (rows, keys) in enumerate(zip(self.query_lens, self.seq_lens, strict=True)):
            if not 1 <= rows <= keys:
                raise ValueError(
                    f"workload {self.name!r}: request {r} has {rows} rows and {keys} keys; "
                    "1 <= rows <= keys is needed (keys count the step's own tokens)"
                )
        if self.spec.mask is Mask.TREE:
            raise ValueError(f"workload {self.name!r}: tree masks cannot be benchmarked yet")
        if self.spec.dtype is torch.float64:
            raise ValueError(f"workload {self.name!r}: float64 leaves the check no better truth")

    @property
    def phase(self) -> Phase:
        longest, shortest = max(self.query_lens), min(self.query_lens)
        if longest == 1:
            return Phase.DECODE
        return Phase.PREFILL if shortest > 1 else Phase.MIXED

    @property
    def num_requests(self) -> int:
        """B"""
        return len(self.seq_lens)

    @property
    def num_tokens(self) -> int:
        """T"""
        return sum(self.query_lens)

    @property
    def blocks(self) -> int:
        """Cache blocks that the step's requests own."""
        return sum(-(-keys // self.spec.block_size) for keys in self.seq_lens)

    @property
    def allocated_bytes(self) -> int:
        """Bytes of cache in those blocks, scales not counted."""
        spec = self.spec
        width = spec.head_dim + (0 if spec.shared_kv else spec.head_dim_v)
        tokens = self.blocks * spec.block_size
        return tokens * spec.num_kv_heads * width * spec.kv_dtype.itemsize

    @property
    def kv_bytes(self) -> int:
        """Bytes of cache that the step must read once: every key that some row sees, its value
        (unless it is a part of the key) and their scales. q, out and tables are not counted."""
        spec = self.spec
        keys = sum(len(self._seen(r)) for r in range(self.num_requests))
        width = spec.head_dim + (0 if spec.shared_kv else spec.head_dim_v)
        scales = {
            KVQuant.NONE: 0,
            KVQuant.PER_TENSOR: 1,
            KVQuant.PER_HEAD: spec.num_kv_heads,
            KVQuant.PER_TOKEN_HEAD: keys * spec.num_kv_heads,
        }[spec.kv_quant]
        tensors = 1 if spec.shared_kv else 2
        return keys * spec.num_kv_heads * width * spec.kv_dtype.itemsize + 4 * tensors * scales

    @property
    def flops(self) -> int:
        """Multiplications and additions of q.k and p.v over the pairs that the mask lets through.
        exp, scaling and masked pairs are not counted, whatever a kernel really computes."""
        pairs = sum(
            len(self._visible(p, keys))
            for rows, keys in zip(self.query_lens, self.seq_lens, strict=True)
            for p in range(keys - rows, keys)
        )
        return 2 * pairs * self.spec.num_heads * (self.spec.head_dim + self.spec.head_dim_v)

    def _visible(self, position: int, keys: int) -> range:
        """Keys that the row at `position` sees."""
        left, right = self.spec.window
        begin = 0 if left is None else max(0, position - left)
        end = keys
        if self.spec.mask is Mask.CAUSAL:
            end = position + 1
        elif right is not None:
            end = min(keys, position + right + 1)
        return range(begin, end)

    def _seen(self, request: int) -> range:
        """Keys that some row of the request sees: rows are consecutive, so a single range."""
        keys = self.seq_lens[request]
        first = self._visible(keys - self.query_lens[request], keys)
        return range(first.start, self._visible(keys - 1, keys).stop)


def decode(spec: AttentionSpec, *, batch: int, context: int) -> Workload:
    """`batch` requests of one new token each, `context` keys each."""
    return _named(spec, f"decode b{batch} ctx{short(context)}", [1] * batch, [context] * batch)


def prefill(spec: AttentionSpec, *, batch: int, context: int, query_len: int) -> Workload:
    """The last `query_len` tokens of `batch` prompts of `context` tokens."""
    name = f"prefill b{batch} {short(query_len)} of {short(context)}"
    return _named(spec, name, [query_len] * batch, [context] * batch)


def mixed(spec: AttentionSpec, *, batch: int, context: int, query_len: int) -> Workload:
    """`batch` decoding requests and one prompt's last chunk of `query_len` tokens, `context` keys
    each: a step of continuous batching."""
    name = f"mixed b{batch}+1x{short(query_len)} ctx{short(context)}"
    return _named(spec, name, [1] * batch + [query_len], [context] * (batch + 1))


def short_twin(workload: Workload) -> Workload:
    """A step of the same spec whose lengths lie around the block boundaries, and around the left
    window's end: here one key too many or too few changes the answer visibly, which among thousands
    of keys it does not."""
    size, left = workload.spec.block_size, workload.spec.window[0]
    seq_lens = [1, size, size + 1, 2 * size + size // 2 + 1, 3 * size - 1 or 1]
    if left is not None:
        seq_lens += [left + 1, left + 2, left + size + 1]
    decoding = workload.phase is Phase.DECODE
    longest = workload.spec.max_query_len or max(workload.query_lens)
    query_lens = [
        1 if decoding or i % 3 == 2 else min(keys, longest, size + 3)
        for i, keys in enumerate(seq_lens)
    ]
    return replace(
        workload,
        name=f"{workload.name} (short twin)",
        query_lens=tuple(query_lens),
        seq_lens=tuple(seq_lens),
    )


def short(n: int) -> str:
    """4096 -> "4k", 1000 -> "1000"."""
    return f"{n // 1024}k" if n and n % 1024 == 0 else str(n)


def offered() -> Iterator[Workload]:
    """Workloads of installed plugins. Raises NotReady for a plugin that is broken."""
    from pagedattn import registry
    from pagedattn.hooks import OfferKind

    for row in registry.rows(OfferKind.WORKLOAD):
        if row.offer is not None:
            yield from registry.load(OfferKind.WORKLOAD, row.name)


def _named(
    spec: AttentionSpec, name: str, query_lens: Sequence[int], seq_lens: Sequence[int]
) -> Workload:
    return Workload(name=name, spec=spec, query_lens=tuple(query_lens), seq_lens=tuple(seq_lens))
