"""`pagedattn warmup`: compile now what open() would compile when the server starts."""

from __future__ import annotations

from time import perf_counter
from typing import Annotated

import typer
from rich.markup import escape

from pagedattn.cli.backends import JsonOption
from pagedattn.cli.output import emit_json, fail, print_table


def warmup(
    backend: Annotated[str, typer.Argument(help="Name of an attention backend.")],
    fields: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FIELD=VALUE...",
            help="Fields of the AttentionSpec over a Llama-3-8B layer, as in `pagedattn explain`.",
        ),
    ] = None,
    spec_fields: Annotated[
        list[str] | None,
        typer.Option("--spec", metavar="FIELD=VALUE", help="The same, as an option."),
    ] = None,
    device: Annotated[str, typer.Option(help="A device of this machine: cuda, cuda:1, cpu.")] = "",
    max_requests: Annotated[int, typer.Option(help="Limits of the op that will be opened.")] = 256,
    max_tokens: Annotated[str, typer.Option(help="Rows of a step, e.g. 8k.")] = "8k",
    max_seq_len: Annotated[str, typer.Option(help="Longest sequence, e.g. 32k.")] = "32k",
    num_blocks: Annotated[int, typer.Option(help="Blocks of the pool.")] = 4096,
    as_json: JsonOption = False,
) -> None:
    """Open a backend for a layer, twice: the first time compiles, the second finds it compiled.

    Backends that keep compiled kernels on disk start without compiling afterwards. Fails with the
    backend's reasons when it does not serve the layer."""
    import torch

    from pagedattn.cli.spec_options import parse_size, parse_spec
    from pagedattn.device import DeviceInfo
    from pagedattn.registry import backend as named
    from pagedattn.spec import Limits

    spec, found = parse_spec([*(fields or []), *(spec_fields or [])]), named(backend)
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    DeviceInfo.of(where)
    try:
        limits = Limits(
            max_requests=max_requests,
            max_tokens=parse_size(max_tokens),
            max_seq_len=parse_size(max_seq_len),
            num_blocks=num_blocks,
        )
    except ValueError as error:
        fail(str(error))
    seconds = []
    for _ in range(2):
        start = perf_counter()
        op = found.open(spec, limits, device=where)
        seconds.append(perf_counter() - start)
    facts = {
        "backend": backend,
        "device": str(op.info),
        "first_open_s": round(seconds[0], 4),
        "second_open_s": round(seconds[1], 4),
        "workspace_bytes": op.workspace.nbytes,
        **found.describe(spec, op.info),
    }
    if as_json:
        emit_json(facts)
        return
    print_table(["what", "value"], [[key, escape(str(value))] for key, value in facts.items()])
