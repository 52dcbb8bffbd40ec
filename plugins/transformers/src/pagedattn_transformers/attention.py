"""The attention function that transformers calls, and who answers while a step runs.

Probe  notes what each layer asks for and answers with zeros
Step   checks that a layer asks for what it asked for then, and calls the engine's attention
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from pagedattn.engine import LayerAttention
from pagedattn.errors import EngineError
from pagedattn.spec import AttentionSpec
from pagedattn_transformers.masks import CausalMask, describe_mask, refuse

__all__ = ["NAME", "Layer", "Probe", "Step", "answering"]

NAME = "pagedattn"
"""Under this name the functions are registered with transformers."""

# What transformers passes along and attention has no use for: positions are in the rotated q and
# k already, and the cache is ours.
HARMLESS = frozenset({"position_ids", "cache_position", "use_cache", "position_embeddings"})


@dataclass(frozen=True, kw_only=True)
class Layer:
    """What one layer asks of attention."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    head_dim_v: int
    dtype: torch.dtype
    scale: float
    window_left: int | None
    softcap: float | None
    sinks: bool

    def spec(self, block_size: int) -> AttentionSpec:
        return AttentionSpec(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            head_dim_v=self.head_dim_v,
            block_size=block_size,
            dtype=self.dtype,
            scale=self.scale,
            window=(self.window_left, None),
            softcap=self.softcap,
            sinks=self.sinks,
        )


class Answerer(Protocol):
    def answer(
        self, index: int, layer: Layer, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None
    ) -> Tensor:
        """q [T, Hq, D], k [T, Hkv, D], v [T, Hkv, Dv], sinks f32 [Hq] -> [T, Hq, Dv]."""
        ...


class Probe:
    """Collects `layers`: index -> what that layer asks for."""

    def __init__(self) -> None:
        self.layers: dict[int, Layer] = {}

    def answer(
        self, index: int, layer: Layer, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None
    ) -> Tensor:
        if index in self.layers:
            raise refuse(
                "layers", f"two attention calls in layer {index}", "one call per decoder layer"
            )
        self.layers[index] = layer
        return q.new_zeros(*q.shape[:2], v.shape[2])


class Step:
    """One step of the engine."""

    def __init__(self, layers: Sequence[Layer], attention: LayerAttention) -> None:
        self._layers, self._attention = layers, attention

    def answer(
        self, index: int, layer: Layer, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None
    ) -> Tensor:
        expected = self._layers[index] if index < len(self._layers) else None
        if layer != expected:
            raise EngineError(
                f"layer {index} asks for {layer}, but when the model was wrapped it asked for "
                f"{expected}; the model or its config was changed since: wrap it again"
            )
        return self._attention(index, q, k, v, sinks=sinks)


_answerer: ContextVar[Answerer | None] = ContextVar("pagedattn_answerer", default=None)


@contextmanager
def answering(answerer: Answerer) -> Iterator[None]:
    """Within it, `answerer` gets the calls of the registered function."""
    token = _answerer.set(answerer)
    try:
        yield
    finally:
        _answerer.reset(token)


def attention_function(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: CausalMask | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **given: Any,
) -> tuple[Tensor, None]:
    """transformers' calling convention: query [1, Hq, T, D], key [1, Hkv, T, D], value
    [1, Hkv, T, Dv] -> ([1, T, Hq, Dv], no weights).

    Raises Unsupported for what it is given and cannot honour."""
    answerer = _answerer.get()
    if answerer is None:
        raise EngineError(
            f"attention {NAME!r} works within a step of pagedattn's engine only; call "
            "model.set_attn_implementation('sdpa') to use the model by itself"
        )
    if dropout:
        raise refuse("dropout", dropout, "0", "call model.eval()")
    if is_causal is False or getattr(module, "is_causal", True) is False:
        raise refuse("is_causal", False, "True")
    for name, argument in given.items():
        if name not in HARMLESS and argument is not None and argument is not False:
            raise refuse(name, type(argument).__name__, "left out", "this model asks for more")
    if not isinstance(attention_mask, CausalMask):
        raise refuse("attention_mask", type(attention_mask).__name__, "the mask made here")
    # The mask decides, as in transformers' own sdpa and eager functions; the argument serves
    # kernels that take no mask, and where both are given they must not contradict.
    window = attention_mask.window_left
    if sliding_window is not None and window is not None and sliding_window != window + 1:
        raise refuse("sliding_window", sliding_window, f"{window + 1}, as in the layer's mask")
    if query.shape[0] != 1 or key.shape[2] != query.shape[2]:
        raise refuse(
            "key",
            f"{key.shape[2]} keys for {query.shape[2]} queries, batch {query.shape[0]}",
            "the step's own tokens in one row",
            "layers that read another layer's keys or a prefix do not fit a paged cache yet",
        )
    if not query.dtype == key.dtype == value.dtype:
        raise refuse("dtype", f"{query.dtype}, {key.dtype}, {value.dtype}", "one dtype for q, k, v")
    index = getattr(module, "layer_idx", None)
    if not isinstance(index, int):
        raise refuse("layer_idx", index, "an int on every attention module")
    layer = Layer(
        num_heads=query.shape[1],
        num_kv_heads=key.shape[1],
        head_dim=query.shape[3],
        head_dim_v=value.shape[3],
        dtype=query.dtype,
        scale=query.shape[3] ** -0.5 if scaling is None else float(scaling),
        window_left=window,
        softcap=softcap or None,
        sinks=s_aux is not None,
    )
    out = answerer.answer(
        index,
        layer,
        _rows(query),
        _rows(key),
        _rows(value),
        None if s_aux is None else s_aux.detach().float().reshape(-1).contiguous(),
    )
    return out.unsqueeze(0), None


def _rows(x: Tensor) -> Tensor:
    """[1, H, T, D] -> [T, H, D], a view unless the last stride is not 1."""
    rows = x[0].transpose(0, 1)
    return rows if rows.stride(-1) == 1 else rows.contiguous()


AttentionInterface.register(NAME, attention_function)
AttentionMaskInterface.register(NAME, describe_mask)
