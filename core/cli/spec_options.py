"""An AttentionSpec from command-line text: names as the field uses them, sizes such as 4k."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    import torch

    from pagedattn.spec import AttentionSpec

__all__ = ["parse_dtype", "parse_size", "parse_spec"]

_DTYPES = {
    "fp32": "float32",
    "float": "float32",
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "fp64": "float64",
    "fp8": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}


def parse_dtype(text: str) -> torch.dtype:
    """bfloat16, bf16, float16, fp16, float32, int8, fp8, ..."""
    import torch

    dtype = getattr(torch, _DTYPES.get(text, text), None)
    if not isinstance(dtype, torch.dtype):
        raise typer.BadParameter(f"{text!r} is not a dtype; try bfloat16, float16, float32, fp8")
    return dtype


def parse_size(text: str) -> int:
    """4096, 4k (4096), 1m (1048576)."""
    factor = {"k": 1024, "m": 1024**2, "g": 1024**3}.get(text[-1:].lower(), 1)
    digits = text if factor == 1 else text[:-1]
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 30):
        raise typer.BadParameter(f"{text[:40]!r} is not a size; try 4096 or 4k")
    return int(digits) * factor


def parse_spec(items: list[str]) -> AttentionSpec:
    """field=value pairs over a Llama-3-8B-like layer (32 heads, 8 kv heads, head_dim 128, block 16,
    bfloat16, scale head_dim**-0.5). Enums by name, window as left,right with - for None."""
    from pagedattn.spec import AttentionSpec, Graph, KVQuant, Layout, Mask

    enums: dict[str, Any] = {"layout": Layout, "mask": Mask, "kv_quant": KVQuant, "graph": Graph}
    fields: dict[str, Any] = {
        "num_heads": 32,
        "num_kv_heads": 8,
        "head_dim": 128,
        "block_size": 16,
        "dtype": "bfloat16",
    }
    known, given = AttentionSpec.__dataclass_fields__, set[str]()
    for item in items:
        name, equals, value = item.partition("=")
        name = name.replace("-", "_")
        if not equals or name not in known:
            raise typer.BadParameter(
                f"{item!r}: expected field=value with a field of {', '.join(known)}"
            )
        if name in given:
            raise typer.BadParameter(f"{item!r}: {name} is given twice")
        given.add(name)
        fields[name] = value
    try:
        head_dim = int(fields["head_dim"])
        fields.setdefault("scale", head_dim**-0.5 if head_dim > 0 else 1.0)
        return AttentionSpec(**{name: _parse(name, value, enums) for name, value in fields.items()})
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error


def _parse(name: str, value: Any, enums: dict[str, Any]) -> Any:
    if not isinstance(value, str):
        return value
    if name.endswith("dtype"):
        return parse_dtype(value)
    if name in enums:
        options = enums[name].__members__
        if value.upper() not in options:
            raise ValueError(f"{name}={value!r} is not one of {', '.join(options)}")
        return options[value.upper()]
    if name == "window":
        bounds = [None if part in ("", "-", "none") else int(part) for part in value.split(",")]
        return tuple(bounds) if len(bounds) != 1 else (bounds[0], None)
    if name in ("scale", "softcap"):
        return float(value)
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    return int(value)
