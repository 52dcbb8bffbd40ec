"""`pagedattn warmup`: compile now what open() would compile when the server starts."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.markup import escape

from pagedattn.cli.backends import JsonOption
from pagedattn.cli.output import emit_json, fail, print_table

if TYPE_CHECKING:
    from pagedattn.attention import AttentionBackend
    from pagedattn.device import DeviceInfo
    from pagedattn.spec import AttentionSpec, Limits

T = TypeVar("T")


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
    device: Annotated[
        str, typer.Option(help="A device of this machine, cuda, cuda:1, cpu, or any GPU: sm_90.")
    ] = "",
    max_requests: Annotated[int, typer.Option(help="Limits of the op that will be opened.")] = 256,
    max_tokens: Annotated[str, typer.Option(help="Rows of a step, e.g. 8k.")] = "8k",
    max_seq_len: Annotated[str, typer.Option(help="Longest sequence, e.g. 32k.")] = "32k",
    num_blocks: Annotated[int, typer.Option(help="Blocks of the pool.")] = 4096,
    as_json: JsonOption = False,
) -> None:
    """Open a backend for a layer, twice: the first time compiles, the second finds it compiled.

    Backends that keep compiled kernels on disk start without compiling afterwards. For a GPU that
    is not here, named by its architecture, those that can compile without it do: for an image that
    will run there. Fails with the backend's reasons when it does not serve the layer."""
    import torch

    from pagedattn.cli.spec_options import parse_size, parse_spec
    from pagedattn.device import DeviceInfo
    from pagedattn.registry import backend as named
    from pagedattn.spec import Limits

    spec, found = parse_spec([*(fields or []), *(spec_fields or [])]), named(backend)
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    info = DeviceInfo.of(where)
    try:
        limits = Limits(
            max_requests=max_requests,
            max_tokens=parse_size(max_tokens),
            max_seq_len=parse_size(max_seq_len),
            num_blocks=num_blocks,
        )
    except ValueError as error:
        fail(str(error))
    facts = _opened(found, spec, limits, where) if info.real else _ahead(found, spec, limits, info)
    if as_json:
        emit_json(facts)
        return
    shown = [
        [key, escape("\n".join(value) if isinstance(value, list) else str(value))]
        for key, value in facts.items()
    ]
    print_table(["what", "value"], shown)


def _opened(
    backend: AttentionBackend, spec: AttentionSpec, limits: Limits, device: str
) -> dict[str, Any]:
    """On a device of this machine."""
    op, seconds = _twice(lambda: backend.open(spec, limits, device=device))
    return {
        "backend": backend.name,
        "device": str(op.info),
        "first_open_s": seconds[0],
        "second_open_s": seconds[1],
        "workspace_bytes": op.workspace.nbytes,
        **backend.describe(spec, op.info),
    }


def _ahead(
    backend: AttentionBackend, spec: AttentionSpec, limits: Limits, info: DeviceInfo
) -> dict[str, Any]:
    """For a device that need not be here."""
    from pagedattn.capabilities import check
    from pagedattn.errors import Unsupported

    if refusals := check(backend, spec, info):
        raise Unsupported(refusals)
    kernels, seconds = _twice(lambda: list(backend.compile_ahead(spec, limits, info)))
    return {
        "backend": backend.name,
        "device": str(info),
        "first_compile_s": seconds[0],
        "second_compile_s": seconds[1],
        "kernels": kernels,
        **backend.describe(spec, info),
    }


def _twice(action: Callable[[], T]) -> tuple[T, list[float]]:
    """The last result, and the seconds that each took."""
    seconds = []
    for _ in range(2):
        start = perf_counter()
        result = action()
        seconds.append(round(perf_counter() - start, 4))
    return result, seconds
