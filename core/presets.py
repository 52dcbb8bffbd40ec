"""Models by their cache: what `pagedattn memory` needs to know, by name or from a config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pagedattn.errors import UnknownName

__all__ = ["PRESETS", "ModelShape", "model_shape", "shape_of_config"]


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The KV cache of a model: `layers` layers of `kv_heads` heads, keys of head_dim (D), values of
    head_dim_v (Dv), which are a part of the keys when shared_kv (absorbed MLA).

    dtype  name of the model's dtype, in which its cache is kept unless it is quantised
    note   what the figures leave out; "" when nothing
    """

    layers: int
    kv_heads: int
    head_dim: int
    head_dim_v: int
    shared_kv: bool = False
    dtype: str = "bfloat16"
    note: str = ""


def _gqa(layers: int, kv_heads: int, head_dim: int, dtype: str = "bfloat16") -> ModelShape:
    return ModelShape(
        layers=layers, kv_heads=kv_heads, head_dim=head_dim, head_dim_v=head_dim, dtype=dtype
    )


PRESETS: Mapping[str, ModelShape] = MappingProxyType(
    {
        "llama2-7b": _gqa(32, 32, 128, "float16"),
        "llama2-70b": _gqa(80, 8, 128, "float16"),
        "llama3-8b": _gqa(32, 8, 128),
        "llama3-70b": _gqa(80, 8, 128),
        "mistral-7b": _gqa(32, 8, 128),
        "qwen3-8b": _gqa(36, 8, 128),
        "smollm2-135m": _gqa(30, 3, 64),
        "deepseek-v3": ModelShape(
            layers=61, kv_heads=1, head_dim=512 + 64, head_dim_v=512, shared_kv=True
        ),
    }
)

_WITH_CACHE = {"full_attention", "sliding_attention", "chunked_attention"}


def model_shape(model: str) -> ModelShape:
    """A preset, or a config.json (or the folder that holds one).

    Raises UnknownName for a name that is neither, ValueError for a file that does not tell."""
    if model in PRESETS:
        return PRESETS[model]
    path = Path(model)
    if path.is_dir():
        path /= "config.json"
    if not path.is_file():
        if path.name.endswith(".json") or len(path.parts) > 1:
            raise ValueError(f"no such file: {path}")
        raise UnknownName("model preset", model, sorted(PRESETS))
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}") from None
    return shape_of_config(config, str(path))


def shape_of_config(config: Any, source: str) -> ModelShape:
    """The shape that a Hugging Face config tells; `source` is named in errors.

    Without num_key_value_heads every attention head has its own keys, as in transformers. A
    kv_lora_rank means MLA, cached absorbed: one latent head for all."""
    if not isinstance(config, dict):
        raise ValueError(f"{source}: expected an object of keys, not {type(config).__name__}")
    if isinstance(config.get("text_config"), dict):  # a multimodal model
        config, source = config["text_config"], f"{source}, text_config"
    layers = _number(config, "num_hidden_layers", source)
    kinds = config.get("layer_types") or []
    if not isinstance(kinds, list) or (kinds and len(kinds) != layers):
        raise ValueError(f"{source}: layer_types is no list of num_hidden_layers={layers} kinds")
    if others := set(map(str, kinds)) - _WITH_CACHE:
        raise ValueError(
            f"{source}: layer_types has {', '.join(sorted(others))}, whose memory is no "
            "KV cache; give --layers (those with attention), --kv-heads and --head-dim instead"
        )
    named = config.get("dtype") or config.get("torch_dtype") or "bfloat16"
    dtype = str(named).removeprefix("torch.")
    note = ""
    windowed = config.get("sliding_window") and config.get("use_sliding_window", True)
    if "sliding_attention" in kinds or (windowed and not kinds):
        note = "layers with a sliding window are counted in full: an upper bound"
    if config.get("kv_lora_rank") is not None:
        rank = _number(config, "kv_lora_rank", source)
        rope = _number(config, "qk_rope_head_dim", source)
        return ModelShape(
            layers=layers,
            kv_heads=1,
            head_dim=rank + rope,
            head_dim_v=rank,
            shared_kv=True,
            dtype=dtype,
            note=note,
        )
    heads = _number(config, "num_attention_heads", source)
    kv_heads = heads
    if config.get("num_key_value_heads") is not None:
        kv_heads = _number(config, "num_key_value_heads", source)
    if config.get("head_dim") is not None:
        head_dim = _number(config, "head_dim", source)
    else:
        hidden = _number(config, "hidden_size", source, "nor head_dim")
        if hidden % heads:
            raise ValueError(
                f"{source}: hidden_size={hidden} is not a multiple of num_attention_heads={heads} "
                "and there is no head_dim"
            )
        head_dim = hidden // heads
    return ModelShape(
        layers=layers,
        kv_heads=kv_heads,
        head_dim=head_dim,
        head_dim_v=head_dim,
        dtype=dtype,
        note=note,
    )


def _number(config: Mapping[str, Any], key: str, source: str, other: str = "") -> int:
    if config.get(key) is None:
        raise ValueError(f"{source}: there is no key {key}" + (f", {other}" if other else ""))
    value = config[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{source}: {key}={value!r} is not a positive integer")
    return value
