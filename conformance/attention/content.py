"""What a step means, apart from where it lies in memory: queries, keys and values per request."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pagedattn.conformance.attention import quant
from pagedattn.spec import AttentionSpec, KVQuant, Mask

__all__ = ["Content"]

Stored = tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class Content:
    """One step on the CPU, one entry per request; place() puts it into paged memory.

    q [Tq, Hq, D] dtype             k [n, Hkv, D], v [n, Hkv, Dv] kv_dtype, as stored in the cache
    k_scale, v_scale  one f32 tensor ([] or [Hkv]), or per request f32 [n, Hkv] (PER_TOKEN_HEAD)
    sinks, slopes     f32 [Hq]      trees  bool [Tq, Tq] per request, None = plain causal
    """

    spec: AttentionSpec
    q: Stored
    k: Stored
    v: Stored
    k_scale: Tensor | Stored | None = None
    v_scale: Tensor | Stored | None = None
    sinks: Tensor | None = None
    slopes: Tensor | None = None
    trees: tuple[Tensor | None, ...] | None = None

    @property
    def query_lens(self) -> list[int]:
        return [len(x) for x in self.q]

    @property
    def seq_lens(self) -> list[int]:
        return [len(x) for x in self.k]

    @classmethod
    def random(
        cls,
        spec: AttentionSpec,
        query_lens: Sequence[int],
        seq_lens: Sequence[int],
        seed: int,
        *,
        spread: float = 1.0,
    ) -> Content:
        """Standard normal values rounded to the dtype (queries times `spread`), ALiBi slopes
        2^-1, 2^-2, ..., sinks of a few units, random trees in which every row sees itself."""
        random = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=random, dtype=torch.float32)

        q = tuple(
            (normal(n, spec.num_heads, spec.head_dim) * spread).to(spec.dtype) for n in query_lens
        )
        k = [normal(n, spec.num_kv_heads, spec.head_dim) for n in seq_lens]
        v = [normal(n, spec.num_kv_heads, spec.head_dim_v) for n in seq_lens]
        trees = None
        if spec.mask is Mask.TREE:
            trees = tuple(
                None
                if r % 3 == 2
                else (torch.rand(n, n, generator=random) < 0.5).tril() | torch.eye(n).bool()
                for r, n in enumerate(query_lens)
            )
        heads = torch.arange(spec.num_heads)
        content = cls(
            spec=spec,
            q=q,
            k=(),
            v=(),
            sinks=normal(spec.num_heads) * 2 if spec.sinks else None,
            slopes=(2.0 ** -(1 + heads % 8)).float() if spec.alibi else None,
            trees=trees,
        )
        return content.storing(k, v)

    def storing(self, k: Sequence[Tensor], v: Sequence[Tensor]) -> Content:
        """The same step over other keys and values, given as float32 and rounded or quantised to
        what the cache stores."""
        spec = self.spec
        stored_k, k_scale = _store(spec, k, 0.021)
        if spec.shared_kv:
            stored_v = tuple(x[..., : spec.head_dim_v] for x in stored_k)
            v_scale = k_scale
        else:
            stored_v, v_scale = _store(spec, v, 0.034)
        return dataclasses.replace(self, k=stored_k, v=stored_v, k_scale=k_scale, v_scale=v_scale)

    def real_k(self, request: int) -> Tensor:
        """float64 [n, Hkv, D]: what the stored keys stand for."""
        return _real(self.spec, self.k[request], self.k_scale, request)

    def real_v(self, request: int) -> Tensor:
        """float64 [n, Hkv, Dv]"""
        return _real(self.spec, self.v[request], self.v_scale, request)

    def pick(self, requests: Sequence[int]) -> Content:
        """A step of these requests, in this order."""

        def chosen(stored: Stored) -> Stored:
            return tuple(stored[r] for r in requests)

        return dataclasses.replace(
            self,
            q=chosen(self.q),
            k=chosen(self.k),
            v=chosen(self.v),
            k_scale=chosen(self.k_scale) if isinstance(self.k_scale, tuple) else self.k_scale,
            v_scale=chosen(self.v_scale) if isinstance(self.v_scale, tuple) else self.v_scale,
            trees=None if self.trees is None else tuple(self.trees[r] for r in requests),
        )

    def beside(self, other: Content) -> Content:
        """A step of these requests and, after them, those of `other`; sinks and slopes of this."""

        def both(a: Tensor | Stored | None, b: Tensor | Stored | None) -> Tensor | Stored | None:
            return (*a, *b) if isinstance(a, tuple) and isinstance(b, tuple) else a

        return dataclasses.replace(
            self,
            q=(*self.q, *other.q),
            k=(*self.k, *other.k),
            v=(*self.v, *other.v),
            k_scale=both(self.k_scale, other.k_scale),
            v_scale=both(self.v_scale, other.v_scale),
        )

    def cut(self, request: int, rows: slice, keys: slice) -> Content:
        """One request with some of its query rows and keys; of a chunk or a split."""
        one = self.pick([request])

        def part(scale: Tensor | Stored | None) -> Tensor | Stored | None:
            return (scale[0][keys],) if isinstance(scale, tuple) else scale

        return dataclasses.replace(
            one,
            q=(one.q[0][rows],),
            k=(one.k[0][keys],),
            v=(one.v[0][keys],),
            k_scale=part(one.k_scale),
            v_scale=part(one.v_scale),
            trees=None,
        )


def _store(
    spec: AttentionSpec, real: Sequence[Tensor], base: float
) -> tuple[Stored, Tensor | Stored | None]:
    """What the cache holds for `real`, and its scales."""
    dtype = spec.kv_dtype
    if spec.kv_quant is KVQuant.NONE:
        return tuple(x.to(dtype) for x in real), None
    if spec.kv_quant is KVQuant.PER_TOKEN_HEAD:
        scales = tuple(quant.token_scales(x, dtype) for x in real)
        codes = [quant.encode(x, s[..., None], dtype) for x, s in zip(real, scales, strict=True)]
        return tuple(c.view(dtype) for c in codes), scales
    # Four standard deviations fill the format's range; every head has a scale of its own.
    scale = torch.tensor(base * 127 / quant.largest(dtype))
    if spec.kv_quant is KVQuant.PER_HEAD:
        scale = scale * (1 + torch.arange(spec.num_kv_heads) % 4)
    codes = [quant.encode(x, scale.expand(x.shape[1])[:, None], dtype) for x in real]
    return tuple(c.view(dtype) for c in codes), scale


def _real(
    spec: AttentionSpec, stored: Tensor, scale: Tensor | Stored | None, request: int
) -> Tensor:
    if scale is None:
        return stored.double()
    own = scale[request] if isinstance(scale, tuple) else scale
    return stored.double() * own.double().expand(stored.shape[:2])[..., None]
