"""AttentionSpec: everything about an attention layer that is known before the first token."""

from __future__ import annotations

import dataclasses
import enum
import math
from dataclasses import dataclass

import torch

__all__ = ["AttentionSpec", "Graph", "KVQuant", "Layout", "Limits", "Mask", "kv_cache_bytes"]

FLOAT_DTYPES = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})
QUANT_DTYPES = frozenset(
    {
        torch.int8,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.float8_e4m3fnuz,
        torch.float8_e5m2fnuz,
    }
)


class Mask(enum.Enum):
    """Which keys a query row may see. CAUSAL is bottom-right aligned: the last row sees all."""

    CAUSAL = "causal"
    FULL = "full"
    TREE = "tree"


class Layout(enum.Enum):
    """Physical order inside a block. The index order is always [block, offset, head, dim]."""

    NHD = "NHD"
    HND = "HND"


class KVQuant(enum.Enum):
    """Granularity of the scales of an 8-bit cache."""

    NONE = "none"
    PER_TENSOR = "per_tensor"
    PER_HEAD = "per_head"
    PER_TOKEN_HEAD = "per_token_head"


class Graph(enum.IntEnum):
    """What may be captured in a CUDA graph. A promise about every plan of an op.

    NEVER    nothing
    DECODE   batches whose requests have at most one query row
    UNIFORM  batches whose requests all have the same number of query rows
    ANY      every batch within the Limits
    """

    NEVER = 0
    DECODE = 1
    UNIFORM = 2
    ANY = 3


@dataclass(frozen=True, kw_only=True)
class AttentionSpec:
    """One attention layer's semantics and data types. Frozen, hashable, normalised.

    num_heads, num_kv_heads   query heads Hq and key/value heads Hkv; Hkv divides Hq (GQA, MQA)
    head_dim, head_dim_v      width of a query/key head (D) and of a value head (Dv, default D)
    block_size                tokens per cache block
    dtype, kv_dtype, out_dtype  of q; of the cache (8-bit iff kv_quant != NONE); of out
    scale                     factor of q.k; always explicit, usually head_dim ** -0.5
    window                    (left, right): key j is kept iff p-left <= j <= p+right, both ends
                              included; None = unbounded. Hugging Face's and vLLM's
                              sliding_window=W is left=W-1. CAUSAL forces right to None, and
                              a bound of 2**31-1 or more is None
    softcap                   scores become softcap*tanh(score/softcap); 0 means None
    sinks, alibi, return_lse  run() takes sink logits, ALiBi slopes, an LSE output
    shared_kv                 V is k[..., :head_dim_v] (absorbed MLA); write() takes v=None
    max_query_len             largest query_len of a request; None = any, 1 = decode only
    batch_invariant           a row's bits depend only on its q, keys, values, position and the spec
    async_lengths             seq_lens_host is only an upper bound of seq_lens
    graph                     what the caller wants to capture

    Raises TypeError or ValueError naming the field.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: torch.dtype
    scale: float
    head_dim_v: int = None  # type: ignore[assignment]  # becomes head_dim
    kv_dtype: torch.dtype = None  # type: ignore[assignment]  # becomes dtype
    out_dtype: torch.dtype = None  # type: ignore[assignment]  # becomes dtype
    layout: Layout = Layout.NHD
    mask: Mask = Mask.CAUSAL
    window: tuple[int | None, int | None] = (None, None)
    softcap: float | None = None
    sinks: bool = False
    alibi: bool = False
    return_lse: bool = False
    shared_kv: bool = False
    kv_quant: KVQuant = KVQuant.NONE
    max_query_len: int | None = None
    batch_invariant: bool = False
    async_lengths: bool = False
    graph: Graph = Graph.NEVER

    def __post_init__(self) -> None:
        for name, default in (
            ("head_dim_v", self.head_dim),
            ("kv_dtype", self.dtype),
            ("out_dtype", self.dtype),
        ):
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
        for name in ("num_heads", "num_kv_heads", "head_dim", "head_dim_v", "block_size"):
            _require_int(name, getattr(self, name), at_least=1)
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads={self.num_heads} is not a multiple of num_kv_heads={self.num_kv_heads}"
            )
        if self.shared_kv and self.head_dim_v > self.head_dim:
            raise ValueError(
                f"shared_kv: V is k[..., :head_dim_v], but head_dim_v={self.head_dim_v} > "
                f"head_dim={self.head_dim}"
            )
        for name, cls in (
            ("dtype", torch.dtype),
            ("kv_dtype", torch.dtype),
            ("out_dtype", torch.dtype),
            ("layout", Layout),
            ("mask", Mask),
            ("kv_quant", KVQuant),
            ("graph", Graph),
        ):
            _require_type(name, getattr(self, name), cls)
        for name in (
            "sinks",
            "alibi",
            "return_lse",
            "shared_kv",
            "batch_invariant",
            "async_lengths",
        ):
            _require_type(name, getattr(self, name), bool)
        for name in ("dtype", "out_dtype"):
            if getattr(self, name) not in FLOAT_DTYPES:
                raise ValueError(f"{name}={getattr(self, name)} is not a floating-point dtype")
        quantised = self.kv_quant is not KVQuant.NONE
        allowed = QUANT_DTYPES if quantised else FLOAT_DTYPES
        if self.kv_dtype not in allowed:
            raise ValueError(
                f"kv_dtype={self.kv_dtype} does not go with kv_quant={self.kv_quant.name}: "
                "a cache is 8-bit if and only if kv_quant is not NONE"
            )
        self._normalise_numbers()

    def _normalise_numbers(self) -> None:
        object.__setattr__(self, "scale", _finite("scale", self.scale))
        if self.softcap is not None:
            softcap = _finite("softcap", self.softcap)
            if softcap < 0:
                raise ValueError(f"softcap={softcap} is negative; 0 or None turns it off")
            object.__setattr__(self, "softcap", softcap or None)
        if not isinstance(self.window, tuple | list) or len(self.window) != 2:
            raise TypeError(f"window={self.window!r} is not a pair (left, right)")
        left, right = self.window
        for name, bound in (("window left", left), ("window right", right)):
            if bound is not None:
                _require_int(name, bound, at_least=0)
        if self.mask is Mask.CAUSAL:
            right = None
        # Positions are below 2**31, so such a bound is none; kernels may count in 32 bits.
        bounds = tuple(None if b is None or b >= 2**31 - 1 else b for b in (left, right))
        object.__setattr__(self, "window", bounds)
        if self.max_query_len is not None:
            _require_int("max_query_len", self.max_query_len, at_least=1)

    @property
    def group_size(self) -> int:
        """Query heads per key/value head, Hq // Hkv. Head h reads kv head h // group_size."""
        return self.num_heads // self.num_kv_heads

    @property
    def tuning_key(self) -> AttentionSpec:
        """The spec without its scale, which no kernel's speed depends on."""
        return dataclasses.replace(self, scale=1.0)

    def __str__(self) -> str:
        """FIELD=VALUE pairs, as `pagedattn explain` reads them; fields at their default, and a
        scale of head_dim ** -0.5, are left out."""
        plain = AttentionSpec(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            block_size=self.block_size,
            dtype=self.dtype,
            scale=self.head_dim**-0.5,
        )
        shown = ["num_heads", "num_kv_heads", "head_dim", "block_size", "dtype"]
        names = (field.name for field in dataclasses.fields(self))
        shown += [name for name in names if getattr(self, name) != getattr(plain, name)]
        return " ".join(f"{name}={_text(getattr(self, name))}" for name in shown)


@dataclass(frozen=True)
class Limits:
    """Upper bounds of every batch an op will see; launch shapes and workspace come from them.

    max_requests   B         max_tokens   T, rows of q         max_seq_len  keys of one request
    num_blocks     N, blocks of the cache; block ids lie in [0, num_blocks)
    """

    max_requests: int
    max_tokens: int
    max_seq_len: int
    num_blocks: int

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _require_int(field.name, getattr(self, field.name), at_least=1)
        if self.num_blocks > 2**31 - 1:
            raise ValueError(f"num_blocks={self.num_blocks} does not fit block ids of 32 bits")


def kv_cache_bytes(
    *,
    num_layers: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    batch: int,
    context: int,
    head_dim_v: int | None = None,
    shared_kv: bool = False,
    kv_quant: KVQuant = KVQuant.NONE,
    block_size: int = 1,
) -> int:
    """Bytes of KV cache for `batch` sequences of `context` tokens, whole blocks.

    layers * tokens * kv_heads * (D + Dv) * itemsize, V being a part of K when shared_kv (MLA:
    num_kv_heads=1, head_dim=576, head_dim_v=512), plus the float32 scales of an 8-bit cache.
    LLaMA-2-70B without GQA (80 layers, 64 kv heads of 128, 16-bit, batch 32, context 4096):
    343,597,383,680 bytes.
    """
    for name, value in (
        ("num_layers", num_layers),
        ("num_kv_heads", num_kv_heads),
        ("head_dim", head_dim),
        ("block_size", block_size),
    ):
        _require_int(name, value, at_least=1)
    for name, value in (("batch", batch), ("context", context)):
        _require_int(name, value, at_least=0)
    value_dim = head_dim if head_dim_v is None else head_dim_v
    _require_int("head_dim_v", value_dim, at_least=1)
    if shared_kv and value_dim > head_dim:
        raise ValueError(f"shared_kv: V is a part of K, but head_dim_v={value_dim} > {head_dim=}")
    tokens = batch * -(-context // block_size) * block_size
    width = head_dim + (0 if shared_kv else value_dim)
    tensors = 1 if shared_kv else 2
    scales = {
        KVQuant.NONE: 0,
        KVQuant.PER_TENSOR: 1,
        KVQuant.PER_HEAD: num_kv_heads,
        KVQuant.PER_TOKEN_HEAD: tokens * num_kv_heads,
    }[kv_quant]
    per_layer = tokens * num_kv_heads * width * dtype.itemsize
    return num_layers * (per_layer + tensors * scales * torch.float32.itemsize)


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join("-" if bound is None else str(bound) for bound in value)
    return str(getattr(value, "name", value)).removeprefix("torch.")


def _require_int(name: str, value: object, *, at_least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r} is not an int")
    if value < at_least:
        raise ValueError(f"{name}={value} is below {at_least}")


def _require_type(name: str, value: object, cls: type) -> None:
    if not isinstance(value, cls):
        raise TypeError(f"{name}={value!r} is not a {cls.__name__}")


def _finite(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}={value!r} is not a number")
    if not math.isfinite(value):
        raise ValueError(f"{name}={value} is not finite")
    return float(value)
