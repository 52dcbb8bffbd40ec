"""`pagedattn explain`: which backends serve a layer on a device, and why the others do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from pagedattn.cli.backends import JsonOption
from pagedattn.cli.output import emit_json, print_table

if TYPE_CHECKING:
    from pagedattn.attention import AttentionBackend
    from pagedattn.device import DeviceInfo
    from pagedattn.errors import Refusal
    from pagedattn.spec import AttentionSpec


def explain(
    fields: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FIELD=VALUE...",
            help="Fields of the AttentionSpec over a Llama-3-8B layer, e.g. head_dim=64 softcap=50 "
            "window=4095,- kv_quant=per_head kv_dtype=fp8.",
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(help="cpu, cuda, cuda:1, or a made-up one: sm80, sm90.")
    ] = "cpu",
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Also what each backend says of itself.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Say which backends serve a layer, and every reason of those that do not."""
    from pagedattn import backend
    from pagedattn.cli.spec_options import parse_spec
    from pagedattn.device import DeviceInfo
    from pagedattn.registry import explain as explain_all

    spec, info = parse_spec(fields or []), DeviceInfo.of(device)
    explanations = explain_all(spec, info)
    facts = {
        e.row.name: _describe(backend(e.row.name), spec, info)
        for e in explanations
        if verbose and not e.refusals
    }
    if as_json:
        emit_json(
            [
                {
                    "name": e.row.name,
                    "serves": not e.refusals,
                    "refusals": [
                        {
                            "code": r.code,
                            "requested": r.requested,
                            "supported": r.supported,
                            "hint": r.hint,
                        }
                        for r in e.refusals
                    ],
                    "describe": facts.get(e.row.name, {}),
                }
                for e in explanations
            ]
        )
        return
    lines = []
    for e in explanations:
        reasons = "\n".join(map(_reason, e.refusals))
        about = "\n".join(f"{key}: {value}" for key, value in facts.get(e.row.name, {}).items())
        lines.append(
            [
                escape(e.row.name),
                "[red]no[/]" if e.refusals else "[green]yes[/]",
                escape(reasons or about),
            ]
        )
    print_table(["backend", "serves", "reasons"], lines, title=f"{spec}\non {info}")


def _describe(
    backend: AttentionBackend, spec: AttentionSpec, info: DeviceInfo
) -> dict[str, object]:
    try:
        return dict(backend.describe(spec, backend.device_info(info)))
    except Exception as error:  # the plugin border
        return {"describe() failed": f"{type(error).__name__}: {error}"}


def _reason(refusal: Refusal) -> str:
    hint = f"; {refusal.hint}" if refusal.hint else ""
    if refusal.code == "unavailable":  # nothing that was asked for
        return f"unavailable: {refusal.hint or refusal.requested}"
    asked = f"{refusal.code}: asked for {_short(refusal.requested)}"
    return f"{asked}, supported {refusal.supported}{hint}"


def _short(value: object) -> str:
    return str(getattr(value, "name", value)).removeprefix("torch.")
