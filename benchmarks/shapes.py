"""Head shapes of published models, by name, and the text form Hq/Hkv/D[/Dv]."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SHAPES", "Shape", "parse_shape"]


@dataclass(frozen=True)
class Shape:
    """Hq query heads, Hkv key/value heads, widths D and Dv; shared_kv as in absorbed MLA."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    head_dim_v: int
    shared_kv: bool = False

    def __str__(self) -> str:
        text = f"{self.num_heads}/{self.num_kv_heads}/{self.head_dim}"
        return text if self.head_dim_v == self.head_dim else f"{text}/{self.head_dim_v}"


SHAPES = {
    "llama3-8b": Shape(32, 8, 128, 128),
    "llama3-70b": Shape(64, 8, 128, 128),
    "llama2-7b": Shape(32, 32, 128, 128),
    "qwen2.5-7b": Shape(28, 4, 128, 128),
    "gemma2-9b": Shape(16, 8, 256, 256),
    "smollm2": Shape(9, 3, 64, 64),
    "deepseek-v3": Shape(128, 1, 576, 512, shared_kv=True),
}


def parse_shape(text: str) -> Shape:
    """A name of SHAPES, or Hq/Hkv/D or Hq/Hkv/D/Dv. Raises ValueError."""
    if text in SHAPES:
        return SHAPES[text]
    parts = text.split("/")
    if len(parts) not in (3, 4) or not all(part.isdecimal() and int(part) for part in parts):
        raise ValueError(f"shape {text!r} is neither Hq/Hkv/D[/Dv] nor one of {', '.join(SHAPES)}")
    heads, kv_heads, dim, *value_dim = map(int, parts)
    if heads % kv_heads:
        raise ValueError(f"shape {text!r}: {heads} heads are no multiple of {kv_heads} kv heads")
    return Shape(heads, kv_heads, dim, value_dim[0] if value_dim else dim)
