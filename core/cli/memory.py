"""`pagedattn memory`: how much KV cache a model needs, and what fits into a given memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

import typer

from pagedattn.cli.backends import JsonOption
from pagedattn.cli.output import emit_json, print_table
from pagedattn.cli.spec_options import parse_dtype, parse_size
from pagedattn.presets import PRESETS, ModelShape, model_shape

__all__ = ["memory"]

_NAMES = ", ".join(PRESETS)


def memory(
    model: Annotated[
        str | None,
        typer.Option(help=f"config.json of a Hugging Face model, or a name: {_NAMES}."),
    ] = None,
    layers: Annotated[int | None, typer.Option(help="Attention layers.")] = None,
    kv_heads: Annotated[int | None, typer.Option(help="Key/value heads of a layer.")] = None,
    head_dim: Annotated[int | None, typer.Option(help="Width of a key head.")] = None,
    head_dim_v: Annotated[
        int | None, typer.Option(help="Width of a value head (default: head_dim).")
    ] = None,
    shared_kv: Annotated[
        bool, typer.Option(help="Values are a part of the keys (absorbed MLA).")
    ] = False,
    batch: Annotated[int, typer.Option(help="Sequences.")] = 1,
    context: Annotated[str, typer.Option(help="Tokens of each, e.g. 4096 or 4k.")] = "4096",
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Cache dtype: bfloat16, float16, fp8, int8 (default: the model's, else bfloat16; "
            "fp8 with --kv-quant)."
        ),
    ] = None,
    kv_quant: Annotated[
        str,
        typer.Option(
            help="Scales of an 8-bit cache, counted too: none, per_tensor, per_head, "
            "per_token_head."
        ),
    ] = "none",
    block_size: Annotated[int, typer.Option(help="Tokens of a block.")] = 16,
    available: Annotated[
        str | None,
        typer.Option(
            "--memory",
            help="Memory for the cache, e.g. 80GiB: tells the largest batch at --context and the "
            "longest context at --batch.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Bytes of KV cache for a batch of sequences, in whole blocks.

    Options that describe the layers overrule --model."""
    from pagedattn.spec import KVQuant, kv_cache_bytes

    tokens = parse_size(context)
    try:
        shape = model_shape(model) if model is not None else None
        if kv_quant.upper() not in KVQuant.__members__:
            known = ", ".join(kind.value for kind in KVQuant)
            raise ValueError(f"--kv-quant {kv_quant!r}: known are {known}")
        quant = KVQuant[kv_quant.upper()]
        if dtype is None:
            dtype = _default_dtype(shape, quant is not KVQuant.NONE)
        kept = parse_dtype(dtype)
        if not kept.is_floating_point and dtype != "int8":
            raise ValueError(f"--dtype {dtype}: a KV cache is kept in floating point or int8")
        if quant is not KVQuant.NONE and kept.itemsize != 1:
            raise ValueError(f"--kv-quant {kv_quant} needs an 8-bit --dtype, not {kept}")
        layer = _layer(shape, layers, kv_heads, head_dim, head_dim_v, shared_kv)
        for name, value in (("batch", batch), ("context", tokens)):
            if value < 1:
                raise ValueError(f"--{name} is {value}; at least 1 is required")

        def count(batch: int, context: int) -> int:
            return kv_cache_bytes(
                **layer,
                dtype=kept,
                kv_quant=quant,
                batch=batch,
                context=context,
                block_size=block_size,
            )

        total, block = count(batch, tokens), count(1, block_size) - count(0, 0)
        result: dict[str, Any] = {
            "bytes": total,
            "bytes_per_token": block // block_size,
            "bytes_per_block": block,
            "blocks": batch * -(-tokens // block_size),
            "batch": batch,
            "context": tokens,
            "block_size": block_size,
            "model": model,
            **layer,
            "dtype": kept,
            "kv_quant": quant.value,
            "note": shape.note if shape else "",
        }
        if available is not None:
            limit = _bytes(available)
            result |= {
                "memory": limit,
                "largest_batch": _largest(lambda n: count(n, tokens), limit),
                "largest_context": block_size
                * _largest(lambda n: count(batch, n * block_size), limit),
            }
    except (LookupError, TypeError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    if as_json:
        emit_json(result)
        return
    _print(result)


def _layer(
    shape: ModelShape | None,
    layers: int | None,
    kv_heads: int | None,
    head_dim: int | None,
    head_dim_v: int | None,
    shared_kv: bool,
) -> dict[str, Any]:
    """What kv_cache_bytes() asks about the layers: the options, else the model's."""
    given = {"layers": layers, "kv_heads": kv_heads, "head_dim": head_dim}
    if shape is None:
        missing = [f"--{n.replace('_', '-')}" for n, value in given.items() if value is None]
        if missing:
            raise ValueError(f"missing {', '.join(missing)}; give them, or --model")
    else:
        if head_dim_v is None:
            head_dim_v = shape.head_dim_v if head_dim is None else None
        given = {n: getattr(shape, n) if v is None else v for n, v in given.items()}
        shared_kv = shared_kv or shape.shared_kv
    return {
        "num_layers": given["layers"],
        "num_kv_heads": given["kv_heads"],
        "head_dim": given["head_dim"],
        "head_dim_v": given["head_dim"] if head_dim_v is None else head_dim_v,
        "shared_kv": shared_kv,
    }


def _default_dtype(shape: ModelShape | None, quantised: bool) -> str:
    if quantised:
        return "fp8"
    return shape.dtype if shape else "bfloat16"


def _largest(need: Callable[[int], int], limit: int) -> int:
    """The largest n with need(n) <= limit; need grows with n."""
    low, high = 0, 1
    while need(high) <= limit:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if need(middle) <= limit else (low, middle)
    return low


def _bytes(text: str) -> int:
    """ "80GiB", "80G", "512MiB" -> bytes; powers of 1024."""
    match = re.fullmatch(
        r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([kmgt]?)(?:i?b)?", text.strip().lower()
    )
    if match is None:
        raise ValueError(f"--memory {text!r}: expected something like 80GiB or 800MiB")
    count = int(float(match[1]) * 1024 ** " kmgt".index(match[2] or " "))
    if not count:
        raise ValueError(f"--memory {text!r} is less than a byte")
    return count


def _print(result: dict[str, Any]) -> None:
    total, block, token = (result[k] for k in ("bytes", "bytes_per_block", "bytes_per_token"))
    rows = [
        ["total", f"{total:,}", human(total)],
        [
            f"block of {result['block_size']}",
            f"{block:,}",
            f"{human(block)}, {result['blocks']:,} blocks",
        ],
        ["token", f"{token:,}", human(token)],
    ]
    print_table(["", "bytes", ""], rows)
    if "memory" in result:
        what = human(result["memory"])
        batch, context = result["largest_batch"], result["largest_context"]
        print(f"{what} hold a batch of {batch:,} at a context of {result['context']:,} tokens")
        print(f"{what} hold a context of {context:,} tokens at a batch of {result['batch']:,}")
    if result["note"]:
        print(f"note: {result['note']}")


def human(count: float) -> str:
    """1536 -> "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"
