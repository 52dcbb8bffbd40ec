"""Attention layers of models that people serve: what a compile gate asks every launcher for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from pagedattn.presets import PRESETS
from pagedattn.spec import AttentionSpec, Graph, KVQuant, Layout, Limits, Mask

__all__ = ["MIXED_SPECS", "MODEL_SPECS", "ModelSpec"]


@dataclass(frozen=True)
class ModelSpec:
    """One kind of attention layer of a model, as it is served.

    name    model and kind of layer
    spec    the layer
    limits  of a server with a full GPU
    """

    name: str
    spec: AttentionSpec
    limits: Limits


def _model(
    name: str,
    heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    context: int = 131072,
    block_size: int = 16,
    dtype: torch.dtype = torch.bfloat16,
    scale: float | None = None,
    **options: Any,
) -> ModelSpec:
    spec = AttentionSpec(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        dtype=dtype,
        scale=head_dim**-0.5 if scale is None else scale,
        **options,
    )
    blocks = 16 * -(-context // block_size)  # room for 16 requests at full length
    limits = Limits(max_requests=256, max_tokens=8192, max_seq_len=context, num_blocks=blocks)
    return ModelSpec(name, spec, limits)


def _preset(name: str, heads: int, *, title: str, **options: Any) -> ModelSpec:
    """A model whose cache core/presets.py knows, with its query heads."""
    shape = PRESETS[name]
    if shape.shared_kv:
        options |= {"shared_kv": True, "head_dim_v": shape.head_dim_v}
    options.setdefault("dtype", getattr(torch, shape.dtype))
    return _model(title, heads, shape.kv_heads, shape.head_dim, **options)


def _cache(dtype: torch.dtype, quant: KVQuant) -> dict[str, Any]:
    return {"kv_dtype": dtype, "kv_quant": quant}


_E4M3, _E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
_TOKEN = KVQuant.PER_TOKEN_HEAD

MODEL_SPECS: tuple[ModelSpec, ...] = (
    _preset("llama3-8b", 32, title="Llama 3 8B"),
    _preset(
        "llama3-8b",
        32,
        title="Llama 3 8B, int8 cache, a scale per token and head",
        **_cache(torch.int8, KVQuant.PER_TOKEN_HEAD),
    ),
    _preset("llama3-8b", 32, title="Llama 3 8B, token tree of a speculator", mask=Mask.TREE),
    _preset(
        "llama3-70b",
        64,
        title="Llama 3 70B, fp8 e4m3 cache, HND",
        layout=Layout.HND,
        **_cache(_E4M3, KVQuant.PER_TENSOR),
    ),
    _model("Llama 3.2 1B", 32, 8, 64, block_size=32),
    _preset("llama2-7b", 32, title="Llama 2 7B (no GQA)", context=4096),
    _preset("qwen3-8b", 32, title="Qwen3 8B, graphs of decode", context=40960, graph=Graph.DECODE),
    _model("Qwen3 235B A22B, fp8 e5m2 cache", 64, 4, 128, **_cache(_E5M2, KVQuant.PER_HEAD)),
    _model("Qwen2.5 7B, batch invariant", 28, 4, 128, batch_invariant=True),
    _preset("mistral-7b", 32, title="Mistral 7B, window 4096", window=(4095, None)),
    _model("Gemma 2 9B, local layer", 16, 8, 256, context=8192, softcap=50.0, window=(4095, None)),
    _model("Gemma 2 27B, global layer", 32, 16, 128, context=8192, softcap=50.0, scale=144**-0.5),
    _model("Gemma 3 12B, local layer", 16, 8, 256, window=(1023, None)),
    _model("GPT-OSS 20B, local layer", 64, 8, 64, sinks=True, window=(127, None)),
    _model("GPT-OSS 120B, global layer, LSE", 64, 8, 64, sinks=True, return_lse=True),
    _preset("deepseek-v3", 128, title="DeepSeek V3, absorbed MLA", block_size=64, scale=192**-0.5),
    _preset("smollm2-135m", 9, title="SmolLM2 135M in float32", context=8192, dtype=torch.float32),
    _model("Phi-3 mini, window 2047", 32, 32, 96, context=4096, window=(2046, None)),
    _model("Phi-4 mini", 24, 8, 128, block_size=64),
    _model("BLOOM 7B (ALiBi)", 32, 32, 128, context=2048, dtype=torch.float16, alibi=True),
)
"""Twenty layers; between them every option that changes a kernel, and groups 1, 2, 3, 4, 7, 8, 16
and 128."""

_ALL: dict[str, Any] = {"block_size": 48, "mask": Mask.FULL, "window": (4095, 0), "softcap": 30.0}

MIXED_SPECS: tuple[ModelSpec, ...] = (
    _model("odd head, all options", 32, 8, 96, **_ALL, shared_kv=True, head_dim_v=80),
    _model("odd head, all options, int8 cache", 32, 8, 96, **_ALL, **_cache(torch.int8, _TOKEN)),
    _model("odd block, all options", 32, 8, 128, **_ALL),
)
"""Of no model: values and sets of options for which a backend keeps no kernel of their own, and so
the kernels that find out everything at run time."""
