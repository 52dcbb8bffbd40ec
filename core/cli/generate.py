"""`pagedattn generate`: text from a real model, on the backend and allocator that you choose."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pagedattn.cli.backends import JsonOption
from pagedattn.cli.output import emit_json

if TYPE_CHECKING:
    from pagedattn.engine import Completion, Engine, SamplingParams

__all__ = ["generate"]


def generate(
    prompts: Annotated[list[str], typer.Argument(help="One text or more; they run together.")],
    model: Annotated[str, typer.Option(help="smollm2, a directory, or a .gguf file.")] = "smollm2",
    backend: Annotated[str, typer.Option(help="Attention backend.")] = "reference",
    allocator: Annotated[str, typer.Option(help="Block allocator.")] = "paged",
    num_blocks: Annotated[int, typer.Option(help="Blocks of the KV pool.", min=1)] = 512,
    block_size: Annotated[int, typer.Option(help="Tokens of a block.", min=1)] = 16,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    max_new_tokens: Annotated[int, typer.Option(help="Tokens per prompt at most.", min=1)] = 64,
    temperature: Annotated[float, typer.Option(help="0 is greedy.", min=0)] = 0.0,
    top_k: Annotated[
        int | None, typer.Option(help="Sample from the k most probable tokens.")
    ] = None,
    top_p: Annotated[float | None, typer.Option(help="Sample from this much probability.")] = None,
    seed: Annotated[int | None, typer.Option(help="Equal seeds give equal texts.")] = None,
    chat: Annotated[bool, typer.Option(help="Use the model's chat template.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Continue one or more prompts with a real model; a line of figures follows."""
    from pagedattn.cli.spec_options import parse_dtype
    from pagedattn.engine import Engine, SamplingParams

    if temperature == 0 and (top_k is not None or top_p is not None or seed is not None):
        raise typer.BadParameter("--top-k, --top-p and --seed need a --temperature above 0")
    try:
        params = SamplingParams(
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    console = Console(stderr=True)
    with console.status(f"loading {model}"):
        start = perf_counter()
        engine = Engine(
            model,
            backend=backend,
            allocator=allocator,
            num_blocks=num_blocks,
            block_size=block_size,
            device=device,
            dtype=parse_dtype(dtype),
        )
        loaded = perf_counter() - start
    with engine:
        start = perf_counter()
        completions = _run(engine, prompts, params, chat, console)
        figures = _figures(engine, completions, loaded, perf_counter() - start)
    if as_json:
        emit_json(
            {
                "model": model,
                **figures,
                "completions": [
                    {
                        "prompt": prompt,
                        "text": done.text,
                        "token_ids": list(done.token_ids),
                        "finish_reason": str(done.finish_reason),
                        "prompt_len": done.prompt_len,
                        "cached_tokens": done.cached_tokens,
                        "preemptions": done.preemptions,
                    }
                    for prompt, done in zip(prompts, completions, strict=True)
                ],
            }
        )
        return
    out = Console()
    for prompt, done in zip(prompts, completions, strict=True):
        out.print(f"> {prompt}", style="bold", markup=False, highlight=False)
        out.print(f"{done.text}\n", markup=False, highlight=False)
    # Nobody may take an emulated kernel's time for its speed.
    speed = (
        "{tokens_per_second:.1f} tokens/s" if not figures["emulated"] else "no speed: {emulated}"
    )
    out.print(
        f"{{generated_tokens}} tokens in {{seconds:.1f}} s, {speed}; backend "
        "{backend}, allocator {allocator}; blocks: peak {peak_blocks} of {num_blocks}, "
        "in use now {live_blocks}; preemptions {preemptions}; model loaded in "
        "{load_seconds:.1f} s".format(**figures),
        style="dim",
        highlight=False,
    )


def _run(
    engine: Engine, prompts: list[str], params: SamplingParams, chat: bool, console: Console
) -> list[Completion]:
    columns = (
        TextColumn("generating"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tokens"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=len(prompts) * params.max_new_tokens)
        return engine.generate(
            prompts,
            params,
            chat=chat,
            progress=lambda now: bar.update(task, completed=now.tokens, total=now.max_tokens),
        )


def _figures(
    engine: Engine, completions: list[Completion], load_seconds: float, seconds: float
) -> dict[str, Any]:
    """Seconds are wall-clock; tokens_per_second counts generated tokens only."""
    stats, pool = engine.stats, engine.allocator.stats()
    generated = sum(len(done.token_ids) for done in completions)
    return {
        "backend": engine.backend.name,
        "emulated": str(emulation.judged) if (emulation := engine.backend.emulated) else "",
        "allocator": engine.allocator.name,
        "generated_tokens": generated,
        "prompt_tokens": sum(done.prompt_len for done in completions),
        "seconds": seconds,
        "tokens_per_second": generated / seconds,
        "load_seconds": load_seconds,
        "num_blocks": pool.total,
        "peak_blocks": stats.peak_blocks,
        "live_blocks": pool.live,
        "preemptions": stats.preemptions,
        "steps": stats.steps,
        "plan_seconds": stats.plan_s,
        "write_seconds": stats.write_s,
        "run_seconds": stats.run_s,
        "model_seconds": stats.model_s,
        "sample_seconds": stats.sample_s,
    }
