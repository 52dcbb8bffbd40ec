"""The `pagedattn` command. One file per noun here; `check`, `bench` and others come in through the
`pagedattn_commands` hook from the parts that own them, or from a plugin.

Exit codes: 0 done, 1 a judged thing failed (check, compare), 2 wrong usage or nothing to judge.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import typer

from pagedattn import __version__, registry
from pagedattn.cli.output import fail, warn
from pagedattn.errors import NotReady, PagedAttnError
from pagedattn.hooks import OfferKind
from pagedattn.registry import State

__all__ = ["build_app", "main"]

OWN = (
    "backends",
    "allocators",
    "explain",
    "memory",
    "generate",
    "env",
    "new-plugin",
    "warmup",
)


def build_app() -> typer.Typer:
    """The typer application with every command that is offered here. A command function may carry
    click's context settings in an attribute of that name."""
    app = typer.Typer(
        name="pagedattn",
        help="Choose, judge and compare paged-attention backends and KV allocators.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def options(
        version: Annotated[
            bool, typer.Option("--version", help="Print the version.", is_eager=True)
        ] = False,
    ) -> None:
        if version:
            print(__version__)
            raise typer.Exit

    from pagedattn.cli import (
        allocators,
        backends,
        env,
        explain,
        generate,
        memory,
        new_plugin,
        warmup,
    )

    app.command("backends")(backends.backends)
    app.command("allocators")(allocators.allocators)
    app.command("explain")(explain.explain)
    app.command("memory")(memory.memory)
    app.command("generate")(generate.generate)
    app.command("env")(env.env)
    app.command("warmup")(warmup.warmup)
    app.command("new-plugin")(new_plugin.new_plugin)
    for row in registry.rows(OfferKind.COMMAND):
        if row.offer is None:
            continue
        if row.name in OWN or row.state is State.DUPLICATE:
            warn(f"{row.source} offers a command named {row.name!r}, which is taken")
            continue
        command = _not_ready(row) if row.state is not State.READY else _load(row)
        app.command(row.name, context_settings=getattr(command, "context_settings", None))(command)
    return app


def _load(row: registry.Row) -> Callable[..., Any]:
    assert row.offer is not None
    try:
        command: Callable[..., Any] = row.offer.load()
        if not callable(command):
            raise TypeError(f"{command!r} is not a function")
        trial = typer.Typer()
        trial.command()(command)
        typer.main.get_command(trial)  # a signature that typer cannot read fails here
    except (
        Exception,
        SystemExit,
    ) as error:  # the plugin border: one broken command leaves the others alone
        detail = f"{type(error).__name__}: {error}; report it to {row.source}"
        return _not_ready(replace(row, state=State.BROKEN, detail=detail))
    return command


def _not_ready(row: registry.Row) -> Callable[[], None]:
    def command() -> None:
        raise NotReady("command", row.name, row.state, row.detail)

    command.__doc__ = f"({row.state}: {row.detail})"
    return command


def main() -> None:
    """Run the command line; errors raised on purpose end in one line, not in a trace."""
    try:
        build_app()()
    except PagedAttnError as error:
        fail(str(error))
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)


if __name__ == "__main__":
    main()
