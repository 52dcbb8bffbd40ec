"""`pagedattn memory`: how much KV cache a model needs."""

from __future__ import annotations

from typing import Annotated

import typer

from pagedattn.cli.backends import JsonOption
from pagedattn.cli.output import emit_json, print_table
from pagedattn.cli.spec_options import parse_dtype, parse_size


def memory(
    layers: Annotated[int, typer.Option(help="Attention layers.")],
    kv_heads: Annotated[int, typer.Option(help="Key/value heads of a layer.")],
    head_dim: Annotated[int, typer.Option(help="Width of a key head.")],
    head_dim_v: Annotated[
        int | None, typer.Option(help="Width of a value head (default: head_dim).")
    ] = None,
    shared_kv: Annotated[
        bool, typer.Option(help="Values are a part of the keys (absorbed MLA).")
    ] = False,
    batch: Annotated[int, typer.Option(help="Sequences.")] = 1,
    context: Annotated[str, typer.Option(help="Tokens of each, e.g. 4096 or 4k.")] = "4096",
    dtype: Annotated[str, typer.Option(help="Cache dtype: bfloat16, float16, fp8, int8.")] = (
        "bfloat16"
    ),
    block_size: Annotated[int, typer.Option(help="Tokens of a block.")] = 16,
    as_json: JsonOption = False,
) -> None:
    """Bytes of KV cache for a batch of sequences, in whole blocks."""
    from pagedattn.spec import kv_cache_bytes

    tokens = parse_size(context)

    def count(batch: int, context: int) -> int:
        return kv_cache_bytes(
            num_layers=layers,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            head_dim_v=head_dim_v,
            shared_kv=shared_kv,
            dtype=parse_dtype(dtype),
            batch=batch,
            context=context,
            block_size=block_size,
        )

    try:
        total, block, token = count(batch, tokens), count(1, block_size), count(1, 1) // block_size
    except (TypeError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    blocks = batch * -(-tokens // block_size)
    if as_json:
        emit_json(
            {
                "bytes": total,
                "bytes_per_token": token,
                "bytes_per_block": block,
                "blocks": blocks,
                "batch": batch,
                "context": tokens,
                "block_size": block_size,
            }
        )
        return
    print_table(
        ["", "bytes", ""],
        [
            ["total", f"{total:,}", human(total)],
            [f"block of {block_size}", f"{block:,}", f"{human(block)}, {blocks:,} blocks"],
            ["token", f"{token:,}", human(token)],
        ],
    )


def human(count: float) -> str:
    """1536 -> "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"
